"""Command line of ``fib-tracer``."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fib_schema import TraceSet
from fib_schema.command import CommandParser, add_data_set, data_set_of, plain_problems, print_problems, run_command
from fib_schema.display import aligned, counted
from fib_schema.traffic import DefinitionTraffic, load_traffic

from .dump_import import MAX_CALL_BYTES, NO_READER, READERS_PACKAGE, RECORDED, ImportReport, import_dumps
from .settings import Settings, TracingConfig

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
and the share of traced calls that they cover.

example:
  fib-tracer stats DATASET --definitions gemm_n4096_k4096 rmsnorm_h4096"""

_MAX_SIZES = 16
"""Up to this many sizes of an axis are shown with their counts of workloads."""
_DUMP_NAMES = {"all": "dump_all", "none": "dump_none", "int": "dump_int"}


# -- import ------------------------------------------------------------------------------------------


def _run_import(options: argparse.Namespace) -> int:
    """``fib-tracer import``."""
    config = _import_config(options)
    report = import_dumps(options.source, data_set_of(options), config, max_bytes=options.max_mib << 20)
    print_problems(report.problems)
    if options.json:
        print(json.dumps(report.to_plain(), indent=2))
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
        yield from aligned([("function", "outcome", "calls"), *rows])
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
    yield from aligned([("definition", "calls", "kept", "stored", "equal", "dropped"), *rows])


# -- stats -------------------------------------------------------------------------------------------


def _run_stats(options: argparse.Namespace) -> int:
    """``fib-tracer stats``."""
    root = data_set_of(options)
    trace_set, traffic = TraceSet.from_path(root), load_traffic(root)
    chosen = sorted(set(options.definitions or trace_set.definitions))
    found = [_statistics(trace_set, name, traffic.definitions.get(name)) for name in chosen]
    problems = [*trace_set.problems, *traffic.problems]
    print_problems(problems)
    if options.json:
        print(json.dumps({"definitions": found, "problems": plain_problems(problems)}, indent=2))
    else:
        print("\n".join(_statistics_lines(found)))
    return 1 if problems else 0


def _statistics(trace_set: TraceSet, name: str, traffic: DefinitionTraffic | None) -> dict[str, Any]:
    """The workloads of a definition, by the sizes of its variable axes, and the counted calls that they cover."""
    definition = trace_set.get_definition(name)
    workloads = [trace.workload for trace in trace_set.workloads.get(name, ())]
    axes = {axis: Counter(w.axes[axis] for w in workloads if axis in w.axes) for axis in definition.var_axes}
    return {
        "name": name,
        "op_type": definition.op_type,
        "workloads": len(workloads),
        "axes": {axis: dict(sorted(sizes.items())) for axis, sizes in axes.items() if sizes},
        "calls": 0 if traffic is None else traffic.calls,
        "recorded_calls": 0 if traffic is None else round(sum(traffic.calls_by_workload(workloads).values())),
    }


def _statistics_lines(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    empty = [one["name"] for one in found if not one["workloads"]]
    for one in found:
        if one["name"] in empty:
            continue
        yield f"{one['name']} ({one['op_type']}): {counted(one['workloads'], 'workload')}"
        if calls := one["calls"]:
            share = one["recorded_calls"] / calls
            yield f"  {calls:,} calls were counted, {share:.1%} of them with the sizes and layout of a workload"
        for axis, counts in one["axes"].items():
            sizes = ", ".join(f"{size} ({count})" for size, count in [*counts.items()][:_MAX_SIZES])
            more = f", and {len(counts) - _MAX_SIZES} more up to {max(counts)}" if len(counts) > _MAX_SIZES else ""
            yield f"  {axis}: {sizes}{more}"
        yield ""
    yield f"{counted(len(found), 'definition')}, {len(found) - len(empty)} with workloads"
    if empty:
        yield f"without: {', '.join(empty)}"


# -- options -----------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 1 if data is damaged or missing, 2 if the command cannot run."""
    return run_command("fib-tracer", lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    return int(options.run(options))


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
    add_data_set(command, is_first=True)
    command.add_argument("--definitions", nargs="+", metavar="NAME", help="only these")
    return parser


def _add_import_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("source", type=Path, metavar="SOURCE", help="a folder with dumps at any depth, or one file")
    add_data_set(command, is_first=True)
    policies = command.add_mutually_exclusive_group()
    policies.add_argument("--config", type=Path, metavar="YAML", help="settings, as for live traffic")
    policies.add_argument(
        "--dump", nargs="+", metavar="WHAT", help="values to store: all, none, int, or names of inputs (default: int)"
    )
    default, text = MAX_CALL_BYTES >> 20, "skip calls with more MiB of tensors (default: %(default)s)"
    command.add_argument("--max-mib", type=int, default=default, metavar="N", help=text)
