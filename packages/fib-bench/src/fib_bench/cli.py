"""The ``fib-bench`` command.

Progress goes to stderr, results to stdout; ``--json`` makes stdout one JSON object. The exit code
is 0 when everything that was asked for ran (wrong solutions are results, not failures), 1 when
something could not run, 2 when the command itself was wrong, 130 when it was interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from fib_schema import DataWarning, FibError, TraceSet, to_plain
from rich.console import Console

from . import __version__
from .config import DATA_SET_FILE, BenchmarkConfig
from .data_set_commands import add_migrate, add_validate
from .demo import NEXT_STEPS, ON_THE_CPU, write_demo
from .report import best, summarise
from .run_options import add_run_options, config_of, names_of
from .tables import print_best, print_leaderboard, print_skipped, print_summary, progress_on

if TYPE_CHECKING:
    from .benchmark import RunResult  # imports torch: only `run` and `demo` do


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    arguments = _parser().parse_args(argv)
    errors = Console(stderr=True)
    warnings.showwarning = lambda message, *_: errors.print(
        f"warning: {message}", style="yellow", markup=False, soft_wrap=True
    )
    warnings.simplefilter("always", DataWarning)
    try:
        code: int = arguments.command(arguments, errors)
    except BrokenPipeError:  # whoever reads our output has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (FibError, OSError) as error:
        errors.print(f"fib-bench: {error}", style="red", markup=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        errors.print("interrupted; what was evaluated so far is recorded (continue with --resume)")
        return 130
    return code


def _run(arguments: argparse.Namespace, errors: Console) -> int:
    trace_set = TraceSet.from_path(arguments.dir)
    config = config_of(arguments, trace_set)
    if config.data_set_layers is not None:
        said = f"settings of the data set: {Path(arguments.dir) / DATA_SET_FILE} (options and --config override them)"
        errors.print(said, markup=False, highlight=False, soft_wrap=True)
    result = _benchmark(trace_set, config, arguments.resume, errors)
    if arguments.json:
        _print_json(_plain_result(result))
    else:
        ran = {trace.definition for trace in result.traces}
        standings = [row for row in summarise(trace_set).standings if row.definition in ran]
        print_leaderboard(Console(), standings)
        print_skipped(errors, result.skipped)
        if not result.traces and not result.failures:
            errors.print("nothing was left to run; see the reasons above", style="yellow")
    return 1 if result.failures else 0


def _benchmark(trace_set: TraceSet, config: BenchmarkConfig, resume: bool, errors: Console) -> RunResult:
    from .benchmark import Benchmark

    with progress_on(errors) as observe, Benchmark(trace_set, config) as benchmark:
        return benchmark.run(resume=resume, observe=observe)


def _summary(arguments: argparse.Namespace, errors: Console) -> int:
    del errors
    summary = summarise(TraceSet.from_path(arguments.dir))
    if arguments.json:
        _print_json(attrs.asdict(summary))
    else:
        print_summary(Console(), summary)
    return 0


def _best(arguments: argparse.Namespace, errors: Console) -> int:
    rows = best(TraceSet.from_path(arguments.dir), names_of(arguments.definitions))
    if arguments.json:
        _print_json([attrs.asdict(row) for row in rows])
    elif rows:
        print_best(Console(), rows)
    else:
        errors.print("no passing trace yet; make some with 'fib-bench run'", style="yellow")
    return 0


def _demo(arguments: argparse.Namespace, errors: Console) -> int:
    root = Path(arguments.dir)
    write_demo(root)
    trace_set = TraceSet.from_path(root)
    result = _benchmark(trace_set, BenchmarkConfig(timeout_seconds=60), False, errors)
    print_summary(Console(), summarise(trace_set))
    Console().print(ON_THE_CPU, markup=False, highlight=False, soft_wrap=True)
    print_skipped(errors, result.skipped)
    Console().print(NEXT_STEPS.format(dir=root), markup=False, highlight=False, soft_wrap=True)
    return 1 if result.failures else 0


def _plain_result(result: RunResult) -> dict[str, Any]:
    return {
        "traces": [to_plain(trace) for trace in result.traces],
        "skipped": [attrs.asdict(skip) for skip in result.skipped],
    }


def _print_json(value: object) -> None:
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fib-bench", description="Benchmark GPU kernel solutions.")
    parser.add_argument("--version", action="version", version=f"fib-bench {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="evaluate solutions and append their traces")
    add_run_options(run)
    run.set_defaults(command=_run)
    report = commands.add_parser("report", help="show what the traces say")
    reports = report.add_subparsers(required=True, metavar="REPORT")
    summary = reports.add_parser("summary", help="totals and the leaderboard")
    winners = reports.add_parser("best", help="the fastest passing solution of each workload")
    winners.add_argument("--definitions", nargs="+", metavar="NAME", help="only these")
    for sub, command in ((summary, _summary), (winners, _best)):
        sub.add_argument("dir", metavar="DIR", help="the data set")
        sub.add_argument("--json", action="store_true", help="print JSON")
        sub.set_defaults(command=command)
    add_validate(commands.add_parser("validate", help="say everything that is wrong with a data set"))
    add_migrate(commands.add_parser("migrate", help="rewrite an older data set into the current schema"))
    demo = commands.add_parser("demo", help="write a small data set, benchmark it, show the leaderboard")
    demo.add_argument("dir", metavar="DIR", nargs="?", default="fib-demo", help="where (default: %(default)s)")
    demo.set_defaults(command=_demo)
    return parser


if __name__ == "__main__":
    sys.exit(main())
