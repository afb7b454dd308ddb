"""Passes of one function, the judge's clock around every call of them, and their verification.

A pass makes one call in each slot. For each call the judge sends a fresh word; the worker's device prepares the call
and says so; then the judge starts its clock and sends another word. The digest of the outputs, which depends on both,
stops it. In the order *cold* the first word is the key from which the inputs are generated, and the cache is flushed
after that; in the order *fresh* the second one is, so that nothing about the inputs exists before the clock runs.

A pass counts only if the digests that stopped the clock are those of the outputs in the slots and all calls wrote all
outputs. Calls drawn from all passes alike are compared with fresh answers of the reference. What this needs is copied
right after a pass, so that several passes can follow each other while the judge has the device alone.
"""

from __future__ import annotations

import ctypes
import enum
import fcntl
import math
import mmap
import os
import re
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import attrs
import torch
from fib_schema import EvaluationStatus

from ..checking.precision import PrecisionWatch
from ..evaluators.protocol import Observation
from ..events import Phase
from ..inputs.recipes import native_input, sealed
from ..recipe import Recipe
from ..secure_random import SECRET
from ..timing.handshake import native
from ..transport.arenas import tensor_in
from ..transport.messages import Composed, ComposePass, Done, LaunchPass, OpenPasses, RunCalls
from ..worker.client import NotCapturable, Rejected, WorkerLost
from ..worker.outside_checks import cpu_seconds
from .functions import BoundFunction, InputsChanged
from .prepared import GENERATED, PreparedWorkload, fill, write_tensors

_SLICE_SECONDS = 0.25  # without an answer, after which the judge looks whether the worker lives
_HOST_CALLS = 16  # of a pass that the host launches beside a device: each takes as long as several others
_STALL_SECONDS = 5.0  # without a digest, after which the worker looks whether its device has failed
_MAX_DELAY_NS = 3000  # from the end of the preparation to the start of the clock, drawn for each call
_PATIENCE_SHARE = 0.6  # of the shortest call, for which the judge leaves a CPU alone
_MIN_PATIENCE_NS = 200_000
_NO_READING = 2**32 - 1  # of the worker's clock: the call took longer
_REST_SECONDS = 1e-4  # the worker's thread goes to sleep after its reply
_MOST_LINES, _MOST_CHARS, _STRANGE = 20, 120, re.compile(r"[^\w .:()<>-]")  # of what a worker reports
_STRUCTURES, _STRUCTURE_BYTES = 192, 1 << 27  # sets of structural integers for the passes of a burst
_STRUCTURE_SECONDS = 0.25  # for making them: functions of problems take longer than draws of integers
MIN_VERIFIED = 10
"""Calls of the published latency that are compared at least, unless the reference takes too long."""
_KEPT_BYTES, _UNVERIFIED_BYTES, _BATCH_BYTES = 1 << 29, 1 << 30, 1 << 28
_INPUTS_LOOKED_AT = 2  # calls of a pass whose inputs must still be as they were made
_MOST_CALLS, _FEW_CALLS = native.MAX_CALLS // 2, 8  # one without a call precedes each
_PASS_NS, _LONG_PASS_NS = 1e8, 4e8  # of many calls, and of few: other judges wait meanwhile
_SECONDS, _MORE_SECONDS = 0.15, 2.0  # for comparisons, and until enough calls are compared
_MAJORITY = 7  # however slow the reference: among so many, a majority of wrong calls is found with 99 %

_Call: TypeAlias = tuple[int, int]
"""The key of a call, and its set of structural integers."""


def reported_lines(given: Sequence[str]) -> Sequence[str]:
    """Lines of a solution, whose file names it has chosen."""
    return [_STRANGE.sub("?", line)[:_MOST_CHARS] for line in given[:_MOST_LINES]]


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


def is_paired(kind: int, order: Order, launch: Launch) -> bool:
    """Whether each call of such a pass is preceded by the same without a call."""
    return (kind, order, launch) == (native.SOLUTION, Order.COLD, Launch.DEVICE)


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
    nothing_ns: Sequence[int] = ()
    """The same as `taken_ns` without a call, right before each; none where passes of their own make these."""
    nothing_digests: Sequence[int] = ()


