"""Passes of one function: the judge's clock around every call of them.

A pass makes one call in each slot. For each call the judge sends a fresh word; the worker's device prepares the call
and says so; then the judge starts its clock and sends another word. The digest of the outputs, which depends on both,
stops it. In the order *cold* the first word is the key from which the inputs are generated, and the cache is flushed
after that; in the order *fresh* the second one is, so that nothing about the inputs exists before the clock runs.
"""

from __future__ import annotations

import ctypes
import enum
import fcntl
import math
import mmap
import os
import time
from collections.abc import Callable, Mapping, Sequence

import attrs
import torch
from fib_schema import EvaluationStatus

from ..recipe import Recipe
from ..secure_random import SECRET
from ..timing.handshake import native
from ..transport.arenas import tensor_in
from ..transport.messages import Composed, ComposePass, Done, LaunchPass, OpenPasses, RunCalls
from ..worker.client import WorkerLost
from .function_worker import Rejected, check_reply, cpu_seconds
from .prepared import fill, write_tensors
from .timed_function import TimedFunction

_SLICE_SECONDS = 0.05  # without an answer, after which the judge looks whether the worker lives
_STALL_SECONDS = 5.0  # without a digest, after which the worker looks whether its device has failed
_MAX_DELAY_NS = 3000  # from the end of the preparation to the start of the clock, drawn for each call
_PATIENCE_SHARE = 0.6  # of the shortest call, for which the judge leaves a CPU alone
_MIN_PATIENCE_NS = 200_000
_NO_READING = 2**32 - 1  # of the worker's clock: the call took longer
_REST_SECONDS = 1e-4  # the worker's thread goes to sleep after its reply
_STRUCTURES, _STRUCTURE_BYTES = 128, 1 << 27  # sets of structural integers for the passes of a burst


class Order(enum.Enum):
    """The word of a call that is the key of its inputs."""

    COLD = "cold"
    """The first: the cache is flushed between the inputs and the clock."""
    FRESH = "fresh"
    """The second, which starts the clock: inputs are made, and read from the cache, while it runs."""


class Launch(enum.Enum):
    """The party that launches the calls."""

    DEVICE = "device"
    """The device: each call was captured once and is replayed."""
    HOST = "host"
    """The host, as an eager caller does."""


@attrs.frozen(eq=False)
class TimedPass:
    """A pass that the judge has timed. All sequences have an element for each call."""

    taken_ns: Sequence[int]
    """From the start of the clock to the digest, by the judge's clock. On the CPU by that of the worker, if it is less:
    a busy machine delays the words of two processes by far more than most calls take."""
    words: Sequence[tuple[int, int, int]]
    """The words that started the preparation and the call, and the key of the inputs."""
    digests: Sequence[int]
    structures: Sequence[int]
    """The set of structural integers in each slot."""
    free_multiprocessors: int | None
    """Fewest that nothing else occupied during a flush; None on the CPU."""
    end_ns: int
    """From the last digest to the end of the pass on the device; 0 for calls that the host launches."""
    ran_seconds: float | None
    """Time that the worker's threads ran, all of which should sleep; None for calls that the host launches."""


