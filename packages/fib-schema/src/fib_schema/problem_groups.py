"""Grouping of problems for people: problems that differ only in paths and numbers become one line."""

from __future__ import annotations

import re
from collections.abc import Iterable

import attrs

from .display import counted
from .errors import Problem, Severity

_EXAMPLES = 3
_SHOWN_LINES = 100
_PATH_OR_NUMBER = re.compile(r"[^\s'\",;:()\[\]]*[/\\][^\s'\",;()\[\]]*|\d+")


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
