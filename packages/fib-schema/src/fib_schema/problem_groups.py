"""Grouping of problems for people: problems that differ only in paths and numbers become one line."""

from __future__ import annotations

import re
from collections.abc import Iterable

import attrs

from .errors import Problem

_EXAMPLES = 3
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


def group_problems(problems: Iterable[Problem]) -> list[ProblemGroup]:
    """Group problems of one severity and code whose messages differ only in paths and numbers; keeps their order."""
    groups: dict[tuple[str, str, str], list[Problem]] = {}
    for problem in problems:
        kind = problem.severity, problem.code, _PATH_OR_NUMBER.sub("#", problem.message)
        groups.setdefault(kind, []).append(problem)
    return [ProblemGroup(tuple(group)) for group in groups.values()]
