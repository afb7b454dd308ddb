"""Host stopwatch. Times calls with the host's clock, in groups so long that the cost of the clock is small."""

from __future__ import annotations

import gc
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from .calls import TimedCall, Warmth, chain_for

_set_trace, _set_profile, _disable_collection = sys.settrace, sys.setprofile, gc.disable
_SAMPLE_NS = 50_000.0  # the clock costs some 50 ns


class HostStopwatch:
    """Times the same function on different inputs.

    Args:
        calls: One call per input set.
        clock_ns: A monotonic clock in nanoseconds.
    """

    def __init__(self, calls: Sequence[TimedCall], clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._calls = list(calls)
        self._clock_ns = clock_ns
        self._chain = 1

    def warm_up(self, runs: int, max_seconds: float) -> Warmth:
        """Call until it has settled, and choose how many calls make a sample.

        Args:
            runs: Calls to make, fewer if the cap is hit.
            max_seconds: The cap.
        """
        end = self._clock_ns() + max_seconds * 1e9
        taken: list[int] = []
        while len(taken) < max(runs, 1) and (not taken or self._clock_ns() < end):
            taken.append(self._time_once(self._calls[len(taken) % len(self._calls)]))
        call_ns = float(min(taken[-3:]))
        self._chain = chain_for(min(len(self._calls), math.ceil(_SAMPLE_NS / max(call_ns, 1))))
        return Warmth("host", self._chain, call_ns, call_ns)

    def use_chain(self, chain: int) -> None:
        """Set the number of calls of a sample."""
        self._chain = chain

    def sample(self, chains: int) -> list[float]:
        """Time `chains` chains, from the first call on; nanoseconds per chain."""
        taken = []
        with _no_collection():
            for index in range(chains):
                group = self._calls[index * self._chain : (index + 1) * self._chain]
                for call in group:
                    call.prepare()
                before = self._clock_ns()
                results = [call.invoke() for call in group]
                _end_hooks()
                taken.append(float(self._clock_ns() - before))
                for position, call in enumerate(group):
                    call.collect(results[position])  # none of them ends before all are collected
        return taken

    def _time_once(self, call: TimedCall) -> int:
        before = self._clock_ns()
        result = call.invoke()
        taken = self._clock_ns() - before
        call.collect(result)
        return taken


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
