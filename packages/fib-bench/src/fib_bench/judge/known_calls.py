"""Known calls. Calibration of linked passes in a worker without a function.

A known call writes all outputs and computes nothing. The time of a pass of known calls is that of its links, flushes,
digests, the way to the device and back, and the writes. Passes that write twice show the time of the writes. By the
device's clock, passes of empty kernels show what lies between a flush, a call and a digest.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
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
_WRITE_REPEATS, _EMPTY_REPEATS = 8, 24  # for each size of outputs; once for a device
_REPEATED_CALLS = 32
_MOST_EARLIER, _EARLIER_SECONDS = 4, 20.0  # a device changes its clocks with its temperature


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
        self._empty: _Repeated | None = None
        self._write_times: dict[object, tuple[float, float]] = {}
        self._readings: dict[object, deque[tuple[float, Reading]]] = {}

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
            passes = LinkedPasses(known, inputs)
            key = (tuple(inputs), passes.output_bytes)  # the time of a known pass depends on these and its length
            yield BoundKnownCalls(self, passes, key)

    @property
    def worker(self) -> Worker | None:
        """The worker, which has never run code of a solution."""
        return self._worker

    def _ready_worker(self) -> Worker:
        if self._worker is None or self._worker.is_closed:
            self._worker = self._server.spawn()
            ask(self._worker, OpenDevice(str(self._device)), DeviceOpened, self._timeout_seconds)
        return self._worker

    def add_reading(self, key: object, reading: Reading) -> None:
        """Keep the reading of a pass of a kind for functions that are timed soon."""
        self._readings.setdefault(key, deque(maxlen=_MOST_EARLIER)).append((time.monotonic(), reading))

    def earlier_readings(self, key: object) -> list[Reading]:
        """The latest readings of passes of a kind, next to other functions, in the order of time."""
        since = time.monotonic() - _EARLIER_SECONDS
        return [reading for taken, reading in self._readings.get(key, ()) if taken >= since]

    def write_time(self, passes: LinkedPasses) -> tuple[float, float]:
        """Nanoseconds that a pass spends on each known call, the gap to the next kernel excluded, and their error.

        They are measured once for each size of the outputs.
        """
        key = passes.output_bytes
        if key not in self._write_times:
            empty, write = self.empty(passes), _repeated(passes, native.WRITE, _WRITE_REPEATS)
            gap_ns = empty.added_ns - EMPTY_KERNEL_NS
            self._write_times[key] = write.added_ns - gap_ns, math.hypot(write.error_ns, empty.error_ns)
        return self._write_times[key]

    def empty(self, passes: LinkedPasses) -> _Repeated:
        """Passes of empty kernels, measured once."""
        if self._empty is None:
            self._empty = _repeated(passes, native.EMPTY, _EMPTY_REPEATS)
        return self._empty


class BoundKnownCalls:
    """Known calls in the slots of one function.

    Args:
        known: The known calls of the device.
        passes: Passes in the worker of the known calls.
        key: Stands for the inputs and outputs of a pass, which its time depends on beside its length.
    """

    def __init__(self, known: KnownCalls, passes: LinkedPasses, key: object) -> None:
        self._known, self._passes, self._key = known, passes, key
        self._readings: dict[int, list[Reading]] = {}
        self.preferred_calls = 0
        """The length of the first passes; functions that need about the same length use it, to save calibration."""
        self._composed: set[int] = set()

    def sample(self, calls: int) -> None:
        """Run one pass of this many calls."""
        readings = self._readings_of(calls)
        if calls not in self._composed:
            self._composed.add(calls)
            self._passes.compose(native.WRITE, calls)
            self._passes.run(native.WRITE, calls)  # loads code; does not count
        reading = Reading.of(self._passes.run(native.WRITE, calls))
        readings.append(reading)
        self._known.add_reading((self._key, calls), reading)

    def count(self, calls: int) -> int:
        """The number of passes of this many calls, a few next to earlier functions included."""
        return len(self._readings_of(calls))

    def _readings_of(self, calls: int) -> list[Reading]:
        """The readings of passes of this many calls; at first the latest ones next to earlier functions."""
        if calls not in self._readings:
            self.preferred_calls = self.preferred_calls or calls
            self._readings[calls] = self._known.earlier_readings((self._key, calls))
        return self._readings[calls]

    def overhead(self, calls: int) -> Overhead:
        """The overhead of each call in passes of this many calls."""
        (write_ns, error_ns), empty = self._known.write_time(self._passes), self._known.empty(self._passes)
        taken = [reading.pass_ns for reading in self._readings[calls]]
        return Overhead(
            Reading(statistics.median(taken) - write_ns, empty.span_ns - EMPTY_KERNEL_NS),
            Reading(math.hypot(median_error(taken), error_ns), empty.span_error_ns),
        )


@attrs.frozen
class _Repeated:
    """Passes that make a known call of a kind once and twice; nanoseconds for each call of a pass."""

    added_ns: float
    """The time that the second call adds, by the judge's clock."""
    error_ns: float
    span_ns: float
    """From the end of the flush to the start of the digest with one call, by the device's clock."""
    span_error_ns: float


def _repeated(passes: LinkedPasses, kind: int, count: int) -> _Repeated:
    """Make a number of passes of each kind in turn."""
    calls = min(passes.slots, _REPEATED_CALLS)
    for repeats in (1, 2):
        passes.compose(kind, calls, repeats)
        passes.run(kind, calls, repeats)  # loads code; does not count
    pairs = [[Reading.of(passes.run(kind, calls, repeats)) for repeats in (1, 2)] for _ in range(count)]
    added = [twice.pass_ns - once.pass_ns for once, twice in pairs]
    spans = [once.span_ns for once, _ in pairs]
    return _Repeated(statistics.median(added), median_error(added), statistics.median(spans), median_error(spans))