class Passes:
    """The passes of one function over its slots.

    Structural integers, as those of page tables, are drawn by the judge; other inputs are generated for each call.

    Args:
        function: Its slots hold `base`.
        recipes: The inputs that are generated for each call.
        base: The inputs of all slots before that, ``[bytes]``: the judge's own copy.
        redraw: Draws structural integers; None if they stay.
    """

    def __init__(
        self,
        function: TimedFunction,
        recipes: Mapping[str, Recipe],
        base: torch.Tensor,
        redraw: Callable[[], Mapping[str, torch.Tensor]] | None = None,
    ) -> None:
        self._function, self._recipes, self._base, self._redraw = function, recipes, base, redraw
        self._module = native.open_native(function.context.device, makes_passes=False)
        self._pattern = SECRET.getrandbits(64)
        self._page, self._mailbox = self._open()
        self._indexes: dict[tuple[int, Order], int] = {}
        self.reads: Sequence[str] = ()
        self.waits: Sequence[str] = ()
        """Lines of the solution that read from the device, or wait for it, in a captured call; untrusted."""
        self._held: Sequence[int] = ()  # the set of structural integers in each slot that calls were captured with
        self._shortest_ns = 0
        self._structures: list[Mapping[str, torch.Tensor]] = [{}]
        self._current: Sequence[int] = (0,)
        self.redraw()
        self.nodes = 0
        """Kernels, copies and fills of one captured call."""

    def _open(self) -> tuple[mmap.mmap, native.Mailbox]:
        descriptor = os.memfd_create("fib-mailbox", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, native.MAILBOX_BYTES)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)  # else it could end us
            page = mmap.mmap(descriptor, native.MAILBOX_BYTES)
            request = OpenPasses(self._pattern, tuple(self._recipes.values()))
            self._function.ask(request, Done, descriptors=(descriptor,))
        finally:
            os.close(descriptor)
        return page, native.Mailbox.from_buffer(page)

    @property
    def calls(self) -> int:
        """Calls of a pass."""
        return min(self._function.slots.count, native.MAX_CALLS)

    @property
    def changed_names(self) -> frozenset[str]:
        """The inputs whose values differ between calls."""
        return frozenset(self._recipes).union(*self._structures)

    def redraw(self) -> None:
        """Draw the structural integers of the next passes: a plan that was made for others is of no use."""
        if self._redraw is not None:
            begin, first = len(self._structures), self._redraw()
            size = max(sum(tensor.nbytes for tensor in first.values()), 1)
            count = max(1, min(_STRUCTURES, _STRUCTURE_BYTES // size))
            self._structures += [first, *(self._redraw() for _ in range(count - 1))]
            self._take(range(begin, len(self._structures)))

    def replace(self, integers: Mapping[str, torch.Tensor]) -> None:
        """Take these structural integers for all calls of the next passes."""
        self._structures.append({**self._structures[self._current[0]], **integers})
        self._take((len(self._structures) - 1,))

    def _take(self, structures: Sequence[int]) -> None:
        """Take these sets from now on. What a captured call has read from others is captured anew."""
        self._current = structures
        if self.reads:
            orders = [order for kind, order in self._indexes if kind == native.SOLUTION]
            self._indexes = {key: index for key, index in self._indexes.items() if key[0] != native.SOLUTION}
            for order in orders:
                self.compose(native.SOLUTION, order)

    def compose(self, kind: int, order: Order) -> None:
        """Have the worker capture the calls and compose a pass."""
        if (kind, order) in self._indexes:
            return
        is_anew = kind == native.SOLUTION and not any(known == kind for known, _ in self._indexes)
        if is_anew:
            self._held = self._load_structures(())
            self._function.context.synchronize()
        reply = self._function.ask(ComposePass(kind, order is Order.FRESH, self.calls, is_anew), Composed)
        self._indexes[kind, order] = reply.index
        if kind == native.SOLUTION:
            self.nodes, self.reads, self.waits = reply.nodes, reply.reads, reply.waits

    # -- one pass ------------------------------------------------------------------------------------

    def run(self, kind: int, order: Order, launch: Launch, *, is_watched: bool = False) -> TimedPass:
        """Make one pass; one that the device launches is composed.

        Args:
            kind: What is called.
            order: Which word is the key.
            launch: Who launches the calls.
            is_watched: Whether to look at the worker's threads, where the device launches the calls.
        """
        is_held = self.reads and kind == native.SOLUTION and launch is Launch.DEVICE
        calls, structures = self.calls, self._load_structures(self._held if is_held else ())
        drawn = [(SECRET.getrandbits(64) | 1, SECRET.getrandbits(64) | 1) for _ in range(calls)]
        words = [(start, go, go if order is Order.FRESH else start) for start, go in drawn]
        ctypes.memset(ctypes.addressof(self._mailbox), 0, native.MAILBOX_BYTES)
        self._function.context.synchronize()
        clock = native.Clock()
        if launch is Launch.DEVICE:
            self._function.ask(LaunchPass(self._indexes[kind, order]), Done)
            before = self._look_at_threads() if is_watched else None
            is_asked = self._run_clock(clock, drawn, launch, patience_ns=0)
            end_ns = clock.end - clock.t1[calls - 1]
            is_known = before is not None and not is_asked
            ran_seconds = self._ran_seconds() - (before or 0.0) if is_known else None
        else:
            end_ns, ran_seconds = 0, None
            self._run_calls(RunCalls(kind, order is Order.FRESH, calls), clock, drawn)
        if any(self._mailbox.start[:calls]) or any(self._mailbox.go[:calls]):
            raise WorkerLost("calls went on without the judge, which was stopped for too long", is_timeout=True)
        if repeated := clock.repeated.bit_count():
            problem = (
                f"the digests of {repeated} calls came twice: something else than the end of a call stopped the clock"
            )
            raise Rejected(EvaluationStatus.REWARD_HACK, problem)
        taken = [end - begin for begin, end in zip(clock.t0[:calls], clock.t1[:calls], strict=True)]
        is_cuda = self._function.context.is_cuda
        if not is_cuda:
            own = (each if each < _NO_READING else math.inf for each in self._mailbox.own_ns[:calls])
            taken = [int(min(pair)) for pair in zip(taken, own, strict=True)]
        if kind == native.SOLUTION:
            self._shortest_ns = min(taken)
        free = min(self._mailbox.free_sms[:calls]) if is_cuda else None
        return TimedPass(taken, words, clock.stop[:calls], structures, free, end_ns, ran_seconds)

    def _load_structures(self, held: Sequence[int]) -> Sequence[int]:
        """Put structural integers into the slots, drawn or those that are held; returns the set of each."""
        structures = held or [SECRET.choice(self._current) for _ in range(self.calls)]
        places = self._function.layout.input_tensors(self._function.slots.inputs[: self.calls])
        for name in self._structures[structures[0]]:  # others that share the slots have loaded theirs meanwhile
            places[name].copy_(torch.stack([self._structures[structure][name] for structure in structures]))
        return structures

    def _look_at_threads(self) -> float:
        """Seconds that the worker's threads have run, once its thread has gone to sleep after its reply."""
        time.sleep(_REST_SECONDS)
        return self._ran_seconds()

    def _ran_seconds(self) -> float:
        return cpu_seconds([self._function.worker.pid])

    def _run_calls(self, request: RunCalls, clock: native.Clock, drawn: Sequence[tuple[int, int]]) -> None:
        """Have the worker's host make the calls of a pass."""
        worker, context = self._function.worker, self._function.context
        context.give_way()
        worker.post(request)
        self._run_clock(clock, drawn, Launch.HOST, self._patience_ns if request.kind == native.SOLUTION else 0)
        check_reply(worker.answer(context.timeout_seconds), request, Done)

    def _run_clock(
        self, clock: native.Clock, drawn: Sequence[tuple[int, int]], launch: Launch, patience_ns: int
    ) -> bool:
        """Time the calls of a pass; returns whether the worker had to look whether its device has failed."""
        worker, timeout = self._function.worker, self._function.context.timeout_seconds
        address, delays = ctypes.addressof(self._mailbox), [SECRET.randrange(_MAX_DELAY_NS) for _ in drawn]
        call, since, has_answered, is_asked = 0, time.monotonic(), False, False
        while not self._module.run_clock(
            address,
            clock,
            drawn,
            delays,
            patience_ns=patience_ns,
            ends_on_device=launch is Launch.DEVICE,
            slice_seconds=_SLICE_SECONDS,
        ):
            if clock.call != call:
                call, since = clock.call, time.monotonic()
            if has_answered:  # before the last look at the mailbox
                check_reply(worker.answer(timeout), RunCalls(0, False, 0), Done)
                problem = "the worker answered before all calls of a pass had ended"
                raise WorkerLost(problem, is_forgery=not is_asked, is_timeout=is_asked)
            has_answered = worker.has_answered()
            if launch is Launch.DEVICE and not is_asked and time.monotonic() - since > _STALL_SECONDS:
                worker.post(RunCalls(native.NOTHING, False, 0))  # a device that has failed is known at once
                is_asked = True
            if time.monotonic() - since > timeout:
                worker.close()
                problem = f"call {call} of a pass sent no digest within {timeout:g} s"
                raise WorkerLost(problem, is_timeout=True)
        if is_asked:
            check_reply(worker.answer(timeout), RunCalls(0, False, 0), Done)
        return is_asked

    @property
    def _patience_ns(self) -> int:
        is_long = self._shortest_ns > _MIN_PATIENCE_NS and not self._function.context.is_cuda
        return int(_PATIENCE_SHARE * self._shortest_ns) if is_long else 0

    # -- what the calls must have read and written ---------------------------------------------------

    def recompute(self, made: TimedPass, outputs: torch.Tensor) -> list[int]:
        """Recompute the digests of a pass from copies of its outputs; returns the calls that left poison there.

        Shapes:
            outputs: ``[calls, bytes]``
        """
        places = [
            native.Output(source=outputs.data_ptr() + place.offset, target=0, bytes=tensor_in(outputs[0], place).nbytes)
            for place in self._function.layout.outputs.values()
        ]
        call = native.call_of((), places, stride=outputs.stride(0))
        digests, unwritten = self._module.recompute(call, made.words, self._pattern, outputs.device)
        if digests != list(made.digests):
            wrong = [index for index, pair in enumerate(zip(digests, made.digests, strict=True)) if len(set(pair)) > 1]
            problem = (
                f"{len(wrong)} of {len(digests)} digests that stopped the clock are not those of the outputs after a "
                "flush: outputs were changed after the call, or the pass was not the one that was composed"
            )
            raise Rejected(EvaluationStatus.REWARD_HACK, problem)
        return unwritten

    def inputs_of(self, calls: Sequence[tuple[int, int]]) -> torch.Tensor:
        """The inputs that calls have read, ``[calls, bytes]``; each has a key and a set of structural integers."""
        targets = self._base.repeat(len(calls), 1)
        for (key, structure), target in zip(calls, targets, strict=True):
            write_tensors(self._function.layout.input_tensors(target), self._structures[structure])
            fill(self._recipes, self._function.layout, target, self._base, key)
        return targets
