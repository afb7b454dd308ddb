"""Commands ``fib-bench validate`` and ``fib-bench migrate``: checks and conversion of a data set."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fib_schema import MigrationReport, Problem, Report, TraceSet, migrate, validate
from fib_schema.display import counted
from fib_schema.files import write_output
from fib_schema.problem_groups import group_problems
from rich.console import Console

from .help_pages import add_help
from .printing import output_console, print_json, safe_text

if TYPE_CHECKING:
    from ..coverage import Coverage

_SHOWN = 100


def add_validate(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``validate``."""
    add_help(parser, "validate")
    parser.add_argument("dir", metavar="DIR", help="the data set")
    parser.add_argument("--json", action="store_true", help="print the whole report as JSON")
    coverage = parser.add_argument_group("coverage")
    text = "also list definitions that lack workloads, a baseline, or a reference that runs"
    coverage.add_argument("--coverage", action="store_true", help=text)
    coverage.add_argument("--page", metavar="FILE", help="write the coverage as an HTML page (implies --coverage)")
    text = "the author of the baselines (default: %(default)s)"
    coverage.add_argument("--baseline-author", default="baseline", metavar="NAME", help=text)
    text = "do not run the references"
    coverage.add_argument("--no-references", dest="references", action="store_false", help=text)
    text = "the device that runs the references (default: %(default)s)"
    coverage.add_argument("--device", default="cpu", metavar="DEVICE", help=text)
    parser.set_defaults(command=_validate)


def add_migrate(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``migrate``."""
    add_help(parser, "migrate")
    parser.add_argument("source", metavar="SRC", help="the data set to read; it is not changed")
    parser.add_argument("target", metavar="DST", help="a folder that is new or empty")
    parser.add_argument("--json", action="store_true", help="print the whole report as JSON")
    parser.set_defaults(command=_migrate)


def _validate(arguments: argparse.Namespace, errors: Console) -> int:
    del errors
    report = validate(arguments.dir)
    coverage = _coverage(arguments) if arguments.coverage or arguments.page else None
    if arguments.json:
        print_json({**report.to_plain(), **({} if coverage is None else {"coverage": coverage.to_plain()})})
    else:
        _print_report(output_console(), report)
        if coverage is not None:
            _print(output_console(), coverage.to_text())
    return 0 if report.is_ok else 1


def _coverage(arguments: argparse.Namespace) -> Coverage:
    """Measure the coverage, and write its page if one is wanted."""
    from ..config.benchmark import BenchmarkConfig
    from ..coverage import coverage_page, measure_coverage

    config = None
    if arguments.references:
        config = BenchmarkConfig(device=arguments.device, quick=True)
    coverage = measure_coverage(
        TraceSet.from_path(arguments.dir), baseline_author=arguments.baseline_author, references=config
    )
    if arguments.page:
        write_output(arguments.page, coverage_page(coverage).encode())
    return coverage


def _migrate(arguments: argparse.Namespace, errors: Console) -> int:
    del errors
    report = migrate(arguments.source, arguments.target)
    if arguments.json:
        print_json(report.to_plain())
    else:
        _print_migration(output_console(), report)
    return 0 if report.is_ok else 1


def _print_migration(console: Console, report: MigrationReport) -> None:
    counts = ", ".join(counted(count, kind.removesuffix("s")) for kind, count in report.counts.items())
    _print(console, f"{report.source} -> {report.target}: {counts}")
    for change, count in report.changes.items():
        _print(console, f"changed in {counted(count, 'record')}: {change}")
    _print_problems(console, "rejected", report.rejected, "red")
    if report.rejected:
        _print(console, f"rejected records are in {report.target}/rejected, with problems.jsonl", "yellow")
    _print_report(console, report.validation)


def _print_report(console: Console, report: Report) -> None:
    _print_problems(console, "error", report.problems, "red")
    _print_problems(console, "warning", report.warnings, "yellow")
    _print(console, report.summary, "" if report.is_ok else "red")


def _print_problems(console: Console, word: str, problems: Sequence[Problem], style: str) -> None:
    groups = group_problems(problems)
    for group in groups[:_SHOWN]:
        _print(console, f"{word}: {group}", style)
    if more := sum(len(group.problems) for group in groups[_SHOWN:]):
        _print(console, f"{word}: {more} more (--json lists all)", style)


def _print(console: Console, text: str, style: str = "") -> None:
    console.print(safe_text(text, style), soft_wrap=True)
