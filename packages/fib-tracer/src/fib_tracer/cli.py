"""Command line of ``fib-tracer``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from fib_schema import TraceSet
from fib_schema.command import CommandParser, plain_problems, print_problems, run_command
from fib_schema.display import counted, escape_line
from fib_schema.traffic import load_traffic

from .dump_import import (
    MAX_CALL_BYTES,
    NO_READER,
    READERS_PACKAGE,
    RECORDED,
    ImportReport,
    import_dumps,
)
from .settings import Settings, TracingConfig
from .survey import Bin, DefinitionSurvey, survey

_DESCRIPTION = """\
Workloads of a data set: import FlashInfer's dumps, show statistics.

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
how inputs are given, the share of traced calls that they cover, and the files of their tensors.

example:
  fib-tracer stats DATASET --definitions gemm_n4096_k4096 rmsnorm_h4096"""

_BAR_WIDTH = 40
_DUMP_NAMES = {"all": "dump_all", "none": "dump_none", "int": "dump_int"}


def _print_json(value: Mapping[str, Any]) -> None:
    print(json.dumps(value, indent=2))


def _table(texts: Sequence[Sequence[str]]) -> Iterator[str]:
    rows = [[escape_line(text) for text in row] for row in texts]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


# -- import ------------------------------------------------------------------------------------------


def _run_import(options: argparse.Namespace) -> int:
    """``fib-tracer import``."""
    config = _import_config(options)
    report = import_dumps(options.source, options.dataset, config, max_bytes=options.max_mib << 20)
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
    trace_set, traffic = TraceSet.from_path(options.dataset), load_traffic(options.dataset)
    found = survey(trace_set, traffic.definitions, options.definitions)
    problems = [*trace_set.problems, *traffic.problems]
    print_problems(problems)
    if options.json:
        _print_json({"definitions": list(map(attrs.asdict, found)), "problems": plain_problems(problems)})
    else:
        print("\n".join(_survey_lines(found)))
    return 1 if problems or any(definition.missing for definition in found) else 0


def _survey_lines(found: Sequence[DefinitionSurvey]) -> Iterator[str]:
    for definition in found:
        if definition.workloads:
            yield from _definition_lines_of(definition)
            yield ""
    empty = [definition.name for definition in found if not definition.workloads]
    yield f"{counted(len(found), 'definition')}, {len(found) - len(empty)} with workloads"
    if empty:
        yield f"without: {', '.join(empty)}"


def _definition_lines_of(definition: DefinitionSurvey) -> Iterator[str]:
    yield (
        f"{definition.name} ({definition.op_type}): {counted(definition.workloads, 'workload')}, "
        f"{counted(definition.distinct_axes, 'combination')} of axes, "
        f"{counted(definition.blobs, 'blob')}, {definition.blob_bytes:,} bytes"
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
    yield from (f"  missing: {path}, which workloads name" for path in definition.missing)


def _histogram_lines(axis: str, bins: Sequence[Bin]) -> Iterator[str]:
    most = max((b.workloads for b in bins), default=1)
    width = max((len(str(b)) for b in bins), default=0)
    for index, b in enumerate(bins):
        bar = "#" * max(1, round(_BAR_WIDTH * b.workloads / most))
        yield f"  {'' if index else axis:<{len(axis)}}  {b!s:>{width}}  {bar} {b.workloads}"


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
    command.add_argument("--definitions", nargs="+", metavar="NAME", help="only these")
    return parser


def _add_dataset(command: argparse.ArgumentParser) -> None:
    command.add_argument("dataset", type=Path, metavar="DATASET", help="the folder of the data set")


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
