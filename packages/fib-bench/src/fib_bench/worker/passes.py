"""Calls of a worker on its slots: single ones, and passes of timed calls.

Results are brought into the slot right after a call has returned, outside the clock, with no wait in between: what is
written later is not in them. A destination-passing function gets buffers of the worker's own for the same reason.
Results that defer work (views that negate, views of an input, lazy containers) are copied inside the clock.

Each timed call is prepared and started by words of the judge. Captured calls are inspected and composed into one graph
with their preparations and digests; this process sleeps while the device runs it. Eager calls are made here.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import torch
from fib_compile import Runnable
from fib_schema import Definition
from msgspec.structs import replace

from ..inputs.recipes import Input, native_input
from ..recipe import SEALED, Recipe
from ..timing.handshake import native
from ..timing.handshake.native import CannotCapture, HostNative, Native
from ..transport.arenas import tensor_in
from ..transport.messages import Composed, ComposePass, LaunchPass, Layout, RunCalls, TensorSlot
from .host_reads import OTHERS, Recording, given, record

_GUARD, _GUARD_STEP = 0xA5, 512
_MOST_GUARD_BYTES = 1 << 16  # a write farther away may end the process
_TIMEOUT_NS = 20 * 10**9  # the device waits no longer for the judge
_MIN_RUNS = 5
_MOST_RESERVED_BYTES = 8 << 30  # beside the memory of captured calls, which is their own
_MOST_NODES, _COPY_NODES = 1 << 14, 32
"""Of a pass, or of one call of two, a copy or fill as so many. A launch of far more waits for calls, which wait for
the judge."""
_MAX_SHIFTS = 1024  # of 512 bytes: intermediate results of each call lie elsewhere, since places differ in speed
_MOST_LINES = 20  # of a solution that are reported
_SLOW_SECONDS = 2.0  # the first calls load kernels, so their time does not predict the others

# originals, taken before any solution is loaded
_Tensor = torch.Tensor
_copy: Any = torch.Tensor.copy_
_detach: Any = torch.Tensor.detach
_clone: Any = torch.Tensor.clone
_view: Any = torch.Tensor.view
_address: Any = torch.Tensor.data_ptr
_clock_ns = time.perf_counter_ns
_Graph: Any = torch.cuda.CUDAGraph
_Stream: Any = torch.cuda.Stream
_synchronize: Any = torch.cuda.synchronize


class WrongOutputError(Exception):
    """The returned value does not fit the definition; `kind` as in `Failed`."""

    def __init__(self, kind: str, problem: str) -> None:
        super().__init__(problem)
        self.kind = kind


class PreparedCall:
    """One call with its arguments bound in the memory of a slot, ``[bytes]``: all that is left is to invoke it."""

    def __init__(
        self, function: Runnable, definition: Definition, layout: Layout, inputs: torch.Tensor, outputs: torch.Tensor
    ) -> None:
        self._function = function
        self._arguments = [tensor_in(inputs, s) if isinstance(s, TensorSlot) else s for s in layout.inputs]
        slots = zip(definition.outputs, layout.outputs, strict=True)
        self._buffers = {name: tensor_in(outputs, slot) for name, slot in slots}
        self._memory = inputs.untyped_storage().data_ptr()
        self._is_dps = function.metadata.destination_passing_style
        self._guarded = [_guarded(buffer) for buffer in self._buffers.values()] if self._is_dps else []
        self._own = [output for _, output, _ in self._guarded]
        self._bound = bound = (*self._arguments, *self._own)
        self.outputs = [*self._buffers.values()]
        """The outputs in the slot, which the judge reads."""
        self.digested = self._own or self.outputs
        """The outputs of an eager call: buffers that a destination-passing function writes to."""
        self._kept: list[Any] = []  # the outputs of the last timed call, alive until the next one
        self.defers_work = False
        """Whether collected results deferred work to their reader."""
        self.invoke: Callable[[], Any] = lambda: function(*bound)  # without `self`: a cycle would keep the slot mapped

    def set_up(self) -> float:
        """Run the solution's ``setup`` and pass its result to all later calls; returns the nanoseconds."""
        before = _clock_ns()
        planned = self._function.plan(*self._arguments)
        taken = _clock_ns() - before
        bound = self._bound
        self.invoke = lambda: planned(*bound)
        return float(taken)

    def run(self) -> None:
        """Make a call; its outputs are in the slot afterwards, and poisoned before as those are."""
        for own, buffer in zip(self._own, self._buffers.values(), strict=False):
            _copy(_raw(own), _raw(buffer))
        self.collect(self.invoke())

    def collect(self, result: Any) -> None:
        """Copy the result of a call into the output buffers; `WrongOutputError` if it does not fit the definition."""
        for name, (before, _, behind) in zip(self._buffers, self._guarded, strict=False):
            for side, guard in (("before", before), ("behind", behind)):  # a kernel without a mask for its tail
                if not bool((guard == _GUARD).all()):
                    raise WrongOutputError("bounds", f"the call has written {side} output {name!r}, out of its bounds")
        for _, value, buffer in self._checked(result):
            self.defers_work |= not self._is_dps and (type(result) not in _PLAIN or self._defers_work(value))
            _store(value, buffer)

    def _checked(self, result: Any) -> Iterator[tuple[str, Any, torch.Tensor]]:
        """Names and values of the outputs with their buffers; `WrongOutputError` if they do not fit the definition."""
        values = self._own if self._is_dps else _in_order(list(self._buffers), result)
        for (name, buffer), value in zip(self._buffers.items(), values, strict=True):
            _check(name, value, buffer)
            yield name, value, buffer

    def whole_outputs(self, result: Any) -> list[torch.Tensor]:
        """The outputs as dense tensors that share no memory with inputs; others are copied, inside a capture.

        Raises:
            WrongOutputError: They do not fit the definition.
            CannotCapture: An output is a number, which a device does not write.
        """
        found = []
        for name, value, _ in self._checked(result):
            if type(value) is not _Tensor:
                raise CannotCapture(f"output {name!r} is a number")
            plain = _detach(value)
            is_dense = plain.is_contiguous() and not plain.is_neg() and not plain.is_conj()
            is_plain = is_dense and not self._defers_work(plain) and type(result) in _PLAIN
            found.append(plain if is_plain else _clone(plain, memory_format=torch.contiguous_format))
        return found

    def addresses_of(self, result: Any) -> list[int] | None:
        """Addresses of the outputs that a clock waits for, which the judge checks; None if they lie in `digested`."""
        if self._is_dps:
            return None
        kept = self._whole(result)
        if not kept:  # numbers, views and other layouts, as they are stored in the slot
            for _, value, buffer in self._checked(result):
                kept.append(torch.empty_like(buffer))
                _store(value, kept[-1])
        self._kept = kept
        return [_address(value) for value in kept]

    def _whole(self, result: Any) -> list[Any]:
        """The outputs where they are; none if one of them has to be copied."""
        if self.defers_work or type(result) not in _PLAIN:
            return []
        values = [result] if type(result) is _Tensor else _in_order(list(self._buffers), result)
        for value, buffer in zip(values, self._buffers.values(), strict=True):
            if type(value) is not _Tensor or not value.is_contiguous() or value.nbytes != buffer.nbytes:
                return []
        return values

    def _defers_work(self, value: Any) -> bool:
        """Whether a value is a view that negates when it is read, a view of the inputs, or one of repeated elements."""
        if type(value) is not _Tensor:
            return False
        is_view = value.numel() and value.untyped_storage().data_ptr() == self._memory
        repeats = any(not stride and size > 1 for stride, size in zip(value.stride(), value.shape, strict=True))
        return bool(value.is_neg() or is_view or repeats)


