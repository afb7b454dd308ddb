"""`measure`: both latencies of a function that is trusted, in this process, by the clock that judges use."""

from __future__ import annotations

import ctypes
import mmap
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import attrs
import torch

from .timing.handshake import native
from .timing.handshake.native import CannotCapture, Native, open_native
from .timing.measurement import median_error
from .worker.host_reads import given, record

_CALLS, _ROUNDS = 16, 6
_TIMEOUT_NS, _SLICE_SECONDS, _MAX_DELAY_NS = 20 * 10**9, 30.0, 3000


@attrs.frozen
class Latencies:
    """Latencies of a function in milliseconds, each with half its 95 % interval."""

    latency_ms: float | None
    """Of the device, with a cold cache; None where the function cannot be captured, and on the CPU.
    What it reads from the device stays as in a first call."""
    latency_error_ms: float | None
    call_ms: float
    """For which an eager caller waits."""
    call_error_ms: float


def measure(function: Callable[..., Any], *arguments: Any, rounds: int = _ROUNDS) -> Latencies:
    """Measure a function as judges do, but without checks.

    The arguments are the same in all calls; the device's cache is flushed before each.

    Args:
        function: Called with the arguments. What it returns, tensors or nothing, must not depend on the host.
        arguments: Tensors decide the device.
        rounds: Each makes 16 calls of both kinds.

    Raises:
        NativeError: The native module cannot be built.
    """
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    device = tensors[0].device if tensors else torch.device("cpu")
    if device.type == "cpu":
        return Latencies(None, None, *_call_on_host(lambda: function(*arguments), rounds * _CALLS))
    with ExitStack() as stack:
        stack.enter_context(torch.cuda.device(device))
        bench = _Bench(lambda: function(*arguments), tensors)
        stack.callback(bench.close)
        eager = bench.latency(bench.run_eagerly, rounds)
        captured = bench.latency(bench.run_captured, rounds) if bench.can_capture() else None
    latency, error = captured or (None, None)
    return Latencies(latency, error, *eager)


def _call_on_host(function: Callable[[], Any], calls: int) -> tuple[float, float]:
    taken = []
    for _ in range(calls + _CALLS):
        begin = time.perf_counter_ns()
        function()
        taken.append(time.perf_counter_ns() - begin)
    return statistics.median(taken[_CALLS:]) / 1e6, median_error(taken[_CALLS:]) / 1e6