class Passes:
    """The passes of one function over its slots; `call_ns` is what a call takes about.

    Structural integers, as those of page tables, are drawn by the judge; other inputs are generated for each call.
    The slots of the function hold `base`, of which this is a copy. `redraw` draws structural integers, which else stay.
    """

    def __init__(
        self,
        function: BoundFunction,
        recipes: Mapping[str, Recipe],
        base: torch.Tensor,
        redraw: Callable[[], Mapping[str, torch.Tensor]] | None = None,
        call_ns: float = 0.0,
    ) -> None:
        self._function, self._recipes, self._base, self._redraw = function, recipes, base, redraw
        self._module = native.open_native(function.context.device)
        within, at_most = (int(ns / max(call_ns, 1.0)) for ns in (_PASS_NS, _LONG_PASS_NS))
        self.calls: int = min(function.slots.count, _MOST_CALLS, max(within, min(_FEW_CALLS, at_most), 2))
        self._pattern = SECRET.getrandbits(64)
        self._composed: list[tuple[int, Order]] = []
        self.reads: Sequence[str] = ()
        self.waits: Sequence[str] = ()
        """Lines of the solution that read from the device, or wait for it, in a captured call; untrusted."""
        self._held: Sequence[int] = ()  # the set of structural integers in each slot that calls were captured with
        self._shortest_ns = 0
        self._structures: list[Mapping[str, torch.Tensor]] = [{}]
        self._current: Sequence[int] = (0,)
        self._unseen: list[int] = []  # sets that no call has read yet: timed calls get them, or a memo would pay
        self.redraw()
        places, slot = function.layout.outputs.values(), function.slots.outputs[0]
        self._outputs = [(place.offset, tensor_in(slot, place).nbytes) for place in places]
        positions = {name: function.layout.message.inputs.index(slot) for name, slot in function.layout.inputs.items()}
        found = [sealed(name, positions[name], value) for name, value in self._structures[-1].items()]
        self._sealed = [recipe for recipe in found if recipe is not None][: native.MAX_INPUTS - len(recipes)]
        self._mailbox = self._open()
        self.nodes = 0
        """Kernels, copies and fills of one captured call."""

    def _open(self) -> native.Mailbox:
        descriptor = os.memfd_create("fib-mailbox", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, native.MAILBOX_BYTES)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)  # else it could end us
            page = mmap.mmap(descriptor, native.MAILBOX_BYTES)
            request = OpenPasses(self._pattern, (*self._recipes.values(), *self._sealed))
            self._function.ask(request, Done, descriptors=(descriptor,))
        finally:
            os.close(descriptor)
        return native.Mailbox.from_buffer(page)  # which keeps the page mapped

    @property
    def changed_names(self) -> frozenset[str]:
        """The inputs whose values differ between calls."""
        return frozenset(self._recipes).union(*self._structures)

    @property
    def output_bytes(self) -> int:
        """The bytes that a call writes."""
        return sum(size for _, size in self._outputs)

    def redraw(self) -> None:
        """Draw the structural integers of the next passes: a plan that was made for others is of no use."""
        if self._redraw is not None:
            begin, first = len(self._structures), self._redraw()
            size = max(sum(tensor.nbytes for tensor in first.values()), 1)
            count = max(1, min(_STRUCTURES, _STRUCTURE_BYTES // size))
            self._structures.append(first)
            end = time.monotonic() + _STRUCTURE_SECONDS
            while len(self._structures) < begin + count and time.monotonic() < end:
                self._structures.append(self._redraw())
            self._take(range(begin, len(self._structures)))

    def replace(self, integers: Mapping[str, torch.Tensor]) -> None:
        """Take these structural integers for all calls of the next passes."""
        self._structures.append({**self._structures[self._current[0]], **integers})
        self._take((len(self._structures) - 1,))

    def _take(self, structures: Sequence[int]) -> None:
        """Take these sets from now on. What a captured call has read from others is captured anew."""
        self._current, self._unseen = structures, SECRET.sample(structures[1:], len(structures) - 1)
        if self.reads:
            composed, self._composed = self._composed, [each for each in self._composed if each[0] != native.SOLUTION]
            for kind, order in composed:
                self.compose(kind, order)

    def compose(self, kind: int, order: Order) -> None:
        """Have the worker capture the calls and compose a pass."""
        if (kind, order) in self._composed:
            return
        is_anew = kind == native.SOLUTION and not any(known == kind for known, _ in self._composed)
        if is_anew:
            self._held = self._choose_structures(self.calls, is_new=True)
            self._load_structures(self._held)
        reply = self._function.ask(ComposePass(kind, order is Order.FRESH, self.calls, is_anew), Composed)
        self._composed.append((kind, order))
        if kind == native.SOLUTION:
            if not min(2, self.calls) <= reply.calls <= self.calls or (self.nodes and reply.calls != self.calls):
                raise WorkerLost("the worker composed another number of calls than was asked for", is_forgery=True)
            self.calls, self._held = reply.calls, self._held[: reply.calls]
            self.nodes, self.reads, self.waits = reply.nodes, reported_lines(reply.reads), reported_lines(reply.waits)

    def run(
        self, kind: int, order: Order, launch: Launch, *, is_watched: bool = False, is_new: bool = True
    ) -> TimedPass:
        """Make one pass; one that the device launches is composed.

        `is_watched`: observe the worker's threads beside a launch by the device. `is_new`: give calls unread integers.
        """
        held = self._held if self.reads and kind == native.SOLUTION and launch is Launch.DEVICE else ()
        is_cuda = self._function.context.is_cuda
        calls = min(self.calls, _HOST_CALLS) if is_cuda and launch is Launch.HOST else self.calls
        structures = held or self._choose_structures(calls, is_new=is_new and kind == native.SOLUTION)
        count = calls * (each := 2 if is_paired(kind, order, launch) else 1)
        secret = iter(struct.unpack(f"{3 * count}Q", os.urandom(24 * count)))
        drawn = [(next(secret) | 1, next(secret) | 1, next(secret) % _MAX_DELAY_NS) for _ in range(count)]
        words = [(start, go, go if order is Order.FRESH else start) for start, go, _ in drawn[each - 1 :: each]]
        self._load_structures(structures, [key for _, _, key in words])
        ctypes.memset(ctypes.addressof(self._mailbox), 0, native.MAILBOX_BYTES)
        clock = native.Clock()
        if launch is Launch.DEVICE:
            self._function.ask(LaunchPass(kind, order is Order.FRESH, calls), Done)
            if is_watched:
                time.sleep(_REST_SECONDS)
            threads = [self._function.worker.pid]
            before = cpu_seconds(threads)
            is_asked = self._run_clock(clock, drawn, launch, self._function.context.request_seconds)
            end_ns = clock.end - clock.t1[count - 1]
            ran_seconds = cpu_seconds(threads) - before if is_watched and not is_asked else None
        else:
            end_ns, ran_seconds = 0, None
            is_long = kind == native.SOLUTION and self._shortest_ns > _MIN_PATIENCE_NS and not is_cuda
            seconds = self._function.begin_request()
            self._function.worker.post(RunCalls(kind, order is Order.FRESH, calls))
            self._run_clock(clock, drawn, launch, seconds, int(_PATIENCE_SHARE * self._shortest_ns) if is_long else 0)
        if any(self._mailbox.start[:count]) or any(self._mailbox.go[:count]):
            raise WorkerLost("calls went on without the judge, which was stopped for too long", is_timeout=True)
        if repeated := clock.repeated.bit_count():
            problem = f"words of {repeated} calls came twice: something else than the end of a call stopped the clock"
            raise Rejected(EvaluationStatus.REWARD_HACK, problem)
        spans = [end - begin for begin, end in zip(clock.t0[:count], clock.t1[:count], strict=True)]
        taken, others = spans[each - 1 :: each], (spans[::2], clock.stop[:count:2]) if each == 2 else ((), ())
        if not is_cuda:
            own = (each if each < _NO_READING else math.inf for each in self._mailbox.own_ns[:calls])
            taken = [int(min(pair)) for pair in zip(taken, own, strict=True)]
        if kind == native.SOLUTION:
            self._shortest_ns = min(taken)
        stop, free = clock.stop[each - 1 : count : each], min(self._mailbox.free_sms[:count]) if is_cuda else None
        return TimedPass(taken, words, stop, structures, free, end_ns, ran_seconds, *others)

    def _choose_structures(self, calls: int, *, is_new: bool) -> Sequence[int]:
        """The set of structural integers of each call."""
        new = [self._unseen.pop() for _ in range(min(calls, len(self._unseen)) if is_new else 0)]
        return [*new, *(SECRET.choice(self._current if is_new else self._current[:1]) for _ in range(calls - len(new)))]

    def _load_structures(self, structures: Sequence[int], keys: Sequence[int] = ()) -> None:
        """Put structural integers into the slots; with keys encrypted, where no call can plan for others."""
        names = self._structures[structures[0]]
        if not names:
            return
        values = {name: torch.stack([self._structures[structure][name] for structure in structures]) for name in names}
        for recipe in self._sealed if keys else ():
            address, size = values[recipe.name].data_ptr(), values[recipe.name][0].nbytes
            self._module.refill([native_input(recipe, address, address)], keys, size, size)
        places = self._function.layout.input_tensors(self._function.slots.inputs[: len(structures)])
        for name, value in values.items():  # others that share the slots have loaded theirs meanwhile
            places[name].copy_(value)

    def _run_clock(
        self, clock: native.Clock, words: Sequence[tuple[int, int, int]], launch: Launch, seconds: float, rest: int = 0
    ) -> bool:
        """Time the calls of a pass, each within some seconds; the judge rests for nanoseconds once a call has begun.

        Returns whether the worker had to look whether its device has failed.
        """
        worker, context = self._function.worker, self._function.context
        on_device, address = launch is Launch.DEVICE, ctypes.addressof(self._mailbox)
        call, has_answered, is_asked = 0, False, False
        begin = since = time.monotonic()
        while not self._module.run_clock(
            address, clock, words, patience_ns=rest, ends_on_device=on_device, slice_seconds=_SLICE_SECONDS
        ):
            if clock.call != call:
                call, since = clock.call, time.monotonic()
            if has_answered:  # before the last look at the mailbox
                worker.answer(Done, seconds)
                problem = "the worker answered before all calls of a pass had ended"
                raise WorkerLost(problem, is_forgery=not is_asked, is_timeout=is_asked)
            has_answered = worker.has_answered()
            if on_device and not is_asked and time.monotonic() - since > _STALL_SECONDS:
                worker.post(RunCalls(native.NOTHING, False, 0))  # a device that has failed is known at once
                is_asked = True
            if time.monotonic() - since > seconds:
                worker.close()
                problem = f"call {call} of a pass sent no digest within {seconds:g} s"
                raise WorkerLost(problem, is_timeout=True)
            if time.monotonic() - begin > context.timeout_seconds:
                worker.close()
                raise WorkerLost(f"a pass did not end within {context.timeout_seconds:g} s", is_timeout=True)
        worker.waited_seconds += min(time.monotonic() - begin, seconds)
        if is_asked or not on_device:
            worker.answer(Done, seconds)
        return is_asked

    # -- what the calls must have read and written ---------------------------------------------------

    def recompute(self, made: TimedPass, outputs: torch.Tensor) -> list[int]:
        """Recompute the digests of a pass from copies of outputs, ``[calls, bytes]``; returns the calls with poison."""
        begin = outputs.data_ptr()
        places = [native.Output(source=begin + offset, target=0, bytes=size) for offset, size in self._outputs]
        call = native.call_of((), places, stride=outputs.stride(0))
        digests, unwritten = self._module.recompute(call, made.words, made.digests, self._pattern, outputs.device)
        if digests != list(made.digests):
            wrong = [index for index, pair in enumerate(zip(digests, made.digests, strict=True)) if len(set(pair)) > 1]
            problem = (
                f"{len(wrong)} of {len(digests)} digests that stopped the clock are not those of the outputs after a "
                "flush: outputs were changed after the call, or the pass was not the one that was composed"
            )
            raise Rejected(EvaluationStatus.REWARD_HACK, problem)
        return unwritten

    def inputs_of(self, calls: Sequence[_Call]) -> torch.Tensor:
        """The inputs that calls have read, ``[calls, bytes]``."""
        layout, targets = self._function.layout, self._base.repeat(len(calls), 1)
        for (_, structure), target in zip(calls, targets, strict=True):
            if values := self._structures[structure]:
                write_tensors(layout.input_tensors(target), values)
        fill(self._recipes, layout, targets, self._base, *(key for key, _ in calls))
        return targets


class Sample(enum.Enum):
    """A set of calls of which some are compared; the value is how many at most."""

    PUBLISHED = 60
    """Those whose median is the published latency: `detected_share` is that of wrong calls among them."""
    OTHER = 30
    """All other timed calls."""
    MOVED = 4
    """Calls whose pages have moved between requests: not timed, and compared before others."""


Answer: TypeAlias = Callable[[torch.Tensor], torch.Tensor | None]
"""The outputs of the reference for several inputs, ``[calls, bytes]`` each; None if it answers no more."""


class Verification:
    """Verifies the timed calls of one function.

    Eager calls decide where replays of a capture fail, which may have missed work. Calls are kept only to be compared.
    """

    def __init__(
        self,
        function: BoundFunction,
        passes: Passes,
        prepared: PreparedWorkload,
        *,
        is_captured: bool,
        is_compared: bool,
    ) -> None:
        self._function, self._passes, self._prepared = function, passes, prepared
        self._is_captured, self._is_compared = is_captured, is_compared
        self.made, self.compared = Counter[Sample](), Counter[Sample]()
        """Calls, and those of them that were compared with fresh answers of the reference."""
        self._unverified: list[tuple[TimedPass, Sample, torch.Tensor, Mapping[int, torch.Tensor]]] = []
        """Timed passes with copies of all their outputs, ``[calls, bytes]``, and of the inputs of some calls."""
        self._kept: dict[Sample, list[tuple[Sample, _Call, torch.Tensor]]] = {sample: [] for sample in Sample}
        """Calls that may be compared with fresh answers, and their outputs."""
        self._observed: list[Observation] = []
        self.precision = PrecisionWatch(prepared.error_bounds)
        """The precision of timed outputs: a function can compute with less only where it is timed."""

    def room_for(self, passes: int) -> int:
        """The number of passes that can follow each other without verification, from one to `passes`."""
        slots = self._function.slots
        size = slots.outputs[: self._passes.calls].nbytes + _INPUTS_LOOKED_AT * slots.inputs[0].nbytes
        return max(1, min(passes, _UNVERIFIED_BYTES // max(size, 1)))

    def add(self, made: TimedPass, sample: Sample) -> None:
        """Copy what the verification of the last pass needs."""
        slots, calls = self._function.slots, len(made.words)
        looked_at = SECRET.sample(range(calls), min(_INPUTS_LOOKED_AT, calls))
        inputs = {index: slots.inputs[index].clone() for index in looked_at}
        self._unverified.append((made, sample, slots.outputs[:calls].clone(), inputs))

    def verify(self) -> None:
        """Recompute the digests of the passes since the last time, and check that all outputs were written."""
        waiting, self._unverified = self._unverified, []
        for made, sample, outputs, inputs in waiting:
            self._function.context.give_way()
            if unwritten := self._passes.recompute(made, outputs):
                problem = f"{len(unwritten)} of {len(made.words)} timed calls left outputs unwritten"
                self._reject(Rejected(EvaluationStatus.INCORRECT_NUMERICAL, problem))
            calls = [(key, structure) for (_, _, key), structure in zip(made.words, made.structures, strict=True)]
            found, wanted = torch.stack([*inputs.values()]), self._passes.inputs_of([calls[index] for index in inputs])
            if not torch.equal(wanted, found):
                raise InputsChanged(self._function.layout, found, wanted)
            for call, each in zip(calls, outputs, strict=True):
                self._keep(sample, call, each)

    def _keep(self, sample: Sample, call: _Call, outputs: torch.Tensor) -> None:
        """Keep a call or not: of all calls of a sample each has the same chance."""
        kept, most = self._kept[sample], max(1, min(sample.value, _KEPT_BYTES // max(outputs.nbytes, 1)))
        self.made[sample] += 1
        place = len(kept) if len(kept) < most else SECRET.randrange(self.made[sample])
        if self._is_compared and place < most:
            kept[place : place + 1] = [(sample, call, outputs.clone())]

    def finish(self, answer: Answer) -> None:
        """Compare some calls with fresh answers, outside the exclusive time."""
        self.verify()
        waiting = self._drawn()
        seconds = self._function.context.seconds
        begin, count = seconds(), 2
        most = max(1, min(self._function.slots.count, _BATCH_BYTES // max(self._function.layout.size_bytes, 1)))
        while waiting:
            spent, compared = seconds() - begin, self.compared[Sample.PUBLISHED]
            if spent > _SECONDS and compared >= (MIN_VERIFIED if spent < _MORE_SECONDS else _MAJORITY):
                break
            some, waiting = waiting[: min(count, most)], waiting[min(count, most) :]
            if not self._compare(answer, some):
                break
            count *= 2
        try:
            self._function.judge_together(self._prepared, self._observed, "timed calls")
        except Rejected as error:
            self._reject(error)

    def _drawn(self) -> list[tuple[Sample, _Call, torch.Tensor]]:
        """The calls to compare, in random order: those with moved pages first, then two published ones to each other.

        A median is lower only if most calls are, and these might be wrong: a slow reference answers for few calls.
        """
        published, other, moved = (SECRET.sample(kept, len(kept)) for kept in (self._kept[sample] for sample in Sample))
        self._kept = {sample: [] for sample in Sample}
        order = [(index / 2, item) for index, item in enumerate(published)]
        order += [(index + 0.75, item) for index, item in enumerate(other)]
        return [*moved, *(item for _, item in sorted(order, key=lambda pair: pair[0]))]

    def _compare(self, answer: Answer, some: Sequence[tuple[Sample, _Call, torch.Tensor]]) -> bool:
        """Compare some calls; returns whether the reference has answered."""
        inputs = self._passes.inputs_of([call for _, call, _ in some])
        outputs = torch.stack([each for _, _, each in some])
        with self._function.context.phases.during(Phase.REFERENCE):
            expected = answer(inputs)
        if expected is None:
            return False
        if not self._are_all_right(outputs, expected):  # or they cannot be compared so: one by one
            for each in zip(inputs, outputs, expected, strict=True):
                self._compare_one(*each)
        self.compared.update(sample for sample, _, _ in some)
        return True

    def _are_all_right(self, outputs: torch.Tensor, answers: torch.Tensor) -> bool:
        if not self._prepared.checker.evaluator.has_one_rule:
            return False
        layout, parts = self._function.layout, self._prepared.generated.check.parts
        found, expected = layout.output_tensors(outputs), layout.output_tensors(answers)
        comparisons = [part.compare_calls(found[name], expected[name]) for name, part in parts.items()]
        if any(comparison.wrong for comparison in comparisons):
            return False
        self._function.comparisons += comparisons
        self.precision.record(found, expected)
        return True

    def _compare_one(self, inputs: torch.Tensor, outputs: torch.Tensor, expected: torch.Tensor) -> None:
        layout, config = self._function.layout, self._prepared.timed_config
        item = self._prepared.checker.input_set(GENERATED, layout, inputs, expected, config=config)
        try:
            self._function.compare(item, outputs, "timed calls")
        except Rejected as error:
            self._reject(error)
        self.precision.record(layout.output_tensors(outputs[None]), layout.output_tensors(expected[None]))
        if item.check.trials:
            self._observed.append(item.observe(outputs))

    def _reject(self, error: Rejected) -> None:
        """Raise; a capture may have missed work, and then eager calls decide."""
        if self._is_captured:
            raise NotCapturable(error.message)
        raise error

    def to_extra(self) -> Mapping[str, object]:
        """The fields of a trace's timing; `detected_share` of wrong published calls would have been seen with 99 %."""
        timed, published = (Sample.PUBLISHED, Sample.OTHER), self.compared[Sample.PUBLISHED]
        return {
            "timed_calls": sum(self.made[sample] for sample in timed),
            "verified_calls": sum(self.compared[sample] for sample in timed),
            "detected_share": round(1 - 0.01 ** (1 / published), 4) if published else None,
        }
