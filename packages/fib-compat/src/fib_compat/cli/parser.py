"""Command-line options of ``fib-compat``, as documented."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from fib_schema.command import CommandParser

CHECKS = ("layout", "definition", "workload", "solution", "trace", "baseline", "benchmark")
OUTPUTS = ("stdout", "json", "text")

_DESCRIPTION = """\
Benchmark the kernels of a data set and report on the results. This is the command line of
flashinfer-bench, implemented by fib-bench; 'fib-bench --help' shows all features."""
_RUN_EXAMPLES = """\
examples:
  fib-compat run --local ./flashinfer-trace
  fib-compat run --local ./flashinfer-trace --definitions rmsnorm_h4096 --resume
  fib-compat run --local ./flashinfer-trace --config bench.yaml --timeout 60"""
_REPORT_EXAMPLES = """\
examples:
  fib-compat report summary --local ./flashinfer-trace
  fib-compat report best --local ./mine --local ./theirs
  fib-compat report merge --local ./mine --local ./theirs --output ./both"""
_VALIDATE_EXAMPLES = """\
examples:
  fib-compat validate --dataset ./flashinfer-trace
  fib-compat validate --dataset ./flashinfer-trace --checks layout,definition --op-types gemm
  fib-compat validate --dataset ./flashinfer-trace --outputs json,text --output-folder ./report
  fib-compat validate-render ./report/validation_20260401_120000.json"""
_ACTIVATION_EXAMPLES = """\
examples:
  fib-compat enable
  FIB_COMPAT=1 python -m flashinfer_bench --help
  fib-compat disable"""
_MIGRATION_EXAMPLES = """\
examples:
  fib-compat migrate-imports ./src --diff
  fib-compat migrate-imports ./src"""
_SERVE_EXAMPLES = """\
examples:
  fib-compat serve --local ./flashinfer-trace
  fib-compat serve --local ./flashinfer-trace --devices cuda:0 cuda:1 --port 9000
