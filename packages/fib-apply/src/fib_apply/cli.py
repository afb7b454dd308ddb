"""Command line of ``fib-apply``: explain, table, predict, warm and export."""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import math
import os
import shlex
import sys
import tempfile
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from fib_schema import Definition, FibError, Problem, Solution, TraceSet, UnknownName
from fib_schema.command import FAILED, CommandParser, add_data_set, data_set_of, print_problems, run_command
from fib_schema.data_files import missing_data
from fib_schema.display import aligned, counted
from fib_schema.traffic import load_traffic

from .build_service.service import BuildService
from .config import CONFIG_VARIABLE, SIGNERS_VARIABLE, ApplyConfigRegistry, read_config, required_signers
from .errors import CannotExport
from .events import Event, EventKind, add_event_listener, remove_event_listener
from .explain import format_fallback, format_latency, plain_key, plain_report, report_lines, sorted_keys
from .key import ApplyKey
from .routing.native.module import prepare_native, request_native, wait_for_native
from .selection.prediction import predict as predict_traffic
from .selection.rankings import Candidate, Ranking
from .selection.table import ApplyTable, local_hardware, setting_problems

_NATIVE_SECONDS = 600.0
_HEADINGS = (
    *("definition", "key", "solution", "latency", "fallback", "runner-up", "candidates", "measured on", "note"),
)
_DESCRIPTION = """\
Show and prepare the solutions that serve calls, by the traces of a data set.

All commands read the same cached table as `fib_apply.enable_apply`, so they show what an engine with the same
settings does: those of --config, else of the file that FIB_APPLY_CONFIG names. An invalid file is an error with all
of its problems; names that the data set does not have go to stderr. Exit codes: 0; 1 if a selected
solution is not usable; 2 if the command is invalid, or cannot read or write a file; 130 after an interrupt; 141 if
the reader of the output has ended."""

_EXPLAIN = """\
Show for each recorded key of a definition which solution serves its calls and why, the next candidates, and the
solutions that are left out.

example:
  fib-apply explain DATASET --definition gemm_n4096_k4096"""

_TABLE = """\
List the selected solution of each definition and key, its latency, the runner-up and the number of
candidates; then counts. Problems of the data set go to stderr.

examples:
  fib-apply table DATASET --hardware 'NVIDIA H200'
  fib-apply table DATASET --json | jq '.keys[] | select(.solution == null)'
                                       keys that the fallback serves"""

_PREDICT = """\
Predict from the counts of fib-tracer what routing saves in the traced traffic: for each definition the calls, those
of sizes with a selected solution, and the time of these by the fallback and by the solution. The fallback is the
`baseline` of the settings; without one it is the reference, which is slower than an engine's own kernel. Intervals
assume that all measurements err alike; calls of all ranks are summed. A prediction is wrong where the engine waits for
something else, or calls other sizes.

example:
  fib-apply predict DATASET --captured --total-ms 5210
                                       as a share of 5.21 seconds of the device, all kernels of the traced steps"""

_WARM = """\
Make the table, then compile, probe and load every solution selected for the hardware of this machine, so that
an engine finds them in the caches. Solutions are loaded in a child process first: one that crashes or hangs is
left out. Progress goes to stderr. Triton, TileLang, Helion, cuTile and CuTe DSL compile on their first call, not
here.

examples:
  fib-apply warm DATASET --definitions gemm_n4096_k4096 rmsnorm_h4096 -j 8
  fib-apply warm DATASET && python -m engine      # only if all are usable"""

_EXPORT = """\
Write a folder for engines on the hardware of this machine: all ranked solutions with their traces as a data set of its
own, the settings, and the caches of `fib-apply warm`, in which the selected ones are built. All ranks of an engine that
read its env.sh choose the same solutions and compile nothing that `warm` can compile. The folder may be copied. It is
an error if it exists.

example:
  fib-apply export DATASET --to deployment && source deployment/env.sh && python -m engine"""
