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
from typing import Any, TypeAlias

import attrs
from fib_schema import SourceFile

_HAS_INCLUDE = re.compile(r"__has_include(?:_next)?\s*\(\s*[<\"]([^>\"\n]+)[>\"]")
_ESCAPED = re.compile(r"\\([ #:])|\$\$")
_TRACED = re.compile(r"\(?(/[^()]+)")
Signature: TypeAlias = tuple[int, int, int]


@attrs.frozen
class InputFile:
    """A file with its content's digest; the signature saves reading a file that was not touched."""

    path: str
    signature: Signature
    """Size, modification time and change time; only root can set the last one."""
    sha256: str

    @classmethod
    def of(cls, path: str) -> InputFile:
        """The file as it is now.

        Raises:
            OSError: It cannot be read.
        """
        signature = _signature(path)
        with open(path, "rb") as file:  # noqa: PTH123 - hundreds of files
            return cls(path, signature, hashlib.file_digest(file, "sha256").hexdigest())

    def is_current(self) -> bool:
        """Whether the file has the same content."""
        try:
            return _signature(self.path) == self.signature or InputFile.of(self.path).sha256 == self.sha256
        except OSError:
            return False


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
        return all(file.is_current() for file in self.files) and not any(map(os.path.lexists, self.absent))

    def to_plain(self) -> dict[str, Any]:
        """The inputs as JSON values."""
        files = [[file.path, *file.signature, file.sha256] for file in self.files]
        return {"files": files, "absent": list(self.absent)}

    @classmethod
    def from_plain(cls, data: Any) -> Inputs:
        """The inputs of `to_plain`.

        Raises:
            ValueError: They are malformed; so do `KeyError` and `TypeError`.
        """
        files = (
            InputFile(str(path), (int(size), int(mtime), int(ctime)), str(sha256))
            for path, size, mtime, ctime, sha256 in data["files"]
        )
        return cls(tuple(files), tuple(map(str, data["absent"])))


@attrs.frozen
class SearchPaths:
    """Where compilers look for headers and libraries.

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


def _signature(path: str) -> Signature:
    found = os.stat(path)  # noqa: PTH116 - hundreds of files
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns
