"""Interface between dumps of a kernel library's calls and adapters, which know what the calls compute.

A dump contains functions and arguments, a data set definitions and inputs. A `CallReader` maps one to the other.
Packages offer readers as entry points of the group ``fib_tracer.call_readers``, each a function without parameters that
returns one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import attrs
from fib_schema import FibError

GROUP = "fib_tracer.call_readers"


@attrs.frozen
class RecordedCall:
    """One call of a dump."""

    module: str
    """The module that defines the function: ``flashinfer.norm``."""
    function: str
    """Its name; of a method, with the class: ``rmsnorm``, ``BatchDecodeWithPagedKVCacheWrapper.run``."""
    arguments: Mapping[str, Any]
    """Arguments by parameter, without ``self``; tensors are on the CPU. Those with default values may be missing."""
    instance: str | None = None
    """Identifies the object that a method was called on."""


@attrs.frozen
class ReadCall:
    """Computation of a recorded call."""

    definition: str
    inputs: Mapping[str, Any]
    """Inputs by the definition's names; None for an optional input that was not given."""


@attrs.frozen
class NotCovered(FibError):
    """A call of a known function that no definition describes."""

    function: str
    reason: str

    def __str__(self) -> str:
        return f"{self.function}: {self.reason}"


class CallReader(Protocol):
    """Maps recorded calls to definitions. A reader may have state: a wrapper's ``plan`` comes before its ``run``."""

    def knows(self, module: str, function: str) -> bool:
        """Whether this reader handles calls of a function."""
        ...

    def read(self, call: RecordedCall) -> ReadCall | None:
        """Computation of a call of a known function; None if it computes nothing itself, as ``plan`` does.

        Raises:
            NotCovered: No definition describes this call.
        """
        ...
