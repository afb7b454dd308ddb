"""Files of a data set for readers in other packages: listed and read as `TraceSet` does, each problem a `Problem`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from . import _layout
from ._layout import DataFile
from ._reader import read_lines as _read_lines
from ._recognition import NO_DATA_SET, describe_missing_data
from ._report import Findings
from .errors import Problem

__all__ = ["DataFile", "list_data_files", "missing_data", "read_lines"]


def list_data_files(root: str, folders: Mapping[str, str]) -> tuple[dict[str, list[DataFile]], list[Problem]]:
    """The regular files below folders of a data set, and the problems of everything else there.

    Args:
        root: The data set's root.
        folders: The suffixes to list, by folder.
    """
    findings = Findings()
    files = {
        folder: _layout.list_files(root, folder, suffix, findings, prefix=f"{root}/")
        for folder, suffix in folders.items()
    }
    return files, [problem for problem in findings.problems if problem.code != _layout.OTHER_SUFFIX]


def missing_data(root: str) -> Problem:
    """The problem of a folder without records, which names the data set that was probably meant."""
    return Problem(root, "$", describe_missing_data(root), code=NO_DATA_SET)


def read_lines(file: DataFile, problems: list[Problem]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a JSON Lines file that hold something, with their numbers.

    Args:
        file: The file; reading stops at the size that it had when it was listed.
        problems: What makes the file or a line unreadable is appended to it when the lines end.
    """
    findings = Findings()
    yield from _read_lines(file, findings)
    problems += findings.problems
