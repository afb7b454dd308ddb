"""The command ``fib-compat``: the documented command line, implemented by fib-bench.

Exit codes: 0 success; 1 an evaluation could not run, or a data set has errors; 2 invalid arguments, or a file that
cannot be read or written; 130 interrupted; 141 the reader of the output has ended.
"""

from __future__ import annotations

import argparse
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from fib_bench.cli.main import main as fib_bench_command
from fib_bench.cli.options import add_run_options, config_of
from fib_bench.cli.output import error_console, output_console, print_leaderboard, print_skipped, progress_on
from fib_bench.report import summarise
from fib_compile.device import list_cuda_devices
from fib_schema import TraceSet, UnknownName, get_fib_dataset_path
from fib_schema.command import CommandParser, print_problems, run_command
from fib_schema.data_files import missing_data
from fib_schema.files import write_output
from fib_schema.package_init import installed_version

from .errors import NotOffered
from .table import PACKAGE, missing_extra

if TYPE_CHECKING:
    from fib_bench.benchmark import RunResult

__all__ = ["cli", "make_parser", "service_command"]

Command = Callable[[argparse.Namespace], int]

_INTERRUPTED = "interrupted; finished evaluations are recorded (--resume continues)"


def cli(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command("fib-compat", lambda: _run(arguments), interrupted=_INTERRUPTED)


def _run(arguments: Sequence[str] | None) -> int:
    options = make_parser().parse_args(arguments)
    with _logging(options.log_level):
        code: int = options.command(options)
        return code


@contextmanager
def _logging(level: str) -> Iterator[None]:
    """Write log messages from a level on to stderr, while a command runs."""
    root, handler = logging.getLogger(), logging.StreamHandler()
    before = root.level
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    handler.setLevel(level)
    root.addHandler(handler)
    root.setLevel(level)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)


def run(args: argparse.Namespace) -> int:
    """Benchmark each data set and append each trace to it at once."""
    if args.device is None and args.devices is None:
        args.devices = list_cuda_devices() or None
    results = [_run_one(TraceSet.from_path(path), args) for path in args.local]
    return 1 if any(result.failures for result in results) else 0


def _run_one(trace_set: TraceSet, args: argparse.Namespace) -> RunResult:
    """Benchmark a data set; `UnknownName` if it has none of the definitions, or none of the solutions."""
    from .names.bench import Benchmark, with_traces

    config = config_of(args, trace_set)
    if not trace_set.definition_names():
        print_problems([missing_data(str(trace_set.root))])
    for kind, names, have in (
        ("definition", config.definitions, trace_set.definition_names()),
        ("solution", config.solutions, trace_set.solution_names()),
    ):
        if names and not set(names) & set(have):
            raise UnknownName(kind, names[0], have)
    errors = error_console()
    with progress_on(errors) as observe, Benchmark(trace_set, config) as benchmark:
        result = benchmark.run(dump_traces=args.save_results, resume=args.resume, observe=observe)
    shown = benchmark.get_trace_set() if args.save_results else with_traces(trace_set, result.traces)
    ran = {trace.definition for trace in result.traces}
    print_leaderboard(output_console(), [row for row in summarise(shown).leaderboard if row.definition in ran])
    print_problems(trace_set.problems)
    print_skipped(errors, result.skipped)
    return result


def report(args: argparse.Namespace) -> int:
    """Print a report of each data set, by ``fib-bench report``; of ``best`` with those timed on the CPU."""
    words = ("best", "--include-unranked") if args.report == "best" else ("summary",)
    return max(fib_bench_command(["report", *words, path]) for path in args.local)


def merge(args: argparse.Namespace) -> int:
    """Write the data sets, tensors included, into a new one."""
    return fib_bench_command(["report", "merge", *args.local, "--into", args.output])


def _render(args: argparse.Namespace) -> int:
    from .names.validation import render_report

    text = render_report(args.report, args.output)
    if args.output is None:
        print(text, end="")
    return 0


def validate(args: argparse.Namespace) -> int:
    """Report the findings of a data set; return 1 if there are errors, else 0."""
    from .names.validation import render_text_report, validate_dataset

    given = {name: getattr(args, name) for name in ("checks", "op_types", "definitions", "disable_gpu")}
    report = validate_dataset(args.dataset, **given)
    text = render_text_report(report)
    stem = Path(args.output_folder) / f"validation_{datetime.now().astimezone():%Y%m%d_%H%M%S}"
    if "stdout" in args.outputs:
        print(text, end="")
    if "json" in args.outputs:
        plain = f"{report.model_dump_json(indent=2)}\n"
        write_output(stem.with_suffix(".json"), plain.encode("utf-8", "backslashreplace"))  # an escape in JSON too
    if "text" in args.outputs:
        write_output(stem.with_suffix(".txt"), text.encode("utf-8", "backslashreplace"))
    return 1 if report.status == "failed" else 0


# -- serve -------------------------------------------------------------------------------------------

_LEVELS = {"CRITICAL": "error"}
"""Levels that fib-serve does not have."""
_LOOPBACK = re.compile(r"127(\.[0-9]{1,3}){3}|::1")


def serve(args: argparse.Namespace) -> int:
    """Run the service until it is told to end; returns the exit code.

    Raises:
        NotOffered: fib-serve is not installed.
    """
    if (reason := missing_extra(f"{PACKAGE}.serve")) is not None:
        raise NotOffered(f"serve is not offered: {reason}")
    code: int = resolve_name("fib_serve.cli.main:main")(list(service_command(args)))
    return code