class _Bench:
    def __init__(self, function: Callable[[], Any], arguments: Sequence[torch.Tensor]) -> None:
        self._function, self._device = function, arguments[0].device
        self._given = {argument.untyped_storage().data_ptr() for argument in arguments}
        module = open_native(self._device)
        assert isinstance(module, Native), "the device is a CUDA device"
        self._module = module
        self._module.seed(1)
        self._page = mmap.mmap(-1, native.MAILBOX_BYTES)
        self._mailbox = native.Mailbox.from_buffer(self._page)
        self._address = ctypes.addressof(self._mailbox)
        self._device_address = self._module.map_mailbox(self._address)
        self._outputs = [self._own(function())] * _CALLS  # loads code
        self._graphs: list[Any] = []
        self._handles: dict[int, int] = {}

    def _own(self, result: Any) -> Sequence[torch.Tensor]:
        """The tensors that a function has returned, without views of its arguments: outputs are overwritten before."""
        if isinstance(result, dict):
            result = list(result.values())
        values = result if isinstance(result, (tuple, list)) else [result]
        found = [value for value in values if isinstance(value, torch.Tensor) and value.device == self._device]
        return [
            value for value in found if value.is_contiguous() and value.untyped_storage().data_ptr() not in self._given
        ]

    def close(self) -> None:
        """Give everything back."""
        self._module.finish()
        for handle in self._handles.values():
            self._module.discard(handle)
        self._module.unmap_mailbox(self._address)

    def latency(self, run: Callable[[int], list[int]], rounds: int) -> tuple[float, float]:
        """Milliseconds of a call, and half the 95 % interval."""
        self.run_captured(native.NOTHING), run(native.SOLUTION)
        nothing, calls = [], []
        for _ in range(rounds):
            taken = run(native.SOLUTION)
            nothing += taken[::2] if len(taken) > _CALLS else self.run_captured(native.NOTHING)
            calls += taken[1::2] if len(taken) > _CALLS else taken
        return (statistics.median(calls) - statistics.median(nothing)) / 1e6, median_error(calls, nothing) / 1e6

    def can_capture(self) -> bool:
        """Capture the calls, if that is possible."""
        try:
            self._recording = record(self._function, self._device)  # which graphs read
            captured = [self._capture() for _ in range(_CALLS)]
        except (RuntimeError, CannotCapture):
            torch.cuda.synchronize()
            return False
        self._graphs = [graph for graph, _ in captured]
        self._outputs = [outputs for _, outputs in captured]
        return True

    def _capture(self) -> tuple[Any, Sequence[torch.Tensor]]:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph, capture_error_mode="thread_local"), given(self._recording, self._device):
            outputs = self._own(self._function())
        return graph, outputs

    def run_captured(self, kind: int) -> list[int]:
        """Nanoseconds of the captured calls of a pass; the same without a call precedes each."""
        if kind not in self._handles:
            pointers = [graph.raw_cuda_graph() for graph in self._graphs] or [0] * _CALLS
            graphs = (ctypes.c_void_p * _CALLS)(*pointers)
            self._handles[kind] = self._module.compose(self._describe(kind, graphs))
        self._clear()
        self._module.launch(self._handles[kind])
        taken = self._run_clock(2 * _CALLS if kind == native.SOLUTION else _CALLS)
        self._module.finish()
        return taken

    def run_eagerly(self, kind: int) -> list[int]:
        """Nanoseconds of eager calls, launched here while the clock runs in another thread."""
        calls, taken = self._describe(kind, None), list[int]()
        self._clear()
        clock = threading.Thread(target=lambda: taken.extend(self._run_clock(_CALLS)))
        clock.start()
        for index in range(_CALLS):
            self._module.prepare(calls, index)
            self._module.wait_for_go(calls, index)
            sources = None
            if kind == native.SOLUTION:
                outputs = self._own(self._function())
                sources = [output.data_ptr() for output in outputs]
            self._module.stop(calls, index, sources)
        self._module.finish()
        clock.join()
        return taken

    def _clear(self) -> None:
        ctypes.memset(self._address, 0, native.MAILBOX_BYTES)

    def _run_clock(self, count: int) -> list[int]:
        """Nanoseconds until each digest began: after a call it takes longer, since outputs have left the cache."""
        draw, clock = partial(random.getrandbits, 63), native.Clock()
        words = [(draw() | 1, draw() | 1, draw() % _MAX_DELAY_NS) for _ in range(count)]
        self._module.run_clock(
            self._address, clock, words, patience_ns=0, ends_on_device=False, slice_seconds=_SLICE_SECONDS
        )
        spans = zip(clock.t0[:count], clock.t1[:count], native.digest_ns(clock.stop[:count]), strict=True)
        return [end - begin - digest for begin, end, digest in spans]

    def _describe(self, kind: int, graphs: Any) -> native.Pass:
        calls = (native.Call * _CALLS)(*(native.call_of((), _places(outputs)) for outputs in self._outputs))
        return native.Pass(
            mailbox=self._device_address, host_mailbox=self._address, timeout_ns=_TIMEOUT_NS, calls=_CALLS, kind=kind,
            is_late=0, is_host=0, graphs=graphs, call=calls, stream=torch.cuda.current_stream(self._device).cuda_stream,
        )  # fmt: skip


def _places(outputs: Sequence[torch.Tensor]) -> list[native.Output]:
    return [native.Output(source=output.data_ptr(), target=0, bytes=output.nbytes) for output in outputs]
