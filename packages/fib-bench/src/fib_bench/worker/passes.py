"""Linked passes of a worker: captures each call alone and composes the captures into passes.

The judge's clock runs while the device makes a pass and this process sleeps: a pass is launched before its nonce is
sent, and its last kernel sends the digest. Captured calls are inspected before they are composed.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import secrets
import time
import warnings
from collections.abc import Sequence
from typing import Any

import attrs
import torch

from ..timing.cuda import CannotCapture
from ..timing.linked import native
from ..timing.linked.native import Native, NotComposable
from ..transport.messages import Composed, ComposePass, LinkedInput, TensorSlot
from .calls import PreparedCall, WrongOutputError

_TIMEOUT_NS = 20 * 10**9  # the device waits no longer for a nonce

_MIN_RUNS = 5
_MAX_SHIFTS = 1024  # of 512 bytes: intermediate results of each call lie elsewhere, since places differ in speed
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


class Passes:
    """The passes over the slots of one workload.

    Args:
        module: The native module, opened before a solution was loaded.
        device: Where.
        calls: One call for each slot; none in a worker without a function.
        outputs: What each slot's outputs are, as views of the arena: ``[slot][output]``.
        inputs: Where each slot begins: ``[slots, bytes]``.
        layout: Where the inputs lie in a slot; None for what is not a tensor.
        candidates: ``[2, bytes]``: the candidates that links choose from.
        mailbox: A descriptor of the page that the judge shares; it is taken over.
    """

    def __init__(
        self,
        module: Native,
        device: torch.device,
        calls: Sequence[PreparedCall],
        outputs: Sequence[Sequence[torch.Tensor]],
        inputs: torch.Tensor,
        layout: Sequence[TensorSlot | None],
        candidates: torch.Tensor,
        mailbox: int,
    ) -> None:
        self._module, self._device, self._calls = module, device, calls
        self._outputs, self._inputs, self._layout, self._candidates = outputs, inputs, layout, candidates
        self._page = mmap.mmap(mailbox, native.MAILBOX_BYTES)
        os.close(mailbox)
        self._anchor = ctypes.c_char.from_buffer(self._page)
        self._mailbox = module.map_mailbox(ctypes.addressof(self._anchor))
        self._pool: Any = None
        self._stream: Any = None
        self._captured: _Captured | None = None
        self._known_outputs: list[list[torch.Tensor]] = []
        self._handles: list[int] = []

    def compose(self, request: ComposePass) -> Composed:
        """Compose a pass over the first slots.

        Raises:
            CannotCapture: A call cannot be captured, or contains what cannot be composed.
            WrongOutputError: A call returned something that does not fit the definition.
        """
        graphs, nodes = None, 0
        outputs = self._own_outputs()
        if request.kind == native.SOLUTION:
            captured = self._capture(request.calls)
            graphs = (ctypes.c_void_p * len(captured.graphs))(*(g.raw_cuda_graph() for g in captured.graphs))
            outputs, nodes = captured.outputs, captured.nodes
        slots = request.calls
        places = [self._output_places(outputs[slot], self._outputs[slot]) for slot in range(slots)]
        links = (native.Link * slots)(*(self._link(request.inputs, slot, places[slot]) for slot in range(slots)))
        digests = (native.Digest * slots)(*(native.digest_of(place, call=call) for call, place in enumerate(places)))
        description = native.Pass(
            mailbox=self._mailbox, timeout_ns=_TIMEOUT_NS, flush_ns=request.flush_ns, calls=slots, slots=slots,
            kind=request.kind, graphs=graphs, links=links, digests=digests,
        )  # fmt: skip
        self._handles.append(self._module.compose(description))
        return Composed(len(self._handles) - 1, nodes)

    def launch(self, index: int) -> None:
        """Launch a pass; the device then waits for its nonce."""
        self._module.launch(self._handles[index])

    def close(self) -> None:
        """Destroy the passes, before the memory that they use is unmapped."""
        self._module.finish()
        for handle in self._handles:
            self._module.discard(handle)
        self._handles = []
        self._captured = None
        self._module.unmap_mailbox(ctypes.addressof(self._anchor))
        del self._anchor
        self._page.close()

    # -- capture -------------------------------------------------------------------------------------

    def _capture(self, count: int) -> _Captured:
        """Capture each of the first calls alone, into one shared memory pool.

        Raises:
            CannotCapture: That failed; the process should not be used any more.
        """
        if self._stream is None:
            self._stream, self._pool = _Stream(self._device), torch.cuda.graph_pool_handle()
            self._refuse_random_numbers()
        before = self._captured or _Captured((), (), 0)
        gc.collect()  # a graph that is freed during a capture breaks it
        _synchronize(self._device)
        found = [self._capture_one(call) for call in self._calls[len(before.graphs) : count]]
        _synchronize(self._device)
        graphs = [graph for graph, _ in found]
        nodes = max([before.nodes, *(self._inspect(graph) for graph in graphs)])
        outputs = [outputs for _, outputs in found]
        self._captured = _Captured((*before.graphs, *graphs), (*before.outputs, *outputs), nodes)
        return self._captured

    def _refuse_random_numbers(self) -> None:
        """Call once on the capture's stream, which warms it up.

        Raises:
            CannotCapture: The call draws random numbers: a graph that is launched by itself repeats them.
        """
        generator = torch.cuda.default_generators[self._device.index or 0]
        before = generator.get_offset()
        with torch.cuda.stream(self._stream):
            result = self._calls[0].invoke()
        _synchronize(self._device)
        del result
        if generator.get_offset() != before:
            raise CannotCapture("it draws random numbers")

    def _capture_one(self, call: PreparedCall) -> tuple[Any, Sequence[torch.Tensor]]:
        graph = _Graph(keep_graph=True)
        try:
            with torch.cuda.stream(self._stream), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an empty graph: the outputs will be found unwritten
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    shift = torch.empty(secrets.randbelow(_MAX_SHIFTS) * 512, dtype=torch.uint8, device=self._device)
                    outputs = call.whole_outputs(call.invoke())
                    del shift
                finally:
                    graph.capture_end()
        except WrongOutputError:
            raise
        except Exception as error:
            raise CannotCapture(f"{type(error).__name__}: {error}"[:500]) from error
        return graph, outputs

    def _inspect(self, graph: Any) -> int:
        try:
            return self._module.inspect(graph.raw_cuda_graph())
        except NotComposable as error:
            raise CannotCapture(str(error)) from error

    # -- where things lie ----------------------------------------------------------------------------

    def _own_outputs(self) -> Sequence[Sequence[torch.Tensor]]:
        """Outputs of the known call, one set for each slot."""
        if not self._known_outputs:
            self._known_outputs = [[torch.empty_like(output) for output in slot] for slot in self._outputs]
        return self._known_outputs

    def _output_places(self, sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> list[native.Output]:
        pairs = zip(sources, targets, strict=True)
        return [native.Output(source=s.data_ptr(), target=t.data_ptr(), bytes=t.nbytes) for s, t in pairs if t.nbytes]

    def _link(self, inputs: Sequence[LinkedInput], slot: int, outputs: Sequence[native.Output]) -> native.Link:
        poisoned = [native.Output(source=output.source, target=0, bytes=output.bytes) for output in outputs]
        return native.link_of(link_inputs(inputs, self._layout, self._candidates, self._inputs[slot]), poisoned)


def link_inputs(
    inputs: Sequence[LinkedInput], layout: Sequence[TensorSlot | None], candidates: torch.Tensor, target: torch.Tensor
) -> list[native.Input]:
    """Addresses that a link reads and writes, for each input that it changes.

    Shapes:
        candidates: ``[2, bytes]``.
        target: ``[bytes]``.
    """
    found = []
    for item in inputs:
        place = layout[item.position]
        assert place is not None, "only tensors are linked"
        first, second = (memory.data_ptr() + place.offset for memory in candidates)
        found.append(
            native.Input(
                first=first, second=second, target=target.data_ptr() + place.offset, bytes=item.size_bytes,
                mode=item.mode, item_bytes=item.item_bytes, row_items=item.row_items, index=item.position,
            )
        )  # fmt: skip
    return found


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
    begin = _clock_ns()
    taken: list[int] = []
    while len(taken) < max(runs, _MIN_RUNS):
        seconds = (_clock_ns() - begin) / 1e9
        if seconds > max_seconds and (len(taken) >= _MIN_RUNS or seconds > _SLOW_SECONDS):
            break
        call = calls[len(taken) % len(calls)]
        _synchronize(device)
        before = _clock_ns()
        result = call.invoke()
        _synchronize(device)
        taken.append(_clock_ns() - before)
        call.collect(result)
    _synchronize(device)
    return float(min(taken[-_MIN_RUNS:]))
