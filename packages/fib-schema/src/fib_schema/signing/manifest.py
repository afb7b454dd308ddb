"""Manifest of a signed data set: the list of all its files, in one canonical encoding.

History: 1, the first.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import attrs
import msgspec

from ..display import escape_line
from .errors import InvalidManifest

FORMAT = 1
FOLDERS = ("definitions", "solutions", "workloads", "traces", "blob")
"""The folders that a manifest covers."""
_GROWING = ("traces/", "workloads/")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CREATED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


class SignedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file as it was when it was signed."""

    path: str
    """Below the root, with ``/``."""
    size: int
    """Bytes."""
    sha256: str
    """In hexadecimal digits."""
    definitions: tuple[str, ...] = msgspec.field(default=())
    """Sorted names of the definitions that the lines of a traces file state."""

    @property
    def may_grow(self) -> bool:
        """Whether appended lines leave it valid."""
        return self.path.startswith(_GROWING) and self.path.endswith(".jsonl")


class _Payload(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    serial: int
    created: str
    files: list[SignedFile]


def _to_tuple(files: Iterable[SignedFile]) -> tuple[SignedFile, ...]:
    return tuple(files)


@attrs.frozen
class Manifest:
    """The files of a data set.

    Raises:
        InvalidManifest: A value violates the format.
    """

    serial: int
    """Counts the signatures of one owner on one set, from 1."""
    created: str
    """The time of signing in UTC, such as ``2026-11-23T11:00:00Z``."""
    files: tuple[SignedFile, ...] = attrs.field(converter=_to_tuple)
    """Sorted by path."""

    def __attrs_post_init__(self) -> None:
        if not 1 <= self.serial < 2**53:
            raise InvalidManifest(f"the serial is {self.serial}, and must be positive")
        if not _CREATED.fullmatch(self.created):
            raise InvalidManifest(f"the time is {self.created[:40]!r}, and must be like 2026-11-23T11:00:00Z")
        for file in self.files:
            _check(file)
        _check_order([file.path for file in self.files])

    def to_bytes(self) -> bytes:
        """The canonical encoding."""
        return msgspec.json.encode(_Payload(FORMAT, self.serial, self.created, list(self.files)))

    @classmethod
    def parse(cls, data: bytes) -> Manifest:
        """Parse the canonical encoding.

        Raises:
            InvalidManifest: It is another format, violates it, or is not canonical.
        """
        try:
            version = msgspec.json.decode(data, type=_Version).format
            if version != FORMAT:
                raise InvalidManifest(f"its format is {version}, and this version reads format {FORMAT}")
            payload = msgspec.json.decode(data, type=_Payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidManifest(str(error)) from error
        made = cls(payload.serial, payload.created, payload.files)
        if made.to_bytes() != data:
            raise InvalidManifest("it is not in its canonical encoding")
        return made


class _Version(msgspec.Struct):
    format: int


def path_problem(path: str) -> str | None:
    """Reason that a path cannot be signed; None if it can."""
    if not path.isprintable():
        return f"{escape_line(path)!r} has characters that cannot be printed; rename the file"
    if not unicodedata.is_normalized("NFC", path):
        return f"{path!r} is not in Unicode normal form C; rename the file"
    folder, *parts = path.split("/")
    if folder not in FOLDERS or not parts:
        return f"{path!r} is not below one of {', '.join(FOLDERS)}"
    for part in parts:
        if not part or part.startswith("."):
            return f"{path!r} has an empty or hidden part; readers skip hidden files"
        if "\\" in part or ":" in part:
            return f"{path!r} has a backslash or a colon, which some systems take for separators; rename the file"
    return None


def collisions(paths: Iterable[str]) -> list[str]:
    """Paths that are equal to an earlier one on a file system that ignores case, as messages."""
    found: dict[str, str] = {}
    problems = []
    for path in paths:
        first = found.setdefault(unicodedata.normalize("NFC", path.casefold()), path)
        if first != path:
            problems.append(f"{first!r} and {path!r} differ only by case; rename one")
    return problems


def _check(file: SignedFile) -> None:
    problem: Any = path_problem(file.path)
    if file.size < 0:
        problem = f"the size of {file.path!r} is {file.size}"
    elif not _SHA256.fullmatch(file.sha256):
        problem = f"the sha256 of {file.path!r} is no 64 hexadecimal digits"
    elif list(file.definitions) != sorted(set(file.definitions)):
        problem = f"the definitions of {file.path!r} are not sorted"
    if problem:
        raise InvalidManifest(problem)


def _check_order(paths: list[str]) -> None:
    for first, second in pairwise(paths):
        if first >= second:
            raise InvalidManifest(f"{second!r} does not follow {first!r}; paths are sorted and occur once")
    if problems := collisions(paths):
        raise InvalidManifest(problems[0])
