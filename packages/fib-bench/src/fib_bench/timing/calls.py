"""Timed calls: the protocol between a stopwatch and the function it times after a warm-up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs


@attrs.frozen
class TimedCall:
    """One call with its arguments bound."""

    invoke: Callable[[], Any]
    collect: Callable[[Any], None] = lambda _: None
    """Receives the result of `invoke`, outside the timed region but on the same stream, without synchronization."""
    prepare: Callable[[], None] = lambda: None
    """Puts inputs and outputs in order right before, outside the clock but on the same stream."""


@attrs.frozen
class Warmth:
    """The result of a warm-up."""

    method: str
    chain: int
    call_ns: float
    host_ns: float


def chain_for(calls: float) -> int:
    """The longest chain of at most `calls` calls: chains are powers of two, for which the clock is calibrated."""
    return 1 << max(int(calls), 1).bit_length() - 1


class CannotCapture(Exception):
    """A function could not be captured into a CUDA graph; the process should not be used any more."""
