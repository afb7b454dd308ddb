"""Command line of ``fib-tracer``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fib_schema import TraceSet
from fib_schema.command import CommandParser, print_problems, run_command
from fib_schema.display import counted, escape_line

from . import maintenance
from .dump_import import (
    MAX_CALL_BYTES,
    NO_READER,
    READERS_PACKAGE,
    RECORDED,
    ImportOptions,
    ImportReport,
    import_dumps,
)
from .maintenance import Bin, DefinitionSurvey, Survey
from .settings import Settings, TracingConfig

_DESCRIPTION = """\
Workloads of a data set: import FlashInfer's dumps, show statistics, sample.

Live traffic is recorded inside the engine (FIB_ENABLE_TRACING=1, or fib_tracer.enable_tracing).
Exit codes: 0; 1 if data is damaged, refused or missing; 2 if the command cannot run, or cannot read or
write a file; 130 after an interrupt; 141 if the reader of the output has ended."""

_IMPORT = """\
Import FlashInfer's dumps into a data set:

  - definitions that FLASHINFER_TRACE_DUMP=1 writes are converted and added; a different one of the same
    name in the set is kept, and reported
  - calls that FLASHINFER_LOGLEVEL=10 writes below FLASHINFER_DUMP_DIR become workloads of the set's
    definitions, filtered by the same policies as live traffic; fib-integrations has the reader for them

Nothing in a dump is executed.

examples:
  fib-tracer import flashinfer_dumps DATASET --dump int sm_scale q
                                       every call once, with integer tensors and two inputs
  fib-tracer import flashinfer_dumps DATASET --config tracing.yaml
                                       by the settings of an engine (FIB_TRACING_CONFIG)"""

_STATS = """\
Show statistics of a data set's workloads: their number by definition, the sizes of their variable axes,
how inputs are given, and the files of tensors, with missing and orphaned ones.

example:
  fib-tracer stats DATASET --definitions gemm_n4096_k4096 rmsnorm_h4096"""

_SAMPLE = """\
Make a smaller data set: definitions, some of their workloads, and the files of their tensors, byte for
byte; then validate it. Workloads are chosen separately for each definition.

