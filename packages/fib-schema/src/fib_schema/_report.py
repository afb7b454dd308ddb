"""What a validation found: problems as they come in, and the report that they make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import attrs

from ._record import NO_FIELDS, FrozenDict
from .errors import Problem, Severity

MAX_PROBLEMS = 100_000
"""How many problems a report lists; more are counted, so that a broken set does not fill memory."""


@attrs.frozen
class Report:
    """The result of looking at a whole data set."""

    root: str
    problems: tuple[Problem, ...] = ()
    """What is wrong; each has a file, a line, a JSON path, what was found and what would do."""
    notices: tuple[Problem, ...] = ()
    """What is usable and still worth a look; never a reason to fail."""
    counts: Mapping[str, int] = NO_FIELDS
    """How many ``definitions``, ``solutions``, ``workloads``, ``traces`` and ``blobs`` were read."""
    omitted: int = 0
    """How many problems and notices are not listed, for there are too many."""

    @property
    def is_ok(self) -> bool:
        """Whether nothing is wrong; notices do not count."""
        return not self.problems

    @property
    def summary(self) -> str:
        """One line: what was read, and how many problems there are."""
        counts = ", ".join(f"{count} {kind}" for kind, count in self.counts.items())
        omitted = f" and {self.omitted} that are not listed" if self.omitted else ""
        verdict = f"{_count(len(self.problems), 'error')}, {_count(len(self.notices), 'notice')}{omitted}"
        return f"{self.root}: {counts}: {verdict}"

    def to_text(self) -> str:
        """Every problem and notice in a line of its own, and the summary last."""
        lines = [f"{problem.severity}: {problem}" for problem in (*self.problems, *self.notices)]
        return "\n".join([*lines, self.summary])

    def to_plain(self) -> dict[str, Any]:
        """The report as plain objects for JSON."""
        return {
            "root": self.root,
            "is_ok": self.is_ok,
            "counts": dict(self.counts),
            "problems": [plain_problem(problem) for problem in self.problems],
            "notices": [plain_problem(notice) for notice in self.notices],
            "omitted": self.omitted,
        }


def plain_problem(problem: Problem) -> dict[str, Any]:
    """A problem as plain objects for JSON."""
    return {
        "severity": str(problem.severity),
        "code": problem.code,
        "file": problem.file,
        "line": problem.line,
        "path": problem.path,
        "message": problem.message,
    }


class Findings:
    """Collects problems, notices and counts while a data set is read."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []
        self._omitted = {Severity.ERROR: 0, Severity.NOTICE: 0}
        self.counts: Counter[str] = Counter()

    def error(self, source: str, message: str, code: str, path: str = "$") -> None:
        """Something is wrong."""
        self.add(Problem(_printable(source), _printable(path), _printable(message), Severity.ERROR, code))

    def notice(self, source: str, message: str, code: str, path: str = "$") -> None:
        """Something is worth a look."""
        self.add(Problem(_printable(source), _printable(path), _printable(message), Severity.NOTICE, code))

    def add(self, problem: Problem) -> None:
        """Keep a problem, or count it if there are too many."""
        if len(self._problems) < MAX_PROBLEMS:
            self._problems.append(problem)
        else:
            self._omitted[problem.severity] += 1

    def report(self, root: str) -> Report:
        """What was found so far."""
        errors = [problem for problem in self._problems if problem.severity is Severity.ERROR]
        notices = [problem for problem in self._problems if problem.severity is Severity.NOTICE]
        if not errors and self._omitted[Severity.ERROR]:
            message = f"{self._omitted[Severity.ERROR]} errors are behind more notices than a report lists"
            errors.append(Problem(root, "$", message, code="omitted"))
        kinds = ("definitions", "solutions", "workloads", "traces", "blobs")
        counts = FrozenDict({kind: self.counts[kind] for kind in kinds})
        return Report(root, tuple(errors), tuple(notices), counts, sum(self._omitted.values()))


def _printable(text: str) -> str:
    """A text without what no terminal and no UTF-8 file can hold: lone surrogates of bad names."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
