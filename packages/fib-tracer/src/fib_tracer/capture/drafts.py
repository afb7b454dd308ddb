"""Draft definitions for calls whose definition the data set lacks.

A draft has the form of a definition without outputs, reference and op_type. It is written to ``drafts/``, which readers
of data sets skip: a person completes it and moves it. A size that varies between calls is a variable axis; sizes that
are equal in all calls share one axis.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from fib_schema.definition import TORCH_DTYPE_NAMES
from fib_schema.display import counted
from fib_schema.files import atomic_write

from ..stats import ErrorLog
from .binding import Callback

MAX_CALLS = 64
"""Calls that a draft is made from."""
MAX_DRAFTS = 1024
"""Drafts of a process: names that never recur fill neither memory nor the disk."""
FOLDER = "drafts"
_DTYPES = {name: str(dtype) for dtype, name in TORCH_DTYPE_NAMES.items()}


def can_be_drafted(name: str) -> bool:
    """Whether a file can have this name, as a definition's must."""
    return name not in ("", ".", "..") and not set(name) & set("/\\\0")


class Draft:
    """The calls of an unknown definition: types, dtypes and shapes.

    Args:
        name: The definition's name.
        names: Of the function's parameters.
    """

    def __init__(self, name: str, names: Sequence[str]) -> None:
        self.name = name
        self._names = dict.fromkeys(names)
        self.renew_after_fork()

    def renew_after_fork(self) -> None:
        """Start without calls."""
        self._lock = threading.RLock()
        self._forms: dict[tuple[tuple[str, Any], ...], None] = {}
        self._calls = 0

    def accept(self, names: Sequence[str]) -> None:
        """Take the parameters of another function that is called for the definition, too."""
        with self._lock:
            self._names |= dict.fromkeys(names)

    def add(self, arguments: Mapping[str, Any]) -> bool:
        """Add a call; returns whether it is the last one that is needed.

        Args:
            arguments: By name; those that are not parameters are ignored.
        """
        if self._calls >= MAX_CALLS:
            return False
        with self._lock:
            self._calls += 1
            forms = ((name, _form(arguments.get(name))) for name in self._names)
            self._forms[tuple((name, form) for name, form in forms if form is not None)] = None
            return self._calls == MAX_CALLS

    @property
    def has_calls(self) -> bool:
        """Whether there is a call to make a definition from."""
        return self._calls > 0

    def to_plain(self) -> dict[str, Any]:
        """As plain objects in the form of a definition."""
        with self._lock:
            calls = [dict(call) for call in self._forms]
        given = {name: [call[name] for call in calls if name in call] for name in self._names}
        axes: dict[tuple[int, ...], str] = {}
        inputs = {name: _input(name, forms, axes, len(calls)) for name, forms in given.items() if forms}
        return {
            "name": self.name,
            "op_type": "",
            "description": f"A draft, made from {counted(self._calls, 'call')}. "
            "It lacks op_type, outputs and reference.",
            "axes": {axis: _axis(sizes) for sizes, axis in axes.items()},
            "inputs": inputs,
            "outputs": {},
            "reference": "",
            "tags": ["status:draft"],
        }

    def save(self, root: str | os.PathLike[str]) -> Path:
        """Write it below a data set's root, over an earlier draft of the name.

        Raises:
            OSError: It could not be written.
        """
        file = Path(root, FOLDER, f"{self.name}.json")
        atomic_write(file, (json.dumps(self.to_plain(), indent=2) + "\n").encode())
        return file


RunJob: TypeAlias = Callable[[Callable[[], None]], None]
"""Runs a job in the storage thread."""


class Drafts:
    """The drafts of a runtime.

    Args:
        root: Of the data set.
        run: Runs a job in the storage thread.
        errors: Where errors are reported.
    """

    def __init__(self, root: Path, run: RunJob, errors: ErrorLog) -> None:
        self._root = root
        self._run = run
        self._errors = errors
        self._drafts: dict[str, Draft] = {}

    def bind(self, definition: str, names: tuple[str, ...]) -> Callback | None:
        """The callback for the calls of a function; None if no draft can be made, which is reported.

        Args:
            definition: The name of the definition that the data set lacks.
            names: Of the function's parameters.
        """
        if definition not in self._drafts and len(self._drafts) >= MAX_DRAFTS:
            self._errors.report("drafts", f"{definition} has none, because there are {MAX_DRAFTS} drafts already")
            return None
        draft = self._drafts.setdefault(definition, Draft(definition, names))
        draft.accept(names)

        def callback(*values: Any) -> None:
            try:
                if draft.add(dict(zip(names, values, strict=False))):
                    self._run(lambda: self._save(draft))
            except Exception as error:  # noqa: BLE001 tracing must not make an engine's call fail
                self._errors.report(f"{definition}: draft", error)

        return callback

    def request_saves(self) -> None:
        """Let the storage thread write all drafts that have calls."""
        for draft in list(self._drafts.values()):
            if draft.has_calls:
                self._run(lambda draft=draft: self._save(draft))  # type: ignore[misc] # of this round

    def renew_after_fork(self) -> None:
        """Start without calls of the parent process."""
        for draft in self._drafts.values():
            draft.renew_after_fork()

    def _save(self, draft: Draft) -> None:
        try:
            draft.save(self._root)
        except OSError as error:
            self._errors.report(f"{draft.name}: draft", error)


def _form(value: Any) -> tuple[str, tuple[int, ...] | None] | None:
    """A tensor's dtype and shape, a number's dtype; None for anything else."""
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
    spec: dict[str, Any] = {"shape": None, "dtype": dtype}
    if shape is not None:
        shapes = [form[1] for form in forms if form[1] is not None and len(form[1]) == len(shape)]
        sizes = zip(*shapes, strict=True)  # of each dimension, in all calls
        spec["shape"] = [axes.setdefault(of_dim, f"{name}_dim{dim}") for dim, of_dim in enumerate(sizes)]
    if len(forms) < calls:
        spec["optional"] = True
    return spec


def _axis(sizes: Sequence[int]) -> Mapping[str, Any]:
    return {"type": "const", "value": sizes[0]} if len(set(sizes)) == 1 else {"type": "var"}
