"""CUDA stopwatch. Times trusted calls with events, without time of the host.

The judge does not use it: it times solutions with `fib_bench.judge.linked_timing`.

Three methods, the best that a function supports:

``graph``
    The calls are captured into CUDA graphs; the replay is timed. Functions under 100 us are
    chained: one graph holds several calls on different slots, so that the brackets' cost, the
    clock's grain and the loading of cold code are shared.
``queued``
    A bounded spin keeps the device busy while the host queues the call behind it.
``sync``
    The function waits for the device itself. Its stalls are part of its time.

In each, the L2 cache is overwritten right before the clock starts, every call works on memory that
was not touched since, and events on the stream are the clock. What the brackets cost is measured
on kernels that do nothing and is subtracted by the caller.
"""

from __future__ import annotations

import gc
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from .calls import CannotCapture, TimedCall, Warmth, chain_for

_EMPTY_KERNEL_NS = 600.0
"""Duration of an empty kernel by CUPTI (0.58 to 0.70 us on an H200): it is in the bracket, and is no cost of it."""
_CHAIN = 4
_SINGLE_NS = 100_000.0  # longer calls are timed one by one: neither the brackets nor cold code weigh there
_MAX_SPIN_NS = 5e6
HIDING_NS = 30_000.0
"""Nanoseconds that the device spins before each sample by graphs, while the host launches: else a slow host shows."""
_PREPARE_NS = 60_000.0  # launching the preparation of a call, at most about ten kernels
_MIN_PROBE_NS, _MAX_PROBE_NS = 1e6, 5e7
_HOST_RUNS = 5
_CALIBRATION_CHAINS = 8  # in one go, as with real calls: after a wait the first one differs
_SLOW_START_SECONDS = 2.0  # the first calls load kernels, so their time does not predict the others

# originals, taken before any solution is loaded
_Event: Any = torch.cuda.Event
_Graph: Any = torch.cuda.CUDAGraph
_spin: Any = torch.cuda._sleep  # noqa: SLF001 the only spinning kernel that every torch contains
_synchronize: Any = torch.cuda.synchronize
_Stream: Any = torch.cuda.Stream
_record: Any = torch.cuda.Event.record
_elapsed_ms: Any = torch.cuda.Event.elapsed_time
_replay: Any = torch.cuda.CUDAGraph.replay
_clock_ns = time.perf_counter_ns


