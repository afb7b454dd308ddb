"""Summary of the last `test` and `check`: tracebacks of failed tests, then one line of totals in pytest's style.

Uses only the standard library, because it also has to report that nothing could be installed.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

COMMANDS = ("test", "check")
_LINES = 40  # of a traceback or an output


@dataclass(frozen=True)
class Case:
    """One test, or one session without tests, such as `lint`."""

    name: str
    outcome: str
    text: str = ""


def read_cases(junit: Path) -> Iterator[Case]:
    """The tests of one JUnit XML file."""
    for element in ElementTree.parse(junit).iter("testcase"):
        name = f"{element.get('classname', '')}::{element.get('name', '')}"
        outcomes = {"failure": "failed", "error": "error", "skipped": "skipped"}
        found = [(outcomes[child.tag], child.text or "") for child in element if child.tag in outcomes]
        outcome, text = found[0] if found else ("passed", "")
        yield Case(name, outcome, text)


def read_sessions(folder: Path) -> Iterator[Case]:
    """The tests of all sessions of one command; a session that failed without a failed test counts as one."""
    report = folder / "nox.json"
    if not report.exists():
        yield Case(folder.name, "error", "did not finish; the reason is in the output above")
        return
    for session in json.loads(report.read_text())["sessions"]:
        name = session["name"]
        cases = [case for junit in sorted(folder.glob(f"{name}*.xml")) for case in read_cases(junit)]
        failed = session["result"] != "success"
        yield from cases
        if failed and all(case.outcome in ("passed", "skipped") for case in cases):
            yield Case(name, "failed", _session_output(folder, name))
        elif not cases:
            yield Case(name, "passed")


def _session_output(folder: Path, name: str) -> str:
    """What one session printed, cut out of the output of nox."""
    output = (folder / "output.txt").read_text(errors="replace") if (folder / "output.txt").exists() else ""
    blocks = re.split(r"^nox > Running session (.+)$", output, flags=re.MULTILINE)
    return dict(zip(blocks[1::2], blocks[2::2], strict=True)).get(name, "the reason is in the output above")


def report(folder: Path, seconds: str = "0") -> int:
    """Print the failed tests and the totals of both commands; returns the exit code."""
    cases = [case for command in COMMANDS for case in read_sessions(folder / command)]
    failures = [case for case in cases if case.outcome in ("failed", "error")]
    for case in failures:
        print(f"___ {case.name} ___", *case.text.strip().splitlines()[-_LINES:], "", sep="\n")
    for case in failures:
        print(case.outcome.upper(), case.name)
    counts = Counter(case.outcome for case in cases)
    totals = [f"{counts[outcome]} {outcome}" for outcome in ("failed", "passed", "skipped", "error") if counts[outcome]]
    print(f"=== {', '.join(totals)} in {float(seconds):.2f}s ===")
    return 1 if failures else 0
