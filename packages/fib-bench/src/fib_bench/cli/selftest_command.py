"""Command ``fib-bench selftest``: exploits that must be caught, and honest solutions that must pass."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from .help_pages import add_help
from .printing import print_json
from .progress import progress_on

if TYPE_CHECKING:
    from ..selftest import Outcome, SelfTest  # imports torch

_EVIDENCE = 160
_OTHER_COLUMNS = 105


def add_selftest(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``selftest``."""
    add_help(parser, "selftest")
    parser.add_argument("--device", default="cpu", help="where to run (default: %(default)s)")
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="WORD",
        help="rows of the list of exploits, 'adversaries', 'honest', definitions, or parts of names",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=_selftest)


def _selftest(arguments: argparse.Namespace, errors: Console) -> int:
    from ..selftest import choose, load_cases, run_selftest

    cases = load_cases()
    if arguments.only:
        cases = choose(cases, arguments.only)
    with progress_on(errors) as observe:
        result = run_selftest(cases, arguments.device, observe)
    if arguments.json:
        print_json(result.to_plain())
    else:
        print_selftest(Console(), result)
    return 0 if result.holds else 1


def print_selftest(console: Console, result: SelfTest) -> None:
    """Print both suites and the totals."""
    if result.adversaries:
        console.print(_table(f"exploits on {result.device}", result.adversaries, console.width))
    if result.honest:
        console.print(_table(f"honest solutions on {result.device}", result.honest, console.width))
    for outcome in result.outcomes:
        if not outcome.holds:
            text = f"{outcome.case.file}: found {outcome.found}, expected {' or '.join(outcome.case.expected)}"
            console.print(Text(f"{text}: {outcome.evidence}", style="red"), soft_wrap=True)
    console.print(summary_of(result), markup=False, highlight=False, soft_wrap=True)


def summary_of(result: SelfTest) -> str:
    """The totals in two lines."""
    caught = sum(outcome.holds for outcome in result.adversaries)
    passed = sum(outcome.holds for outcome in result.honest)
    isolation = result.isolation
    level = "unknown" if isolation is None else f"level {isolation['level']} ({isolation['name']})"
    return (
        f"{caught} of {len(result.adversaries)} exploits ended as expected, "
        f"{passed} of {len(result.honest)} honest solutions passed unflagged\nisolation of workers: {level}"
    )


def _table(title: str, outcomes: Iterable[Outcome], width: int) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("", justify="right")
    table.add_column("what it does", overflow="fold")
    table.add_column("expected", overflow="fold")
    table.add_column("found", overflow="fold")
    table.add_column("s", justify="right", no_wrap=True)
    table.add_column("evidence", no_wrap=True, overflow="ellipsis", max_width=max(width - _OTHER_COLUMNS, 20))
    for outcome in outcomes:
        case = outcome.case
        table.add_row(
            case.language if case.row is None else str(case.row),
            escape(f"{case.definition}: {case.title}" if case.row is None else case.title),
            "\n".join(case.expected),
            outcome.found,
            f"{outcome.seconds:.1f}",
            escape(outcome.evidence[:_EVIDENCE]),
            style="" if outcome.holds else "red",
        )
    return table
