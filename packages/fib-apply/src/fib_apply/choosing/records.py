"""Definitions and solutions in files, for tables: a bad one is reported and left out."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Generic, TypeVar

import attrs
from fib_schema import Definition, InvalidRecord, Problem, Solution
from fib_schema.codec import parse_upgraded

from .listing import digest_of

R = TypeVar("R", Definition, Solution)


@attrs.frozen
class Stored(Generic[R]):
    """A record, and where it is."""

    record: R
    path: str
    digest: bytes
    """Of the file's content."""


def read_records(paths: Iterable[str], cls: type[R], problems: list[str]) -> dict[str, Stored[R]]:
    """The records of files by name. Of a name that two files bear none is taken: which is meant nobody knows.

    Args:
        paths: The files.
        cls: What each holds.
        problems: Where problems go.
    """
    found: dict[str, Stored[R]] = {}
    doubtful: set[str] = set()
    for path in paths:
        try:
            stored = _read(path, cls)
        except (InvalidRecord, OSError) as error:
            problems.append(_problem(path, error))
            continue
        name = stored.record.name
        if name in found:
            doubtful.add(name)
            problems.append(f"{path}: another {cls.__name__.lower()} is named {name!r}: {found[name].path}")
        found.setdefault(name, stored)
    return {name: stored for name, stored in found.items() if name not in doubtful}


def _read(path: str, cls: type[R]) -> Stored[R]:
    content = Path(path).read_bytes()
    return Stored(parse_upgraded(content, cls, source=path)[0], path, digest_of([content]))


def _problem(path: str, error: InvalidRecord | OSError) -> str:
    if isinstance(error, OSError):
        return f"{path}: cannot be read: {error.strerror}"
    return "; ".join(map(str, error.problems))


def read_unchanged(path: Path, cls: type[R], digest: bytes) -> R:
    """A record whose file must be as it was when the table was made: what was measured is what runs.

    Raises:
        InvalidRecord: The file has changed, or cannot be read any more.
    """
    try:
        stored = _read(str(path), cls)
    except OSError as error:
        raise InvalidRecord(cls.__name__, (Problem(str(path), "$", f"cannot be read: {error.strerror}"),)) from error
    if stored.digest != digest:
        problem = Problem(str(path), "$", "has changed since its traces were looked at; enable the runtime anew")
        raise InvalidRecord(cls.__name__, (problem,))
    return stored.record
