"""Linked passes of one function, timed by the judge's own clock.

A pass makes one call in each slot: link, cache flush, call, digest. The worker launches it and sleeps; then the judge
starts its clock, sends a nonce and stops the clock on the last digest. A link chooses the inputs of a call, element by
element, from two candidates by what the call before it wrote, so no call can start before its predecessor has ended.
Afterwards the judge recomputes all links from the outputs that it finds.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import attrs
import torch
from fib_compile.device import torch_dtype
from fib_schema import EvaluationStatus

from ..inputs.variation import LinkGranularity, link_granularity
from ..secure_random import SECRET
from ..timing.linked import native
from ..timing.linked.native import open_native
from ..timing.measurement import trimmed_mean
from ..transport.arenas import bytes_in, tensor_in
from ..transport.messages import (
    Composed,
    ComposePass,
    Done,
    LaunchPass,
    LinkedInput,
    OpenPasses,
    TensorSlot,
)
from ..worker.client import WorkerLost
from ..worker.outside_checks import ThreadActivity, ran_between
from ..worker.passes import link_inputs
from .prepared import PreparedWorkload
from .rpc import Rejected
from .timed_function import TimedFunction

_MODES = {
    LinkGranularity.ELEMENT: native.ELEMENT,
    LinkGranularity.PAIR_SWAP: native.PAIR_SWAP,
    LinkGranularity.WHOLE: native.WHOLE,
}
_PASS_SECONDS = 10.0  # the device waits for a nonce for 20 s
_REST_SECONDS = 1e-4  # the worker's thread goes to sleep after its reply


@attrs.frozen(eq=False)
class TimedPass:
    """A pass that the judge has timed."""

    calls: int
    taken_ns: int
    """From the nonce to the last digest, by the judge's clock."""
    nonce: Sequence[int]
    digest: tuple[int, int]
    free_multiprocessors: int
    """Fewest that nothing else occupied while the cache was flushed."""
    flush_ns: float
    """Nanoseconds of the device's clock that a flush took, the mean over calls; a claim like `span_ns`."""
    span_ns: float
    """Nanoseconds of the device's clock from the end of a flush to the start of the digest, the mean over calls.
    Trusted code reads it, but it lies in the memory of the worker: a claim, which `taken_ns` bounds."""
    activity: ThreadActivity
    """Activity of the worker's threads, all of which should sleep."""


def linked_inputs(function: TimedFunction, prepared: PreparedWorkload) -> tuple[LinkedInput, ...]:
    """The inputs that links change, and how: integers change all together."""
    found: list[LinkedInput] = []
    modes = {name: _MODES[link_granularity(variation)] for name, variation in prepared.varying.items()}
    if prepared.integer_sets and not function.keeps_integers:
        modes |= dict.fromkeys(prepared.integer_sets[0], native.WHOLE)
    for name, mode in modes.items():
        one = linked_input(function, name, mode)
        if one.size_bytes and len(found) < native.MAX_INPUTS:
            found.append(one)
    return tuple(found)


def linked_input(function: TimedFunction, name: str, mode: int) -> LinkedInput:
    """The change that links make to one input."""
    slot = function.layout.inputs[name]
    size_bytes = bytes_in(function.slots.inputs[0], slot).numel()
    position = next(i for i, other in enumerate(function.layout.message.inputs) if other is slot)
    if slot.strides is not None and mode == native.PAIR_SWAP:
        mode = native.WHOLE
    row = slot.shape[-1] if slot.shape else 1
    return LinkedInput(position, size_bytes, mode, torch_dtype(slot.dtype).itemsize, row)


