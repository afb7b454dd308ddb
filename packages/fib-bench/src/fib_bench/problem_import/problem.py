"""Problem in terms of this package: a reference, and calls of it with values. Axes are inferred from shapes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs
import torch
from fib_schema import AxisConst, AxisSpec, AxisVar, Definition, DType, TensorSpec

from ..checking.elements import dtype_name
from .errors import ProblemError

Argument = torch.Tensor | int | float | bool
Slot = tuple[str, int]
"""A dimension of a tensor: its name and the dimension's index."""


@attrs.frozen
class Call:
    """One call of the reference.

    Args:
        name: What distinguishes it from other calls of the problem.
        sizes: Numbers that the problem names; an axis with the size of one gets its name.
        inputs: Values by name, in order.
        outputs: The results; only their shapes and dtypes count.
    """

    name: str
    sizes: Mapping[str, int]
    inputs: Mapping[str, Argument]
    outputs: Mapping[str, torch.Tensor]


@attrs.frozen(kw_only=True)
class Problem:
    """A problem of another benchmark."""

    path: str
    name: str
    op_type: str
    description: str
    reference: str
    """Source with a function ``run``, which takes the inputs of `calls` in order."""
    calls: tuple[Call, ...]
    recorded: frozenset[str] = frozenset()
    """Inputs whose values are always recorded, such as the parameters of a model."""
    rtol: float | None = None
    atol: float | None = None

    def to_definition(self) -> Definition:
        """The definition of the problem.

        Raises:
            ProblemError: The calls differ in more than sizes, or a dtype or an axis cannot be described.
        """
        axes, names = _axes(self)
        first = self.calls[0]
        return Definition(
            self.name,
            self.op_type,
            axes,
            {name: self._spec(name, value, names) for name, value in first.inputs.items()},
            {name: self._spec(name, value, names) for name, value in first.outputs.items()},
            self.reference,
            description=self.description,
        )

    def _spec(self, name: str, value: Argument, axes: Mapping[Slot, str]) -> TensorSpec:
        if not isinstance(value, torch.Tensor):
            kind = "bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "float32"
            return TensorSpec(None, kind)
        dtype = dtype_name(value)
        if dtype not in tuple(DType):
            raise ProblemError(self.path, f"{name!r} has dtype {dtype}; a definition knows {', '.join(DType)}")
        return TensorSpec(tuple(axes[name, index] for index in range(value.dim())), dtype)

    def error(self, problem: str) -> ProblemError:
        """An error about this problem."""
        return ProblemError(self.path, problem)


def identifier(text: str, taken: Iterable[str] = ()) -> str:
    """A name of an input or axis from any text, other than those that are taken."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "value"
    name = f"n{name}" if name[0].isdigit() else name
    while name in taken:
        name += "_"
    return name


def record_name(*parts: str) -> str:
    """A name of a definition or solution from parts of any text."""
    return "_".join(filter(None, (re.sub(r"[^a-z0-9]+", "_", part.lower()).strip("_") for part in parts)))[:150]


# -- axes ----------------------------------------------------------------------------------------


def _axes(problem: Problem) -> tuple[dict[str, AxisSpec], dict[Slot, str]]:
    """The axes, and the axis of each dimension. Dimensions of equal sizes in all calls are one axis."""
    groups: dict[tuple[int, ...], list[Slot]] = {}
    for slot, sizes in _sizes(problem).items():
        groups.setdefault(sizes, []).append(slot)
    axes: dict[str, AxisSpec] = {}
    names: dict[Slot, str] = {}
    for sizes, slots in groups.items():
        name = identifier(_axis_name(problem.calls, sizes, slots[0]), axes)
        is_constant = len(set(sizes)) == 1
        if not is_constant and all(tensor in problem.calls[0].outputs for tensor, _ in slots):
            tensor, index = slots[0]
            raise problem.error(f"dimension {index} of output {tensor!r} varies and is not a dimension of an input")
        axes[name] = AxisConst(sizes[0]) if is_constant else AxisVar()
        names |= dict.fromkeys(slots, name)
    return axes, names


def _sizes(problem: Problem) -> dict[Slot, tuple[int, ...]]:
    """The sizes of each dimension, one for each call."""
    shapes = [dict(_shapes(call)) for call in problem.calls]
    for call in problem.calls:
        if _kinds(call) != _kinds(problem.calls[0]):
            raise problem.error(f"call {call.name!r} has other inputs, ranks or dtypes than {problem.calls[0].name!r}")
    slots = [(name, index) for name, shape in shapes[0].items() for index in range(len(shape))]
    return {(name, index): tuple(found[name][index] for found in shapes) for name, index in slots}


def _shapes(call: Call) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, value in {**call.inputs, **call.outputs}.items():
        if isinstance(value, torch.Tensor):
            yield name, tuple(value.shape)


def _kinds(call: Call) -> dict[str, object]:
    values = {**call.inputs, **call.outputs}.items()
    return {
        name: (value.dim(), value.dtype) if isinstance(value, torch.Tensor) else type(value) for name, value in values
    }


def _axis_name(calls: Sequence[Call], sizes: tuple[int, ...], slot: Slot) -> str:
    for name in calls[0].sizes:
        if tuple(call.sizes.get(name) for call in calls) == sizes:
            return name
    return f"n{sizes[0]}" if len(set(sizes)) == 1 else f"{slot[0]}_{slot[1]}"