'fib-serve run --help' shows all settings of the service."""
_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def make_parser() -> argparse.ArgumentParser:
    """The parser; parsed arguments have the attribute ``command``."""
    from fib_schema.package_init import installed_version

    parser = CommandParser(prog="fib-compat", description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"fib-compat {installed_version('fib-compat')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(_add_command(commands, "run", "benchmark solutions and append their traces", _RUN_EXAMPLES))
    _add_report(_add_command(commands, "report", "report on traces", _REPORT_EXAMPLES))
    _add_validate(_add_command(commands, "validate", "report the errors of a data set", _VALIDATE_EXAMPLES))
    _add_render(
        _add_command(commands, "validate-render", "convert a JSON report of 'validate' to text", _VALIDATE_EXAMPLES)
    )
    _add_activation(commands)
    text = "rewrite programs that import flashinfer_bench to the FIB packages"
    _add_migration(_add_command(commands, "migrate-imports", text, _MIGRATION_EXAMPLES))
    _add_serve(_add_command(commands, "serve", "evaluate solutions for clients over HTTP", _SERVE_EXAMPLES))
    return parser


def _add_command(commands: object, name: str, summary: str, examples: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(  # type: ignore[attr-defined] # argparse hides its type
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if name != "report":
        _add_log_level(parser)
    return parser


def _add_log_level(parser: argparse.ArgumentParser) -> None:
    text = "minimum level of log messages (default: %(default)s)"
    parser.add_argument("--log-level", type=str.upper, choices=_LOG_LEVELS, default="INFO", help=text)


def _add_run(parser: argparse.ArgumentParser) -> None:
    _add_local(parser)
    parser.add_argument("--definitions", nargs="+", metavar="NAME", help="only these definitions")
    parser.add_argument("--solutions", nargs="+", metavar="NAME", help="only these solutions")
    parser.add_argument("--resume", action="store_true", help="skip pairs of solution and workload that have a trace")
    parser.add_argument("--config", metavar="YAML", help="settings; options override them")
    text = "whether to append traces to the data set (default: yes)"
    parser.add_argument("--save-results", action=argparse.BooleanOptionalAction, default=True, help=text)
    text = "no effect: every solution runs in its own worker process"
    parser.add_argument("--use-isolated-runner", action="store_const", const=True, help=text)
    _add_settings(parser.add_argument_group("settings"))
    parser.set_defaults(command="run")


def _add_settings(group: argparse._ArgumentGroup) -> None:
    for option, kind, text in (
        ("--warmup-runs", int, "calls before timing"),
        ("--iterations", int, "minimum number of samples"),
        ("--num-trials", int, "input sets with different values"),
        ("--rtol", float, "relative tolerance: an element is wrong if it exceeds both tolerances"),
        ("--atol", float, "absolute tolerance"),
        ("--required-matched-ratio", float, "share of elements that must be within the tolerances"),
    ):
        group.add_argument(option, type=kind, metavar="N" if kind is int else "X", help=text)
    text = "limit for one build and for one evaluation"
    group.add_argument("--timeout", dest="timeout_seconds", type=float, metavar="SECONDS", help=text)
    group.add_argument(
        "--no-profile-baseline",
        dest="profile_baseline",
        action="store_const",
        const=False,
        help="do not time the reference",
    )


def _add_activation(commands: object) -> None:
    for name, summary in (
        ("enable", "let every process of this environment that has FIB_COMPAT=1 import flashinfer_bench"),
        ("disable", "undo 'enable'"),
    ):
        _add_command(commands, name, summary, _ACTIVATION_EXAMPLES).set_defaults(command=name)


def _add_migration(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a program, or a folder of programs")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a program would change")
    parser.add_argument("--diff", action="store_true", help="write nothing; print the changes")
    parser.set_defaults(command="migrate-imports")


def _add_report(parser: argparse.ArgumentParser) -> None:
    reports = parser.add_subparsers(required=True, metavar="REPORT")
    for name, text in (
        ("summary", "totals, the leaderboard, and the ranking of authors"),
        ("best", "the fastest passing solution of each workload"),
        ("visualize", "a table for each definition, with its solutions from best to worst"),
        ("merge", "merge data sets, tensors included"),
    ):
        report = reports.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        _add_local(report)
        _add_log_level(report)
        report.set_defaults(command=f"report {name}")
        if name == "merge":
            report.add_argument("--output", required=True, metavar="DIR", help="a new or empty folder")


def _add_validate(parser: argparse.ArgumentParser) -> None:
    text = "the data set (default: FIB_DATASET_PATH)"
    parser.add_argument("--dataset", metavar="PATH", help=text)
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
    parser.set_defaults(command="validate")


def _add_render(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("report", metavar="REPORT.json", help="a file that 'validate --outputs json' wrote")
    parser.add_argument("--output", metavar="FILE", help="the text file (default: stdout)")
    parser.set_defaults(command="validate-render")


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--local", metavar="PATH", help="the data set (default: FIB_DATASET_PATH)")
    parser.add_argument("--devices", nargs="+", metavar="DEVICE", help="the devices that evaluate (default: the first)")
    text = "(default: %(default)s, without tokens); clients of any other address need a token"
    parser.add_argument("--host", default="127.0.0.1", help=text)
    parser.add_argument("--port", type=int, default=8000, help="(default: %(default)s)")
    group = parser.add_argument_group("settings of all evaluations")
    for option, kind, value, text in (
        ("--warmup-runs", int, 10, "calls before timing"),
        ("--iterations", int, 50, "minimum number of samples"),
        ("--num-trials", int, 3, "input sets with different values"),
        ("--rtol", float, 1e-2, "relative tolerance: an element is wrong if it exceeds both tolerances"),
        ("--atol", float, 1e-2, "absolute tolerance"),
        ("--timeout", float, 300, "limit in seconds for one build and for each step of an evaluation"),
    ):
        metavar = "N" if kind is int else "X"
        group.add_argument(option, type=kind, default=value, metavar=metavar, help=f"{text} (default: %(default)s)")
    parser.set_defaults(command="serve")


def _add_local(parser: argparse.ArgumentParser) -> None:
    text = "a data set; repeat for more"
    parser.add_argument("--local", action="extend", nargs="+", required=True, metavar="PATH", help=text)


def _comma_separated(known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(name for name in text.split(",") if name)
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"unknown: {name!r} (choose from {', '.join(known)})")
        return names

    return parse
