"""Known calls. What a linked pass takes apart from its calls, measured in a worker without a function.

A known call writes all outputs and computes nothing. A pass of known calls takes what links, flushes, digests and the
way to the device and back take, and the writing. How long the writing takes follows from passes that write twice.
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
from ..transport.protocol import DeviceOpened, LinkedInput, OpenDevice
from ..transport.rpc import ask
from ..worker.client import Worker
from ..worker.server_client import ForkServerClient
from .linked_passes import LinkedPasses
from .timed_function import TimedFunction

EMPTY_KERNEL_NS = 630.0
"""What CUPTI reports for an empty kernel (580 to 700 ns on an H200): it belongs to a call."""
_REPEATS = 16


@attrs.frozen
class Overhead:
    """What a pass takes for each call apart from the call."""

    per_call_ns: float
    uncertainty_ns: float
    """Half the 95 % interval."""


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
        self._gap_ns: tuple[float, float] | None = None
        self._write_ns: dict[object, tuple[float, float]] = {}

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

    def write_ns(self, passes: LinkedPasses, key: object) -> tuple[float, float]:
        """How long a known call takes, with its uncertainty."""
        if key not in self._write_ns:
            if self._gap_ns is None:
                taken, error = _difference(passes, native.EMPTY)
                self._gap_ns = taken - EMPTY_KERNEL_NS, error
            taken, error = _difference(passes, native.WRITE)
            self._write_ns[key] = taken - self._gap_ns[0], math.hypot(error, self._gap_ns[1])
        return self._write_ns[key]


class BoundKnownCalls:
    """Known calls in the slots of one function.

    Args:
        known: Those of the device.
        passes: In its worker.
    """

    def __init__(self, known: KnownCalls, passes: LinkedPasses) -> None:
        self._known, self._passes = known, passes
        self._samples_ns: dict[int, list[float]] = {}

    def sample(self, calls: int) -> None:
        """Make one pass of so many calls."""
        if calls not in self._samples_ns:
            self._passes.compose(native.WRITE, calls)
            self._passes.run(native.WRITE, calls)  # loads code; does not count
        self._samples_ns.setdefault(calls, []).append(self._passes.run(native.WRITE, calls).taken_ns / calls)

    def count(self, calls: int) -> int:
        """Passes of so many calls that were made."""
        return len(self._samples_ns.get(calls, ()))

    def overhead(self, calls: int) -> Overhead:
        """What is to be subtracted for each call in passes of so many."""
        write_ns, write_error = self._known.write_ns(self._passes, self._passes.output_bytes)
        samples = self._samples_ns[calls]
        return Overhead(statistics.median(samples) - write_ns, math.hypot(median_error(samples), write_error))


def _difference(passes: LinkedPasses, kind: int) -> tuple[float, float]:
    """What a second call of a kind adds to each call of a pass: nanoseconds, and how far they may be off."""
    calls = passes.slots
    for repeats in (1, 2):
        passes.compose(kind, calls, repeats)
        passes.run(kind, calls, repeats)
    pairs = [[passes.run(kind, calls, repeats).taken_ns / calls for repeats in (1, 2)] for _ in range(_REPEATS)]
    differences = [twice - once for once, twice in pairs]
    return statistics.median(differences), median_error(differences)
