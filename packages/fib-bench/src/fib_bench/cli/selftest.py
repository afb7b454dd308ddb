"""Command ``fib-bench selftest``. Runs exploits, which must be rejected, and honest solutions, which must pass."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from .options import Commands, add_command, add_device, add_json, default_device
from .output import make_table, output_console, print_json, print_table, safe_cell, say
from .progress import progress_on

if TYPE_CHECKING:
    from ..selftest import Outcome, SelfTest  # imports torch

_EVIDENCE_CHARS = 160


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
    for title, outcomes in (
        ("exploits", result.exploits),
        ("honest solutions", result.honest),
        ("twins of exploits", result.twins),
    ):
        if outcomes:
            print_table(console, _table(f"{title} on {result.device}", outcomes))
    for outcome in result.outcomes:
        if not outcome.holds:
            text = f"{outcome.case.file}: found {outcome.found}, expected {' or '.join(outcome.case.expected)}"
            say(console, f"{text}: {outcome.evidence}", "red")
    say(console, summary_of(result))


def summary_of(result: SelfTest) -> str:
    """The totals in two lines."""
    counts = [
        f"{sum(outcome.holds for outcome in outcomes)} of {len(outcomes)} {text}"
        for outcomes, text in (
            (result.exploits, "exploits ended as expected"),
            (result.honest, "honest solutions passed unflagged"),
            (result.twins, "twins passed unflagged"),
        )
        if outcomes or text != "twins passed unflagged"
    ]
    isolation = result.isolation
    level = "unknown" if isolation is None else f"level {isolation['level']} ({isolation['name']})"
    return f"{', '.join(counts)}\nisolation of workers: {level}"


def _table(title: str, outcomes: Sequence[Outcome]) -> Table:
    from ..selftest import ROW_NAMES

    table = make_table(title, ["", "what it does", "expected", "found"])
    has_gains = any(outcome.gain is not None for outcome in outcomes)
    if has_gains:
        table.add_column("gain", justify="right", overflow="fold")
    table.add_column("s", justify="right", no_wrap=True)
    table.add_column("evidence", overflow="fold")
    for row, group in groupby(outcomes, key=lambda outcome: outcome.case.row):
        if row is not None:
            table.add_row(str(row), f"[bold]{ROW_NAMES[row]}[/]")
        for outcome in group:
            table.add_row(*_cells(outcome, has_gains=has_gains), style="" if outcome.holds else "red")
    return table


def _cells(outcome: Outcome, *, has_gains: bool) -> tuple[str, ...]:
    case = outcome.case
    gain = () if not has_gains else ("" if outcome.gain is None else str(outcome.gain),)
    return (
        case.language if case.row is None else str(case.row),
        safe_cell(f"{case.definition}: {case.title}" if case.row is None else case.title),
        "\n".join(case.expected),
        outcome.found,
        *gain,
        f"{outcome.seconds:.1f}",
        safe_cell(outcome.evidence[:_EVIDENCE_CHARS]),
    )
