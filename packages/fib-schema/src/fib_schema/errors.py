"""Exceptions and warnings of fib-schema; `FibError` is the root for all FIB packages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum

import attrs

Keys = tuple[str | int, ...]
"""The keys and indices that lead to a value."""

_MAX_COMPARED_NAMES = 1000
_MAX_COMPARED_LENGTH = 200
"""Comparing two names takes the product of their lengths: 20 ms for two of 200 letters."""
_MAX_LISTED = 8


class FibError(Exception):
    """Root of every exception that a FIB package raises on purpose."""


@attrs.frozen
class InvalidField(FibError, ValueError):
    """A value that the data model does not allow."""

    where: str
    """The value's place, such as ``Definition 'gemm'.axes``."""
    problem: str
    """The problem and its remedy."""

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


class Severity(StrEnum):
    """Whether a problem makes data unusable."""

    ERROR = "error"
    """The data is wrong, and is not used or not to be trusted."""
    WARNING = "warning"
    """The data is usable, but should be looked at."""


@attrs.frozen
class Problem:
    """One thing that is wrong in a data set, with its place and its remedy."""

    source: str
    """File (and ``:line`` for JSON Lines) or ``<memory>``."""
    path: str
    """JSON path inside the record, ``$`` being the record itself."""
    message: str
    """The problem and its remedy."""
    severity: Severity = Severity.ERROR
    code: str = ""
    """The kind of problem, such as ``missing-blob``; may be empty."""

    @property
    def file(self) -> str:
        """The file alone."""
        return self.source if self.line is None else self.source.rpartition(":")[0]

    @property
    def line(self) -> int | None:
        """The line of a JSON Lines file, counted from 1."""
        file, _, line = self.source.rpartition(":")
        return int(line) if file.endswith(".jsonl") and line.isdecimal() else None

    def __str__(self) -> str:
        place = self.source if self.path == "$" else f"{self.source} at {self.path}"
        return f"{place}: {self.message}"


@attrs.frozen
class InvalidRecord(FibError, ValueError):
    """A JSON text that is not a valid record; holds all of its problems, not only the first."""

    kind: str
    problems: tuple[Problem, ...]

    def __str__(self) -> str:
        lines = "\n  ".join(map(str, self.problems))
        return f"not a valid {self.kind}:\n  {lines}"


@attrs.frozen
class DuplicateName(FibError, ValueError):
    """Two records of one kind have the same name."""

    kind: str
    name: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"two {self.kind}s are named {self.name!r}: {self.first} and {self.second}; rename or remove one"


@attrs.frozen
class UnknownName(FibError, KeyError):
    """A name that matches nothing, with close matches."""

    kind: str
    name: str
    known: tuple[str, ...]

    @property
    def near_misses(self) -> list[str]:
        """Up to three known names that resemble the one asked for, out of the first 1,000 of usual length."""
        return close_matches(self.name, self.known, cutoff=0.5)

    def __str__(self) -> str:
        if near := self.near_misses:
            return f"no {self.kind} is named {self.name!r}; did you mean {_listed(near)}?"
        if not self.known:
            return f"no {self.kind} is named {self.name!r}: there are none at all"
        more = f" and {len(self.known) - _MAX_LISTED} more" if len(self.known) > _MAX_LISTED else ""
        return f"no {self.kind} is named {self.name!r}; known are {_listed(sorted(self.known)[:_MAX_LISTED])}{more}"


@attrs.frozen
class DataSetNotFound(FibError, FileNotFoundError):
    """The root of a data set does not exist or is not a directory."""

    path: str

    def __str__(self) -> str:
        remedy = "pass another path (--dataset DIR), change to the folder of a data set, or set FIB_DATASET_PATH"
        return f"no data set at {self.path!r}: there is no such directory; {remedy}"


@attrs.frozen
class NoRoot(FibError, ValueError):
    """A disk operation on a TraceSet that lives in memory only."""

    operation: str

    def __str__(self) -> str:
        return f"{self.operation} needs a TraceSet with a root; this one is in memory only"


@attrs.frozen
class AxisError(FibError, ValueError):
    """Axis values that inputs leave undetermined or contradict."""

    definition: str
    axis: str
    problem: str

    def __str__(self) -> str:
        return f"definition {self.definition!r}, axis {self.axis!r}: {self.problem}"


@attrs.frozen
class ConstraintError(FibError, ValueError):
    """A constraint that cannot be evaluated."""

    constraint: str
    problem: str

    def __str__(self) -> str:
        return f"constraint {self.constraint!r}: {self.problem}"


class DataWarning(UserWarning):
    """Data was skipped or upgraded; ``TraceSet.problems`` has the details."""


def located_errors(error: BaseException, keys: Keys = ()) -> Iterator[tuple[Keys, BaseException]]:
    """The errors in one of cattrs, which is a tree of them, each with the names and indices that lead to its value."""
    from cattrs.errors import AttributeValidationNote, IterableValidationNote

    if not isinstance(error, BaseExceptionGroup):
        yield keys, error
        return
    for inner in error.exceptions:
        notes = getattr(inner, "__notes__", ())
        names = [note.name for note in notes if isinstance(note, AttributeValidationNote)]
        indices = [note.index for note in notes if isinstance(note, IterableValidationNote)]
        yield from located_errors(inner, (*keys, *names, *indices))


def close_matches(name: str, known: Iterable[str], *, cutoff: float) -> list[str]:
    """Up to three known names of usual length that resemble one, the nearest first."""
    import difflib

    if len(name) > _MAX_COMPARED_LENGTH:
        return []
    compared = [one for one in known if len(one) <= _MAX_COMPARED_LENGTH]
    return difflib.get_close_matches(name, compared[:_MAX_COMPARED_NAMES], n=3, cutoff=cutoff)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
