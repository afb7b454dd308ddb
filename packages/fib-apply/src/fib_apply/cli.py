"""Command line of ``fib-apply``: explain, table, warm and check."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import Parameter
from pathlib import Path
from typing import Any

import attrs
from fib_schema import AxisConst, Definition, FibError, Problem, Solution, UnknownName
from fib_schema.command import FAILED, CommandParser, print_problems, run_command
from fib_schema.data_files import missing_data
from fib_schema.display import counted, escape_line, stacked_row, terminal_width

from .build_service.service import BuildService
from .config import ApplyConfig, ApplyConfigRegistry, OnMiss
from .config_sources import ConfigFile, read_config
from .environment import CONFIG_VARIABLE
from .errors import InvalidConfigFile, InvalidSetting, UnusableOption
from .explain import Answer, format_fallback, format_latency, hardware_lines, plain_ranking, sorted_keys
from .key import ApplyKey
from .routing.codegen import map_parameters
from .routing.native.module import prepare_native, request_native, wait_for_native
from .runtime import ApplyRuntime
from .selection.rankings import HardwareRankings, Ranking
from .selection.table import ApplyTable, local_hardware, setting_problems

_NATIVE_SECONDS = 600.0
_HEADINGS = (
    *("definition", "key", "solution", "latency", "fallback", "runner-up", "candidates", "measured on", "note"),
)
_DESCRIPTION = """\
Show and prepare the solutions that serve calls, by the traces of a data set.

All commands read the same cached table as `fib_apply.enable_apply`, so they show what an engine with the same
settings does. Exit codes: 0; 1 if a selected solution is not usable; 2 if the command is invalid, or cannot
read or write a file; 130 after an interrupt; 141 if the reader of the output has ended."""

_EXPLAIN = """\
Show which solution serves a definition's calls and why, the next candidates, and the solutions that are left
out. Without --axes, for all recorded keys; with some axes, for the recorded keys of these sizes; with all axes,
also for a key that is not recorded, by --on-miss."""

_EXPLAIN_EXAMPLES = """\
examples:
  fib-apply explain DATASET --definition gemm_n4096_k4096
  fib-apply explain DATASET --definition gemm_n4096_k4096 --axes M=64
  fib-apply explain DATASET --definition gemm_n4096_k4096 --axes M=60 --nearest M=1.5
                                       M=60, if the size may differ by a factor of 1.5
  fib-apply explain DATASET --definition gemm_n4096_k4096 --source
                                       with the generated code of a call"""

_TABLE = """\
List the selected solution of each definition and key, its latency, the runner-up and the number of
candidates; then counts. Problems of the data set go to stderr."""

_TABLE_EXAMPLES = """\
examples:
  fib-apply table DATASET
  fib-apply table DATASET --hardware 'NVIDIA H200'
  fib-apply table DATASET --json | jq '.keys[] | select(.solution == null)'
                                       keys that the fallback serves"""

_WARM = """\
Make the table, then compile, probe and load every solution selected for the hardware of this machine, so that
an engine finds them in the caches. Solutions are loaded in a child process first: one that crashes or hangs is
left out. Progress goes to stderr. Triton, TileLang, Helion, cuTile and CuTe DSL compile on their first call, not
here."""

_WARM_EXAMPLES = """\
examples:
  fib-apply warm DATASET
  fib-apply warm DATASET --definitions gemm_n4096_k4096 rmsnorm_h4096 -j 8
  fib-apply warm DATASET && python -m engine      # only if all are usable"""


_CHECK = """\
Read a configuration file as an engine with FIB_APPLY_CONFIG=CONFIG does, and show its problems, each with the line
and the remedy, or the settings that result. With --dataset, also find settings of definitions that it does not have.
Exit codes: 0 if the file is valid; 1 if it is not; 2 if it or the data set cannot be read."""

_CHECK_EXAMPLES = """\
examples:
  fib-apply check apply.yaml
  fib-apply check apply.yaml --dataset DATASET
  fib-apply check apply.yaml --json | jq .settings.default.on_error"""