examples:
  fib-tracer sample DATASET --output small -k 5
  fib-tracer sample DATASET --output small --random 20 --seed 7 --definitions gemm_n4096_k4096"""

_BAR_WIDTH = 40
_DUMP_NAMES = {"all": "dump_all", "none": "dump_none", "int": "dump_int"}


def _print_json(value: Mapping[str, Any]) -> None:
    print(json.dumps(value, indent=2))


def _table(texts: Sequence[Sequence[str]]) -> Iterator[str]:
    rows = [[escape_line(text) for text in row] for row in texts]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _size(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}" if unit != "B" else f"{size_bytes} B"
        size /= 1024
    return f"{size:.3g} GiB"


# -- import ------------------------------------------------------------------------------------------


def _run_import(options: argparse.Namespace) -> int:
    """``fib-tracer import``."""
    chosen = ImportOptions(_import_config(options), options.max_mib << 20)
    report = import_dumps(options.source, options.dataset, chosen)
    print_problems(report.problems)
    if options.json:
        _print_json(report.to_plain())
    else:
        print("\n".join(_import_lines(report)))
    return 0 if report.is_ok else 1


def _import_config(options: argparse.Namespace) -> Settings:
    if options.config is not None:
        config: Settings = options.config
        return config
    words = [_DUMP_NAMES.get(word, word) for word in options.dump or ["int"]]
    return TracingConfig(words[0] if words[0] in _DUMP_NAMES.values() and len(words) == 1 else words)


def _import_lines(report: ImportReport) -> Iterator[str]:
    yield from _definition_lines(report)
    total = sum(report.calls.values())
    recorded = sum(count for (_, outcome), count in report.calls.items() if outcome == RECORDED)
    stored = sum(stats.stored for stats in report.stats.values())
    equal = sum(stats.equal for stats in report.stats.values())
    outcome = f"{recorded} given to the policies, {stored} stored as workloads, {counted(equal, 'duplicate')}"
    yield f"{counted(total, 'call')}: {outcome}"
    if report.calls:
        yield ""
        rows = [(f, o, str(n)) for (f, o), n in sorted(report.calls.items())]
        yield from _table([("function", "outcome", "calls"), *rows])
    yield from _stored_lines(report)
    if report.lacks_readers:
        yield f"\nno reader of calls is installed: install {READERS_PACKAGE}, which has the one for FlashInfer"
    elif any(outcome == NO_READER for _, outcome in report.calls):
        yield f"\nreaders: {', '.join(report.readers)}"
    if report.problems:
        yield f"\n{counted(len(report.problems), 'problem')}, see stderr"


def _definition_lines(report: ImportReport) -> Iterator[str]:
    states = [result.state for result in report.definitions]
    counts = f"{states.count('added')} added, {states.count('equal')} unchanged"
    refused = sum(result.is_refused for result in report.definitions)
    yield f"{counted(len(states), 'definition')}: {counts}, {refused} refused"
    for result in report.definitions:
        if result.is_refused:
            yield f"  {result.name} ({result.source}): {result.problem}"
        for change in result.changes if result.state == "added" else ():
            yield f"  {result.name}: {change}"
    if report.skipped:
        yield f"  {counted(len(report.skipped), 'JSON file')} skipped, not definitions"


def _stored_lines(report: ImportReport) -> Iterator[str]:
    if not report.stats:
        return
    rows = [
        (name, *map(str, (s.calls, s.kept, s.stored, s.equal)), ", ".join(f"{r}: {n}" for r, n in s.dropped.items()))
        for name, s in sorted(report.stats.items())
    ]
    yield ""
    yield from _table([("definition", "calls", "kept", "stored", "equal", "dropped"), *rows])


# -- stats -------------------------------------------------------------------------------------------


def _run_stats(options: argparse.Namespace) -> int:
    """``fib-tracer stats``."""
    trace_set = TraceSet.from_path(options.dataset)
    found = maintenance.survey(trace_set, options.definitions)
    print_problems(found.problems)
    if options.json:
        _print_json(found.to_plain())
    else:
        print("\n".join(_survey_lines(found)))
    return 1 if found.missing or found.unknown or found.problems else 0


def _survey_lines(found: Survey) -> Iterator[str]:
    for definition in found.definitions:
        if definition.workloads:
            yield from _definition_lines_of(definition)
            yield ""
    empty = found.without_workloads
    covered = len(found.definitions) - len(empty)
    yield f"{counted(len(found.definitions), 'definition')}, {covered} with workloads"
    if empty:
        yield f"without: {', '.join(empty)}"
    yield f"{counted(found.blobs, 'blob')}, {_size(found.blob_bytes)}"
    for path, size_bytes in found.orphans.items():
        yield f"orphan: {path} ({_size(size_bytes)}), which no record names; remove it, unless an engine traces now"
    for lost in found.missing:
        yield f"missing: {lost.path}, which workload {lost.workload} of {lost.definition} names"
    if found.unknown:
        yield f"workloads of unknown definitions: {', '.join(found.unknown)}"


def _definition_lines_of(definition: DefinitionSurvey) -> Iterator[str]:
    yield (
        f"{definition.name} ({definition.op_type}): {counted(definition.workloads, 'workload')}, "
        f"{counted(definition.distinct_axes, 'combination')} of axes, "
        f"{counted(definition.blobs, 'blob')}, {_size(definition.blob_bytes)}"
    )
    if definition.calls:
        share = definition.recorded_calls / definition.calls
        yield f"  {definition.calls:,} calls were counted, {share:.1%} of them with the sizes and layout of a workload"
    for axis, bins in definition.axes.items():
        yield from _histogram_lines(axis, bins)
    for name, kinds in definition.inputs.items():
        yield f"  {name}: " + ", ".join(
            f"{count} {'stored' if kind == 'safetensors' else kind}" for kind, count in kinds.items()
        )


def _histogram_lines(axis: str, bins: Sequence[Bin]) -> Iterator[str]:
    most = max((b.workloads for b in bins), default=1)
    width = max((len(str(b)) for b in bins), default=0)
    for index, b in enumerate(bins):
        bar = "#" * max(1, round(_BAR_WIDTH * b.workloads / most))
        yield f"  {'' if index else axis:<{len(axis)}}  {b!s:>{width}}  {bar} {b.workloads}"


# -- sample ------------------------------------------------------------------------------------------


def _run_sample(options: argparse.Namespace) -> int:
    """``fib-tracer sample``."""
    report = maintenance.sample(options.dataset, options.output, _sample_config(options), options.definitions)
    print_problems(report.problems)
    assert report.validation is not None  # it was made
    if options.json:
        _print_json(report.to_plain())
    else:
        rows = [(name, str(chosen), str(of)) for name, (of, chosen) in report.definitions.items()]
        print(*_table([("definition", "chosen", "of"), *rows]), sep="\n")
        print(f"\n{report.target}: {counted(report.blobs, 'blob')}, {_size(report.blob_bytes)}")
        print(report.validation.to_text())
    return 0 if report.is_ok else 1


def _sample_config(options: argparse.Namespace) -> TracingConfig:
    if options.per_axes is not None:
        return _config("keep_first_k_by_axes", k=options.per_axes)
    if options.attention is not None:
        return _config("attention", k=options.attention)
    if options.random is not None:
        return _config("keep_random_k", k=options.random, seed=options.seed)
    return _config("keep_first_k", k=options.first)


def _config(policy: str, **arguments: Any) -> TracingConfig:
    return TracingConfig("dump_none", filter_policy=policy, filter_policy_kwargs=arguments)


# -- options -----------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 1 if data is damaged or missing, 2 if the command cannot run."""
    return run_command("fib-tracer", lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    code: int = options.run(options)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="fib-tracer", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, summary: str, text: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        raw = argparse.RawDescriptionHelpFormatter
        command = commands.add_parser(name, help=summary, description=text, formatter_class=raw)
        command.add_argument("--json", action="store_true", help="print JSON, and nothing else, to stdout")
        command.set_defaults(run=run)
        return command

    _add_import_options(add("import", "import FlashInfer's dumps", _IMPORT, _run_import))
    command = add("stats", "show statistics of workloads", _STATS, _run_stats)
    _add_dataset(command)
    _add_definitions(command)
    _add_sample_options(add("sample", "make a smaller data set", _SAMPLE, _run_sample))
    return parser


def _add_dataset(command: argparse.ArgumentParser) -> None:
    command.add_argument("dataset", type=Path, metavar="DATASET", help="the folder of the data set")


def _add_definitions(command: argparse.ArgumentParser) -> None:
    command.add_argument("--definitions", nargs="+", metavar="NAME", help="only these")


def _add_import_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("source", type=Path, metavar="SOURCE", help="a folder with dumps at any depth, or one file")
    _add_dataset(command)
    policies = command.add_mutually_exclusive_group()
    policies.add_argument("--config", type=Path, metavar="YAML", help="settings, as for live traffic")
    policies.add_argument(
        "--dump", nargs="+", metavar="WHAT", help="values to store: all, none, int, or names of inputs (default: int)"
    )
    default = MAX_CALL_BYTES >> 20
    command.add_argument(
        "--max-mib",
        type=int,
        default=default,
        metavar="N",
        help=f"skip calls with more MiB of tensors (default: {default})",
    )


def _add_sample_options(command: argparse.ArgumentParser) -> None:
    _add_dataset(command)
    command.add_argument("--output", type=Path, required=True, metavar="OTHER", help="a folder that is new or empty")
    how = command.add_mutually_exclusive_group(required=True)
    how.add_argument("-k", dest="first", type=_positive, metavar="N", help="the first N")
    how.add_argument("--per-axes", type=_positive, metavar="K", help="the first K of each combination of sizes")
    how.add_argument("--attention", type=_positive, metavar="K", help="the first K of each average sequence length")
    how.add_argument("--random", type=_positive, metavar="N", help="N at random")
    command.add_argument("--seed", type=int, default=0, help="of the random choice (default: 0)")
    _add_definitions(command)


def _positive(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, got {text!r}")
    return int(text)
