"""Which files a folder of a data set holds, and what there is no file: every oddity is reported."""

from __future__ import annotations

import os
import stat

import attrs

from ._layout import is_below
from ._report import Findings


@attrs.frozen
class Found:
    """A file of the data set."""

    path: str
    """Where to open it."""
    name: str
    """Its path below the root, for people: ``/`` between folders, odd bytes escaped."""
    size_bytes: int

    parts: tuple[str, ...]
    """The folders below the root, and the file name without its suffix."""

    @property
    def stem(self) -> str:
        """The file name without its suffix."""
        return self.parts[-1]


def scan(root: str, folder: str, suffix: str, findings: Findings) -> list[Found]:
    """Every ordinary file with a suffix at any depth below a folder of the root, in order of paths.

    Hidden files (a writer's temporary ones) are left out. Links out of the root, links to what is
    listed already, other kinds of files and other suffixes are reported.
    """
    scanner = _Scanner(os.path.realpath(root), suffix, findings)
    pending = [os.path.join(root, folder)] if os.path.lexists(os.path.join(root, folder)) else []
    while pending:
        path = pending.pop()
        pending += scanner.visit(path, _shown(os.path.relpath(path, root)))
    return sorted(scanner.found, key=lambda file: file.name)


class _Scanner:
    def __init__(self, root: str, suffix: str, findings: Findings) -> None:
        self.found: list[Found] = []
        self._root = root
        self._suffix = suffix
        self._findings = findings
        self._folders: set[str] = set()

    def visit(self, path: str, name: str) -> list[str]:
        """Take note of one entry; returns what is in it if it is a folder."""
        try:
            if os.path.islink(path) and not is_below(os.path.realpath(path), self._root):
                message = "is a link that leads out of the data set; copy what it points to instead"
                self._findings.error(name, message, "link-out")
                return []
            status = os.stat(path)
            if stat.S_ISDIR(status.st_mode):
                return self._entries(path, name)
        except OSError as error:
            self._findings.error(name, f"cannot be read: {error.strerror or error}", "unreadable")
            return []
        self._file(path, name, status)
        return []

    def _entries(self, path: str, name: str) -> list[str]:
        real = os.path.realpath(path)
        if real in self._folders:
            self._findings.notice(name, "leads to a folder that is read already; remove the link", "link-again")
            return []
        self._folders.add(real)
        return [os.path.join(path, entry) for entry in sorted(os.listdir(path)) if not entry.startswith(".")]

    def _file(self, path: str, name: str, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            self._findings.error(name, "is no ordinary file (a pipe, socket or device); remove it", "no-file")
        elif name.endswith(self._suffix):
            parts = tuple(name.removesuffix(self._suffix).split("/"))
            self.found.append(Found(path, name, status.st_size, parts))
        else:
            message = f"is not read, for its name does not end in {self._suffix}; rename or remove it"
            self._findings.notice(name, message, "other-suffix")


def _shown(path: str) -> str:
    return path.replace(os.sep, "/").encode("utf-8", "backslashreplace").decode()
