"""Problems of data sets: their collection while files are read, reports, groups for people, and misspelt keys.

Records keep keys that they do not know. A key is reported only if it resembles a field that its object lacks: such a
field has its default, and what the author wrote has no effect.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import attrs

from ._record import NO_FIELDS, FrozenDict, Record, closest
from .codec import child_path, field_names
from .display import counted, escape_line
from .errors import Problem, Severity

MISSPELT_CODE = "misspelt-key"
"""The code of problems that `misspelling_warnings` makes."""
_MAX_UNKNOWN_KEYS = 100  # an object with more is not a record with a misspelt field, and comparing names takes time
_EXAMPLES = 3
_SHOWN_LINES = 100
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
            self._problems.append(Problem(source, path, message, found.severity, found.code))

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
        warnings = tuple(problem for problem in self._problems if problem.severity is Severity.WARNING)
        kinds = ("definitions", "solutions", "workloads", "traces", "blobs")
        return Report(root, tuple(self.errors), warnings, FrozenDict({kind: self.counts[kind] for kind in kinds}))


@attrs.frozen
class ProblemGroup:
    """Problems of one kind, at least one."""

    problems: tuple[Problem, ...]

    def __str__(self) -> str:
        """The first problem in full, and the places of a few others."""
        first, *others = self.problems
        if not others:
            return str(first)
        files = len({problem.file for problem in self.problems})
        where = f", in {files} files" if files > 1 else ""
        examples = ", ".join(problem.source for problem in others[:_EXAMPLES])
        more = ", ..." if len(others) > _EXAMPLES else ""
        return f"{first} (and {len(others)} more like it{where}: {examples}{more})"


def group_problems(problems: Iterable[Problem], *, within_files: bool = False) -> list[ProblemGroup]:
    """Group problems of one severity and code whose messages differ only in paths and numbers; keeps their order.

    Args:
        problems: All problems.
        within_files: Whether problems of different files stay apart, so that each file is named.
    """
    groups: dict[tuple[str, ...], list[Problem]] = {}
    for problem in problems:
        file = problem.file if within_files else ""
        kind = problem.severity, problem.code, _PATH_OR_NUMBER.sub("#", problem.message), file
        groups.setdefault(kind, []).append(problem)
    return [ProblemGroup(tuple(group)) for group in groups.values()]


def problem_lines(problems: Iterable[Problem]) -> list[str]:
    """A line for each kind of problem in each file, errors first; beyond 100 lines only their number is given."""
    found = sorted(dict.fromkeys(problems), key=lambda problem: problem.severity is not Severity.ERROR)
    groups = group_problems(found, within_files=True)
    lines = [f"{group.problems[0].severity}: {group}" for group in groups[:_SHOWN_LINES]]
    if more := sum(len(group.problems) for group in groups[_SHOWN_LINES:]):
        lines.append(f"{counted(more, 'more problem')} ('fib-bench validate' lists all)")
    return lines


@attrs.frozen
class Misspelling:
    """A key that resembles a field which its object lacks."""

    path: str
    """JSON path of the object."""
    key: str
    field: str


def find_misspellings(value: Any, plain: Any, path: str = "$") -> Iterator[Misspelling]:
    """The misspelt keys of a record, made of plain objects, and of all records inside it."""
    if isinstance(value, Record):
        cls: Any = type(value)  # mypy takes the hash of an unhashable record for that of its class
        if value.unknown_fields:
            yield from (Misspelling(path, key, field) for key, field in _misspelt(cls, tuple(plain)))
        inside: dict[Any, Any] = {name: getattr(value, name) for name in attrs.fields_dict(cls) if name in plain}
    elif isinstance(value, dict | tuple):
        inside = value if isinstance(value, dict) else dict(enumerate(value))
    else:
        return
    for key, item in inside.items():
        if isinstance(item, Record | dict | tuple):
            yield from find_misspellings(item, plain[key], child_path(path, key))


def misspelling_warnings(source: str, found: Mapping[Misspelling, int]) -> list[Problem]:
    """A warning for each misspelt key of a file, with its count of records."""
    return [
        Problem(
            source,
            one.path,
            f"has the unknown key {one.key!r}, which has no effect{f' ({count} lines)' if count > 1 else ''}; "
            f"did you mean {one.field!r}?",
            Severity.WARNING,
            MISSPELT_CODE,
        )
        for one, count in found.items()
    ]


@lru_cache(maxsize=1024)
def _misspelt(cls: Any, keys: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Misspelt keys with the fields that they resemble."""
    known = field_names(cls)
    unknown = [key for key in keys if key not in known]
    if len(unknown) > _MAX_UNKNOWN_KEYS:
        return ()
    absent = sorted(known.difference(keys))
    return tuple((key, field) for key in unknown if (field := closest(key, absent)))
