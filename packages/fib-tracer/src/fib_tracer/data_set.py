"""Data set of a runtime, independent of the working directory."""

from __future__ import annotations

import os

from fib_schema import TraceSet


def open_absolute(trace_set: TraceSet | str | os.PathLike[str] | None) -> TraceSet:
    """A data set whose root is absolute, so that a change of the working directory does not move it.

    Args:
        trace_set: The data set, or its folder; None means ``FIB_DATASET_PATH`` or the default.

    Raises:
        DataSetNotFound: There is no such folder.
    """
    found = trace_set if isinstance(trace_set, TraceSet) else TraceSet.from_path(trace_set)
    if found.root is None or found.root.is_absolute():
        return found
    return TraceSet.from_path(found.root.absolute())
