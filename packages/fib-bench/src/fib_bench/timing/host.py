"""Host stopwatch. Times single calls on the CPU with the host's clock, inside a worker."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs

_set_trace, _set_profile, _disable_collection = sys.settrace, sys.setprofile, gc.disable


@attrs.frozen
class TimedCall:
    """One call with its arguments bound."""

    invoke: Callable[[], Any]
    collect: Callable[[Any], None] = lambda _: None
    """Receives the result of `invoke`, outside the timed region."""
    prepare: Callable[[], None] = lambda: None
    """Puts outputs in order right before, outside the clock."""


class HostStopwatch:
    """Times the same function on different inputs.

    Args:
        calls: One call per input set.
        clock_ns: A monotonic clock in nanoseconds.
    """

    def __init__(self, calls: Sequence[TimedCall], clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._calls = list(calls)
        self._clock_ns = clock_ns

    def warm_up(self, runs: int, max_seconds: float) -> float:
        """Call until it has settled; returns the nanoseconds of a call.

        Args:
            runs: Calls to make, fewer if the cap is hit.
            max_seconds: The cap.
        """
        end = self._clock_ns() + max_seconds * 1e9
        taken: list[float] = []
        while len(taken) < max(runs, 1) and (not taken or self._clock_ns() < end):
            taken.append(self._time_once(self._calls[len(taken) % len(self._calls)]))
        return min(taken[-3:])

    def sample(self, calls: int) -> list[float]:
        """Time this many calls, from the first one on; nanoseconds per call."""
        with _no_collection():
            return [self._time_once(call) for call in self._calls[:calls]]

    def _time_once(self, call: TimedCall) -> float:
        call.prepare()
        before = self._clock_ns()
        result = call.invoke()
        _end_hooks()
        taken = self._clock_ns() - before
        call.collect(result)
        return float(taken)


def _end_hooks() -> None:
    """Remove hooks that would run a solution's code while results are collected."""
    _set_trace(None)
    _set_profile(None)
    _disable_collection()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python's garbage collector out of the samples."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