class CudaStopwatch:
    """Times the same function on different slots.

    Args:
        calls: One call per slot.
        device: Where they run; it must be the current device.
        may_capture: Whether graphs may be tried.
    """

    def __init__(self, calls: Sequence[TimedCall], device: torch.device, *, may_capture: bool = True) -> None:
        self._calls = list(calls)
        self._device = device
        self._may_capture = may_capture
        self._flush = flush_of(device)
        self._chain = 1
        self._spin_cycles = 0
        self._events: list[tuple[Any, Any]] = []
        self._graphs: list[tuple[Any, list[Any]]] = []

    # -- choosing how ----------------------------------------------------------------------------

    def warm_up(self, runs: int, max_seconds: float) -> Warmth:
        """Call until compilers and caches have settled, and choose the method.

        Args:
            runs: Calls to make, fewer if the cap is hit.
            max_seconds: The cap.

        Raises:
            CannotCapture: The capture failed; use a fresh process with `may_capture` off.
        """
        host_ns = self._settle(runs, max_seconds)
        self._spin_cycles = 0
        if self._waits_inside():
            return self._choose("sync", 1, host_ns)
        if self._may_capture:
            self._capture(1, only_first=True)
            call_ns = self._typical_ns()
            chain = chain_for(min(_CHAIN, len(self._calls))) if call_ns < _SINGLE_NS else 1
            self._capture(chain)
            self._spin_cycles = self._cycles(HIDING_NS)
            return self._choose("graph", chain, host_ns)
        self._spin_cycles = self._cycles(min(2 * host_ns + 20_000 + _PREPARE_NS, _MAX_SPIN_NS))
        return self._choose("queued", 1, host_ns)

    def _settle(self, runs: int, max_seconds: float) -> float:
        """Make the warm-up calls; returns the host time of one eager call."""
        begin = _clock_ns()
        taken: list[int] = []
        while len(taken) < max(runs, _HOST_RUNS):
            seconds = (_clock_ns() - begin) / 1e9
            if seconds > max_seconds and (len(taken) >= _HOST_RUNS or seconds > _SLOW_START_SECONDS):
                break
            call = self._calls[len(taken) % len(self._calls)]
            _synchronize(self._device)
            before = _clock_ns()
            result = call.invoke()
            _synchronize(self._device)
            taken.append(_clock_ns() - before)
            call.collect(result)
        _synchronize(self._device)
        return float(min(taken[-_HOST_RUNS:]))

    def _waits_inside(self) -> bool:
        """Whether the function waits for the device, as torch reports it or a spin before it shows."""
        call = self._calls[0]
        try:
            with _sync_is_an_error():
                call.invoke()
        except RuntimeError as error:
            if "synchroniz" not in str(error):
                raise
            return True
        launch_ns = self._invoke_once(call)
        if launch_ns > _MAX_PROBE_NS:
            return True
        spin_ns = max(2 * launch_ns, _MIN_PROBE_NS)
        _spin(self._cycles(spin_ns))
        return self._invoke_once(call, is_idle=False) > 0.9 * spin_ns

    def _invoke_once(self, call: TimedCall, *, is_idle: bool = True) -> float:
        """Nanoseconds that a call keeps the host."""
        if is_idle:
            _synchronize(self._device)
        before = _clock_ns()
        call.invoke()
        taken = _clock_ns() - before
        _synchronize(self._device)
        return float(taken)

    def _choose(self, method: str, chain: int, host_ns: float) -> Warmth:
        self._chain = chain
        return Warmth(method, chain, self._typical_ns() / chain, host_ns)

    def _typical_ns(self) -> float:
        return statistics.median(self.sample(1) + self.sample(1) + self.sample(1))

    def use_chain(self, chain: int, *, spin_ns: float = 0.0, capture: bool = True) -> None:
        """Set the timed call without a warm-up, for known calls."""
        self._spin_cycles = self._cycles(spin_ns) if spin_ns else 0
        if capture:
            self._capture(chain)
        self._chain = chain

    # -- timing ----------------------------------------------------------------------------------

    def sample(self, chains: int) -> list[float]:
        """Time `chains` chains, from the first slot on; nanoseconds per chain, brackets included."""
        _forget_persisting_lines()
        while len(self._events) < chains:
            self._events.append((_Event(enable_timing=True), _Event(enable_timing=True)))
        for index in range(chains):
            start, end = self._events[index]
            self._hide_the_host()
            self._prepare(index)  # after the spin: work that runs early on its own stream finds no inputs
            self._flush()
            _record(start)
            results = self._play(index)
            _record(end)
            self._collect(index, results)
        _synchronize(self._device)
        return [_elapsed_ms(start, end) * 1e6 for start, end in self._events[:chains]]

    def _hide_the_host(self) -> None:
        if self._spin_cycles:
            _spin(self._spin_cycles)

    def _group(self, index: int) -> list[TimedCall]:
        return self._calls[index * self._chain : (index + 1) * self._chain]

    def _prepare(self, index: int) -> None:
        for call in self._group(index):
            call.prepare()

    def _collect(self, index: int, results: Sequence[Any]) -> None:
        for call, result in zip(self._group(index), results, strict=True):
            call.collect(result)

    def _play(self, index: int) -> Sequence[Any]:
        if not self._graphs:
            return [call.invoke() for call in self._group(index)]
        graph, results = self._graphs[index]
        _replay(graph)
        return results

    def _capture(self, chain: int, *, only_first: bool = False) -> None:
        """Capture all calls, `chain` to a graph, or only the first graph."""
        self._graphs = []
        gc.collect()  # a graph that is freed during a capture breaks it
        stream: Any = _Stream(self._device)
        _synchronize(self._device)
        end = chain if only_first else len(self._calls) - chain + 1
        for first in range(0, end, chain):
            self._graphs.append(_captured(self._calls[first : first + chain], stream))
        _synchronize(self._device)
        self._chain = chain

    def _cycles(self, duration_ns: float) -> int:
        return int(duration_ns * _clock_ghz(self._device))