_ENVIRONMENT = """\
: "${BASH_SOURCE:?source this file in bash}"
here="$(CDPATH= cd -- "$(dirname -- "$BASH_SOURCE")" > /dev/null && pwd)" || return
export FIB_ENABLE_APPLY=1 FIB_DATASET_PATH="$here/data" FIB_CACHE_PATH="$here/cache" FIB_APPLY_CONFIG="$here/apply.yaml"
unset here
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 1 if a solution is not usable, 2 if the command is invalid."""
    return run_command("fib-apply", lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        print("fib-apply: torch is not installed; without it, pass --hardware", file=sys.stderr)
        return FAILED
    return code


# -- options -----------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = CommandParser(prog="fib-apply", description=_DESCRIPTION, formatter_class=formatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(run: Any, summary: str, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(run.__name__, help=summary, description=text, formatter_class=formatter)
        add_data_set(command, is_first=True)
        command.add_argument("--json", action="store_true", help="print JSON, and nothing else, to stdout")
        command.add_argument("--config", metavar="FILE", help="settings (default: the file of FIB_APPLY_CONFIG)")
        if run not in (warm, export):
            command.add_argument("--hardware", metavar="NAME", help="as in traces (default: this machine's)")
        command.set_defaults(run=run, hardware=None)
        return command

    command = add(explain, "show which solution serves a call, and why", _EXPLAIN)
    command.add_argument("--definition", required=True, metavar="NAME", help="the definition of the calls")
    add(table, "list the selected solutions", _TABLE)
    command = add(predict, "predict what routing saves in traced traffic", _PREDICT)
    command.add_argument("--captured", action="store_true", help="calls in CUDA graphs: the device's time alone")
    command.add_argument(
        "--total-ms", type=_positive, metavar="MS", help="the time of the traced steps, for a share of it"
    )
    for command in (
        add(warm, "build the selected solutions into the caches", _WARM),
        add(export, "write a folder from which engines start", _EXPORT),
    ):
        command.add_argument("--definitions", nargs="+", metavar="NAME", help="only solutions of these definitions")
        command.add_argument("-j", "--jobs", type=int, help="number of parallel compilers (default: all cores)")
    command.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="the folder to write")
    return parser


# -- commands ----------------------------------------------------------------------------------------


def _open_table(options: argparse.Namespace) -> tuple[ApplyTable, tuple[str, ...]]:
    """The table, and the hardware in question."""
    path = options.config or os.environ.get(CONFIG_VARIABLE)
    settings = read_config(path).registry if path else ApplyConfigRegistry()
    table = ApplyTable.load_or_build(data_set_of(options), settings)
    print_problems([Problem(one.path, "$", one.message) for one in setting_problems(settings, table)])
    if options.hardware is None:
        return table, local_hardware()
    known = {hardware for definition in table.definitions for hardware in table.rankings(definition)}
    if options.hardware not in known:
        print_problems(list(table.problems))  # they may be the reason
        raise UnknownName("hardware with traces", options.hardware, tuple(known))
    return table, (options.hardware,)


def _definition(table: ApplyTable, name: str) -> Definition:
    """A definition; if there is none, the problems of the data set are printed, which may be the reason."""
    try:
        return table.definition(name)
    except FibError:
        print_problems(list(table.problems))
        raise


def explain(options: argparse.Namespace) -> int:
    """``fib-apply explain``."""
    table, hardware = _open_table(options)
    definition = _definition(table, options.definition)
    by_hardware = table.rankings(definition.name)
    print_problems(list(table.problems))
    if options.json:
        plain = {"definition": definition.name, "op_type": definition.op_type}
        reports = [plain_report(name, by_hardware) for name in hardware]
        print(json.dumps({**plain, "hardware": reports, "problems": [*map(str, table.problems)]}, indent=2))
        return 0
    print(f"{definition.name} ({definition.op_type})")
    for name in hardware:
        print("", *report_lines(name, by_hardware), sep="\n")
    return 0


# -- table -------------------------------------------------------------------------------------------


