"""Command ``fib-bench selftest``. Runs exploits, which must be rejected, and honest solutions, which must pass."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rich.console import Console

from .options import Commands, add_command, add_device, add_json, default_device
from .output import output_console, print_json, print_table, say
from .progress import progress_on
from .tables import Column, rows_table

if TYPE_CHECKING:
    from ..selftest import Outcome, SelfTest  # imports torch

_EVIDENCE_CHARS = 160
_TITLES = {"exploits": "exploits", "honest": "honest solutions", "twins": "twins of exploits"}
_ENDS = {
    "exploits": "exploits ended as expected",
    "honest": "honest solutions passed unflagged",
    "twins": "twins passed unflagged",
}
_COLUMNS = (
    Column("row", lambda outcome: "" if outcome.case.row is None else str(outcome.case.row), is_word=True),
    Column("language", lambda outcome: outcome.case.language, is_word=True),
    Column("definition", lambda outcome: outcome.case.definition, is_word=True),
    Column("what it does", lambda outcome: outcome.case.title, is_word=True),
    Column("expected", lambda outcome: " or ".join(outcome.case.expected), is_word=True),
    Column("found", lambda outcome: outcome.found, is_word=True),
    Column("gain", lambda outcome: "" if outcome.gain is None else str(outcome.gain), is_word=True),
    Column("evidence", lambda outcome: outcome.evidence[:_EVIDENCE_CHARS], is_word=True),
)


def add_selftest(commands: Commands) -> None:
    """Declare ``selftest``."""
    parser = add_command(commands, "selftest", "check that exploits are rejected on this machine", _selftest)
    add_device(parser)
    text = "rows of the list of exploits, 'exploits', 'honest', 'twins', definitions, or parts of names"
    parser.add_argument("--only", nargs="+", metavar="WORD", help=text)
    add_json(parser)


def _selftest(arguments: argparse.Namespace, errors: Console) -> int:
    """Run exploits, which must be rejected or gain nothing, and honest solutions, which must pass, on this machine.

    Exits with 1 if one has another result. All of them take some minutes.

    Examples:
      fib-bench selftest
      fib-bench selftest --device cuda:0
      fib-bench selftest --only honest
      fib-bench selftest --only 5 6                    the exploits in rows 5 and 6: cached answers of earlier calls
    """
    from ..selftest import choose, load_cases, run_selftest

    cases = load_cases()
    if arguments.only:
        cases = choose(cases, arguments.only)
    with progress_on(errors) as observe:
        result = run_selftest(cases, arguments.device or default_device(), observe)
    if arguments.json:
        print_json(result.to_plain())
    else:
        print_selftest(output_console(), result)
    return 0 if result.holds else 1


def print_selftest(console: Console, result: SelfTest) -> None:
    """Print the suites, the unexpected outcomes and the totals."""
    for suite, title in _TITLES.items():
        if outcomes := result.of_suite(suite):
            print_table(console, rows_table(f"{title} on {result.device}", outcomes, _COLUMNS, _style))
    for outcome in result.outcomes:
        if not outcome.holds:
            text = f"{outcome.case.file}: found {outcome.found}, expected {' or '.join(outcome.case.expected)}"
            say(console, f"{text}: {outcome.evidence}", "red")
    say(console, summary_of(result))


def _style(outcome: Outcome) -> str:
    return "" if outcome.holds else "red"


def summary_of(result: SelfTest) -> str:
    """The totals in two lines."""
    counts = []
    for suite, text in _ENDS.items():
        outcomes = result.of_suite(suite)
        if outcomes or suite != "twins":
            counts.append(f"{sum(outcome.holds for outcome in outcomes)} of {len(outcomes)} {text}")
    isolation = result.isolation
    level = "unknown" if isolation is None else f"level {isolation['level']} ({isolation['name']})"
    return f"{', '.join(counts)}\nisolation of workers: {level}"
