"""Names of definitions and solutions, read without parsing their files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from typing import Any

from ._layout import DataFile
from .errors import DuplicateName


def definition_names(files: Iterable[DataFile]) -> dict[str, DataFile]:
    """Definition files by the name that each holds.

    Raises:
        DuplicateName: Two files hold one name.
    """
    names: dict[str, DataFile] = {}
    for file in files:
        name, _ = _header(file)
        _add(names, "definition", name or file.stem, file)
    return names


def solution_names(
    files: Iterable[DataFile],
) -> tuple[dict[str, DataFile], dict[str, tuple[str, ...]]]:
    """Solution files by the name that each holds, and the names by definition.

    Raises:
        DuplicateName: Two files hold one name.
    """
    names: dict[str, DataFile] = {}
    groups: dict[str, list[str]] = {}
    for file in files:
        name, definition = _header(file)
        name = name or file.stem
        _add(names, "solution", name, file)
        groups.setdefault(definition or _folder_name(file.path), []).append(name)
    return names, {definition: tuple(group) for definition, group in groups.items()}


def _add(names: dict[str, DataFile], kind: str, name: str, file: DataFile) -> None:
    if name in names:
        raise DuplicateName(kind, name, names[name].path, file.path)
    names[name] = file


def _header(file: DataFile) -> tuple[str | None, str | None]:
    """The name and definition that a file states; None where it is bad, which access will report."""
    import msgspec

    try:
        header = _decoder().decode(file.read())
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None, None
    return header.name, header.definition


@cache
def _decoder() -> Any:
    import msgspec

    header = msgspec.defstruct("header", [("name", str), ("definition", str | None, None)])
    return msgspec.json.Decoder(header)


def _folder_name(path: str) -> str:
    return os.path.basename(os.path.dirname(path))
