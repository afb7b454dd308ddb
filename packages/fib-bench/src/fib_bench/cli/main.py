"""The command ``fib-bench``.

Progress goes to stderr, results to stdout; ``--json`` makes stdout one JSON object. Exit codes: 0 if all
requested work ran (wrong solutions are results, not failures), 1 if some or all could not run, 2 for an invalid
command or a file that cannot be read or written, 130 after an interrupt, 141 if the reader of stdout has ended.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from fib_schema import EvaluationStatus, Trace, TraceSet, to_plain
from fib_schema.command import CommandParser, add_data_set, data_set_of, plain_problems, print_problems, run_command
from fib_schema.data_files import missing_data
from fib_schema.display import counted
from rich.console import Console

from .. import __version__
from ..authoring.compiler_errors import compiler_error_of
from ..config.model import DATA_SET_FILE, BenchmarkConfig
from ..report import summarise
from ..report.leaderboard import format_trace
from .options import add_command, add_json, add_run_options, config_of, set_help
from .output import (
    error_console,
    handled,
    interruptible,
    output_console,
    print_json,
    print_leaderboard,
    print_seconds,
    print_skipped,
    print_summary,
    progress_on,
    say,
)

if TYPE_CHECKING:
    from ..benchmark import RunResult  # imports torch: only `run` and `demo` do

_INTERRUPTED = "interrupted; finished evaluations are recorded (continue with --resume)"
_HELP = """\
Run the kernel solutions of a data set, check their results, and measure their latency.

A data set is a folder of definitions (what a kernel computes, with reference code), solutions (one
implementation each), workloads (sizes and inputs) and traces (what came out). Results go to stdout,
progress to stderr. Exit codes: 0, 1 if some work could not run or a check fails, 2 for an invalid command or a
file that cannot be read or written, 130 after an interrupt (finished evaluations are recorded), 141 if the reader
of stdout has ended.

Examples:
  fib-bench demo                       see it work in some minutes, with a GPU or without
  fib-bench run DIR --device cuda:0    evaluate everything in DIR
  fib-bench add kernel.py --definition rmsnorm_h1024 --dataset DIR
                                       add a kernel of your own
  fib-bench report summary DIR         the leaderboard
  fib-bench COMMAND --help             what a command does, with examples"""

_LATE_COMMANDS = {
    "add": ("kernels:declare_add", "add a kernel as a solution, or a changed one as its next version"),
    "watch": ("kernels:declare_watch", "evaluate a kernel again whenever its file changes"),
    "new": ("kernels:declare_new", "write a definition from a Python reference"),
    "tune": ("tuning:declare_tune", "choose the configuration of a solution for each size"),
    "report": ("reports:declare_report", "tables and pages made from traces"),
    "validate": ("data_sets:declare_validate", "list all problems of a data set"),
    "migrate": ("data_sets:declare_migrate", "convert an older data set to the current schema"),
    "fetch": ("data_sets:declare_fetch", "download a data set from a hub"),
    "import": ("data_sets:declare_import", "add a problem of KernelBench or GPU MODE"),
    "selftest": ("selftest:declare_selftest", "check that exploits are rejected on this machine"),
}
"""The commands that other modules declare when they are used."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code. SIGTERM and SIGHUP end it as Ctrl-C does, so that no process is left."""
    with handled(signal.default_int_handler, signal.SIGTERM, signal.SIGHUP):
        return run_command("fib-bench", lambda: _main(argv), interrupted=_INTERRUPTED)


def _main(argv: Sequence[str] | None) -> int:
    arguments = _parser().parse_args(argv)
    errors = error_console()
    code: int = arguments.command(arguments, errors)
    return code


def _run(arguments: argparse.Namespace, errors: Console) -> int:
    """Evaluate all solutions on all workloads, and append a trace for each pair as soon as it is made.

    Each solution runs in a process of its own, which holds no expected output. A solution that raises, hangs or
    crashes fails only its own evaluation; a wrong solution is a result with exit code 0. The exit code is 1 if some
    work, or all of it, could not run; the reasons are printed at the end. A solution also runs on devices with the
    architecture of one in its target_hardware, such as one for H100 on an H200.

    Examples:
      fib-bench run DIR --device cuda:0
      fib-bench run DIR --resume                       only what has no trace yet
      fib-bench run DIR --quick --solutions mine --max-workloads 3
                                                       a quick look at one solution, unranked
      fib-bench run DIR --devices all                  on all GPUs of this machine
      fib-bench run DIR --executor ray --address HOST:6379 --device cuda:0
                                                       on all GPUs of a cluster
      fib-bench run DIR --baseline flashinfer_rmsnorm_h4096
                                                       time it beside the engine's own kernel
      fib-bench run DIR --json | jq '.traces[].evaluation.status'
    """
    root = data_set_of(arguments)
    trace_set = TraceSet.from_path(root)
    config = config_of(arguments, trace_set)
    if config.data_set_layers is not None:
        file = root / DATA_SET_FILE
        say(errors, f"settings of the data set: {file} (options and --config override them)")
    say(errors, f"device: {', '.join(config.devices or (config.device,))}")
    if arguments.reference_as_solution:
        from ..references import add_references

        say(errors, f"added {counted(len(add_references(trace_set, config)), 'reference')} as solutions")
    result = _benchmark(trace_set, config, arguments.resume, errors)
    problems = trace_set.problems if arguments.definitions else trace_set.all_problems()
    is_empty = not trace_set.definition_names()
    if is_empty:
        problems = (*problems, missing_data(str(root)))
    print_problems(problems)
    if arguments.json:
        print_json({**_plain_result(result), "problems": plain_problems(problems)})
    else:
        _print_result(trace_set, result, is_quick=config.quick)
    for note in result.notes:
        say(errors, f"note: {note}", "yellow")
    print_skipped(errors, result.skipped)
    if arguments.verbose:
        print_seconds(errors, result.seconds, result.device_busy_share)
    if not result.traces and not result.failures:
        say(errors, "nothing to run; see the reasons above", "yellow")
    return _exit_code(result, errors) or int(is_empty)


