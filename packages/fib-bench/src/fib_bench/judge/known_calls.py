"""Known calls. Calibration of linked passes in a worker without a function.

A known call writes all outputs and computes nothing. The time of a pass of known calls is that of its links, flushes,
digests, the way to the device and back, and the writes. The device's clock shows the time of the writes; this worker
has never run code of a solution, so its readings can be trusted. Passes of empty kernels show what lies between a
flush, a call and a digest.
"""

from __future__ import annotations

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
_EMPTY_PASSES, _EMPTY_CALLS = 24, 32  # once for a device
_MAX_USES = 4  # of a known pass: by a solution and the reference in two rounds
_MAX_KEPT_BYTES = 256 << 20  # of the device, by the allocator of a worker that is kept for the next definition
_FLUSH_FACTOR = 1.1  # in the added time up to about 10 MiB that calls have written reach memory (H200)


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
        self._empty: EmptyCalls | None = None
        self._held_bytes = 0

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    @property
    def is_small(self) -> bool:
        """Whether the worker holds little memory, at most the outputs of all slots that it was bound to."""
        return self._held_bytes <= _MAX_KEPT_BYTES

    @contextmanager
    def bound(self, function: TimedFunction, inputs: Sequence[LinkedInput]) -> Iterator[BoundKnownCalls]:
        """Bind to the slots of a function.

        Raises:
            WorkerLost: The worker ended.
        """
        with TimedFunction(
            self._ready_worker(), function.layout, function.slots.count, function.context, shares_inputs_with=function
        ) as known:
            self._held_bytes += known.slots.outputs.nbytes
            passes = LinkedPasses(known, inputs)
            self._empty = self._empty or EmptyCalls.measure(passes)
            yield BoundKnownCalls(passes, self._empty)

    @property
    def worker(self) -> Worker | None:
        """The worker, which has never run code of a solution."""
        return self._worker

    def _ready_worker(self) -> Worker:
        if self._worker is None or self._worker.is_closed:
            self._worker, self._held_bytes = self._server.spawn(), 0
            ask(self._worker, OpenDevice(str(self._device)), DeviceOpened, self._timeout_seconds)
        return self._worker


@attrs.frozen
class EmptyCalls:
    """Passes of empty kernels."""

    flush_ns: int
    """The least duration of a flush: somewhat more than it needs."""
    gap_ns: float
    """From the end of a flush to the start of a digest, without the kernel between them, by the device's clock."""
    error_ns: float

    @classmethod
    def measure(cls, passes: LinkedPasses) -> EmptyCalls:
        """Make a number of passes."""
        calls = min(passes.slots, _EMPTY_CALLS)
        made = _passes_of_empty_kernels(passes, calls, flush_ns=0, count=_EMPTY_PASSES // 4)
        flush_ns = int(_FLUSH_FACTOR * statistics.median(each.flush_ns for each in made))
        made = _passes_of_empty_kernels(passes, calls, flush_ns=flush_ns, count=_EMPTY_PASSES)
        spans = [each.span_ns for each in made]
        return cls(flush_ns, statistics.median(spans) - EMPTY_KERNEL_NS, median_error(spans))


def _passes_of_empty_kernels(passes: LinkedPasses, calls: int, *, flush_ns: int, count: int) -> Sequence[TimedPass]:
    passes.compose(native.EMPTY, calls, flush_ns)
    passes.run(native.EMPTY, calls, is_timed=False)  # loads code
    with passes.alone():
        return [passes.run(native.EMPTY, calls) for _ in range(count)]


class BoundKnownCalls:
    """Known calls in the slots of one function.

    Args:
        passes: Passes in the worker of the known calls.
        empty: Passes of empty kernels on this device.
    """

    def __init__(self, passes: LinkedPasses, empty: EmptyCalls) -> None:
        self._passes = passes
        self.empty = empty
        self._composed: set[int] = set()
        self._last: dict[int, tuple[float, int]] = {}

    def compose(self, calls: int) -> None:
        """Compose passes of this many calls."""
        if calls not in self._composed:
            self._composed.add(calls)
            self._passes.compose(native.WRITE, calls, self.empty.flush_ns)
            self._passes.run(native.WRITE, calls, is_timed=False)  # loads code

    def overhead_ns(self, calls: int) -> float:
        """Nanoseconds of a pass of this many calls for each, without the call, by a pass right now or just before.

        The length is composed. A pass serves for a few functions that are timed in turns.
        """
        overhead_ns, uses = self._last.get(calls, (0.0, _MAX_USES))
        if uses >= _MAX_USES:
            made = self._passes.run(native.WRITE, calls)
            overhead_ns, uses = made.taken_ns / made.calls - (made.span_ns - self.empty.gap_ns), 0
        self._last[calls] = overhead_ns, uses + 1
        return overhead_ns

    def forget(self) -> None:
        """Make a new pass the next time: other judges have used the device."""
        self._last.clear()
