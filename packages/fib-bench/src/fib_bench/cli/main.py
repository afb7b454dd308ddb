"""The command ``fib-bench``.

Progress goes to stderr, results to stdout; ``--json`` makes stdout one JSON object. Exit codes: 0 if all
requested work ran (wrong solutions are results, not failures), 1 if some or all could not run, 2 for an invalid
command or a file that cannot be read or written, 130 after an interrupt, 141 if the reader of stdout has ended.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from fib_schema import TraceSet, to_plain
from fib_schema.command import plain_problems, print_problems, run_command
from fib_schema.command_parser import CommandParser
from fib_schema.data_files import missing_data
from fib_schema.display import counted
from rich.console import Console

from .. import __version__
from ..config.benchmark import BenchmarkConfig
from ..config.layers import DATA_SET_FILE
from ..demo import CPU_NOTE, NEXT_STEPS, write_demo
from ..report import summarise
from .author_commands import add_add, add_edit, add_new
from .data_set_commands import add_migrate, add_validate
from .fetch_command import add_fetch
from .help_pages import add_help
from .import_command import add_import
from .printing import error_console, output_console, print_json, safe_text
from .progress import format_trace, progress_on
from .quick_runs import print_compiler_errors
from .report_commands import add_reports
from .run_options import add_run_options, config_of
from .selftest_command import add_selftest
from .show_command import add_show
from .tables import print_leaderboard, print_seconds, print_skipped, print_starts, print_summary
from .watch_command import add_watch

if TYPE_CHECKING:
    from ..benchmark import Benchmark, RunResult  # imports torch: only `run` and `demo` do


_INTERRUPTED = "interrupted; finished evaluations are recorded (continue with --resume)"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    return run_command("fib-bench", lambda: _main(argv), interrupted=_INTERRUPTED)


def _main(argv: Sequence[str] | None) -> int:
    arguments = _parser().parse_args(argv)
    errors = error_console()
    code: int = arguments.command(arguments, errors)
    return code


def _run(arguments: argparse.Namespace, errors: Console) -> int:
    trace_set = TraceSet.from_path(arguments.dir)
    config = config_of(arguments, trace_set)
    if config.data_set_layers is not None:
        text = f"settings of the data set: {Path(arguments.dir) / DATA_SET_FILE} (options and --config override them)"
        errors.print(safe_text(text), soft_wrap=True)
    errors.print(f"device: {', '.join(config.devices or (config.device,))}", markup=False, highlight=False)
    if arguments.reference_as_solution:
        from ..reference_solutions import add_references

        references = counted(len(add_references(trace_set, config)), "reference")
        errors.print(f"added {references} as solutions", markup=False, highlight=False)
    result = _benchmark(trace_set, config, arguments.resume, errors)
    problems = trace_set.problems if arguments.definitions else trace_set.all_problems()
    is_empty = not trace_set.definition_names()
    if is_empty:
        problems = (*problems, missing_data(arguments.dir))
    print_problems(problems)
    if arguments.json:
        print_json({**_plain_result(result), "problems": plain_problems(problems)})
    else:
        _print_result(trace_set, result, is_quick=config.quick)
        print_compiler_errors(output_console(), result.traces, trace_set)
    for note in result.notes:
        errors.print(safe_text(f"note: {note}", "yellow"), soft_wrap=True)
    print_skipped(errors, result.skipped)
    if arguments.verbose:
        print_seconds(errors, result.seconds, result.device_busy_share)
        print_starts(errors, result.starts)
    if not result.traces and not result.failures:
        errors.print("nothing to run; see the reasons above", style="yellow")
    return _exit_code(result, errors) or int(is_empty)


def _print_result(trace_set: TraceSet, result: RunResult, *, is_quick: bool) -> None:
    """Print the leaderboard of the definitions that ran; of a quick run, which ranks nobody, only its evaluations."""
    console = output_console()
    if is_quick:
        for trace in result.traces:
            console.print(safe_text(format_trace(trace)), soft_wrap=True)
        return
    ran = {trace.definition for trace in result.traces}
    print_leaderboard(console, [row for row in summarise(trace_set).leaderboard if row.definition in ran])


def _exit_code(result: RunResult, errors: Console) -> int:
    if result.is_stopped:
        errors.print(_INTERRUPTED)
        return 130
    return 1 if result.failures or result.is_without_results else 0


@contextmanager
def _interruptible(benchmark: Benchmark, errors: Console) -> Iterator[None]:
    """Let the first interrupt end the run after the running evaluations, and the second one at once."""
    before = signal.getsignal(signal.SIGINT)

    def stop(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        errors.print("finishing the running evaluations; interrupt again to stop at once")
        benchmark.stop()

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _benchmark(trace_set: TraceSet, config: BenchmarkConfig, resume: bool, errors: Console) -> RunResult:
    from ..benchmark import Benchmark

    with (
        progress_on(errors) as observe,
        Benchmark(trace_set, config) as benchmark,
        _interruptible(benchmark, errors),
    ):
        return benchmark.run(resume=resume, observe=observe)


def _demo(arguments: argparse.Namespace, errors: Console) -> int:
    root = Path(arguments.dir)
    write_demo(root)
    trace_set = TraceSet.from_path(root)
    result = _benchmark(trace_set, BenchmarkConfig(timeout_seconds=60, measure_seconds=0.25), False, errors)
    print_summary(output_console(), summarise(trace_set))
    output_console().print(CPU_NOTE, markup=False, highlight=False, soft_wrap=True)
    print_skipped(errors, result.skipped)
    output_console().print(safe_text(NEXT_STEPS.format(dir=root)), soft_wrap=True)
    return _exit_code(result, errors)


def _plain_result(result: RunResult) -> dict[str, Any]:
    return {
        "traces": [to_plain(trace) for trace in result.traces],
        "skipped": [attrs.asdict(skip) for skip in result.skipped],
        "notes": list(result.notes),
        "seconds": dict(result.seconds),
        "device_busy_share": result.device_busy_share,
        "excluded_devices": [attrs.asdict(out) for out in result.excluded_devices],
    }


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="fib-bench")
    add_help(parser, "fib-bench")
    parser.add_argument("--version", action="version", version=f"fib-bench {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="evaluate solutions and append their traces")
    add_help(run, "run")
    add_run_options(run)
    run.set_defaults(command=_run)
    add_add(commands.add_parser("add", help="add a kernel as a solution, or a changed one as its next version"))
    add_edit(commands.add_parser("edit", help="open an editor on a solution and add the result as a new version"))
    add_watch(commands.add_parser("watch", help="evaluate a kernel again whenever its file changes"))
    add_show(commands.add_parser("show", help="everything about one solution, definition or workload"))
    add_new(commands.add_parser("new", help="write a definition from a Python reference"))
    add_fetch(commands.add_parser("fetch", help="download a data set from a hub"))
    add_import(commands.add_parser("import", help="add a problem of KernelBench or GPU MODE"))
    add_reports(commands)
    add_validate(commands.add_parser("validate", help="list all problems of a data set"))
    add_selftest(commands.add_parser("selftest", help="check that exploits are rejected on this machine"))
    add_migrate(commands.add_parser("migrate", help="convert an older data set to the current schema"))
    demo = commands.add_parser("demo", help="write a small data set, benchmark it, show the leaderboard")
    add_help(demo, "demo")
    demo.add_argument("dir", metavar="DIR", nargs="?", default="fib-demo", help="where (default: %(default)s)")
    demo.set_defaults(command=_demo)
    return parser


if __name__ == "__main__":
    sys.exit(main())
