"""Calls of a kernel library that somebody recorded, and those who can tell what they compute.

A library's dump knows functions and arguments, a data set knows definitions and inputs. What leads from
one to the other is the knowledge of an adapter; packages offer it as entry points of the group
``fib_tracer.call_readers``, each a function that takes nothing and returns a `CallReader`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import attrs
from fib_schema import FibError

GROUP = "fib_tracer.call_readers"


@attrs.frozen
class RecordedCall:
    """One call, as it was recorded."""

    module: str
    """Where the function is defined: ``flashinfer.norm``."""
    function: str
    """Its name, of a method with the class: ``rmsnorm``, ``BatchDecodeWithPagedKVCacheWrapper.run``."""
    arguments: Mapping[str, Any]
    """By parameter, without the receiver; tensors are on the CPU. What was left at its default may be missing."""
    instance: str | None = None
    """What a method was called on: equal for calls on the same object."""


@attrs.frozen
class ReadCall:
    """What a recorded call computes."""

    definition: str
    inputs: Mapping[str, Any]
    """By the definition's names; None for an optional input that was not given."""


@attrs.frozen
class NotCovered(FibError):
    """A call that a reader knows and that no definition describes."""

    function: str
    reason: str

    def __str__(self) -> str:
        return f"{self.function}: {self.reason}"


class CallReader(Protocol):
    """Tells what recorded calls compute. It may remember: a wrapper's ``plan`` comes before its ``run``."""

    def knows(self, module: str, function: str) -> bool:
        """Whether calls of a function are its business."""
        ...

    def read(self, call: RecordedCall) -> ReadCall | None:
        """What a call of a function that it knows computes; None if it computes nothing itself, as ``plan`` does.

        Raises:
            NotCovered: No definition describes this call.
        """
        ...
