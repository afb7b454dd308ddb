"""Summary of the last `test` and `check`: tracebacks of failed tests, then one line of totals in pytest's style.

Uses only the standard library, because it also has to report that nothing could be installed.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

_OUTCOMES = {"failure": "failed", "error": "error", "skipped": "skipped"}  # by the elements of JUnit XML
_MAX_LINES = 40  # of a traceback or an output


class Case(NamedTuple):
    """One test, or one session without tests, such as `lint`."""

    name: str
    outcome: str
    text: str = ""


def read_tests(junit: Path) -> Iterator[Case]:
    """The tests of one JUnit XML file."""
    for element in ElementTree.parse(junit).iter("testcase"):
        name = f"{element.get('classname')}::{element.get('name')}"
        found = [
            Case(name, _OUTCOMES[child.tag], _tail(child.text or "")) for child in element if child.tag in _OUTCOMES
        ]
        yield found[0] if found else Case(name, "passed")


def read_sessions(folder: Path) -> Iterator[Case]:
    """The tests of all sessions of one command; a session that fails without a failed test is one failed case."""
    if not (folder / "nox.json").exists():
        yield Case(folder.name, "error", "did not finish; the reason is in the output above")
        return
    output = (folder / "output.txt").read_text(errors="replace") if (folder / "output.txt").exists() else ""
    blocks = re.split(r"^nox > Running session (.+)$", output, flags=re.MULTILINE)
    outputs = dict(zip(blocks[1::2], blocks[2::2], strict=True))
    for session in json.loads((folder / "nox.json").read_text())["sessions"]:
        name = session["name"]
        tests = [case for junit in sorted(folder.glob(f"{name}*.xml")) for case in read_tests(junit)]
        yield from tests
        if session["result"] != "success" and not any(case.outcome in ("failed", "error") for case in tests):
            yield Case(name, "failed", _before_failures(outputs.get(name, "the reason is in the output above")))
        elif not tests:
            yield Case(name, "passed")


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-_MAX_LINES:])


def _before_failures(output: str) -> str:
    """Last output of each failed command of a session; the end of the output if no command failed."""
    parts = re.split(r"(?<=failed with exit code )(\d+)$", output, flags=re.MULTILINE)
    return "\n".join(_tail(part + code) for part, code in zip(parts[::2], parts[1::2], strict=False)) or _tail(output)


def report(folder: Path, seconds: str = "0") -> int:
    """Print the failed tests and the totals of both commands; returns the exit code."""
    cases = [case for command in ("test", "check") for case in read_sessions(folder / command)]
    failures = [case for case in cases if case.outcome in ("failed", "error")]
    for case in failures:
        print(f"___ {case.name} ___", case.text, "", sep="\n")
    for case in failures:
        print(case.outcome.upper(), case.name)
    counts = Counter(case.outcome for case in cases)
    totals = [f"{counts[outcome]} {outcome}" for outcome in ("failed", "passed", "skipped", "error") if counts[outcome]]
    print(f"=== {', '.join(totals)} in {float(seconds):.2f}s ===")
    return 1 if failures else 0
