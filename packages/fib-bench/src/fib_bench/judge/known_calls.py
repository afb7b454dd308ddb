"""Known calls. Calibration of linked passes in a worker without a function.

A known call writes all outputs and computes nothing. The time of a pass of known calls is that of its links, flushes,
digests, the way to the device and back, and the writes. Passes that write twice show the time of the writes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs
import torch

from ..timing.linked import native
from ..timing.measurement import median_error
from ..transport.messages import DeviceOpened, LinkedInput, OpenDevice
from ..worker.client import Worker
from ..worker.server_client import ForkServerClient
from .linked_passes import LinkedPasses, TimedPass
from .rpc import ask
from .timed_function import TimedFunction

EMPTY_KERNEL_NS = 630.0
"""Duration of an empty kernel by CUPTI (580 to 700 ns on an H200): it belongs to a call."""
_REPEATS = 16


@attrs.frozen
class Reading:
    """Nanoseconds of a pass for each call."""

    pass_ns: float
    """By the judge's clock, over the whole pass."""
    span_ns: float
    """By the device's clock, from the end of the flush to the start of the digest."""

    @classmethod
    def of(cls, made: TimedPass) -> Reading:
        """The reading of one pass."""
        return cls(made.taken_ns / made.calls, made.span_ns)


@attrs.frozen
class Overhead:
    """Nanoseconds of a pass for each call without the call, by both clocks."""

    per_call: Reading
    error: Reading
    """Half the 95 % intervals."""


class KnownCalls:
    """Known calls on one device.

    Args:
        server: Starts the worker.
        device: A CUDA device.
        timeout_seconds: The bound on one request.
    """

    def __init__(self, server: ForkServerClient, device: torch.device, timeout_seconds: float) -> None:
        self._server, self._device = server, device
        self._timeout_seconds = timeout_seconds
        self._worker: Worker | None = None
        self._kernel_gap: tuple[Reading, Reading] | None = None
        self._write_times: dict[object, tuple[Reading, Reading]] = {}

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    @contextmanager
    def bound(self, function: TimedFunction, inputs: Sequence[LinkedInput]) -> Iterator[BoundKnownCalls]:
        """Bind to the slots of a function.

        Raises:
            WorkerLost: The worker ended.
        """
        with TimedFunction(
            self._ready_worker(), function.layout, function.slots.count, function.context, shares_inputs_with=function
        ) as known:
            yield BoundKnownCalls(self, LinkedPasses(known, inputs))

    @property
    def worker(self) -> Worker | None:
        """The worker, which has never run code of a solution."""
        return self._worker

    def _ready_worker(self) -> Worker:
        if self._worker is None or self._worker.is_closed:
            self._worker = self._server.spawn()
            ask(self._worker, OpenDevice(str(self._device)), DeviceOpened, self._timeout_seconds)
        return self._worker

    def write_time(self, passes: LinkedPasses, key: object) -> tuple[Reading, Reading]:
        """The time of a known call without the gap between kernels, and its error; measured once per key."""
        if key not in self._write_times:
            if self._kernel_gap is None:
                taken, error = _difference(passes, native.EMPTY)
                self._kernel_gap = Reading(taken.pass_ns - EMPTY_KERNEL_NS, taken.span_ns - EMPTY_KERNEL_NS), error
            (taken, error), (gap, gap_error) = _difference(passes, native.WRITE), self._kernel_gap
            self._write_times[key] = (
                Reading(taken.pass_ns - gap.pass_ns, taken.span_ns - gap.span_ns),
                Reading(math.hypot(error.pass_ns, gap_error.pass_ns), math.hypot(error.span_ns, gap_error.span_ns)),
            )
        return self._write_times[key]


class BoundKnownCalls:
    """Known calls in the slots of one function.

    Args:
        known: The known calls of the device.
        passes: Passes in the worker of the known calls.
    """

    def __init__(self, known: KnownCalls, passes: LinkedPasses) -> None:
        self._known, self._passes = known, passes
        self._readings: dict[int, list[Reading]] = {}
        self.preferred_calls = 0
        """The length of the first passes; functions that need about the same length use it, to save calibration."""

    def sample(self, calls: int) -> None:
        """Run one pass of this many calls."""
        if calls not in self._readings:
            self.preferred_calls = self.preferred_calls or calls
            self._passes.compose(native.WRITE, calls)
            self._passes.run(native.WRITE, calls)  # loads code; does not count
        self._readings.setdefault(calls, []).append(Reading.of(self._passes.run(native.WRITE, calls)))

    def count(self, calls: int) -> int:
        """The number of passes of this many calls."""
        return len(self._readings.get(calls, ()))

    def overhead(self, calls: int) -> Overhead:
        """The overhead of each call in passes of this many calls."""
        write, error = self._known.write_time(self._passes, self._passes.output_bytes)
        passes = [reading.pass_ns for reading in self._readings[calls]]
        spans = [reading.span_ns for reading in self._readings[calls]]
        return Overhead(
            Reading(statistics.median(passes) - write.pass_ns, statistics.median(spans) - write.span_ns),
            Reading(math.hypot(median_error(passes), error.pass_ns), math.hypot(median_error(spans), error.span_ns)),
        )


def _difference(passes: LinkedPasses, kind: int) -> tuple[Reading, Reading]:
    """Nanoseconds that a second call of a kind adds to each call of a pass, and the error."""
    calls = passes.slots
    for repeats in (1, 2):
        passes.compose(kind, calls, repeats)
        passes.run(kind, calls, repeats)
    pairs = [[Reading.of(passes.run(kind, calls, repeats)) for repeats in (1, 2)] for _ in range(_REPEATS)]
    taken = [twice.pass_ns - once.pass_ns for once, twice in pairs]
    spans = [twice.span_ns - once.span_ns for once, twice in pairs]
    median = Reading(statistics.median(taken), statistics.median(spans))
    return median, Reading(median_error(taken), median_error(spans))
