"""Findings of a validation, collected while files are read, and the report made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import attrs

from ._record import NO_FIELDS, FrozenDict
from .display import counted, escape_line
from .errors import Problem, Severity
from .problem_groups import group_problems

MAX_PROBLEMS = 100_000
"""Number of problems that a report lists; more are counted, so that a broken set does not fill memory."""


@attrs.frozen
class Report:
    """The result of validating a data set."""

    root: str
    problems: tuple[Problem, ...] = ()
    """Errors; each has a file, a line, a JSON path, what was found and the remedy."""
    warnings: tuple[Problem, ...] = ()
    """Usable, but worth a look; never a reason to fail."""
    counts: Mapping[str, int] = NO_FIELDS
    """Numbers of ``definitions``, ``solutions``, ``workloads``, ``traces`` and ``blobs`` that were read."""
    omitted: int = 0
    """Numbers of problems and warnings that are not listed because there are more than `MAX_PROBLEMS`."""

    @property
    def is_ok(self) -> bool:
        """Whether there are no problems; warnings do not count."""
        return not self.problems

    @property
    def summary(self) -> str:
        """One line: the counts of records and of problems."""
        counts = ", ".join(counted(count, kind.removesuffix("s")) for kind, count in self.counts.items())
        omitted = f" and {self.omitted} that are not listed" if self.omitted else ""
        verdict = f"{counted(len(self.problems), 'error')}, {counted(len(self.warnings), 'warning')}{omitted}"
        return f"{self.root}: {counts}: {verdict}"

    def to_text(self) -> str:
        """Each kind of problem and warning in a line of its own, and the summary last; `to_plain` lists all."""
        groups = group_problems((*self.problems, *self.warnings))
        lines = [f"{group.problems[0].severity}: {group}" for group in groups]
        return "\n".join([*lines, self.summary])

    def to_plain(self) -> dict[str, Any]:
        """The report as plain objects for JSON."""
        return {
            "root": self.root,
            "is_ok": self.is_ok,
            "counts": dict(self.counts),
            "problems": [plain_problem(problem) for problem in self.problems],
            "warnings": [plain_problem(warning) for warning in self.warnings],
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
    """Collects problems, warnings and counts while a data set is read."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []
        self._omitted = {Severity.ERROR: 0, Severity.WARNING: 0}
        self.counts: Counter[str] = Counter()

    def error(self, source: str, message: str, code: str, path: str = "$") -> None:
        """Add something that is wrong."""
        self.add(Problem(source, path, message, Severity.ERROR, code))

    def warning(self, source: str, message: str, code: str, path: str = "$") -> None:
        """Add something that is usable, but worth a look."""
        self.add(Problem(source, path, message, Severity.WARNING, code))

    def add(self, *problems: Problem) -> None:
        """Keep problems, or count them if there are too many."""
        for problem in problems:
            if len(self._problems) < MAX_PROBLEMS:
                self._problems.append(_as_printable(problem))
            else:
                self._omitted[problem.severity] += 1

    @property
    def problems(self) -> list[Problem]:
        """Errors and warnings in the order in which they were found."""
        return list(self._problems)

    @property
    def errors(self) -> list[Problem]:
        """The errors in the order in which they were found."""
        return [problem for problem in self._problems if problem.severity is Severity.ERROR]

    def report(self, root: str) -> Report:
        """The findings so far."""
        errors = self.errors
        warnings = [problem for problem in self._problems if problem.severity is Severity.WARNING]
        if not errors and self._omitted[Severity.ERROR]:
            message = f"{self._omitted[Severity.ERROR]} errors are not listed: {MAX_PROBLEMS} warnings came before them"
            errors.append(Problem(root, "$", message, code="omitted"))
        kinds = ("definitions", "solutions", "workloads", "traces", "blobs")
        counts = FrozenDict({kind: self.counts[kind] for kind in kinds})
        return Report(root, tuple(errors), tuple(warnings), counts, sum(self._omitted.values()))


def _as_printable(problem: Problem) -> Problem:
    source, path, message = (escape_line(text) for text in (problem.source, problem.path, problem.message))
    return Problem(source, path, message, problem.severity, problem.code)