def table(options: argparse.Namespace) -> int:
    """``fib-apply table``."""
    table, hardware = _open_table(options)
    rows = [row for name in hardware for row in _rows(table, name)]
    counts = _counts(table, rows)
    print_problems(list(table.problems))
    if options.json:
        keys = [row.to_plain() for row in rows]
        found = {"keys": keys, "counts": counts, "problems": [*map(str, table.problems)]}
        print(json.dumps(found, indent=2))
        return 0
    print(*aligned([_HEADINGS, *(row.cells() for row in rows)]), sep="\n")
    print(
        f"\n{counted(counts['definitions'], 'definition')}, {counts['measured']} of them measured on "
        f"{', '.join(hardware)}; "
        f"{counted(counts['keys'], 'key')}, {counts['chosen']} with a solution, {counts['without_choice']} without"
    )
    if not table.definitions:
        print_problems([missing_data(str(data_set_of(options)))])
    return int(not table.definitions)


def _counts(table: ApplyTable, rows: Sequence[_Row]) -> dict[str, int]:
    chosen = sum(bool(row.ranking.candidates) for row in rows)
    definitions, measured = len(table.definitions), len({row.definition for row in rows})
    keys = {"keys": len(rows), "chosen": chosen, "without_choice": len(rows) - chosen}
    return {"definitions": definitions, "measured": measured, **keys}


@attrs.frozen
class _Row:
    definition: str
    hardware: str
    key: ApplyKey
    ranking: Ranking

    def to_plain(self) -> dict[str, Any]:
        place = {"definition": self.definition, "hardware": self.hardware}
        return {**place, **plain_key(self.key, self.ranking)}

    def cells(self) -> tuple[str, ...]:
        ranking = self.ranking
        candidates = ranking.plain_candidates if ranking.is_padded else ranking.candidates
        first, second = (*candidates[:2], None, None)[:2]
        name = "-" if first is None else first.solution + (" (by plan)" if first.has_setup else "")
        latency = "-" if first is None else format_latency(first.latency_ms)
        runner_up = "-" if second is None else second.solution
        measured = (latency, format_fallback(first), runner_up, str(len(candidates)))
        return self.definition, str(self.key), name, *measured, self.hardware, self._note()

    def _note(self) -> str:
        """Reason why the fallback serves plain calls; empty if a solution does."""
        ranking = self.ranking
        if ranking.plain is not None:
            return ""
        problem = f"it: {ranking.plain_problem if ranking.candidates else ranking.reason}"
        is_planned = ranking.candidates and not ranking.is_padded
        return f"the fallback serves {'all calls without a plan' if is_planned else problem}"


def _rows(table: ApplyTable, hardware: str) -> Iterator[_Row]:
    for definition in sorted(table.definitions):
        rankings = table.rankings(definition).get(hardware)
        if rankings is not None:
            yield from (_Row(definition, hardware, key, rankings.by_key[key]) for key in sorted_keys(rankings))


# -- predict -----------------------------------------------------------------------------------------

_PREDICTED = ("definition", "calls", "routed", "against", "fallback", "saved", "from", "to")


def predict(options: argparse.Namespace) -> int:
    """``fib-apply predict``."""
    table, hardware = _open_table(options)
    data_set = TraceSet.from_path(data_set_of(options))
    traffic = load_traffic(data_set_of(options))
    found = list(predict_traffic(table, data_set, traffic, hardware[0], captured=options.captured))
    saved = [sum((p.saved_ms, *p.interval_ms)[i] for p in found) for i in range(3)]
    share = None if options.total_ms is None else [number / options.total_ms for number in saved]
    print_problems([*table.problems, *traffic.problems])
    if options.json:
        plain = {"hardware": hardware[0], "definitions": [attrs.asdict(one) for one in found]}
        print(json.dumps({**plain, "saved_ms": saved[0], "interval_ms": saved[1:], "share": share}, indent=2))
        return int(not found)
    rows = [
        (
            p.definition,
            str(p.calls),
            f"{p.routed_calls:.0f}",
            p.against or "-",
            *map(_ms, (p.fallback_ms, p.saved_ms, *p.interval_ms)),
        )
        for p in found
    ]
    print(*aligned([_PREDICTED, *rows]), sep="\n")
    shown = "" if share is None else ", {:.2%} ({:.2%} to {:.2%}) of all".format(*share)
    print(f"\nsaved on {hardware[0]}: {_ms(saved[0])} ({_ms(saved[1])} to {_ms(saved[2])}){shown}")
    if not found:
        print("no traffic: trace the engine with fib-tracer, which counts its calls", file=sys.stderr)
    return int(not found)


