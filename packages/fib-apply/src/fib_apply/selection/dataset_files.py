"""Data set files: the files that a table depends on, and a fingerprint of their state."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

import attrs
from fib_schema.codec import MAX_RECORD_BYTES
from fib_schema.data_files import list_data_files
from fib_schema.framing import framed
from fib_schema.regular_files import read_regular

FOLDERS = {"definitions": ".json", "solutions": ".json", "traces": ".jsonl"}
"""The folders that a table depends on, and the suffixes of their files."""


_MAX_TRACES_BYTES = 2 << 30


class Ignored(Exception):
    """A file that is not used; the message says why."""


def read_file(path: str) -> bytes:
    """The content of a regular file of records or of traces.

    Raises:
        OSError: It cannot be read, is of another kind, or is too large.
    """
    return read_regular(path, MAX_RECORD_BYTES if path.endswith(".json") else _MAX_TRACES_BYTES)


@attrs.define
class DatasetFiles:
    """The files of a data set that a table depends on."""

    root: str
    files: dict[str, list[str]] = attrs.field(factory=dict)
    """Sorted paths by folder of `FOLDERS`."""
    problems: list[str] = attrs.field(factory=list)
    blocked: dict[str, str] = attrs.field(factory=dict, init=False)
    """Definitions that are not routed, each with the reason."""
    _states: list[str] = attrs.field(factory=list)

    @classmethod
    def of(cls, root: str | os.PathLike[str]) -> DatasetFiles:
        """List a data set as `fib_schema` reads it: at any depth, without hidden files and links to the outside."""
        real = os.path.realpath(root)
        listed, problems = list_data_files(real, FOLDERS)
        files = {folder: [file.path for file in found] for folder, found in listed.items()}
        shown = [str(problem) for problem in problems]
        states = [
            f"{file.path[len(real) + 1 :]}\0{file.size_bytes} {file.modified_ns} {file.inode}"
            for found in listed.values()
            for file in found
        ]
        return cls(real, files, shown, states=[*states, *shown])

    def read(self, path: str) -> bytes:
        """The content of a listed file.

        Raises:
            OSError: It cannot be read.
            Ignored: It must not be used.
        """
        return read_file(path)

    def fingerprint(self) -> bytes:
        """Fingerprint of the path, size, modification time and inode of every file, and of what cannot be listed."""
        return digest_of(self._states)

    def relative(self, path: str) -> str:
        """A listed path, relative to the root."""
        return path[len(self.root) + 1 :]


def digest_of(parts: Iterable[str | bytes]) -> bytes:
    """A hash of a sequence of parts; parts are length-prefixed, so different sequences differ."""
    return hashlib.blake2b(framed(parts), digest_size=32).digest()