_PLAIN = frozenset({_Tensor, tuple, list, dict, int, float, bool, type(None)})
"""Types that can be unpacked without running code of the solution."""


def _guarded(buffer: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Memory for an output like `buffer`, between as much memory, up to a limit, where nothing may be written."""
    size = buffer.nbytes
    guard = min(-(-max(size, 1) // _GUARD_STEP) * _GUARD_STEP, _MOST_GUARD_BYTES)
    whole = torch.full((size + 2 * guard,), _GUARD, dtype=torch.uint8, device=buffer.device)
    output = whole[guard : guard + size].view(buffer.dtype).view(buffer.shape)
    return whole[:guard], output, whole[guard + size :]


def _in_order(names: Sequence[str], result: Any) -> list[Any]:
    """The outputs in the definition's order; refuses more, fewer, and others."""
    if isinstance(result, Mapping):
        if result.keys() != set(names):
            problem = f"returned a dict of {sorted(map(str, result))}, expected {sorted(names)}"
            raise WrongOutputError("kind", problem)
        return [result[name] for name in names]
    values = list(result) if isinstance(result, (tuple, list)) else [result]
    if len(values) != len(names) or (not names and result is not None):
        problem = f"returned {len(values)} values, expected {len(names)}: {', '.join(names)}"
        raise WrongOutputError("kind", problem)
    return values


def _check(name: str, value: Any, buffer: torch.Tensor) -> None:
    """Refuse values that are not plain tensors of the right shape, dtype and device."""
    if buffer.ndim == 0 and type(value) in (int, float, bool):
        return
    if type(value) is not _Tensor:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise WrongOutputError("kind", f"output {name!r} is a {kind}, expected a torch.Tensor")
    if value.layout is not torch.strided:
        raise WrongOutputError("kind", f"output {name!r} has the layout {value.layout}, expected a dense tensor")
    if torch._is_functional_tensor(value):  # noqa: SLF001 no public name
        raise WrongOutputError("lazy", f"output {name!r} is a functional tensor, which has no memory of its own")
    sizes = ("shape", tuple(value.shape), tuple(buffer.shape))
    for kind, found, wanted in (sizes, ("dtype", value.dtype, buffer.dtype)):
        if found != wanted:
            raise WrongOutputError(kind, f"output {name!r} has {kind} {found}, expected {wanted}")
    if value.device != buffer.device:
        raise WrongOutputError("kind", f"output {name!r} is on {value.device}, expected {buffer.device}")
    own = value.__dict__
    if type(own) is not dict or any(type(attribute) is not str for attribute in own):
        raise WrongOutputError("lazy", f"output {name!r} has attributes whose names run code when they are looked up")
    hiding = [attribute for attribute in own if hasattr(_Tensor, attribute)]
    if hiding:
        raise WrongOutputError("lazy", f"output {name!r} has its own {', '.join(hiding)} in place of a tensor's")


def _store(value: Any, buffer: torch.Tensor) -> None:
    if type(value) is _Tensor:
        _copy(_raw(buffer), _raw(_detach(value)))
    else:
        buffer.fill_(value)


def _raw(tensor: torch.Tensor) -> Any:
    """The tensor, a boolean one as bytes: a copy makes 1 of all other bytes than 0, and so of poison."""
    return _view(tensor, torch.uint8) if tensor.dtype is torch.bool else tensor


@attrs.frozen(eq=False)
class _Captured:
    """Calls that were captured one by one: an element for each."""

    graphs: Sequence[Any]
    outputs: Sequence[Sequence[torch.Tensor]]
    recordings: Sequence[Recording]  # graphs read memory of these
    counts: Sequence[tuple[int, int]]  # kernels, copies and fills; copies and fills


class Passes:
    """The passes over the slots of one workload, each with a call; the descriptor of the mailbox is taken over.

    Shapes:
        inputs: ``[calls + BASES, bytes]``, behind those of the slots the values that the generator changes.
    """

    def __init__(
        self,
        module: HostNative,
        calls: Sequence[PreparedCall],
        inputs: torch.Tensor,
        layout: Layout,
        recipes: Sequence[Recipe],
        mailbox: int,
    ) -> None:
        self._module, self._device, self._calls = module, inputs.device, calls
        self._inputs, self._layout, self._recipes = inputs, layout, recipes
        self._page = mmap.mmap(mailbox, native.MAILBOX_BYTES)
        os.close(mailbox)
        self._anchor = ctypes.c_char.from_buffer(self._page)
        self._host_mailbox = ctypes.addressof(self._anchor)
        self._mailbox = module.map_mailbox(self._host_mailbox)
        self._stream: Any = None
        self._captured: _Captured | None = None
        self._most_calls = 0  # of a composed pass, as the first captured call decides
        self._handles: dict[tuple[int, bool], int] = {}
        self._unwritten: Sequence[torch.Tensor] = ()
        """Outputs of passes without calls, which a digest copies from another place as it does those of a call."""

    @property
    def _cuda(self) -> Native:
        assert isinstance(self._module, Native), "only CUDA devices replay captured calls"
        return self._module

    def compose(self, request: ComposePass) -> Composed:
        """Compose a pass over the first slots; raises like `PreparedCall.whole_outputs` if a call is not captured."""
        made, graphs = Composed(0, request.calls), None
        if request.kind != native.SOLUTION:
            self._unwritten = self._unwritten or [torch.empty_like(output) for output in self._calls[0].outputs]
        sources: Sequence[Sequence[torch.Tensor]] = [self._unwritten] * request.calls
        if request.kind == native.SOLUTION:
            if request.is_anew:
                self._module.finish()
                for key in [key for key in self._handles if key[0] == native.SOLUTION]:
                    self._cuda.discard(self._handles.pop(key))
                self._captured = None
            captured = self._capture(request.calls)
            request = replace(request, calls=len(captured.graphs))  # fewer, if these have many nodes
            graphs = (ctypes.c_void_p * len(captured.graphs))(*(g.raw_cuda_graph() for g in captured.graphs))
            sources = captured.outputs
            reads = dict.fromkeys(line for each in captured.recordings for line in each.reads)
            waits = dict.fromkeys(line for each in captured.recordings for line in each.waits)
            nodes = max(count for count, _ in captured.counts)
            made = Composed(nodes, request.calls, tuple(reads)[:_MOST_LINES], tuple(waits)[:_MOST_LINES])
        self._handles[request.kind, request.is_fresh] = self._cuda.compose(self._describe(request, sources, graphs))
        return made

    def launch(self, request: LaunchPass) -> None:
        """Launch a pass; the device then waits for the judge."""
        self._cuda.launch(self._handles[request.kind, request.is_fresh])

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

    def _capture(self, count: int) -> _Captured:
        """Capture a call in each of the first slots alone, into one shared memory pool, unless that was done.

        The first one is inspected before the others are captured: it may have too many nodes, or many.
        """
        if self._captured is not None:
            return self._captured
        if self._stream is None:
            self._stream = _Stream(self._device)
        pool = torch.cuda.graph_pool_handle()  # one that all graphs have left is of no use
        first = self._capture_all(self._calls[:1], pool)
        self._most_calls = self._most_calls or max(2, _MOST_NODES // max(_weight(*first.counts[0]), 1))
        others = self._capture_all(self._calls[1 : min(count, self._most_calls)], pool)
        if sum(_weight(*counts) for counts in (*first.counts, *others.counts)) > 2 * _MOST_NODES:
            raise CannotCapture("its first call has by far fewer nodes than others")
        pairs = zip(*(attrs.astuple(each, recurse=False) for each in (first, others)), strict=True)
        self._captured = _Captured(*([*one, *other] for one, other in pairs))
        return self._captured

    def _capture_all(self, calls: Sequence[PreparedCall], pool: Any) -> _Captured:
        recordings = [self._record(call) for call in calls]
        gc.collect()  # a graph that is freed during a capture breaks it
        _synchronize(self._device)
        if torch.cuda.memory_reserved(self._device) > _MOST_RESERVED_BYTES:
            torch.cuda.empty_cache()  # a capture cannot free what earlier calls have left
        found = [self._capture_one(*each, pool) for each in zip(calls, recordings, strict=True)]
        _synchronize(self._device)
        counts = [self._cuda.inspect(graph.raw_cuda_graph()) for graph, _ in found]
        return _Captured([graph for graph, _ in found], [outputs for _, outputs in found], recordings, counts)

    def _record(self, call: PreparedCall) -> Recording:
        """Call once on the capture's stream, which warms it up, and record what crosses between host and device."""
        generator = torch.cuda.default_generators[self._device.index or 0]
        before = generator.get_offset()
        with torch.cuda.stream(self._stream):
            found = record(call.invoke, self._device)
        _synchronize(self._device)
        if generator.get_offset() != before:
            raise CannotCapture("it draws random numbers")  # a graph that is launched by itself repeats them
        return found

    def _capture_one(self, call: PreparedCall, recording: Recording, pool: Any) -> tuple[Any, Sequence[torch.Tensor]]:
        graph = _Graph(keep_graph=True)
        try:
            with torch.cuda.stream(self._stream), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an empty graph: the outputs will be found unwritten
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
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
            if "unjoined work" in str(error) and not recording.waits:  # which do nothing during a capture
                problem = "work on a stream of its own goes on after the call: the caller's stream has to wait for it"
                raise WrongOutputError("stream", problem) from error
            raise CannotCapture(_reason(error)) from error
        return graph, outputs

    def run_calls(self, request: RunCalls) -> None:
        """Make the calls of a pass, each when the judge says so."""
        sources = [call.digested for call in self._calls]
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

    def _describe(
        self, request: ComposePass | RunCalls, sources: Sequence[Sequence[torch.Tensor]], graphs: Any
    ) -> native.Pass:
        calls = (native.Call * request.calls)()
        for slot in range(request.calls):
            pairs = zip(sources[slot], self._calls[slot].outputs, strict=True)
            outputs = [native.Output(source=s.data_ptr(), target=t.data_ptr(), bytes=t.nbytes) for s, t in pairs]
            calls[slot] = native.call_of(self._generated(slot), outputs)
        stream = torch.cuda.current_stream(self._device).cuda_stream if self._device.type == "cuda" else 0
        return native.Pass(
            mailbox=self._mailbox, host_mailbox=self._host_mailbox, timeout_ns=_TIMEOUT_NS, calls=request.calls,
            kind=request.kind, is_late=request.is_fresh, is_host=self._module.is_host, graphs=graphs, call=calls,
            stream=stream,
        )  # fmt: skip

    def _generated(self, slot: int) -> list[Input]:
        target, base = (self._inputs[place].data_ptr() for place in (slot, len(self._calls)))
        found = []  # sealed values are decrypted in place
        for recipe in self._recipes:
            place = self._layout.inputs[recipe.position]
            assert isinstance(place, TensorSlot), "only tensors are generated"
            at = target if recipe.kind == SEALED else base
            found.append(native_input(recipe, target + place.offset, at + place.offset))
        return found


def _weight(nodes: int, copies: int) -> int:
    """The weight of a captured call in a launch; `CannotCapture` if it is too much."""
    if (weight := nodes + _COPY_NODES * copies) <= _MOST_NODES:
        return weight
    counted = f"{nodes} nodes, {copies} of them copies and fills that count as {_COPY_NODES + 1} each"
    raise CannotCapture(f"the call consists of {counted}; {_MOST_NODES} can be timed")


def _reason(error: Exception) -> str:
    """The line of the solution and the first line of the error: a capture fails where a call waits for the device."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(OTHERS)]
    where = f" in {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
    text = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}{where}: {text}"[:500]


def settle(calls: Sequence[PreparedCall], device: torch.device, runs: int, max_seconds: float) -> float:
    """Call until compilers and caches have settled; returns the nanoseconds that an eager caller waits for a call.

    The first of `runs` calls may compile, and count for nothing; the cap may leave fewer.
    """
    wait: Callable[[], object] = partial(_synchronize, device) if device.type == "cuda" else lambda: None
    begin = _clock_ns()
    taken: list[int] = []
    while len(taken) < max(runs, _MIN_RUNS):
        seconds = (_clock_ns() - begin) / 1e9
        if seconds > max_seconds and (len(taken) >= _MIN_RUNS or seconds > _SLOW_SECONDS):
            break
        call = calls[len(taken) % len(calls)]
        wait()
        before = _clock_ns()
        result = call.invoke()
        wait()
        taken.append(_clock_ns() - before)
        call.collect(result)
    wait()
    defers_work = any(call.defers_work for call in calls)
    for call in calls:
        call.defers_work = defers_work  # not each of them was called
    return float(min(taken[-_MIN_RUNS:]))
