"""Errors of signing."""

from __future__ import annotations

from enum import StrEnum

import attrs

from ..display import escape_line
from ..errors import FibError


class FileState(StrEnum):
    """Result of comparing a file with the manifest."""

    UNCHANGED = "unchanged"
    GROWN = "grown"
    """Lines were appended; the signed part is unchanged."""
    CHANGED = "changed"
    MISSING = "missing"
    ADDED = "added"
    """The manifest does not list it."""


@attrs.frozen
class InvalidKey(FibError, ValueError):
    """A key that cannot be used."""

    source: str
    problem: str

    def __str__(self) -> str:
        return f"{self.source}: {self.problem}"


@attrs.frozen
class PassphraseNeeded(InvalidKey):
    """A private key that is encrypted, while no passphrase was given."""


@attrs.frozen
class NotSigned(FibError, ValueError):
    """A data set without a valid signature of the required key."""

    root: str
    problem: str

    def __str__(self) -> str:
        return f"data set {self.root!r} is not signed as required: {self.problem}"


@attrs.frozen
class InvalidManifest(FibError, ValueError):
    """A manifest that violates its format."""

    problem: str

    def __str__(self) -> str:
        return f"invalid manifest: {self.problem}"


@attrs.frozen
class CannotSign(FibError, ValueError):
    """A data set that cannot be signed; nothing was written."""

    root: str
    problems: tuple[str, ...]

    def __str__(self) -> str:
        lines = "\n  ".join(self.problems)
        return f"data set {self.root!r} cannot be signed:\n  {lines}"


@attrs.frozen
class NotAsSigned(FibError, ValueError):
    """A file that is not what the manifest says."""

    path: str
    state: FileState
    problem: str
    definitions: tuple[str, ...] = ()
    """The definitions whose traces the signed file holds."""

    def __str__(self) -> str:
        return f"{escape_line(self.path)}: {self.problem}"
