"""Index of the names of definitions and solutions, read without parsing whole files.

A name that several files state is ambiguous: a problem of each of these files, and no record has the name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import attrs
import msgspec

from ._checks import component_problem
from ._layout import DataFile
from ._limits import MAX_RECORD_BYTES
from ._report import Findings
from .regular_files import read_regular


def definition_names(files: Iterable[DataFile], findings: Findings) -> dict[str, DataFile]:
    """Definition files by the name that each holds."""
    headers = [(_header(file), file) for file in files]
    return {name: file for name, _, file in _unambiguous(headers, "definition", findings)}


@attrs.frozen
class SolutionNames:
    """Names, definitions and authors of solutions."""

    files: dict[str, DataFile]
    """Files by name of the record."""
    of_definition: dict[str, tuple[str, ...]]
    owners: dict[str, tuple[str, str]]
    """The definition and the author, by solution."""


def solution_names(files: Iterable[DataFile], findings: Findings) -> SolutionNames:
    """The names, definitions and authors that solution files state."""
    names: dict[str, DataFile] = {}
    groups: dict[str, list[str]] = {}
    owners: dict[str, tuple[str, str]] = {}
    for name, header, file in _unambiguous([(_header(file), file) for file in files], "solution", findings):
        names[name] = file
        definition = header.definition or _folder(file, 1)
        groups.setdefault(definition, []).append(name)
        owners[name] = definition, _author(header.author, file)
    of_definition = {definition: tuple(group) for definition, group in groups.items()}
    return SolutionNames(names, of_definition, owners)


def _author(stated: str | None, file: DataFile) -> str:
    """The author that a solution states, or the folder it lies in if that is not a name: traces' paths contain it."""
    return stated if stated and component_problem(stated) is None else _folder(file, 3)


class _Header(msgspec.Struct):
    name: str
    definition: str | None = None
    author: str | None = None


_decode_header = msgspec.json.Decoder(_Header).decode


def _header(file: DataFile) -> _Header:
    """The names at a file's top level; none if the file is bad, which access reports."""
    try:
        return _decode_header(read_regular(file.path, MAX_RECORD_BYTES))
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Header("")


def _unambiguous(
    headers: list[tuple[_Header, DataFile]], kind: str, findings: Findings
) -> Iterator[tuple[str, _Header, DataFile]]:
    """Yield the names that one file states; report the others."""
    named: dict[str, list[tuple[_Header, DataFile]]] = {}
    for header, file in headers:
        named.setdefault(header.name or file.stem, []).append((header, file))
    for name, group in named.items():
        if len(group) == 1:
            yield name, *group[0]
            continue
        for _, file in group:
            others = ", ".join(other.name for _, other in group if other is not file)
            message = f"two {kind}s are named {name!r}, so neither is used ({others}); rename or remove one"
            findings.error(file.name, message, "duplicate-name", "$.name")


def _folder(file: DataFile, level: int) -> str:
    """The name of a folder above a file."""
    parts = os.path.abspath(file.path).split(os.sep)
    return parts[-1 - level] if len(parts) > level else ""
