"""Inputs of a compilation that are not in its cache key: headers and libraries outside of the sources.

A compiler lists the headers that it read (``-MD``), a linker the files (``--trace``). They are stored with the result,
which is used only while none has changed and no new file would be found before one of them. Headers of the compiler
itself and of the binding are left out: the variant covers their versions.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import attrs
from fib_schema import SourceFile

_HAS_INCLUDE = re.compile(r"__has_include(?:_next)?\s*\(\s*[<\"]([^>\"\n]+)[>\"]")
_ESCAPED = re.compile(r"\\([ #:])|\$\$")
_TRACED = re.compile(r"\(?(/[^()]+)")


class InputFile(NamedTuple):
    """A file with its content's digest; the other fields save reading a file that was not touched."""

    path: str
    size_bytes: int
    modified_ns: int
    changed_ns: int
    """The time that only root can set."""
    sha256: str

    @classmethod
    def of(cls, path: str) -> InputFile:
        """The file as it is now.

        Raises:
            OSError: It cannot be read.
        """
        with Path(path).open("rb") as file:
            found = os.fstat(file.fileno())
            state = path, found.st_size, found.st_mtime_ns, found.st_ctime_ns
            if state not in _digests:
                _digests[state] = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(*state, _digests[state])


_digests: dict[tuple[str, int, int, int], str] = {}
"""Digests by file and state. A new hard link, as installers make, changes the last time of a file for all entries."""


def are_current(files: Iterable[InputFile]) -> bool:
    """Whether all files have the same content. A hit checks hundreds of files, in 1 us each."""
    stat = os.stat
    try:
        for file in files:
            found = stat(file[0])
            is_untouched = (found.st_size, found.st_mtime_ns, found.st_ctime_ns) == file[1:4]
            if not is_untouched and InputFile.of(file.path).sha256 != file.sha256:
                return False
    except (OSError, ValueError, TypeError):  # it is gone, or the record is damaged
        return False
    return True


@attrs.frozen
class Inputs:
    """The files that a result depends on."""

    files: tuple[InputFile, ...] = ()
    absent: tuple[str, ...] = ()
    """Paths at which the compiler would have found another file first."""

    @classmethod
    def of(cls, files: Iterable[str], absent: Iterable[str]) -> Inputs:
        """Inputs as they are now.

        Raises:
            OSError: A file cannot be read.
        """
        return cls(tuple(map(InputFile.of, sorted(set(files)))), tuple(sorted(set(absent))))

    def is_current(self) -> bool:
        """Whether the same command would read the same files."""
        return are_current(self.files) and not any(map(os.path.lexists, self.absent))

    def to_plain(self) -> dict[str, Any]:
        """The inputs as JSON values."""
        return {"files": self.files, "absent": self.absent}

    @classmethod
    def from_plain(cls, data: Any) -> Inputs:
        """The inputs of `to_plain`.

        Raises:
            KeyError: They are malformed, as `TypeError`.
        """
        return cls(tuple(map(InputFile._make, data["files"])), tuple(data["absent"]))


@attrs.frozen
class SearchPaths:
    """Folders in which compilers look for headers and libraries.

    Args:
        known: Folders whose headers a version covers.
        headers: All folders, in order; those of the binding and of the compiler among them.
        custom: Folders that a user added, which are searched before those of the system.
        libraries: Folders for libraries that a user added.
    """

    known: tuple[str, ...]
    headers: tuple[str, ...]
    custom: tuple[str, ...]
    libraries: tuple[str, ...]

    def inputs(self, read: Iterable[str], sources: Sequence[SourceFile], libraries: Iterable[str] = ()) -> Inputs:
        """The inputs of a compilation.

        Args:
            read: The absolute paths of files that compiler and linker read.
            sources: Of the solution.
            libraries: The names of libraries after ``-l``.
        """
        read = {os.path.normpath(path) for path in read}
        known = tuple(f"{folder}/" for folder in self.known)
        files = [path for path in read if not path.startswith(known)]
        absent = {*self._hiding(read), *self._optional(sources), *self._libraries(libraries)}
        return Inputs.of(files, (path for path in absent if path not in read and not os.path.lexists(path)))

    def _hiding(self, read: Iterable[str]) -> set[str]:
        """Places in a user's folders for headers that were found elsewhere."""
        if not self.custom:
            return set()
        names = {path[len(folder) + 1 :] for path in read for folder in self.headers if path.startswith(f"{folder}/")}
        return {f"{folder}/{name}" for folder in self.custom for name in names}

    def _optional(self, sources: Sequence[SourceFile]) -> set[str]:
        """Places of headers that sources look for without needing them."""
        names = {name for source in sources for name in _HAS_INCLUDE.findall(source.content)}
        return {f"{folder}/{name}" for folder in self.headers for name in names}

    def _libraries(self, names: Iterable[str]) -> set[str]:
        return {
            f"{folder}/lib{name}{suffix}" for folder in self.libraries for name in names for suffix in (".so", ".a")
        }


def headers_in(rules: str) -> set[str]:
    """The absolute paths in the rules for ``make`` that a compiler wrote."""
    text = rules.replace("\\\n", " ").partition(": ")[2]
    words = re.split(r"(?<!\\)\s+", text)
    return {path for word in words if (path := _ESCAPED.sub(lambda found: found[1] or "$", word)).startswith("/")}


def linked_in(output: str) -> set[str]:
    """The absolute paths of files in the output of a linker with ``--trace``."""
    found = (match[1].strip() for line in output.splitlines() if (match := _TRACED.match(line)))
    return {path for path in found if Path(path).is_file()}
