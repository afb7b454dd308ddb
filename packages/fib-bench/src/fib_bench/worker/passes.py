"""Passes of a worker: timed calls, each prepared and started by words of the judge.

Captured calls are inspected and composed into one graph with what stands around each of them; this process sleeps
while the device runs it. Eager calls are made here, between the preparation and the digest of each.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import secrets
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import torch

from ..inputs.generator import Input, native_input
from ..recipe import Recipe
from ..timing.cuda import CannotCapture
from ..timing.handshake import native
from ..timing.handshake.native import HostNative, Native, NotComposable
from ..transport.messages import Composed, ComposePass, RunCalls, TensorSlot
from .calls import PreparedCall, WrongOutputError
from .host_reads import OTHERS, Recording, given, record

_TIMEOUT_NS = 20 * 10**9  # the device waits no longer for the judge
_MIN_RUNS = 5
_MAX_SHIFTS = 1024  # of 512 bytes: intermediate results of each call lie elsewhere, since places differ in speed
_MOST_LINES = 20  # of a solution that are reported
_SLOW_SECONDS = 2.0  # the first calls load kernels, so their time does not predict the others

# originals, taken before any solution is loaded
_Graph: Any = torch.cuda.CUDAGraph
_Stream: Any = torch.cuda.Stream
_synchronize: Any = torch.cuda.synchronize
_clock_ns = time.perf_counter_ns


@attrs.frozen(eq=False)
class _Captured:
    """Calls that were captured one by one, and where each leaves its outputs."""

    graphs: Sequence[Any]
    outputs: Sequence[Sequence[torch.Tensor]]
    nodes: int
    """The number of kernels, copies and fills of one call."""
    recordings: Sequence[Recording]
    """Of each call; graphs read memory of these."""


@attrs.frozen(eq=False, kw_only=True)
class PassMemory:
    """Places where the calls of a pass read and write.

    Shapes:
        inputs: ``[slots, bytes]``
        base: ``[bytes]``, the values that the generator changes.
    """

    inputs: torch.Tensor
    base: torch.Tensor
    layout: Sequence[TensorSlot | None]
    """Places of the inputs in a slot; None for what is not a tensor."""
    outputs: Sequence[Sequence[torch.Tensor]]
    """The outputs of each slot, which the judge reads."""


class Passes:
    """The passes over the slots of one workload.

    Args:
        module: The native module, opened before a solution was loaded.
        device: Where.
        calls: One call for each slot.
        memory: What they read and write.
        recipes: The inputs that are generated for each call.
        mailbox: A descriptor of the page that the judge shares; it is taken over.
    """

    def __init__(
        self,
        module: HostNative,
        device: torch.device,
        calls: Sequence[PreparedCall],
        memory: PassMemory,
        recipes: Sequence[Recipe],
        mailbox: int,
    ) -> None:
        self._module, self._device, self._calls = module, device, calls
        self._memory, self._recipes = memory, recipes
        self._page = mmap.mmap(mailbox, native.MAILBOX_BYTES)
        os.close(mailbox)
        self._anchor = ctypes.c_char.from_buffer(self._page)
        self._host_mailbox = ctypes.addressof(self._anchor)
        self._mailbox = module.map_mailbox(self._host_mailbox)
        self._pool: Any = None
        self._stream: Any = None
        self._captured: _Captured | None = None
        self._handles: dict[int, int] = {}
        self._kinds: list[int] = []

    # -- captured calls ------------------------------------------------------------------------------

    @property
    def _cuda(self) -> Native:
        assert isinstance(self._module, Native), "only CUDA devices replay captured calls"
        return self._module

    def compose(self, request: ComposePass) -> Composed:
        """Compose a pass over the first slots.

        Raises:
            CannotCapture: A call cannot be captured, or contains what cannot be composed.
            WrongOutputError: A call returned something that does not fit the definition.
        """
        index, made = len(self._kinds), Composed(len(self._kinds), 0)
        graphs, sources = None, self._memory.outputs
        if request.kind == native.SOLUTION:
            if request.is_anew:
                self._discard_captured()
            captured = self._capture(request.calls)
            graphs = (ctypes.c_void_p * len(captured.graphs))(*(g.raw_cuda_graph() for g in captured.graphs))
            sources, seen = captured.outputs, captured.recordings[0]
            made = Composed(index, captured.nodes, seen.reads[:_MOST_LINES], tuple(seen.waits[:_MOST_LINES]))
        self._handles[index] = self._cuda.compose(self._describe(request, sources, graphs))
        self._kinds.append(request.kind)
        return made

    def launch(self, index: int) -> None:
        """Launch a pass; the device then waits for the judge."""
        self._cuda.launch(self._handles[index])

    def close(self) -> None:
        """Destroy the passes, before the memory that they use is unmapped."""
        self._module.finish()
        for handle in self._handles.values():
            self._cuda.discard(handle)
        self._handles = {}
        self._captured = None
        self._module.unmap_mailbox(self._host_mailbox)
        del self._anchor
        self._page.close()

    def _discard_captured(self) -> None:
        self._module.finish()
        for index in [index for index in self._handles if self._kinds[index] == native.SOLUTION]:
            self._cuda.discard(self._handles.pop(index))
        self._captured = None

    def _capture(self, count: int) -> _Captured:
        """Capture a call in each of the first slots alone, into one shared memory pool, unless that was done.

        Raises:
            CannotCapture: That failed; the process should not be used any more.
        """
        if self._captured is not None:
            return self._captured
        if self._stream is None:
            self._stream, self._pool = _Stream(self._device), torch.cuda.graph_pool_handle()
        calls = self._calls[:count]
        recordings = [self._record(call) for call in calls]
        gc.collect()  # a graph that is freed during a capture breaks it
        _synchronize(self._device)
        found = [self._capture_one(*each) for each in zip(calls, recordings, strict=True)]
        _synchronize(self._device)
        graphs = [graph for graph, _ in found]
        nodes = max(self._inspect(graph) for graph in graphs)
        self._captured = _Captured(graphs, [outputs for _, outputs in found], nodes, recordings)
        return self._captured

    def _record(self, call: PreparedCall) -> Recording:
        """Call once on the capture's stream, which warms it up, and record what crosses between host and device.

        Raises:
            CannotCapture: The call draws random numbers: a graph that is launched by itself repeats them.
        """
        generator = torch.cuda.default_generators[self._device.index or 0]
        before = generator.get_offset()
        with torch.cuda.stream(self._stream):
            found = record(call.invoke, self._device)
        _synchronize(self._device)
        if generator.get_offset() != before:
            raise CannotCapture("it draws random numbers")
        return found

    def _capture_one(self, call: PreparedCall, recording: Recording) -> tuple[Any, Sequence[torch.Tensor]]:
        graph = _Graph(keep_graph=True)
        try:
            with torch.cuda.stream(self._stream), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an empty graph: the outputs will be found unwritten
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    shift = torch.empty(secrets.randbelow(_MAX_SHIFTS) * 512, dtype=torch.uint8, device=self._device)
                    with given(recording, self._device):
                        result = call.invoke()
                    outputs = call.whole_outputs(result)
                    del shift
                finally:
                    graph.capture_end()
        except (WrongOutputError, CannotCapture):
            raise
        except Exception as error:
            raise CannotCapture(_reason(error)) from error
        return graph, outputs

    def _inspect(self, graph: Any) -> int:
        try:
            return self._cuda.inspect(graph.raw_cuda_graph())
        except NotComposable as error:
            raise CannotCapture(str(error)) from error

    # -- eager calls ---------------------------------------------------------------------------------

    def run_calls(self, request: RunCalls) -> None:
        """Make the calls of a pass, each when the judge says so.

        Raises:
            WrongOutputError: A call returned something that does not fit the definition.
        """
        sources = [call.own_outputs or outputs for call, outputs in zip(self._calls, self._memory.outputs, strict=True)]
        description = self._describe(request, sources, None)
        for index in range(request.calls):
            if request.kind == native.SOLUTION:
                self._run_call(description, index, self._calls[index])
            else:
                self._module.prepare(description, index)
                self._module.wait_for_go(description, index)
                self._module.stop(description, index, None)
        self._module.finish()

    def _run_call(self, description: native.Pass, index: int, call: PreparedCall) -> None:
        self._module.prepare(description, index)
        self._module.wait_for_go(description, index)
        result = call.invoke()
        self._module.stop(description, index, call.addresses_of(result))

    # -- places --------------------------------------------------------------------------------------

    def _describe(
        self, request: ComposePass | RunCalls, sources: Sequence[Sequence[torch.Tensor]], graphs: Any
    ) -> native.Pass:
        count = request.calls
        calls = (native.Call * count)(*(self._call(slot, sources[slot]) for slot in range(count)))
        stream = torch.cuda.current_stream(self._device).cuda_stream if self._device.type == "cuda" else 0
        return native.Pass(
            mailbox=self._mailbox, host_mailbox=self._host_mailbox, timeout_ns=_TIMEOUT_NS, calls=count,
            kind=request.kind, is_late=request.is_fresh, is_host=self._module.is_host, graphs=graphs, call=calls,
            stream=stream,
        )  # fmt: skip

    def _call(self, slot: int, sources: Sequence[torch.Tensor]) -> native.Call:
        pairs = zip(sources, self._memory.outputs[slot], strict=True)
        outputs = [native.Output(source=s.data_ptr(), target=t.data_ptr(), bytes=t.nbytes) for s, t in pairs]
        return native.call_of(self._inputs(slot), outputs)

    def _inputs(self, slot: int) -> list[Input]:
        target, base = self._memory.inputs[slot].data_ptr(), self._memory.base.data_ptr()
        found = []
        for recipe in self._recipes:
            place = self._memory.layout[recipe.position]
            assert place is not None, "only tensors are generated"
            found.append(native_input(recipe, target + place.offset, base + place.offset))
        return found


def _reason(error: Exception) -> str:
    """The line of the solution and the first line of the error: a capture fails where a call waits for the device."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(OTHERS)]
    where = f" in {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
    text = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}{where}: {text}"[:500]


def settle(calls: Sequence[PreparedCall], device: torch.device, runs: int, max_seconds: float) -> float:
    """Call until compilers and caches have settled.

    Args:
        calls: One for each slot.
        device: Where.
        runs: Calls to make, fewer if the cap is hit; the first ones may compile, and count for nothing.
        max_seconds: The cap.

    Returns:
        Nanoseconds that an eager caller waits for one call.
    """
    is_cuda = device.type == "cuda"
    begin = _clock_ns()
    taken: list[int] = []
    while len(taken) < max(runs, _MIN_RUNS):
        seconds = (_clock_ns() - begin) / 1e9
        if seconds > max_seconds and (len(taken) >= _MIN_RUNS or seconds > _SLOW_SECONDS):
            break
        call = calls[len(taken) % len(calls)]
        if is_cuda:
            _synchronize(device)
        before = _clock_ns()
        result = call.invoke()
        if is_cuda:
            _synchronize(device)
        taken.append(_clock_ns() - before)
        call.collect(result)
    if is_cuda:
        _synchronize(device)
    return float(min(taken[-_MIN_RUNS:]))
