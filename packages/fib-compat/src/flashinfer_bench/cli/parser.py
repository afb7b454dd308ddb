"""The flags of ``flashinfer-bench``, as its documentation names them."""

from __future__ import annotations

import argparse
from collections.abc import Callable

CHECKS = ("layout", "definition", "workload", "solution", "trace", "baseline", "benchmark")
DEFAULT_CHECKS = CHECKS[:5]
OUTPUTS = ("stdout", "json", "text")

_DESCRIPTION = """\
Benchmark the kernels of a data set and report on it. This is the command line of flashinfer-bench
over fib-bench, whose own command can more: see 'fib-bench --help'."""
_RUN_EXAMPLES = """\
examples:
  flashinfer-bench run --local ./flashinfer-trace
  flashinfer-bench run --local ./flashinfer-trace --definitions rmsnorm_h4096 --resume
  flashinfer-bench run --local ./flashinfer-trace --config bench.yaml --timeout 60"""
_REPORT_EXAMPLES = """\
examples:
  flashinfer-bench report summary --local ./flashinfer-trace
  flashinfer-bench report best --local ./mine --local ./theirs
  flashinfer-bench report merge --local ./mine --local ./theirs --output ./both"""
_VALIDATE_EXAMPLES = """\
examples:
  flashinfer-bench validate --dataset ./flashinfer-trace
  flashinfer-bench validate --dataset ./flashinfer-trace --checks layout,definition --op-types gemm
  flashinfer-bench validate --dataset ./flashinfer-trace --outputs json,text --output-folder ./report
  flashinfer-bench validate-render ./report/report.json --output report.txt"""
_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def make_parser() -> argparse.ArgumentParser:
    """The parser; what it returns has a ``command``."""
    from .. import __version__

    parser = argparse.ArgumentParser(prog="flashinfer-bench", description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"flashinfer-bench of fib-compat {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(_added(commands, "run", "benchmark solutions and append their traces", _RUN_EXAMPLES))
    _add_report(_added(commands, "report", "show what traces say", _REPORT_EXAMPLES))
    _add_validate(_added(commands, "validate", "say what is wrong with a data set", _VALIDATE_EXAMPLES))
    _add_render(_added(commands, "validate-render", "write a JSON report of 'validate' as text", _VALIDATE_EXAMPLES))
    commands.add_parser("serve", help="not part of this project").set_defaults(command="serve")
    return parser


def _added(commands: object, name: str, says: str, examples: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(  # type: ignore[attr-defined] # argparse hides its type
        name,
        help=says,
        description=says[0].upper() + says[1:] + ".",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    _add_local(parser)
    parser.add_argument("--definitions", nargs="+", metavar="NAME", help="only these definitions")
    parser.add_argument("--solutions", nargs="+", metavar="NAME", help="only these solutions")
    parser.add_argument("--resume", action="store_true", help="leave out pairs that have a trace already")
    parser.add_argument("--config", metavar="YAML", help="settings, which options override")
    said = "whether traces are added to the data set (default: they are)"
    parser.add_argument("--save-results", action=argparse.BooleanOptionalAction, default=True, help=said)
    said = "what libraries log at least (default: %(default)s)"
    parser.add_argument("--log-level", type=str.upper, choices=_LOG_LEVELS, default="INFO", help=said)
    said = "no effect: every solution runs in a worker process of its own"
    parser.add_argument("--use-isolated-runner", action="store_const", const=True, help=said)
    _add_settings(parser.add_argument_group("settings"))
    parser.set_defaults(command="run")


def _add_settings(group: argparse._ArgumentGroup) -> None:
    for option, kind, says in (
        ("--warmup-runs", int, "calls before timing"),
        ("--iterations", int, "samples to take at least"),
        ("--num-trials", int, "input sets with different values"),
        ("--rtol", float, "relative error that an element may have, and"),
        ("--atol", float, "absolute error: it is wrong beyond both"),
        ("--required-matched-ratio", float, "share of elements that must be right"),
    ):
        group.add_argument(option, type=kind, metavar="N" if kind is int else "X", help=says)
    said = "bound on one build and on one evaluation"
    group.add_argument("--timeout", dest="timeout_seconds", type=float, metavar="SECONDS", help=said)
    group.add_argument(
        "--no-profile-baseline",
        dest="profile_baseline",
        action="store_const",
        const=False,
        help="do not time the reference",
    )


def _add_report(parser: argparse.ArgumentParser) -> None:
    reports = parser.add_subparsers(required=True, metavar="REPORT")
    for name, says in (
        ("summary", "totals, the leaderboard, and the ranking of authors"),
        ("best", "the fastest passing solution of each workload"),
        ("visualize", "a table of each definition, its solutions the best first"),
        ("merge", "make several data sets one, tensors included"),
    ):
        report = reports.add_parser(name, help=says, description=says[0].upper() + says[1:] + ".")
        _add_local(report)
        report.set_defaults(command=f"report {name}")
        if name == "merge":
            report.add_argument("--output", required=True, metavar="DIR", help="a folder that is new or empty")


def _add_validate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dataset", required=True, metavar="PATH", help="the data set")
    said = f"of {','.join(CHECKS)} (default: {','.join(DEFAULT_CHECKS)}); benchmark runs the baselines' code"
    parser.add_argument("--checks", type=_some_of(CHECKS), default=DEFAULT_CHECKS, metavar="NAMES", help=said)
    said = "run the check 'benchmark' on the CPU, even where there is a GPU"
    parser.add_argument("--disable-gpu", action="store_true", help=said)
    parser.add_argument("--op-types", nargs="+", metavar="TYPE", help="only definitions of these op_types")
    parser.add_argument("--definitions", nargs="+", metavar="NAME", help="only these definitions")
    said = "where report.json and report.txt are written (default: %(default)s)"
    parser.add_argument("--output-folder", default=".", metavar="DIR", help=said)
    said = f"of {','.join(OUTPUTS)} (default: stdout)"
    parser.add_argument("--outputs", type=_some_of(OUTPUTS), default=("stdout",), metavar="NAMES", help=said)
    parser.set_defaults(command="validate")


def _add_render(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("report", metavar="REPORT.json", help="what 'validate --outputs json' wrote")
    parser.add_argument("--output", required=True, metavar="FILE", help="the text file")
    parser.set_defaults(command="validate-render")


def _add_local(parser: argparse.ArgumentParser) -> None:
    said = "a data set (again for more of them)"
    parser.add_argument("--local", action="extend", nargs="+", required=True, metavar="PATH", help=said)


def _some_of(known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(name for name in text.split(",") if name)
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"unknown: {name!r} (choose from {', '.join(known)})")
        return names

    return parse
