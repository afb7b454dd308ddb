"""Problems of data sets: their collection while files are read, reports, groups for people, and misspelt keys.

Records keep keys that they do not know. A key is reported only if it resembles a field that its object lacks: such a
field has its default, and what the author wrote has no effect.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from ._record import NO_FIELDS, FrozenDict, Record, closest
from .codec import child_path
from .display import counted, escape_line
from .errors import Problem, Severity

MISSPELT_CODE = "misspelt-key"
_MAX_UNKNOWN_KEYS = 100  # an object with more is not a record with a misspelt field, and comparing names takes time
_EXAMPLES = 3
_PATH_OR_NUMBER = re.compile(r"[^\s'\",;:()\[\]]*[/\\][^\s'\",;()\[\]]*|\d+")


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

    @property
    def is_ok(self) -> bool:
        """Whether there are no problems; warnings do not count."""
        return not self.problems

    @property
    def summary(self) -> str:
        """One line: the counts of records and of problems."""
        counts = ", ".join(counted(count, kind.removesuffix("s")) for kind, count in self.counts.items())
        errors, warnings = counted(len(self.problems), "error"), counted(len(self.warnings), "warning")
        return f"{self.root}: {counts}: {errors}, {warnings}"

    def to_text(self) -> str:
        """All `problem_lines`, and the summary last; `to_plain` lists all problems."""
        problems = (*self.problems, *self.warnings)
        return "\n".join([*problem_lines(problems, most=len(problems)), self.summary])

    def to_plain(self) -> dict[str, Any]:
        """The report as plain objects for JSON."""
        return {
            "root": self.root,
            "is_ok": self.is_ok,
            "counts": dict(self.counts),
            "problems": [plain_problem(problem) for problem in self.problems],
            "warnings": [plain_problem(warning) for warning in self.warnings],
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
        self.problems: list[Problem] = []
        """Errors and warnings in the order in which they were found."""
        self.counts: Counter[str] = Counter()

    def error(self, source: str, message: str, code: str, path: str = "$") -> None:
        """Add something that is wrong."""
        self.add(Problem(source, path, message, Severity.ERROR, code))

    def warning(self, source: str, message: str, code: str, path: str = "$") -> None:
        """Add something that is usable, but worth a look."""
        self.add(Problem(source, path, message, Severity.WARNING, code))

    def add(self, *problems: Problem) -> None:
        """Add problems, with control characters escaped."""
        for found in problems:
            source, path, message = map(escape_line, (found.source, found.path, found.message))
            self.problems.append(Problem(source, path, message, found.severity, found.code))

    @property
    def errors(self) -> list[Problem]:
        """The errors in the order in which they were found."""
        return [problem for problem in self.problems if problem.severity is Severity.ERROR]

    def report(self, root: str) -> Report:
        """The findings so far."""
        warnings = tuple(problem for problem in self.problems if problem.severity is Severity.WARNING)
        kinds = ("definitions", "solutions", "workloads", "traces", "blobs")
        return Report(root, tuple(self.errors), warnings, FrozenDict({kind: self.counts[kind] for kind in kinds}))


def problem_lines(problems: Iterable[Problem], most: int = 100) -> list[str]:
    """A line for each kind of problem, errors first, and behind the most lines the number of the others.

    Problems of one severity and code are of one kind if their messages differ only in paths and numbers.
    """
    groups: dict[tuple[str, ...], list[Problem]] = {}
    for problem in sorted(dict.fromkeys(problems), key=lambda problem: problem.severity is not Severity.ERROR):
        kind = problem.severity, problem.code, _PATH_OR_NUMBER.sub("#", problem.message)
        groups.setdefault(kind, []).append(problem)
    lines = [f"{group[0].severity}: {_group_text(group)}" for group in groups.values()]
    if more := sum(map(len, list(groups.values())[most:])):
        lines[most:] = [f"{counted(more, 'more problem')} ('fib-bench validate' lists all)"]
    return lines


def _group_text(group: list[Problem]) -> str:
    """The first problem in full, and the places of a few others."""
    first, *others = group
    if not others:
        return str(first)
    files = len({problem.file for problem in group})
    where = f", in {files} files" if files > 1 else ""
    examples = ", ".join(problem.source for problem in others[:_EXAMPLES])
    more = ", ..." if len(others) > _EXAMPLES else ""
    return f"{first} (and {len(others)} more like it{where}: {examples}{more})"


def find_misspellings(value: Any, path: str = "$") -> Iterator[tuple[str, str, str]]:
    """The misspelt keys of a record and of all records inside it.

    Yields:
        The JSON path of an object, its key, and the field that the key resembles, which has its default.
    """
    if isinstance(value, Record):
        cls: Any = type(value)
        inside: dict[Any, Any] = {field.name: getattr(value, field.name) for field in attrs.fields(cls)}
        if 0 < len(unknown := inside.pop("unknown_fields")) <= _MAX_UNKNOWN_KEYS:
            unset = [field.name for field in attrs.fields(cls) if inside.get(field.name) == field.default]
            yield from ((path, key, field) for key in unknown if (field := closest(key, unset)))
    elif isinstance(value, dict | tuple):
        inside = value if isinstance(value, dict) else dict(enumerate(value))
    else:
        return
    for key, item in inside.items():
        yield from find_misspellings(item, child_path(path, key))
