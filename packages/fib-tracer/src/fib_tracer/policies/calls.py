"""Calls as policies see them: before anything is copied, and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from fib_schema import Definition


@attrs.frozen
class Call:
    """A call that was just made, of which nothing has been copied.

    Tensors are the caller's own: they may lie on a device and be overwritten at any time. Their shapes, dtypes and
    devices may be looked at, their values may not. Where a policy has to wait for elements that it asked for, it sees
    tensors on ``meta`` in their place, so that nobody keeps the caller's alive meanwhile.
    """

    definition: Definition
    axes: Mapping[str, int]
    """The sizes of the variable axes."""
    inputs: Mapping[str, Any]
    """By the definition's names, in its order; None for an optional input that was not given."""
    peeked: Mapping[str, int] = attrs.field(factory=dict)
    """The elements that the policy asked for (`FilterPolicy.peeks`), by its names for them."""
    identity: object = attrs.field(factory=object, repr=False)
    """The same whenever a policy is asked about this call, and another for any other call."""


@attrs.define(eq=False)
class WorkloadEntry:
    """A call that was kept, and what was copied of it."""

    definition: Definition
    axes: Mapping[str, int]
    inputs: dict[str, Any]
    """What is recorded, by input: a tensor on the CPU, a scalar, or `RANDOM`; nothing for one that was not given."""
    order: int
    """The place among the calls of the definition that were kept."""
    size_bytes: int = 0
    """What the entry holds of the byte budget."""
    ticket: Any = None
    """What `FilterPolicy.admit` returned."""
    peeked: Mapping[str, int] = attrs.field(factory=dict)

    @property
    def def_name(self) -> str:
        """The definition's name."""
        return self.definition.name


class _Random:
    """Stands for an input that the benchmark makes."""

    def __repr__(self) -> str:
        return "RANDOM"


RANDOM = _Random()
"""In `WorkloadEntry.inputs`: the values do not matter."""
