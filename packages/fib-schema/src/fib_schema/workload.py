"""Workload: concrete axis values and inputs of a definition.

Source: the schema of the public flashinfer-trace data set.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

import attrs

from . import _record
from ._record import FrozenDict, Record


@attrs.frozen
class RandomInput(Record):
    """An input that the benchmark generates from a seed."""

    type: ClassVar[str] = "random"
    """JSON tag."""


def _scalar(record: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if type(value) not in (int, float, bool):
        raise _record.fail(record, attribute.name, f"expected a scalar, got {_record.describe(value)}")
    if type(value) is int and not -(2**63) <= value < 2**64:
        problem = f"no integer type of 64 bits holds {_record.short_repr(value)}; write a smaller one"
        raise _record.fail(record, attribute.name, problem)


@attrs.frozen
class ScalarInput(Record):
    """A literal scalar."""

    value: int | float | bool = attrs.field(validator=_scalar)
    """Value that is passed."""

    type: ClassVar[str] = "scalar"
    """JSON tag."""


def _blob_path(record: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    _record.check_text(record, attribute.name, value)
    if problem := _record.relative_path_problem(value.removeprefix("./")):
        raise _record.fail(record, attribute.name, f"{problem}; blobs stay below the data set's root")


@attrs.frozen
class SafetensorsInput(Record):
    """A tensor in a safetensors file of the data set."""

    path: str = attrs.field(validator=_blob_path)
    """Relative to the data set's root; a leading ``./`` is allowed."""
    tensor_key: str
    """Name of the tensor in the file."""

    type: ClassVar[str] = "safetensors"
    """JSON tag."""


InputSpec: TypeAlias = RandomInput | ScalarInput | SafetensorsInput


def _axis_sizes(record: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    for axis, size in value.items():
        if problem := _record.size_problem(size):
            raise _record.fail(record, f"{attribute.name}[{axis!r}]", problem)


@attrs.frozen
class Workload(Record):
    """Concrete axis values and inputs of a definition."""

    axes: FrozenDict[str, int] = attrs.field(converter=_record.to_mapping, validator=_axis_sizes)
    """Sizes of the variable axes, by name."""
    inputs: FrozenDict[str, InputSpec] = attrs.field(converter=_record.to_mapping)
    """Source of the value of each input, by name."""
    uuid: str = attrs.field(validator=_record.name)
    """Identifier of the workload."""
    extra: FrozenDict[str, Any] | None = attrs.field(default=None, converter=_record.to_optional_mapping)
    """Fields beyond the public format, such as the layout of inputs that are not contiguous."""
