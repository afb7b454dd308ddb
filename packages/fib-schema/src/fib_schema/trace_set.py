"""TraceSet: a data set of definitions, solutions, workloads and traces, on disk or in memory.

Reading, querying and appending records are in `_store`, the root folder and its locks in `_folder`, scores and ranks of
authors in `scores`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ._store import PartlyAdded, Store
from .scores import Scores

if TYPE_CHECKING:
    import pandas

__all__ = ["PartlyAdded", "TraceSet"]


class TraceSet(Store, Scores):
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

    def to_frame(self) -> pandas.DataFrame:
        """All traces as a frame of pandas (extra ``pandas``); sizes are columns ``axes.NAME``.

        Raises:
            PandasMissing: pandas is not installed (an ImportError).
        """
        from .notebook import traces_frame

        return traces_frame(trace for traces in self.traces.values() for trace in traces)

    def _repr_html_(self) -> str:
        """The data set in a notebook: its definitions; traces are not read."""
        from .notebook import data_set_html

        name = f"data set in {self.root or 'memory'}"
        counts = {definition: len(self.solution_names(definition)) for definition in self.definition_names()}
        return data_set_html(name, self.definitions, counts)
