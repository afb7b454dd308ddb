"""What a validation knows of a data set so far, and how it turns plain objects into records."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import attrs

from ._older import LogReader, upgrade
from ._record import Record
from ._report import Findings
from .codec import structure
from .definition import Definition
from .errors import InvalidRecord
from .workload import Workload

R = TypeVar("R", bound=Record)


@attrs.frozen
class KnownSolution:
    """What others refer to of a solution; its sources are not kept."""

    name: str
    definition: str
    author: str


@attrs.define
class Known:
    """The names of a data set and what bears them; None where the record is bad."""

    definitions: dict[str, Definition | None] = attrs.field(factory=dict)
    definition_files: dict[str, str] = attrs.field(factory=dict)
    solutions: dict[str, KnownSolution | None] = attrs.field(factory=dict)
    solution_files: dict[str, str] = attrs.field(factory=dict)
    workloads: dict[tuple[str, str], Workload] = attrs.field(factory=dict)
    """By the names of their definitions and their uuids."""
    workload_places: dict[tuple[str, str], str] = attrs.field(factory=dict)


@attrs.frozen
class Structured(Generic[R]):
    """What plain objects make."""

    record: R | None
    """None if they make none."""
    plain: Any
    """The plain objects in the current schema."""
    changes: list[str]
    """What made them current; empty where they were."""


def structured(
    plain: Any, cls: type[R], place: str, findings: Findings, read_log: LogReader | None = None
) -> Structured[R]:
    """Make a record of plain objects of the current schema or an older one, and report every problem."""
    current, changes = upgrade(plain, cls, read_log)
    try:
        return Structured(structure(current, cls, source=place), current, changes)
    except InvalidRecord as error:
        for problem in error.problems:
            findings.error(place, problem.message, "schema", problem.path)
        return Structured(None, current, changes)
