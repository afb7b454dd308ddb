"""The ``fib-bench`` command.

Progress goes to stderr, results to stdout; ``--json`` makes stdout one JSON object. The exit code
is 0 when everything that was asked for ran (wrong solutions are results, not failures), 1 when
something could not run, 2 when the command itself was wrong, 130 when it was interrupted.
"""

from __future__ import annotations

import argparse
import json
import math
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
from .config import BenchmarkConfig
from .data_set_commands import add_migrate, add_validate
from .demo import NEXT_STEPS, ON_THE_CPU, write_demo
from .report import best, summarise
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
    config = BenchmarkConfig(
        device=arguments.device,
        definitions=_names(arguments.definitions),
        solutions=_names(arguments.solutions),
        op_types=_names(arguments.op_types),
        max_workloads=arguments.max_workloads,
        timeout_seconds=arguments.timeout,
        seed=arguments.seed,
        synthesize_missing=arguments.synthesize_missing,
    )
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
    rows = best(TraceSet.from_path(arguments.dir), _names(arguments.definitions))
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


def _names(words: list[str] | None) -> tuple[str, ...] | None:
    """Names given as separate words or with commas between them."""
    if words is None:
        return None
    return tuple(name for word in words for name in word.split(",") if name)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fib-bench", description="Benchmark GPU kernel solutions.")
    parser.add_argument("--version", action="version", version=f"fib-bench {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(commands.add_parser("run", help="evaluate solutions and append their traces"))
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


def _add_run(parser: argparse.ArgumentParser) -> None:
    defaults = attrs.fields_dict(BenchmarkConfig)
    parser.add_argument("dir", metavar="DIR", help="the data set")
    parser.add_argument("--definitions", nargs="+", metavar="NAME", help="only these definitions")
    parser.add_argument("--solutions", nargs="+", metavar="NAME", help="only these solutions")
    parser.add_argument("--op-types", nargs="+", metavar="TYPE", help="only definitions of these op_types")
    parser.add_argument(
        "--max-workloads", type=_positive(int), metavar="N", help="at most N workloads of each definition"
    )
    parser.add_argument("--device", default="cpu", help="where to run (default: %(default)s)")
    parser.add_argument(
        "--timeout",
        type=_positive(float),
        metavar="SECONDS",
        default=defaults["timeout_seconds"].default,
        help="bound on one build and on one evaluation (default: %(default)g)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the inputs (default: %(default)s)")
    parser.add_argument("--resume", action="store_true", help="leave out pairs that have a trace already")
    parser.add_argument("--synthesize-missing", action="store_true", help="make valid inputs where a blob is missing")
    parser.add_argument("--json", action="store_true", help="print traces and what was skipped as JSON")
    parser.set_defaults(command=_run)


def _positive(kind: type[int] | type[float]) -> Any:
    def parse(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"must be greater than 0 and finite, got {text}")
        return value

    return parse


if __name__ == "__main__":
    sys.exit(main())
