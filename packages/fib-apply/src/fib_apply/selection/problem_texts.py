"""Problems of a data set as a table keeps them, in texts, as `fib_schema.Problem` again."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fib_schema import Problem

_TEXT = re.compile(r"(?P<source>.+?\.jsonl(?::\d+)?|.+?\.json|.+?)(?: at (?P<path>\$\S*))?: (?P<message>.*)", re.DOTALL)


def as_problems(texts: Iterable[str]) -> list[Problem]:
    """The problems that texts of the form ``FILE:LINE at PATH: MESSAGE`` say; their texts are the same again."""
    return [_as_problem(text) for text in texts]


def _as_problem(text: str) -> Problem:
    found = _TEXT.fullmatch(text)
    if found is None:
        return Problem("the data set", "$", text)
    return Problem(found["source"], found["path"] or "$", found["message"])
