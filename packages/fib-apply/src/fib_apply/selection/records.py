"""Records of tables: reads definitions and solutions; an invalid one is reported and left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

import attrs
from fib_schema import Definition, InvalidRecord, Problem, Solution
from fib_schema.codec import parse_upgraded

from .dataset_files import Ignored, digest_of, read_file

R = TypeVar("R", Definition, Solution)


@attrs.frozen
class Stored(Generic[R]):
    """A record with its file."""

    record: R
    path: str
    digest: bytes
    """Digest of the file's content."""


def read_records(
    paths: Iterable[str], cls: type[R], problems: list[str], read: Callable[[str], bytes] = read_file
) -> dict[str, Stored[R]]:
    """Read records by name. A name in two files is ambiguous, so neither counts.

    Args:
        paths: The files.
        cls: The class of the records.
        problems: The list that problems are appended to.
        read: Reads a file.
    """
    found: dict[str, Stored[R]] = {}
    ambiguous: set[str] = set()
    for path in paths:
        try:
            stored = _read(path, cls, read)
        except (InvalidRecord, OSError, Ignored) as error:
            problems.append(_problem(path, error))
            continue
        name = stored.record.name
        if name in found:
            ambiguous.add(name)
            problems.append(f"{path}: another {cls.__name__.lower()} is named {name!r}: {found[name].path}")
        found.setdefault(name, stored)
    return {name: stored for name, stored in found.items() if name not in ambiguous}


def _read(path: str, cls: type[R], read: Callable[[str], bytes]) -> Stored[R]:
    content = read(path)
    return Stored(parse_upgraded(content, cls, source=path)[0], path, digest_of([content]))


def _problem(path: str, error: InvalidRecord | OSError | Ignored) -> str:
    if isinstance(error, Ignored):
        return f"{path}: ignored: {error}"
    if isinstance(error, OSError):
        return f"{path}: cannot be read: {error.strerror}"
    return "; ".join(map(str, error.problems))


def read_unchanged(path: Path, cls: type[R], digest: bytes, read: Callable[[str], bytes] = read_file) -> R:
    """Read a record whose file must be unchanged since the table was made: only measured code may run.

    Raises:
        InvalidRecord: The file has changed, or cannot be read any more.
    """
    try:
        stored = _read(str(path), cls, read)
    except (OSError, Ignored) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidRecord(cls.__name__, (Problem(str(path), "$", f"cannot be read: {reason}"),)) from error
    if stored.digest != digest:
        problem = Problem(str(path), "$", "changed after the table was made; reload the runtime")
        raise InvalidRecord(cls.__name__, (problem,))
    return stored.record
