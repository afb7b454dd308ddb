"""Data set files: the files that a table depends on, and a fingerprint of their state."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import attrs
from fib_schema.framing import framed

FOLDERS = {"definitions": ".json", "solutions": ".json", "traces": ".jsonl"}
"""The folders that a table depends on, and the suffixes of their files."""


class Ignored(Exception):
    """A file that is not used; the message says why."""


def read_file(path: str) -> bytes:
    """The content of a file."""
    return Path(path).read_bytes()


@attrs.define
class DatasetFiles:
    """The files of a data set that a table depends on."""

    root: str
    files: dict[str, list[str]] = attrs.field(factory=dict)
    """Sorted paths by folder of `FOLDERS`."""
    problems: list[str] = attrs.field(factory=list)
    blocked: dict[str, str] = attrs.field(factory=dict, init=False)
    """Definitions that are not routed, each with the reason."""
    _states: list[tuple[str, os.stat_result | None]] = attrs.field(factory=list)
    _followed: set[str] = attrs.field(factory=set)

    @classmethod
    def of(cls, root: str | os.PathLike[str]) -> DatasetFiles:
        """List a data set as `fib_schema` reads it: at any depth, without hidden files and links to the outside."""
        listing = cls(os.path.realpath(root))
        for folder, suffix in FOLDERS.items():
            found: list[str] = []
            listing._walk(f"{listing.root}{os.sep}{folder}", suffix, found)
            listing.files[folder] = sorted(found)
        return listing

    def _walk(self, folder: str, suffix: str, found: list[str]) -> None:
        pending = [folder]
        while pending:
            try:
                with os.scandir(pending.pop()) as scanned:
                    entries = list(scanned)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                self.problems.append(f"{error.filename}: cannot be read: {error.strerror}")
                continue
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    self._visit(entry, suffix, found, pending)

    def _visit(self, entry: os.DirEntry[str], suffix: str, found: list[str], pending: list[str]) -> None:
        name = entry.name
        if name[0] == "." or (entry.is_symlink() and not self._is_usable(entry)):
            return
        if name.endswith(suffix) and entry.is_file():
            found.append(entry.path)
            self._states.append((entry.path, entry.stat()))
        elif entry.is_dir():
            pending.append(entry.path)

    def _is_usable(self, link: os.DirEntry[str]) -> bool:
        """Whether a link leads into the data set; each linked folder is usable once, because links may form cycles."""
        target = os.path.realpath(link.path)
        is_inside = target.startswith(self.root + os.sep)
        if is_inside and Path(target).is_file():
            return True
        is_cycle = (link.path + os.sep).startswith(target + os.sep)
        if is_inside and not is_cycle and Path(target).is_dir() and target not in self._followed:
            self._followed.add(target)
            return True
        self._states.append((link.path, None))
        self.problems.append(f"{link.path}: link ignored: its target is missing, outside the data set or read already")
        return False

    def read(self, path: str) -> bytes:
        """The content of a listed file.

        Raises:
            OSError: It cannot be read.
            Ignored: It must not be used.
        """
        return read_file(path)

    def fingerprint(self) -> bytes:
        """Fingerprint of the path, size, modification time and inode of every file."""
        skip = len(self.root) + 1
        lines = [
            f"{path[skip:]}\0{state.st_size} {state.st_mtime_ns} {state.st_ino}" if state else path[skip:]
            for path, state in self._states
        ]
        lines.sort()
        return digest_of(lines)

    def relative(self, path: str) -> str:
        """A listed path, relative to the root."""
        return path[len(self.root) + 1 :]


def digest_of(parts: Iterable[str | bytes]) -> bytes:
    """A hash of a sequence of parts; parts are length-prefixed, so different sequences differ."""
    return hashlib.blake2b(framed(parts), digest_size=32).digest()
