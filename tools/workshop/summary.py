"""What a step came to, in one line each."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from workshop.process import Console, tail

_PYTEST_SUMMARY = re.compile(r"^=*\s?(?P<text>(\d+ [a-z]+(, )?)+|no tests ran) in \d[\d.]*s( \([\d:]+\))?\s?=*$")
_PYTEST_COUNT = re.compile(r"(\d+) ([a-z]+)(?=,| in )")
_PYTEST_PASSED = re.compile(r"^PASSED (.+)$", re.MULTILINE)
_PYTEST_DETAILS = re.compile(r"^=+ (ERRORS|FAILURES) =+$", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """How a step ended.

    Args:
        name: The step.
        passed: Whether it did.
        detail: A few words on one line.
        log: Its whole output.
        passed_tests: The node ids of tests that passed, where they are of use.
    """

    name: str
    passed: bool
    detail: str
    log: Path | None = None
    passed_tests: tuple[str, ...] = ()


def pytest_summary(output: str) -> str | None:
    """Pytest's own last line, as it wrote it; None where it did not get that far."""
    lines = [line for line in output.splitlines() if _PYTEST_SUMMARY.match(line)]
    return lines[-1] if lines else None


def pytest_outcome(name: str, code: int, log: Path) -> Outcome:
    """What a run of pytest came to. A run that found no tests has failed."""
    summary = pytest_summary(log.read_text(errors="replace"))
    return Outcome(name, code == 0, summary.strip("= ") if summary else f"ended with exit code {code}", log)


def passed_node_ids(output: str) -> tuple[str, ...]:
    """The tests that passed, of a run of pytest with `-rp`: by its summary, for a test may print anything before it."""
    return tuple(_PYTEST_PASSED.findall(output.rpartition(" short test summary info ")[2]))


def pytest_total(outcomes: Iterable[Outcome], seconds: float) -> str:
    """A line like pytest's last one, for steps of which each took up what those before had skipped or left out."""
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        found = {word: int(count) for count, word in _PYTEST_COUNT.findall(outcome.detail)}
        if not outcome.passed and not found:
            found = {"error": 1}
        taken_up = {"deselected", "skipped"} if outcome.passed_tests else {"deselected"}
        counts.update({word: count for word, count in found.items() if word not in taken_up})
    words = ", ".join(f"{counts[word]} {word}" for word in sorted(counts))
    return f"=== {words or 'no tests ran'} in {seconds:.2f}s ==="


def explain(outcome: Outcome) -> str:
    """The part of a failed step's output that says why it failed."""
    if outcome.log is None:
        return ""
    output = outcome.log.read_text(errors="replace")
    details = _PYTEST_DETAILS.search(output)
    return output[details.start() :] if details else tail(output, 60)


def conclude(console: Console, outcomes: Sequence[Outcome]) -> int:
    """Say why steps failed, then how each ended; returns the exit code: 0 where all passed, else 1."""
    for outcome in outcomes:
        if not outcome.passed:
            console.say(f"\n--- {outcome.name}: {outcome.log or ''}\n{explain(outcome)}")
    console.say("\n" + table(outcomes))
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def table(outcomes: Iterable[Outcome]) -> str:
    """One line for each outcome."""
    rows = list(outcomes)
    width = max((len(row.name) for row in rows), default=0)
    words = {True: "ok    ", False: "FAILED"}
    return "\n".join(f"{row.name:<{width}}  {words[row.passed]}  {row.detail}".rstrip() for row in rows)