def service_command(args: argparse.Namespace) -> Iterator[str]:
    """The arguments of ``fib-serve``.

    flashinfer-bench's service has no tokens. fib-serve works without them on loopback addresses only, because whoever
    reaches it may run code.
    """
    root = get_fib_dataset_path() if args.local is None else Path(args.local)
    yield from ("run", str(root.absolute()), f"--host={args.host}", f"--port={args.port}")
    yield f"--log-level={_LEVELS.get(args.log_level, args.log_level.lower())}"
    if args.host == "localhost" or _LOOPBACK.fullmatch(args.host):
        yield "--no-auth"
    for option, *_ in _NUMBERS:
        yield f"{option}={getattr(args, option[2:].replace('-', '_'))}"
    if args.devices is not None:
        yield f"--devices={','.join(args.devices)}"


# -- options -----------------------------------------------------------------------------------------

CHECKS = ("layout", "definition", "workload", "solution", "trace", "baseline", "benchmark")
OUTPUTS = ("stdout", "json", "text")

_DESCRIPTION = """\
Benchmark the kernels of a data set and report on the results, by fib-bench, whose --help shows all features."""
_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_NUMBERS: tuple[tuple[str, type, float, str], ...] = (
    ("--warmup-runs", int, 10, "calls before timing"),
    ("--iterations", int, 50, "minimum number of samples"),
    ("--num-trials", int, 3, "input sets with different values"),
    ("--rtol", float, 1e-2, "relative tolerance: an element is wrong if it exceeds both tolerances"),
    ("--atol", float, 1e-2, "absolute tolerance"),
    ("--timeout", float, 300, "limit in seconds for one build and for each step of an evaluation"),
)


def make_parser() -> argparse.ArgumentParser:
    """The parser; parsed arguments have the attribute ``command``."""
    parser = CommandParser(prog="fib-compat", description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"fib-compat {installed_version('fib-compat')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(_add_command(commands, "run", run, "benchmark solutions and append their traces"))
    reports = commands.add_parser("report", help="report on traces").add_subparsers(required=True, metavar="REPORT")
    for name, text in (
        ("summary", "totals and the leaderboard of each data set"),
        ("best", "the fastest passing solution of each workload"),
        ("visualize", "a table for each definition, with its solutions from best to worst"),
    ):
        reporting = _add_command(reports, name, report, text)
        _add_local(reporting)
        reporting.set_defaults(report=name)
    merging = _add_command(reports, "merge", merge, "merge data sets, tensors included")
    _add_local(merging)
    merging.add_argument("--output", required=True, metavar="DIR", help="a new or empty folder")
    _add_validate(_add_command(commands, "validate", validate, "report the errors of a data set"))
    rendering = _add_command(commands, "validate-render", _render, "convert a JSON report of 'validate' to text")
    rendering.add_argument("report", metavar="REPORT.json", help="a file that 'validate --outputs json' wrote")
    rendering.add_argument("--output", metavar="FILE", help="the text file (default: stdout)")
    _add_serve(_add_command(commands, "serve", serve, "evaluate solutions for clients over HTTP"))
    return parser


def _add_command(commands: Any, name: str, run: Command, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    level = "minimum level of log messages (default: %(default)s)"
    parser.add_argument("--log-level", type=str.upper, choices=_LOG_LEVELS, default="INFO", help=level)
    parser.set_defaults(command=run)
    return parser


def _add_local(parser: argparse.ArgumentParser) -> None:
    text = "a data set; repeat for more"
    parser.add_argument("--local", action="extend", nargs="+", required=True, metavar="PATH", help=text)


def _add_run(parser: argparse.ArgumentParser) -> None:
    _add_local(parser)
    parser.add_argument("--resume", action="store_true", help="skip pairs of solution and workload that have a trace")
    text = "whether to append traces to the data set (default: yes)"
    parser.add_argument("--save-results", action=argparse.BooleanOptionalAction, default=True, help=text)
    text = "no effect: every solution runs in its own worker process"
    parser.add_argument("--use-isolated-runner", action="store_true", help=text)
    add_run_options(parser)


def _add_validate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dataset", metavar="PATH", help="the data set (default: FIB_DATASET_PATH)")
    text = f"of {','.join(CHECKS)} (default: all); benchmark runs references and baselines on all workloads"
    parser.add_argument("--checks", type=_comma_separated(CHECKS), default=CHECKS, metavar="NAME,...", help=text)
    text = "use no GPU: skip the check 'benchmark', and build no baseline"
    parser.add_argument("--disable-gpu", action="store_true", help=text)
    parser.add_argument("--op-types", nargs="+", metavar="TYPE", help="only definitions of these op_types")
    text = "only these definitions, besides those of --op-types"
    parser.add_argument("--definitions", nargs="+", metavar="NAME", help=text)
    text = "folder for the files, whose names have the time (default: %(default)s)"
    parser.add_argument("--output-folder", default=".", metavar="DIR", help=text)
    text = f"of {','.join(OUTPUTS)} (default: stdout)"
    parser.add_argument("--outputs", type=_comma_separated(OUTPUTS), default=("stdout",), metavar="NAME,...", help=text)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--local", metavar="PATH", help="the data set (default: FIB_DATASET_PATH)")
    parser.add_argument("--devices", nargs="+", metavar="DEVICE", help="the devices that evaluate (default: the first)")
    text = "(default: %(default)s, without tokens); clients of any other address need a token"
    parser.add_argument("--host", default="127.0.0.1", help=text)
    parser.add_argument("--port", type=int, default=8000, help="(default: %(default)s)")
    group = parser.add_argument_group("settings of all evaluations")
    for option, kind, value, text in _NUMBERS:
        group.add_argument(option, type=kind, default=value, metavar="N", help=f"{text} (default: %(default)s)")


def _comma_separated(known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(name for name in text.split(",") if name)
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"unknown: {name!r} (choose from {', '.join(known)})")
        return names

    return parse
