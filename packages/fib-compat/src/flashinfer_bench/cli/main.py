"""The command ``flashinfer-bench``: its subcommands, implemented by fib-bench. `parser` defines the options.

Exit codes: 0 success; 1 an evaluation could not run, or a data set has errors; 2 invalid arguments, or a file that
cannot be read or written; 130 interrupted; 141 the reader of the output has ended.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fib_bench.cli.comparison_tables import print_merge
from fib_bench.cli.printing import error_console, output_console, safe_text
from fib_bench.cli.progress import progress_on
from fib_bench.cli.run_options import config_of
from fib_bench.cli.tables import print_best, print_leaderboard, print_skipped, print_summary
from fib_bench.config.benchmark import read_fields
from fib_bench.flags import CPU_TIMING
from fib_bench.report import best as best_of
from fib_bench.report import summarise
from fib_bench.report.merging import merge as merge_folders
from fib_compile.device import list_cuda_devices
from fib_schema import TraceSet
from fib_schema.command import print_problems, run_command
from fib_schema.files import write_output

from .data_sets import export_traceset, merge_tracesets
from .parser import make_parser

if TYPE_CHECKING:
    from fib_bench.benchmark import RunResult

__all__ = ["best", "cli", "export_traceset", "merge", "merge_tracesets", "run", "summary", "visualize"]

_INTERRUPTED = "interrupted; finished evaluations are recorded (--resume continues)"
_NO_SERVER = """\
flashinfer-bench: this project has no 'serve'; to benchmark data sets from the command line, use \
'flashinfer-bench run' or 'fib-bench run'"""


def cli(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command("flashinfer-bench", lambda: _run(arguments), interrupted=_INTERRUPTED)


def _run(arguments: Sequence[str] | None) -> int:
    options = make_parser().parse_args(arguments)
    return _COMMANDS[options.command](options)


def run(args: argparse.Namespace) -> int:
    """Benchmark each data set and append each trace to it at once."""
    logging.basicConfig(level=args.log_level)
    args.devices = _devices(args.config)
    results = [_run_one(TraceSet.from_path(path), args) for path in args.local]
    return 1 if any(result.failures for result in results) else 0


def _devices(config: str | None) -> list[str] | None:
    """All GPUs of this machine; None if there is none, or if the configuration names devices."""
    if config is not None and not {"device", "devices"}.isdisjoint(read_fields(Path(config))):
        return None
    return list_cuda_devices() or None


def _run_one(trace_set: TraceSet, args: argparse.Namespace) -> RunResult:
    from fib_bench import Benchmark

    errors = error_console()
    with progress_on(errors) as observe, Benchmark(trace_set, config_of(args, trace_set)) as benchmark:
        result = benchmark.run(dump_traces=args.save_results, resume=args.resume, observe=observe)
    shown = _in_memory(trace_set, result) if not args.save_results else trace_set
    ran = {trace.definition for trace in result.traces}
    print_leaderboard(output_console(), [row for row in summarise(shown).leaderboard if row.definition in ran])
    print_problems(trace_set.problems)
    print_skipped(errors, result.skipped)
    return result


def _in_memory(trace_set: TraceSet, result: RunResult) -> TraceSet:
    """The traces of a run as a data set of their own."""
    names = dict.fromkeys(trace.definition for trace in result.traces)
    return TraceSet(
        None,
        {name: trace_set.definitions[name] for name in names},
        {name: trace_set.solutions[name] for name in names},
        traces={name: [trace for trace in result.traces if trace.definition == name] for name in names},
    )


def _loaded(paths: Sequence[str]) -> TraceSet:
    """Data sets merged in memory; their problems are printed."""
    sets = [TraceSet.from_path(path) for path in paths]
    merged = sets[0] if len(sets) == 1 else merge_tracesets(sets)
    for trace_set in sets:
        print_problems(trace_set.all_problems())
    return merged


def summary(args: argparse.Namespace) -> int:
    """Print totals, the leaderboard and the ranking of authors."""
    print_summary(output_console(), summarise(_loaded(args.local)))
    return 0


def best(args: argparse.Namespace) -> int:
    """Print the fastest passing solution of each workload."""
    rows = best_of(_loaded(args.local), allow_flags=(CPU_TIMING,))  # the table labels these rows
    if rows:
        print_best(output_console(), rows)
    else:
        error_console().print("no passing trace yet; run 'flashinfer-bench run' first", style="yellow")
    return 0


def visualize(args: argparse.Namespace) -> int:
    """Print a table for each definition, with its solutions from best to worst."""
    print_leaderboard(output_console(), summarise(_loaded(args.local)).leaderboard)
    return 0


def merge(args: argparse.Namespace) -> int:
    """Write the data sets, tensors included, into a new one."""
    report = merge_folders(args.local, args.output)
    print_merge(output_console(), report)
    return 1 if report.problems else 0


def _validate(args: argparse.Namespace) -> int:
    from .validation import validate

    return validate(args)


def _render(args: argparse.Namespace) -> int:
    from .validation import render_file

    write_output(args.output, render_file(Path(args.report)).encode())
    return 0


def _serve(args: argparse.Namespace) -> int:
    del args
    error_console().print(safe_text(_NO_SERVER, "red"), soft_wrap=True)
    return 2


_COMMANDS = {
    "run": run,
    "report summary": summary,
    "report best": best,
    "report visualize": visualize,
    "report merge": merge,
    "validate": _validate,
    "validate-render": _render,
    "serve": _serve,
}