_YES_OR_NO = argparse.BooleanOptionalAction
_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "--config": {
        "metavar": "FILE",
        "help": "read the settings of an engine from this file (default: that of FIB_APPLY_CONFIG, if it is set)",
    },
    "--exclude": {"nargs": "+", "metavar": "SOLUTION", "help": "solutions that are not selected"},
    "--only": {"nargs": "+", "metavar": "SOLUTION", "help": "select no other solutions than these"},
    "--max-atol": {"type": float, "metavar": "X", "help": "the largest absolute error that counts"},
    "--max-rtol": {"type": float, "metavar": "X", "help": "the largest relative error that counts"},
    "--baseline": {"metavar": "SOLUTION", "help": "its time is that of the fallback"},
    "--require-speedup": {"action": _YES_OR_NO, "help": "select only what is faster than the fallback (default)"},
    "--batch-invariant": {"action": _YES_OR_NO, "help": "select one solution for all sizes of the batch axes"},
    "--margin": {"type": float, "metavar": "SHARE", "help": "latencies within this share are equal (default: 0.03)"},
    "--other-hardware": {"nargs": "+", "metavar": "NAME", "help": "hardware whose traces count where this has none"},
    "--require-signed-by": {
        "action": "append",
        "metavar": "KEY",
        "help": "use only what the owner of this key signed: a file with public keys, or the text of one; repeatable",
    },
}
"""Options that set fields of `ApplyConfig`, and the file of settings."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 1 if a solution is not usable, 2 if the command is invalid."""
    return run_command("fib-apply", lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    try:
        if options.run is not check:
            _read_settings(options)
        code: int = options.run(options)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        print("fib-apply: torch is not installed; without it, pass --hardware and omit --source", file=sys.stderr)
        return FAILED
    return code


# -- options -----------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="fib-apply", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_explain(commands)
    _add_table(commands)
    _add_warm(commands)
    _add_check(commands)
    return parser


def _add_command(
    commands: argparse._SubParsersAction[CommandParser],
    name: str,
    summary: str,
    texts: tuple[str, str],
    place: tuple[str, str] = ("dataset", "the folder of the data set"),
) -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser(name, help=summary, description=texts[0], epilog=texts[1], formatter_class=formatter)
    command.add_argument(place[0], type=Path, metavar=place[0].upper(), help=place[1])
    command.add_argument("--json", action="store_true", help="print JSON, and nothing else, to stdout")
    return command


def _add_explain(commands: argparse._SubParsersAction[CommandParser]) -> None:
    command = _add_command(
        commands, "explain", "show which solution serves a call, and why", (_EXPLAIN, _EXPLAIN_EXAMPLES)
    )
    command.add_argument("--definition", required=True, metavar="NAME", help="the definition of the calls")
    command.add_argument(
        "--axes", nargs="+", action="extend", default=[], metavar="AXIS=SIZE", help="sizes of its variable axes"
    )
    command.add_argument("--source", action="store_true", help="also print the generated route; needs torch")
    _add_hardware(command)
    settings = _add_settings(command)
    policies = ", ".join(OnMiss)
    settings.add_argument("--on-miss", dest="on_miss_policy", metavar="POLICY", help=f"one of {policies}")
    settings.add_argument(
        "--nearest",
        nargs="+",
        metavar="AXIS=FACTOR",
        help="axes that may differ from a recorded key, with the largest factor; implies --on-miss nearest",
    )
    command.set_defaults(run=explain)


def _add_table(commands: argparse._SubParsersAction[CommandParser]) -> None:
    command = _add_command(commands, "table", "list the selected solutions", (_TABLE, _TABLE_EXAMPLES))
    _add_hardware(command)
    _add_settings(command)
    command.set_defaults(run=table)


def _add_warm(commands: argparse._SubParsersAction[CommandParser]) -> None:
    command = _add_command(commands, "warm", "build the selected solutions into the caches", (_WARM, _WARM_EXAMPLES))
    command.add_argument("--definitions", nargs="+", metavar="NAME", help="only solutions of these definitions")
    command.add_argument("-j", "--jobs", type=int, help="number of parallel compilers (default: all cores)")
    _add_settings(command)
    command.set_defaults(run=warm)


def _add_check(commands: argparse._SubParsersAction[CommandParser]) -> None:
    texts = _CHECK, _CHECK_EXAMPLES
    command = _add_command(commands, "check", "check a configuration file", texts, ("config", "the configuration file"))
    command.add_argument("--dataset", type=Path, metavar="DATASET", help="the folder of the data set that it is for")
    command.set_defaults(run=check)


def _add_hardware(command: argparse.ArgumentParser) -> None:
    command.add_argument("--hardware", metavar="NAME", help="hardware name as in traces (default: this machine's)")


def _add_settings(command: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    settings = command.add_argument_group(
        "settings", "as in fib_apply.ApplyConfig; pass those of the engine, which count before those of --config"
    )
    for option, details in _SETTINGS.items():
        settings.add_argument(option, **details)
    return settings


def _read_settings(options: argparse.Namespace) -> None:
    """Set `settings`, those of a file with those of the options, and `given`, those of the options alone."""
    names = [field.name for field in attrs.fields(ApplyConfig)]
    given: dict[str, Any] = {name: value for name in names if (value := getattr(options, name, None)) is not None}
    if "nearest" in given:
        given["nearest"] = dict(map(_factor, given["nearest"]))
        given.setdefault("on_miss_policy", OnMiss.NEAREST)
    path = options.config or os.environ.get(CONFIG_VARIABLE)
    of_file = read_config(path).registry if path else ApplyConfigRegistry()
    configs = {name: attrs.evolve(config, **given) for name, config in of_file.per_definition.items()}
    options.given = ApplyConfig(**given)
    options.settings = ApplyConfigRegistry(attrs.evolve(of_file.default, **given), configs)


def _factor(text: str) -> tuple[str, float]:
    axis, _, factor = text.partition("=")
    try:
        return axis, float(factor)
    except ValueError:
        raise InvalidSetting("--nearest", text, "AXIS=FACTOR, such as M=2") from None


# -- commands ----------------------------------------------------------------------------------------


def _open_table(options: argparse.Namespace) -> tuple[ApplyTable, tuple[str, ...]]:
    """The table, and the hardware in question.

    Raises:
        UnusableOption: An option names something that the data set does not have, or has no effect.
    """
    settings: ApplyConfigRegistry = options.settings
    table = ApplyTable.load_or_build(options.dataset, settings)
    asked = getattr(options, "hardware", None)
    with _problems_of_failure(table):
        for problem in setting_problems(ApplyConfigRegistry(options.given), table):
            raise UnusableOption(problem.path.rpartition(".")[2], problem.message)
        for name in (*options.given.other_hardware, *(() if asked is None else (asked,))):
            _check_hardware(table, name)
    print_problems([Problem(one.path, "$", one.message) for one in setting_problems(settings, table)])
    return table, local_hardware() if asked is None else (asked,)


@contextlib.contextmanager
def _problems_of_failure(table: ApplyTable) -> Iterator[None]:
    """Print the problems of the data set if a name is unknown: they may be the reason."""
    try:
        yield
    except FibError:
        _print_table_problems(table)
        raise


def _check_hardware(table: ApplyTable, name: str) -> None:
    if not any(name in table.rankings(definition) for definition in table.definitions):
        known = {hardware for definition in table.definitions for hardware in table.rankings(definition)}
        raise UnknownName("hardware with traces", name, tuple(known))


def _sizes(definition: Definition, texts: Iterable[str]) -> dict[str, int]:
    sizes = {}
    for text in texts:
        axis, _, size = text.partition("=")
        if axis not in definition.var_axes or not size.isdecimal():
            raise InvalidSetting("--axes", text, f"AXIS=SIZE; {_axes_of(definition)}")
        if axis in sizes:
            raise InvalidSetting("--axes", text, f"one size per axis, {axis} has two")
        sizes[axis] = int(size)
    return sizes


def _axes_of(definition: Definition) -> str:
    variable = ", ".join(definition.var_axes) or "none"
    constant = ", ".join(f"{n}={a.value}" for n, a in definition.axes.items() if isinstance(a, AxisConst)) or "none"
    return f"variable axes of {definition.name!r}: {variable}; constant: {constant}"


def _print_json(value: Mapping[str, Any]) -> None:
    """Print JSON to stdout."""
    print(json.dumps(value, indent=2))


# -- explain -----------------------------------------------------------------------------------------


def explain(options: argparse.Namespace) -> int:
    """``fib-apply explain``."""
    table, hardware = _open_table(options)
    with _problems_of_failure(table):
        definition = table.definition(options.definition)
    config = table.settings(definition.name)
    for axis in options.given.nearest.keys() - set(definition.var_axes):
        raise InvalidSetting("--nearest", axis, f"AXIS=FACTOR; {_axes_of(definition)}")
    sizes = _sizes(definition, options.axes)
    reports = [_HardwareReport.of(table, name, definition, sizes, config) for name in hardware]
    source = _route_source(options.dataset, options.settings, definition) if options.source else None
    _print_table_problems(table)
    if options.json:
        plain = {"definition": definition.name, "op_type": definition.op_type, "source": source}
        hardware_answers = [report.to_plain() for report in reports]
        _print_json({**plain, "hardware": hardware_answers, "problems": [*map(str, table.problems)]})
        return 0
    print(f"{definition.name} ({definition.op_type})")
    for report in reports:
        print("", *report.lines(config), sep="\n")
    if source is not None:
        print("", source.rstrip(), sep="\n")
    return 0


@attrs.frozen
class _HardwareReport:
    """The answers for the keys in question on one hardware."""

    hardware: str
    rankings: HardwareRankings | None
    answers: Sequence[Answer]
    measured_on: Sequence[str]
    """All hardware with traces of the definition."""
    sizes: Mapping[str, int]

    @classmethod
    def of(
        cls, table: ApplyTable, hardware: str, definition: Definition, sizes: Mapping[str, int], config: ApplyConfig
    ) -> _HardwareReport:
        rankings = table.for_hardware(hardware).rankings(definition.name)
        recorded = [] if rankings is None else sorted_keys(rankings)
        asked = {} if rankings is None else dict(rankings.key_of(ApplyKey(sizes)).axes)
        keys = [key for key in recorded if asked.items() <= dict(key.axes).items()]
        if not keys and sizes and sizes.keys() == set(definition.var_axes):
            keys = [ApplyKey(sizes)]
        answers = [Answer.of(rankings, key, config) for key in keys]
        return cls(hardware, rankings, answers, tuple(table.rankings(definition.name)), sizes)

    def lines(self, config: ApplyConfig) -> Iterator[str]:
        if self.rankings is None:
            elsewhere = f" (but on {', '.join(self.measured_on)})" if self.measured_on else ""
            yield f"on {self.hardware}: no measurements{elsewhere}; the fallback serves all calls"
            return
        is_own = self.rankings.hardware == self.hardware
        yield f"on {self.hardware}{'' if is_own else f', by measurements on {self.rankings.hardware}'}:"
        if not self.answers:
            yield f"  nothing is recorded for {ApplyKey(self.sizes)}; give all variable axes to apply the miss policy"
        yield from hardware_lines(self.rankings, self.answers, config, {}, has_best=not self.sizes)

    def to_plain(self) -> dict[str, Any]:
        best = None if self.rankings is None or self.rankings.best is None else plain_ranking(self.rankings.best)
        return {
            "hardware": self.hardware,
            "measured_on": None if self.rankings is None else self.rankings.hardware,
            "keys": [answer.to_plain() for answer in self.answers],
            "best": best,
        }


def _route_source(dataset: Path, settings: ApplyConfigRegistry, definition: Definition) -> str:
    """The generated route of a function that takes the definition's inputs by name."""
    dispatcher = ApplyRuntime(dataset, settings).dispatcher(definition.name)
    assert dispatcher is not None  # the table has the definition
    parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in definition.inputs]
    dispatcher.route("route", map_parameters(definition, parameters), lambda *_: None)
    return dispatcher.sources["route"]


# -- table -------------------------------------------------------------------------------------------


def table(options: argparse.Namespace) -> int:
    """``fib-apply table``."""
    table, hardware = _open_table(options)
    rows = [row for name in hardware for row in _rows(table, name)]
    counts = _counts(table, rows)
    _print_table_problems(table)
    if options.json:
        _print_json(
            {"keys": [row.to_plain() for row in rows], "counts": counts, "problems": [*map(str, table.problems)]}
        )
        return 0
    print(*_table_lines([row.cells() for row in rows], terminal_width()), sep="\n")
    print(
        f"\n{counted(counts['definitions'], 'definition')}, {counts['measured']} of them measured on "
        f"{', '.join(hardware)}; "
        f"{counted(counts['keys'], 'key')}, {counts['chosen']} with a solution, {counts['without_choice']} without"
    )
    if not table.definitions:
        print_problems([missing_data(str(options.dataset))])
    return int(not table.definitions)


def _counts(table: ApplyTable, rows: Sequence[_Row]) -> dict[str, int]:
    chosen = sum(bool(row.ranking.candidates) for row in rows)
    definitions, measured = len(table.definitions), len({row.definition for row in rows})
    keys = {"keys": len(rows), "chosen": chosen, "without_choice": len(rows) - chosen}
    return {"definitions": definitions, "measured": measured, **keys}


def _print_table_problems(table: ApplyTable) -> None:
    """Print the problems of a table's data set to stderr."""
    print_problems(list(table.problems))


@attrs.frozen
class _Row:
    definition: str
    key: ApplyKey
    ranking: Ranking
    hardware: str
    measured_on: str
    batch_axes: tuple[str, ...]

    def cells(self) -> tuple[str, ...]:
        candidates = self.ranking.plain_candidates if self.ranking.is_padded else self.ranking.candidates
        first, second = (*candidates[:2], None, None)[:2]
        name = "-" if first is None else first.solution + (" (by plan)" if first.has_setup else "")
        latency = "-" if first is None else format_latency(first.latency_ms)
        runner_up = "-" if second is None else second.solution
        count = str(len(candidates))
        fallback = format_fallback(first or self.ranking.refused)
        cells = (name, latency, fallback, runner_up, count, self.measured_on, self._note())
        return self.definition, self._key_text(), *cells

    def _key_text(self) -> str:
        if not self.batch_axes:
            return str(self.key)
        known, features = ([f"{name}={value}" for name, value in pairs] for pairs in (self.key.axes, self.key.feats))
        return ", ".join([*known, *(f"{axis}=any" for axis in self.batch_axes), *features])

    def _note(self) -> str:
        """Reason why the fallback serves plain calls; empty if a solution does."""
        if self.ranking.plain is not None:
            return ""
        if self.ranking.candidates:
            problem = f"it: {self.ranking.plain_problem}" if self.ranking.is_padded else "all calls without a plan"
            return f"the fallback serves {problem}"
        refused = self.ranking.refused
        text = "" if refused is None else f"; {refused.solution}: {format_latency(refused.latency_ms)}"
        return f"the fallback serves it: {self.ranking.reason}{text}"

    def to_plain(self) -> dict[str, Any]:
        key = {"definition": self.definition, "axes": dict(self.key.axes), "features": dict(self.key.feats)}
        where = {"hardware": self.hardware, "measured_on": self.measured_on, "batch_axes": list(self.batch_axes)}
        return {**key, **where, **plain_ranking(self.ranking)}


def _rows(table: ApplyTable, hardware: str) -> Iterator[_Row]:
    view = table.for_hardware(hardware)
    for definition in sorted(table.definitions):
        rankings = view.rankings(definition)
        for key in () if rankings is None else sorted_keys(rankings):
            assert rankings is not None  # else there are no keys
            yield _Row(definition, key, rankings.by_key[key], hardware, rankings.hardware, rankings.batch_axes)


def _table_lines(rows: Sequence[Sequence[str]], width: int | None) -> Iterator[str]:
    """A table, or for a narrower terminal several lines for each row: what is chosen for which key, then the rest."""
    lines = list(_aligned([_HEADINGS, *rows]))
    if width is None or max(map(len, lines)) <= width:
        yield from lines
        return
    for row in rows:
        cells = [escape_line(text) for text in row]
        yield from stacked_row(cells[:3], dict(zip(_HEADINGS[3:], cells[3:], strict=True)), width)


def _aligned(texts: Sequence[Sequence[str]]) -> Iterator[str]:
    rows = [[escape_line(text) for text in row] for row in texts]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


# -- warm --------------------------------------------------------------------------------------------


def warm(options: argparse.Namespace) -> int:
    """``fib-apply warm``."""
    table, hardware = _open_table(options)
    with _problems_of_failure(table):
        selected = [_Warmed(*winner) for winner in _winners(table, hardware, options.definitions)]
    with _stdout_to_stderr():
        request_native(lambda: None)  # takes a minute: first, so that a warm-up that is interrupted has made them
        _build(table, selected, options.jobs)
        wait_for_native(_NATIVE_SECONDS)
        native_problem = prepare_native()
    _print_table_problems(table)
    if options.json:
        native = {"native_guards": {"ready": native_problem is None, "problem": native_problem}}
        _print_json({**_summary(selected, hardware), **native, "problems": [*map(str, table.problems)]})
    else:
        print(*_summary_lines(selected, hardware), sep="\n")
        print(f"native guards: {'ready' if native_problem is None else f'not used: {native_problem}'}")
    return 1 if _left_out(selected) else 0


@attrs.define
class _Warmed:
    """A selected solution, and the problem if it is not usable."""

    definition: str
    solution: str
    keys: int
    problem: str | None = None


def _winners(
    table: ApplyTable, hardware: Sequence[str], definitions: Sequence[str] | None
) -> Iterator[tuple[str, str, int]]:
    """Definition, solution and number of keys that it wins, most keys first."""
    for name in definitions or ():
        if name not in table.definitions:
            raise UnknownName("definition", name, table.definitions)
    keys: dict[tuple[str, str], int] = {}
    for name in hardware:
        for definition, solution, count in table.for_hardware(name).winners():
            if definitions is None or definition in definitions:
                keys[definition, solution] = keys.get((definition, solution), 0) + count
    for (definition, solution), count in sorted(keys.items(), key=lambda item: (-item[1], item[0])):
        yield definition, solution, count


def _build(table: ApplyTable, selected: Sequence[_Warmed], jobs: int | None) -> None:
    """Build, probe and load solutions; set their problems."""
    pairs: list[tuple[Definition, Solution]] = []
    for one in selected:
        try:
            pairs.append((table.definition(one.definition), table.solution(one.solution)))
        except (FibError, OSError) as error:  # a file that was removed or changed affects only its own solution
            one.problem = str(error)
    service = BuildService()
    service.build_ahead(pairs, _Progress(service).show, jobs=jobs)
    for one in selected:
        one.problem = one.problem or service.problem(one.solution)
        if one.problem is None and service.find(one.solution) is None:
            one.problem = "it was not built"  # no thread could be started, or another solution has its name


class _Progress:
    """Prints a line for each finished solution."""

    def __init__(self, service: BuildService) -> None:
        self._service = service
        self._done = 0

    def show(self, done: int, total: int, name: str) -> None:
        if done == self._done:  # it is compiled or probed, but not loaded yet
            return
        self._done = done
        state = "ready" if self._service.problem(name) is None else "left out"
        print(f"[{done}/{total}] {state} {name}", file=sys.stderr, flush=True)


def _left_out(warmed: Iterable[_Warmed]) -> list[_Warmed]:
    return [one for one in warmed if one.problem is not None]


def _summary(selected: Sequence[_Warmed], hardware: Sequence[str]) -> dict[str, Any]:
    left_out = len(_left_out(selected))
    counts = {"ready": len(selected) - left_out, "left_out": left_out}
    return {"hardware": list(hardware), "solutions": [attrs.asdict(one) for one in selected], "counts": counts}


def _summary_lines(selected: Sequence[_Warmed], hardware: Sequence[str]) -> Iterator[str]:
    left_out = _left_out(selected)
    yield f"{len(selected) - len(left_out)} ready, {len(left_out)} left out, of those selected on {', '.join(hardware)}"
    for one in left_out:
        yield f"\n{one.solution} ({one.definition}, {counted(one.keys, 'key')}): {one.problem}"


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Redirect what solutions print on load, in Python or native code, from stdout to stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


# -- check -------------------------------------------------------------------------------------------


def check(options: argparse.Namespace) -> int:
    """``fib-apply check``."""
    path: Path = options.config
    try:
        file = read_config(path)
        if options.dataset is not None:
            _check_names(file, options.dataset)
    except InvalidConfigFile as error:
        if options.json:
            problems = [attrs.asdict(problem) for problem in error.problems]
            print(json.dumps({"file": str(path), "problems": problems, "settings": None}, indent=2))
        else:
            print(*error.lines(), sep="\n", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps({"file": str(path), "problems": [], "settings": file.to_plain()}, indent=2))
    else:
        print(f"{path}: valid", *_lines(file), sep="\n")
    return 0


def _check_names(file: ConfigFile, dataset: Path) -> None:
    table = ApplyTable.load_or_build(dataset, file.registry)
    if problems := setting_problems(file.registry, table):
        raise InvalidConfigFile(str(file.path), problems)


def _lines(file: ConfigFile) -> Iterator[str]:
    """The settings that differ from the defaults."""
    plain = file.to_plain()
    defaults = ConfigFile(file.path, type(file.registry)()).to_plain()
    yield from _changed("default", plain.pop("default"), defaults["default"])
    for name, settings in plain.pop("definitions").items():
        yield from _changed(f"definitions.{name}", settings, defaults["default"])
    if plain["stats"]:
        yield "  stats: True"


def _changed(name: str, settings: dict[str, Any], defaults: dict[str, Any]) -> Iterator[str]:
    for key in (field for field in settings if settings[field] != defaults[field]):
        yield f"  {name}.{key}: {settings[key]}"