class LinkedPasses:
    """The passes of one function over its slots.

    Args:
        function: Its slots are bound.
        inputs: What links change.
    """

    def __init__(self, function: TimedFunction, inputs: Sequence[LinkedInput]) -> None:
        self._function, self._inputs = function, tuple(inputs)
        self._module = open_native(function.context.device, makes_passes=False)
        descriptor = os.memfd_create("fib-mailbox", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, native.MAILBOX_BYTES)
            self._page = mmap.mmap(descriptor, native.MAILBOX_BYTES)
            self._mailbox = native.Mailbox.from_buffer(self._page)
            self._launched = 0
            function.ask(OpenPasses(), Done, descriptors=(descriptor,))
        finally:
            os.close(descriptor)
        self._indexes: dict[tuple[int, int], int] = {}
        device, slots = function.context.device, function.slots.count
        self._partials = torch.empty(slots * native.DIGEST_BLOCKS * 16, dtype=torch.uint8, device=device)
        self._counts = torch.zeros(slots, dtype=torch.int32, device=device)

    @property
    def linked_names(self) -> frozenset[str]:
        """The inputs that links change."""
        positions = {item.position for item in self._inputs}
        message = self._function.layout.message.inputs
        return frozenset(
            name for name, slot in self._function.layout.inputs.items() if any(message[p] is slot for p in positions)
        )

    @property
    def output_bytes(self) -> tuple[int, ...]:
        """The bytes of each output."""
        slots = self._function.slots
        return tuple(tensor_in(slots.outputs[0], place).nbytes for place in self._function.layout.outputs.values())

    @property
    def slots(self) -> int:
        """The most calls that a pass can have."""
        return self._function.slots.count

    def compose(self, kind: int, calls: int, flush_ns: int) -> int:
        """Have the worker compose passes of a kind; returns how many nodes a captured call has.

        Args:
            kind: What is called.
            calls: How often.
            flush_ns: The least duration of a flush.

        Raises:
            NotCapturable: The function cannot be captured, or contains what cannot be composed.
            Rejected: It raised, or its outputs do not fit.
            WorkerLost: The worker ended.
        """
        reply = self._function.ask(ComposePass(kind, calls, flush_ns, self._inputs), Composed)
        self._indexes[kind, calls] = reply.index
        return reply.nodes

    def alone(self) -> AbstractContextManager[None]:
        """Have the device alone during a block, in which passes are timed."""
        return self._function.context.exclusive()

    def run(self, kind: int, calls: int, *, is_timed: bool = True) -> TimedPass:
        """Make one pass that is composed.

        Args:
            kind: What is called.
            calls: How often.
            is_timed: Whether the pass needs the device alone.

        Raises:
            Rejected: The device reported an error.
            WorkerLost: The worker ended, or no digest came.
        """
        self._function.context.synchronize()
        with self.alone() if is_timed else nullcontext():
            taken_ns, nonce, before = self._time(self._indexes[kind, calls], calls)
        activity = ran_between(before, self._function.worker.threads.read())
        box = self._mailbox
        return TimedPass(
            calls,
            taken_ns,
            nonce,
            (box.digest[0], box.digest[1]),
            box.free_sms,
            trimmed_mean(box.flushes[:calls]),
            trimmed_mean(box.spans[:calls]),
            activity,
        )

    def _time(self, index: int, calls: int) -> tuple[int, Sequence[int], Mapping[int, int]]:
        """The nanoseconds of a pass, its nonce, and what the worker's threads had run before it."""
        self._function.ask(LaunchPass(index), Done)
        self._launched += 1
        address = ctypes.addressof(self._mailbox)
        if not self._module.wait_armed(address, self._launched, _PASS_SECONDS):
            raise WorkerLost("a launched pass did not start on the device", is_timeout=True)
        time.sleep(_REST_SECONDS)
        nonce = [SECRET.getrandbits(64) for _ in range(4)]
        before = self._function.worker.threads.read()
        taken_ns = self._module.time_pass(address, self._launched, nonce, self._function.context.timeout_seconds)
        if not taken_ns:
            problem = f"a pass of {calls} calls sent no digest within {self._function.context.timeout_seconds:g} s"
            raise WorkerLost(problem, is_timeout=True)
        return taken_ns, nonce, before

    def recompute(self, made: TimedPass, outputs: torch.Tensor) -> list[int]:
        """Recompute the links of a pass from its outputs; returns slots that hold poison.

        Shapes:
            outputs: ``[calls, bytes]``, the slots after the pass or a copy of them.

        Raises:
            Rejected: The outputs are not those that the digest was made of.
        """
        places = [
            native.Output(source=outputs.data_ptr() + place.offset, target=0, bytes=size)
            for place in self._function.layout.outputs.values()
            if (size := tensor_in(outputs[0], place).nbytes)
        ]
        digest = native.digest_of(places, stride=outputs.stride(0))
        self._counts.zero_()
        self._function.context.synchronize()
        found = self._module.recompute(
            made.nonce, digest, made.calls, self._partials.data_ptr(), self._counts.data_ptr(), self._stream
        )
        if found != made.digest:
            problem = (
                "the digest that ended a timed pass is not that of its outputs: they were changed after the clock had "
                "stopped, or the pass was not the one that was composed"
            )
            raise Rejected(EvaluationStatus.REWARD_HACK, problem)
        return [slot for slot, count in enumerate(self._counts[: made.calls].tolist()) if count]

    def inputs_of(self, chosen: Sequence[int], fixed: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        """The inputs of the calls in some slots, in the pass that was recomputed last.

        Shapes:
            fixed: ``[bytes]``, the inputs that links leave alone.
            candidates: ``[2, bytes]``, what links chose from: the judge's own copy, for workers can write to the slots.

        Returns:
            ``[chosen, bytes]``
        """
        targets = fixed.expand(len(chosen), -1).clone()
        layout = [place if isinstance(place, TensorSlot) else None for place in self._function.layout.message.inputs]
        stream = self._stream
        for slot, target in zip(chosen, targets, strict=True):
            items = link_inputs(self._inputs, layout, candidates, target)
            self._module.relink(slot, native.link_of(items, ()), stream)
        return targets

    @property
    def _stream(self) -> int:
        return int(torch.cuda.current_stream(self._function.context.device).cuda_stream)