def _print_result(trace_set: TraceSet, result: RunResult, *, is_quick: bool) -> None:
    """Print the leaderboard of the definitions that ran; of a quick run, which ranks nobody, only its evaluations."""
    console = output_console()
    if is_quick:
        for trace in result.traces:
            say(console, format_trace(trace))
    else:
        ran = {trace.definition for trace in result.traces}
        print_leaderboard(console, [r for r in summarise(trace_set).leaderboard if r.definition in ran], trace_set.root)
    failed = {trace.solution: trace for trace in reversed(result.traces) if _is_compile_error(trace)}
    for name, trace in failed.items():
        if (error := compiler_error_of(trace.evaluation, trace_set.get_solution(str(name)))) is not None:
            say(console, f"{name}: {error}", "red")


def _is_compile_error(trace: Trace) -> bool:
    return trace.evaluation is not None and trace.evaluation.status is EvaluationStatus.COMPILE_ERROR


def _exit_code(result: RunResult, errors: Console) -> int:
    if result.is_stopped:
        say(errors, _INTERRUPTED)
        return 130
    return 1 if result.failures or result.is_without_results else 0


def _benchmark(trace_set: TraceSet, config: BenchmarkConfig, resume: bool, errors: Console) -> RunResult:
    from ..benchmark import Benchmark

    benchmark = Benchmark(trace_set, config)
    with progress_on(errors) as observe, interruptible(benchmark.stop, errors):
        return benchmark.run(resume=resume, observe=observe)


def _demo(arguments: argparse.Namespace, errors: Console) -> int:
    """Write a small data set of three definitions and ten solutions, benchmark it on the CPU, and show the results.

    One solution is wrong on purpose. It takes some minutes; running it again adds traces.

    Examples:
      fib-bench demo
      fib-bench demo /tmp/demo && fib-bench report html /tmp/demo
    """
    from ..demo import CPU_NOTE, NEXT_STEPS, write_demo

    root = Path(arguments.dir)
    write_demo(root)
    trace_set = TraceSet.from_path(root)
    result = _benchmark(trace_set, BenchmarkConfig(timeout_seconds=60, measure_seconds=0.25), False, errors)
    print_summary(output_console(), summarise(trace_set), root)
    say(output_console(), CPU_NOTE)
    print_skipped(errors, result.skipped)
    say(output_console(), NEXT_STEPS.format(dir=root))
    return _exit_code(result, errors)


def _plain_result(result: RunResult) -> dict[str, Any]:
    return {
        "traces": [to_plain(trace) for trace in result.traces],
        "skipped": [attrs.asdict(skip) for skip in result.skipped],
        "notes": list(result.notes),
        "seconds": dict(result.seconds),
        "device_busy_share": result.device_busy_share,
    }


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="fib-bench")
    set_help(parser, _HELP)
    parser.add_argument("--version", action="version", version=f"fib-bench {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = add_command(commands, "run", "evaluate solutions and append their traces", _run)
    add_data_set(run, is_first=True)
    run.add_argument("--resume", action="store_true", help="skip pairs that have a trace already")
    add_json(run)
    run.add_argument("-v", "--verbose", action="store_true", help="print the seconds of each phase at the end")
    text = "add the reference as a solution to each definition that has none"
    run.add_argument("--reference-as-solution", action="store_true", help=text)
    add_run_options(run)
    for name, (declaration, summary) in _LATE_COMMANDS.items():
        commands.add_parser(name, help=summary).declaration = f"{__package__}.{declaration}"
    demo = add_command(commands, "demo", "write a small data set, benchmark it, show the leaderboard", _demo)
    demo.add_argument("dir", metavar="DIR", nargs="?", default="fib-demo", help="where (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