def bracket_cost_ns(device: torch.device, chain: int, samples: int, *, method: str) -> float:
    """The cost of reading the clock, for a chain of calls.

    Measured on kernels that do nothing, whose own duration is left in: it belongs to the call.

    Args:
        device: Where.
        chain: Calls per sample.
        samples: How often to measure.
        method: ``graph``, or another.
    """
    calls = [TimedCall(lambda: _spin(0))] * (chain * _CALIBRATION_CHAINS)
    stopwatch = CudaStopwatch(calls, device)
    spin_ns = 40_000.0 if method == "queued" else HIDING_NS
    stopwatch.use_chain(chain, capture=method == "graph", spin_ns=spin_ns)
    taken: list[float] = []
    while len(taken) < samples:
        taken += stopwatch.sample(_CALIBRATION_CHAINS)
    return max(statistics.median(taken) - chain * _EMPTY_KERNEL_NS, 0.0)


def _captured(calls: Sequence[TimedCall], stream: Any) -> tuple[Any, list[Any]]:
    """A graph of calls, and their results.

    Each graph has a memory pool of its own: where intermediates lie shifts a short function's time
    by up to 2 %, and over many graphs that averages out.
    """
    graph = _Graph()
    try:
        with torch.cuda.stream(stream), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an empty graph: the outputs will be found unwritten
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                results = [call.invoke() for call in calls]
            finally:
                graph.capture_end()
    except Exception as error:
        raise CannotCapture(f"{type(error).__name__}: {error}"[:500]) from error
    return graph, results


def _forget_persisting_lines() -> None:
    """Reset lines that kernels have pinned in the L2 cache: a flush does not evict them."""
    from cuda.bindings import driver

    driver.cuCtxResetPersistingL2Cache()


def set_no_lines_aside() -> int:
    """Give the whole L2 cache back to lines that a flush overwrites; some devices set a part aside by default.

    Returns:
        The bytes that stay set aside where the device does not let go of them.
    """
    from cuda.bindings import driver

    driver.cuCtxSetLimit(driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0)
    return persisting_bytes()


def persisting_bytes() -> int:
    """Bytes of the L2 cache that are set aside for persisting lines, which a flush does not evict."""
    from cuda.bindings import driver

    status, size = driver.cuCtxGetLimit(driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE)
    return int(size) if status.value == 0 else 0


_FLUSHES: dict[torch.device, Callable[[], object]] = {}
_CLOCKS: dict[torch.device, float] = {}


def flush_of(device: torch.device) -> Callable[[], object]:
    """The function that overwrites the device's L2 cache."""
    if device not in _FLUSHES:
        size_bytes = 2 * torch.cuda.get_device_properties(device).L2_cache_size
        buffer = torch.empty(max(size_bytes, 1 << 20), dtype=torch.uint8, device=device)
        _FLUSHES[device] = buffer.zero_
    return _FLUSHES[device]


def _clock_ghz(device: torch.device) -> float:
    """Spin cycles per nanosecond."""
    if device not in _CLOCKS:
        _spin(1000)
        start, end = _Event(enable_timing=True), _Event(enable_timing=True)
        start.record()
        _spin(4_000_000)
        end.record()
        _synchronize(device)
        _CLOCKS[device] = 4.0 / start.elapsed_time(end)
    return _CLOCKS[device]


@contextmanager
def _sync_is_an_error() -> Iterator[None]:
    """Within it, torch raises where an operation waits for the device."""
    before = torch.cuda.get_sync_debug_mode()
    _set_sync_mode("error")
    try:
        yield
    finally:
        _set_sync_mode(before)


def _set_sync_mode(mode: int | str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that it does not find every wait: the spin does
        torch.cuda.set_sync_debug_mode(mode)
