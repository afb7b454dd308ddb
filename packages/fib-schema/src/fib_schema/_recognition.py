"""Recognition of a folder that is not a data set, and of the data set that was probably meant."""

from __future__ import annotations

import os
from pathlib import Path

from . import _layout

NO_DATA_SET = "no-data-set"
"""The code of the error."""
_FOLDERS = (_layout.DEFINITIONS, _layout.SOLUTIONS, _layout.WORKLOADS, _layout.TRACES)
_MAX_SUGGESTIONS = 3


def has_data_folders(root: str) -> bool:
    """Whether a folder has at least one of the folders of a data set."""
    return any(os.path.lexists(os.path.join(root, folder)) for folder in _FOLDERS)


def describe_missing_data(root: str) -> str:
    """Say that a folder without records is not a data set, and which one was probably meant."""
    if has_data_folders(root):
        problem = "has no definition, solution, workload or trace"
    else:
        problem = f"is no data set: it has none of the folders {', '.join(_FOLDERS)}"
    meant = _enclosing(root) or _enclosed(root)
    if not meant:
        return f"{problem}; pass the folder that has {_layout.DEFINITIONS}/ in it"
    return f"{problem}; did you mean {' or '.join(repr(path) for path in meant)}?"


def _enclosing(root: str) -> list[str]:
    """The data set that a folder is a part of."""
    path = Path(os.path.realpath(root))
    for above in path.parents:
        if (above / _layout.DEFINITIONS).is_dir() and path.relative_to(above).parts[0] in {*_FOLDERS, "blob"}:
            return [str(above)]
    return []


def _enclosed(root: str) -> list[str]:
    """The first data sets right below a folder."""
    try:
        with os.scandir(root) as entries:
            names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
    except OSError:
        return []
    paths = (os.path.join(root, name) for name in names)
    found = (path for path in paths if os.path.isdir(os.path.join(path, _layout.DEFINITIONS)))
    return [path for path, _ in zip(found, range(_MAX_SUGGESTIONS), strict=False)]
