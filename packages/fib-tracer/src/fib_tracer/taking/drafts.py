"""Drafts of definitions that a data set lacks, made of calls that were seen.

A draft has the form of a definition without outputs, reference and op_type, and lies in ``drafts/``, where readers of
data sets do not look: a person completes it and moves it. What varied between calls is a variable
axis; sizes that were equal in all of them are taken for one axis.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from fib_schema.definition import TORCH_DTYPE_NAMES
from fib_schema.files import atomic_write

MOST_CALLS = 64
"""Calls that a draft is made of."""
FOLDER = "drafts"
_DTYPES = {name: str(dtype) for dtype, name in TORCH_DTYPE_NAMES.items()}


def can_be_drafted(name: str) -> bool:
    """Whether a file can have this name, as a definition's must."""
    return name not in ("", ".", "..") and not set(name) & set("/\\\0")


class Draft:
    """What was seen of the calls of an unknown definition.

    Args:
        name: The definition's name.
        names: Of the function's parameters.
    """

    def __init__(self, name: str, names: Sequence[str]) -> None:
        self.name = name
        self._names = tuple(names)
        self.renew()

    def renew(self) -> None:
        """Begin anew, in a forked process."""
        self._lock = threading.RLock()
        self._calls: dict[tuple[Any, ...], None] = {}
        self._seen = 0

    def see(self, arguments: Mapping[str, Any]) -> bool:
        """Look at a call: types, dtypes and shapes; returns whether it was the last one that is looked at.

        Args:
            arguments: By name; those that the draft has no name for are passed over.
        """
        if self._seen >= MOST_CALLS:
            return False
        with self._lock:
            self._seen += 1
            self._calls[tuple(_form(arguments.get(name)) for name in self._names)] = None
            return self._seen == MOST_CALLS

    @property
    def has_calls(self) -> bool:
        """Whether there is anything to make a definition of."""
        return self._seen > 0

    def to_plain(self) -> dict[str, Any]:
        """As plain objects in the form of a definition."""
        with self._lock:
            calls = list(self._calls)
        forms = {name: [call[place] for call in calls] for place, name in enumerate(self._names)}
        given = {name: [form for form in found if form is not None] for name, found in forms.items()}
        axes: dict[tuple[int, ...], str] = {}
        inputs = {name: _input(name, found, axes, len(calls)) for name, found in given.items() if found}
        return {
            "name": self.name,
            "op_type": "",
            "description": f"A draft, made of {self._seen} calls; op_type, outputs and reference are missing.",
            "axes": {axis: _axis(sizes) for sizes, axis in axes.items()},
            "inputs": inputs,
            "outputs": {},
            "reference": "",
            "tags": ["status:draft"],
        }

    def save(self, root: str | os.PathLike[str]) -> Path:
        """Write it below a data set's root, over an earlier one of the name.

        Raises:
            OSError: It could not be written.
        """
        file = Path(root, FOLDER, f"{self.name}.json")
        file.parent.mkdir(exist_ok=True)
        atomic_write(file, (json.dumps(self.to_plain(), indent=2) + "\n").encode())
        return file


def _form(value: Any) -> tuple[str, tuple[int, ...] | None] | None:
    """What a draft keeps of a value: dtype and shape, of a number its type alone; None for anything else."""
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return _DTYPES.get(dtype, dtype), tuple(value.shape)
    if isinstance(value, bool):
        return "bool", None
    return ("int64" if isinstance(value, int) else "float32", None) if isinstance(value, (int, float)) else None


def _input(
    name: str, forms: Sequence[tuple[str, tuple[int, ...] | None]], axes: dict[tuple[int, ...], str], calls: int
) -> Mapping[str, Any]:
    dtype, shape = forms[0]
    alike = [form[1] for form in forms if form[1] is not None and shape is not None and len(form[1]) == len(shape)]
    spec: dict[str, Any] = {"shape": None, "dtype": dtype}
    if shape is not None:
        sizes = [tuple(found[dim] for found in alike) for dim in range(len(shape))]
        spec["shape"] = [axes.setdefault(of_dim, f"{name}_dim{dim}") for dim, of_dim in enumerate(sizes)]
    if len(forms) < calls:
        spec["optional"] = True
    return spec


def _axis(sizes: Sequence[int]) -> Mapping[str, Any]:
    return {"type": "const", "value": sizes[0]} if len(set(sizes)) == 1 else {"type": "var"}
