"""Command ``fib-bench selftest``. Runs exploits, which must be rejected, and honest solutions, which must pass."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fib_schema import InvalidField
from rich.console import Console

from .options import add_device, add_json, default_device, set_command
from .output import output_console, print_json, progress_on, say

if TYPE_CHECKING:
    from ..selftest import SelfTest  # imports torch

_ENDS = {
    "exploits": "exploits ended as expected",
    "honest": "honest solutions passed unflagged",
    "twins": "twins of exploits passed unflagged",
}


def declare_selftest(parser: argparse.ArgumentParser) -> None:
    """Declare ``selftest``."""
    set_command(parser, _selftest)
    add_device(parser)
    text = "rows of the list of exploits, 'exploits', 'honest', 'twins', definitions, or parts of names"
    parser.add_argument("--only", nargs="+", metavar="WORD", help=text)
    add_json(parser)


def _selftest(arguments: argparse.Namespace, errors: Console) -> int:
    """Run exploits, which must be rejected or gain nothing, and honest solutions, which must pass, on this machine.

    Prints those with another result, and exits with 1 if there are any. All take some minutes; --json lists every case.

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
    with progress_on(errors, has_reasons=True) as observe:
        result = run_selftest(cases, arguments.device or default_device(), observe)
    if not result.outcomes:
        raise InvalidField("--only", f"none of these cases runs on {result.device}")
    if arguments.json:
        print_json(result.to_plain())
    else:
        say(output_console(), text_of(result), "" if result.holds else "red")
    return 0 if result.holds else 1


def text_of(result: SelfTest) -> str:
    """The unexpected outcomes, a line each, and the totals."""
    unexpected = [outcome for outcome in result.outcomes if not outcome.holds]
    lines = [
        f"{o.case.file}: found {o.found}, expected {' or '.join(o.case.expected)}: {o.evidence}" for o in unexpected
    ]
    for suite, text in _ENDS.items():
        held = [outcome.holds for outcome in result.outcomes if outcome.case.suite == suite]
        lines.append(f"{sum(held)} of {len(held)} {text}")
    exploits = [outcome for outcome in result.outcomes if outcome.case.suite == "exploits"]
    passed = [outcome for outcome in exploits if outcome.status == "PASSED"]
    flagged = [outcome for outcome in passed if outcome.flags]
    gained = [o for o in passed if not o.flags and o.gain is not None and o.gain.exceeds(1.0)]
    lines.append(
        f"{len(exploits)} exploits: {len(exploits) - len(passed)} rejected, {len(flagged)} flagged, "
        f"{len(passed) - len(flagged) - len(gained)} without a gain, {len(gained)} with one"
    )
    lines += [f"row {o.case.row}, {o.case.file}: {o.gain}" for o in gained]
    isolation = result.isolation
    level = "unknown" if isolation is None else f"level {isolation['level']} ({isolation['name']})"
    return "\n".join([*lines, f"isolation of workers on {result.device}: {level}"])
