"""Adds definitions that FlashInfer has dumped to a data set; what it holds already stays as it is."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import attrs
from fib_schema import Definition, FibError, InvalidRecord, TraceSet, to_plain
from fib_schema.codec import decode, parse_upgraded

from .definitions import NoDefinition, adapted, looks_like_definition

_MOST_BYTES = 64 << 20
State: TypeAlias = Literal["added", "equal", "differs", "refused"]


@attrs.frozen
class Added:
    """What became of a definition's file."""

    name: str
    source: str
    state: State
    """``equal``: the set has it already; ``differs``: the set has another one of that name, which stays."""
    changes: tuple[str, ...] = ()
    """What made it a definition of today."""
    problem: str | None = None

    @property
    def is_refused(self) -> bool:
        """Whether the data set lacks what the file says."""
        return self.state in ("differs", "refused")


def add_definition(trace_set: TraceSet, file: Path) -> Added | None:
    """Add the definition of a file to a data set.

    Returns:
        What became of it; None if the file is not meant as a definition.
    """
    source = os.fspath(file)
    try:
        plain = decode(_read(file), "Definition", source=source)
    except (InvalidRecord, OSError) as error:
        return Added(file.stem, source, "refused", (), _reason(error))
    if not looks_like_definition(plain):
        return None
    name = str(plain["name"])
    changes: tuple[str, ...] = ()
    try:
        new, made = adapted(plain)
        definition, upgraded = parse_upgraded(json.dumps(new), Definition, source=source)
        changes = (*made, *upgraded)
        return _compared(trace_set, definition, source, changes) or _added(trace_set, definition, source, changes)
    except (FibError, OSError, ValueError, RecursionError) as error:
        return Added(name, source, "refused", changes, _reason(error))


def _read(file: Path) -> bytes:
    status = file.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
        raise OSError(f"is no ordinary file of at most {_MOST_BYTES >> 20} MiB")
    return file.read_bytes()


def _compared(trace_set: TraceSet, new: Definition, source: str, changes: tuple[str, ...]) -> Added | None:
    """What there is to say if the set has a definition of that name."""
    if new.name not in trace_set.definitions:
        return None
    mine, theirs = to_plain(trace_set.definitions[new.name]), to_plain(new)
    different = _different(mine, theirs)
    if not different:
        return Added(new.name, source, "equal", changes)
    problem = f"the data set has another definition of that name, which stays; they differ in {', '.join(different)}"
    return Added(new.name, source, "differs", changes, problem)


def _added(trace_set: TraceSet, new: Definition, source: str, changes: tuple[str, ...]) -> Added:
    trace_set.add_definitions([new])
    return Added(new.name, source, "added", changes)


def _different(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    return [field for field in {**mine, **theirs} if mine.get(field) != theirs.get(field)]


def _reason(error: Exception) -> str:
    """What is wrong, without the file's name, which is said beside it."""
    if isinstance(error, NoDefinition):
        return error.problem
    if isinstance(error, InvalidRecord):
        return "; ".join(f"{p.message}" if p.path == "$" else f"{p.path}: {p.message}" for p in error.problems)
    return str(error)
