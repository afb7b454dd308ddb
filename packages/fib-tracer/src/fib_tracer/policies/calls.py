"""Calls as policies see them: `Call` before anything is copied, `WorkloadEntry` after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from fib_schema import Definition
from fib_schema.strides import Strides


@attrs.frozen
class Call:
    """A call of which nothing has been copied.

    Tensors are the caller's own: they may be on a device and be overwritten at any time. A policy may read their
    shapes, dtypes and devices, but not their values. When probed values have been copied, the call holds ``meta``
    tensors instead, so that the caller's tensors are not kept alive.
    """

    definition: Definition
    axes: Mapping[str, int]
    """The sizes of the variable axes."""
    inputs: Mapping[str, Any]
    """Inputs by the definition's names, in its order; None for an optional input that was not given."""
    probed: Mapping[str, int] = attrs.field(factory=dict)
    """The elements that the policy asked for (`FilterPolicy.value_probes`), by its labels."""
    identity: object = attrs.field(factory=object, repr=False)
    """An object that is the same whenever a policy is asked about this call, and another one for any other call."""


@attrs.define(eq=False)
class WorkloadEntry:
    """A kept call and the copies of its tensors."""

    definition: Definition
    axes: Mapping[str, int]
    inputs: dict[str, Any]
    """A tensor on the CPU, a scalar, or `RANDOM`, by name; inputs that were not given are missing."""
    order: int
    """The position among the kept calls of the definition."""
    size_bytes: int = 0
    """Bytes of the budget that the entry holds."""
    ticket: Any = None
    """Return value of `FilterPolicy.admit`."""
    probed: Mapping[str, int] = attrs.field(factory=dict)
    """See `Call.probed`."""
    strides: Mapping[str, Strides] = attrs.field(factory=dict)
    """Strides of the inputs that are not contiguous in the call; the copies are contiguous."""

    @property
    def def_name(self) -> str:
        """The definition's name."""
        return self.definition.name


class _Random:
    """The type of `RANDOM`."""

    def __repr__(self) -> str:
        return "RANDOM"


RANDOM = _Random()
"""In `WorkloadEntry.inputs`: the values are not stored, and the benchmark generates some."""
