"""Index of the names of definitions and solutions, read without parsing whole files."""

from __future__ import annotations

import os
from collections.abc import Iterable

import attrs
import msgspec

from ._layout import DataFile
from .errors import DuplicateName


def definition_names(files: Iterable[DataFile]) -> dict[str, DataFile]:
    """Definition files by the name that each holds.

    Raises:
        DuplicateName: Two files hold one name.
    """
    names: dict[str, DataFile] = {}
    for file in files:
        name = _header(file).name or file.stem
        _add(names, "definition", name, file)
    return names


@attrs.frozen
class SolutionNames:
    """Names, definitions and authors of solutions."""

    files: dict[str, DataFile]
    """By name."""
    of_definition: dict[str, tuple[str, ...]]
    owners: dict[str, tuple[str, str]]
    """The definition and the author, by solution."""


def solution_names(files: Iterable[DataFile]) -> SolutionNames:
    """The names, definitions and authors that solution files state.

    Raises:
        DuplicateName: Two files hold one name.
    """
    names: dict[str, DataFile] = {}
    groups: dict[str, list[str]] = {}
    owners: dict[str, tuple[str, str]] = {}
    for file in files:
        header = _header(file)
        name = header.name or file.stem
        _add(names, "solution", name, file)
        definition = header.definition or _folder(file, 1)
        groups.setdefault(definition, []).append(name)
        owners[name] = definition, header.author or _folder(file, 3)
    of_definition = {definition: tuple(group) for definition, group in groups.items()}
    return SolutionNames(names, of_definition, owners)


def _add(names: dict[str, DataFile], kind: str, name: str, file: DataFile) -> None:
    if name in names:
        raise DuplicateName(kind, name, names[name].name, file.name)
    names[name] = file


class _Header(msgspec.Struct):
    name: str
    definition: str | None = None
    author: str | None = None


_decode_header = msgspec.json.Decoder(_Header).decode


def _header(file: DataFile) -> _Header:
    """The names at a file's top level; none if the file is bad, which access reports."""
    try:
        return _decode_header(_content(file.path))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Header("")


def _content(path: str) -> bytes:
    """Read a file without a buffer: opening a set reads thousands, and pathlib takes twice as long."""
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _folder(file: DataFile, level: int) -> str:
    """The name of a folder above a file."""
    parts = os.path.abspath(file.path).split(os.sep)
    return parts[-1 - level] if len(parts) > level else ""
