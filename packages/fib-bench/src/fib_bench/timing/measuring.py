"""Stopwatches by device, and a measurement of one trusted function in the calling process.

The judge times solutions on CUDA with `fib_bench.judge.linked_timing` instead.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from .calls import TimedCall, Warmth
from .host import HostStopwatch
from .measurement import Measurement, StopRule

CHAINS = (1, 2, 4, 8, 16, 32)
"""The lengths that chains can have on the CPU."""
_CALIBRATION_SAMPLES = 50
_COPIES_BYTES = 256 << 20
_DEFAULT_RULE = StopRule(iterations=50, max_iterations=2000, confidence=0.005, max_seconds=1.0, busy_seconds=math.inf)


class Stopwatch(Protocol):
    """Times the same function on different inputs."""

    def warm_up(self, runs: int, max_seconds: float) -> Warmth:
        """Call until it has settled, and choose how to time."""
        ...

    def sample(self, chains: int) -> list[float]:
        """Time chains of calls from the first one on; nanoseconds per chain."""
        ...


def stopwatch_for(device: torch.device, calls: Sequence[TimedCall], *, may_capture: bool = True) -> Stopwatch:
    """The stopwatch of a device."""
    if device.type == "cpu":
        return HostStopwatch(calls)
    from .cuda import CudaStopwatch

    return CudaStopwatch(calls, device, may_capture=may_capture)


def bracket_costs_ns(device: torch.device, method: str, chains: Sequence[int], samples: int) -> tuple[float, ...]:
    """The cost of reading the clock, for chains of these lengths."""
    if device.type == "cpu":
        return tuple(_host_cost_ns(chain, samples) for chain in chains)
    from .cuda import bracket_cost_ns

    return tuple(bracket_cost_ns(device, chain, samples, method=method) for chain in chains)


def _host_cost_ns(chain: int, samples: int) -> float:
    stopwatch = HostStopwatch([TimedCall(lambda: None)] * chain)
    stopwatch.use_chain(chain)
    return statistics.median([stopwatch.sample(1)[0] for _ in range(samples)])


def measure(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    *,
    device: str | torch.device = "cpu",
    warmup_runs: int = 10,
    rule: StopRule = _DEFAULT_RULE,
    may_capture: bool = True,
) -> Measurement:
    """Time a function in this process.

    Calls rotate among copies of the arguments, so that none finds its inputs in a cache. Nothing
    is checked: the function is believed.

    Args:
        function: What to time.
        args: Its arguments; tensors are cloned, other values are passed as they are.
        device: ``cpu`` or ``cuda:N``.
        warmup_runs: Calls before timing.
        rule: When to stop.
        may_capture: Whether CUDA graphs may be tried.

    Raises:
        CannotCapture: The function broke while it was captured into a graph. Measure it in a fresh
            process with `may_capture` off.
    """
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    calls = [_bind(function, args) for _ in range(_copies(args))]
    stopwatch = stopwatch_for(device, calls, may_capture=may_capture)
    warmth = stopwatch.warm_up(warmup_runs, rule.max_seconds)
    (overhead_ns,) = bracket_costs_ns(device, warmth.method, (warmth.chain,), _CALIBRATION_SAMPLES)
    taken: list[float] = []
    start = time.perf_counter()
    while not rule.is_done(taken, elapsed := time.perf_counter() - start, elapsed, warmth.chain):
        brackets = stopwatch.sample(len(calls) // warmth.chain)
        taken += [max(bracket - overhead_ns, 0.0) / warmth.chain for bracket in brackets]
    return Measurement(
        samples_ns=tuple(taken),
        method=warmth.method,
        chain=warmth.chain,
        host_ns=warmth.host_ns,
        overhead_ns=overhead_ns,
    )


def _bind(function: Callable[..., Any], args: Sequence[Any]) -> TimedCall:
    copies = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
    return TimedCall(lambda: function(*copies))


def _copies(args: Sequence[Any]) -> int:
    size_bytes = sum(arg.nbytes for arg in args if isinstance(arg, torch.Tensor))
    return int(min(max(_COPIES_BYTES // max(size_bytes, 1), 2), 16))