def _positive(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (number := float(text)) < math.inf:
            return number
    raise argparse.ArgumentTypeError(f"{text!r} is no number of milliseconds above 0")


def _ms(number: float) -> str:
    return f"{number:,.3f} ms"


# -- warm --------------------------------------------------------------------------------------------


def warm(options: argparse.Namespace) -> int:
    """``fib-apply warm``."""
    table, hardware = _open_table(options)
    selected = _selected(table, hardware, options.definitions)
    with _stdout_to_stderr():
        request_native(lambda: None)  # takes a minute: first, so that a warm-up that is interrupted has made them
        _build(table, selected, options.jobs)
        wait_for_native(_NATIVE_SECONDS)
        native_problem = prepare_native()
    print_problems(list(table.problems))
    left_out = [one for one in selected if one.problem is not None]
    if options.json:
        counts = {"ready": len(selected) - len(left_out), "left_out": len(left_out)}
        found = {"hardware": list(hardware), "solutions": [attrs.asdict(one) for one in selected], "counts": counts}
        native = {"native_guards": {"ready": native_problem is None, "problem": native_problem}}
        print(json.dumps({**found, **native, "problems": [*map(str, table.problems)]}, indent=2))
        return int(bool(left_out))
    ready = len(selected) - len(left_out)
    print(f"{ready} ready, {len(left_out)} left out, of those selected on {', '.join(hardware)}")
    for one in left_out:
        print(f"\n{one.solution} ({one.definition}, {counted(one.keys, 'key')}): {one.problem}")
    print(f"native guards: {'ready' if native_problem is None else f'not used: {native_problem}'}")
    return int(bool(left_out))


@attrs.define
class _Warmed:
    """A selected solution, and the problem if it is not usable."""

    definition: str
    solution: str
    keys: int
    problem: str | None = None


def _selected(table: ApplyTable, hardware: Sequence[str], definitions: Sequence[str] | None) -> list[_Warmed]:
    """The solutions that win keys, those with most keys first."""
    for name in definitions or ():
        _definition(table, name)
    found: dict[tuple[str, str], _Warmed] = {}
    for definition, solution, keys in (winner for name in hardware for winner in table.winners(name)):
        if definitions is None or definition in definitions:
            found.setdefault((definition, solution), _Warmed(definition, solution, 0)).keys += keys
    return sorted(found.values(), key=lambda one: (-one.keys, one.definition, one.solution))


def _build(table: ApplyTable, selected: Sequence[_Warmed], jobs: int | None) -> None:
    """Build, probe and load solutions; set their problems."""
    pairs: list[tuple[Definition, Solution]] = []
    for one in selected:
        try:
            pairs.append((table.definition(one.definition), table.solution(one.solution)))
        except (FibError, OSError) as error:  # a file that was removed or changed affects only its own solution
            one.problem = str(error)
    service = BuildService()

    def show(event: Event) -> None:
        if event.kind is EventKind.BUILT:
            state = "ready" if event.problem is None else "left out"
            print(f"{state} {event.solution}", file=sys.stderr, flush=True)

    add_event_listener(show)
    service.build_ahead(pairs, jobs=jobs)
    remove_event_listener(show)
    for one in selected:
        one.problem = one.problem or service.problem(one.solution)
        if one.problem is None and service.find(one.solution) is None:
            one.problem = "it was not built"  # no thread could be started


# -- export ------------------------------------------------------------------------------------------


def export(options: argparse.Namespace) -> int:
    """``fib-apply export``."""
    table, hardware = _open_table(options)
    selected = _selected(table, hardware, options.definitions)
    source = str(data_set_of(options))
    if not selected:
        raise CannotExport(source, f"nothing is selected on {', '.join(hardware)}; fib-apply table says why")
    if required_signers() is not None:
        raise CannotExport(source, f"unset {SIGNERS_VARIABLE}, export, and sign the data set of the export")
    target: Path = options.to.absolute()
    if target.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fib-export-", dir=target.parent) as folder:
        code = _write_export(Path(folder) / "made", table, hardware, selected, options)
        (Path(folder) / "made").rename(target)
    print(f"before the engine starts: source {shlex.quote(str(target))}/env.sh", file=sys.stderr)
    return code


def _write_export(
    folder: Path, table: ApplyTable, hardware: Sequence[str], selected: Sequence[_Warmed], options: argparse.Namespace
) -> int:
    settings = options.config or os.environ.get(CONFIG_VARIABLE)
    names = {one.definition for one in selected}
    _copy(data_set_of(options), folder / "data", {name: _ranked(table, hardware, name) for name in sorted(names)})
    (folder / "apply.yaml").write_text(Path(settings).read_text() if settings else "{}\n")
    (folder / "env.sh").write_text(_ENVIRONMENT)
    os.environ["FIB_CACHE_PATH"] = str(folder / "cache")
    options.dir, options.dataset, options.config = folder / "data", None, folder / "apply.yaml"
    exported, _ = _open_table(options)
    if (chosen := _choices(exported, hardware, names)) != (wanted := _choices(table, hardware, names)):
        key = next(key for key in {**wanted, **chosen} if wanted.get(key) != chosen.get(key))
        problem = f"{key} would be served by {chosen.get(key)}, not by {wanted.get(key)}"
        raise CannotExport(str(options.to), problem)
    return warm(options)


def _ranked(table: ApplyTable, hardware: Sequence[str], definition: str) -> set[str]:
    """All solutions that may serve a definition, those that others are compared with, and the baseline."""
    by_hardware = table.rankings(definition)
    found = {table.config.get(definition).baseline or ""}
    for rankings in (by_hardware[name] for name in hardware if name in by_hardware):
        for ranking in filter(None, (*rankings.by_key.values(), rankings.best)):
            found |= {candidate.solution for candidate in (*ranking.candidates, *(ranking.captured or ()))}
    return found


def _copy(source: Path, target: Path, solutions: Mapping[str, Container[str]]) -> None:
    """Write solutions, given by definition, with their traces, as a data set."""
    target.mkdir(parents=True)
    data_set, copied = TraceSet.from_path(source), TraceSet.from_path(target)
    for definition, names in solutions.items():
        copied.add_definitions([data_set.get_definition(definition)])
        copied.add_solutions([one for one in data_set.solutions[definition] if one.name in names])
        copied.add_traces([trace for trace in data_set.traces[definition] if trace.solution in names])


def _choices(table: ApplyTable, hardware: Sequence[str], definitions: Container[str]) -> dict[str, list[str | None]]:
    """By definition and key, the solutions that serve planned, eager and captured calls."""
    found: dict[str, list[str | None]] = {}
    for row in (row for name in hardware for row in _rows(table, name) if row.definition in definitions):
        first: Sequence[Candidate] = () if row.ranking.is_padded else row.ranking.candidates[:1]
        served = (*first, row.ranking.plain, row.ranking.of_captured().plain)
        if any(served):
            found[f"{row.definition} [{row.key}] on {row.hardware}"] = [one.solution if one else None for one in served]
    for name in (name for name in table.definitions if name in definitions):
        best = [rankings.best for place, rankings in table.rankings(name).items() if place in hardware]
        found[f"{name} at other keys"] = [each.plain.solution if each and each.plain else None for each in best]
    return found


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
