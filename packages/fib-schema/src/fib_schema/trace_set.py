"""TraceSet: a data set of definitions, solutions, workloads and traces, on disk or in memory.

Reading, querying and appending records are in `_store`, the root folder and its locks in `_folder`, scores and ranks of
authors in `ranking`.
"""

from __future__ import annotations

from pathlib import Path

from ._store import PartlyAdded, Store
from .ranking import Rankings

__all__ = ["PartlyAdded", "TraceSet"]


class TraceSet(Store, Rankings):
    """A data set of definitions, solutions, workloads and traces.

    With a root it is a view of a directory: opening lists files and reads names; records are parsed
    when they are first used. Without a root it lives in memory. The values of `definitions`,
    `solutions`, `workloads` and `traces` are snapshots; read the attribute again after an `add_...`.

    Args:
        root: The directory, or None for memory only.
        definitions: Definitions by name.
        solutions: Solutions by the name of their definition.
        workloads: Workload traces by the name of their definition.
        traces: Traces by the name of their definition.

    Raises:
        DuplicateName: Two solutions share a name.
    """

    root: Path | None
