"""Timed function. One function on one workload: its worker, its slots, single calls and their checks.

The solution, the reference and the baseline each are a `TimedFunction`. Values reported by the worker are
untrusted; verdicts use only output buffers and the judge's clock. `passes` times its calls.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from types import MappingProxyType
from typing import Self, TypeVar

import attrs
import torch
from fib_schema import EvaluationStatus

from ..checking.comparison import Comparison
from ..evaluators.protocol import Observation, Verdict
from ..events import Phase
from ..recipe import Recipe
from ..secure_random import SECRET
from ..transport.messages import (
    Call,
    Called,
    CollectAgain,
    Done,
    HasSetUp,
    Profile,
    Profiled,
    Release,
    SetUp,
    WorkerRequest,
)
from ..transport.slots import CallLayout, Slots
from ..worker.client import Worker, WorkerLost
from .device import DeviceContext
from .function_worker import Rejected, check_reply
from .prepared import InputSet, PreparedWorkload, other_values

POISON = 0xC3
"""The byte that outputs of single calls hold before the call; as a float of any width it is finite and large or odd."""
_TOGETHER_SECONDS, _MOST_TOGETHER_SECONDS = 2.0, 20.0  # for calls on the same inputs: while cheap, and in any case
_LATE_SECONDS = 0.05  # outputs that are written later than this after the return are not recognised as late
_TELLING_BYTES = 4  # fewer can equal the fill byte by chance
_MIN_UNWRITTEN_SHARE = 0.01  # fewer elements may hold the fill value by chance: as float16 it is an ordinary number
NO_RECIPES: Mapping[str, Recipe] = MappingProxyType({})
R = TypeVar("R")


class InputsChanged(Rejected):
    """An input tensor was written to."""

    def __init__(self) -> None:
        problem = "an input tensor was changed; a function must not write to its inputs"
        super().__init__(EvaluationStatus.RUNTIME_ERROR, problem)


class TimedFunction:
    """One function on one workload.

    Args:
        worker: Holds the built function.
        layout: Where the tensors of a call lie.
        slots: Calls of one timed pass.
        context: The device.
        shares_inputs_with: A function with the same inputs, which outlives this one: both read the same memory.
        has_setup: Whether ``setup`` is run on a slot before the function is called there.
        keeps_integers: Whether timed calls get the same integers in a slot each time. `has_setup` implies it,
            for this function and for those that share its inputs.
        recipes: The inputs whose values ``setup`` must not see.
    """

    def __init__(
        self,
        worker: Worker,
        layout: CallLayout,
        slots: int,
        context: DeviceContext,
        *,
        shares_inputs_with: TimedFunction | None = None,
        has_setup: bool = False,
        keeps_integers: bool = False,
        recipes: Mapping[str, Recipe] = NO_RECIPES,
    ) -> None:
        self.worker = worker
        self.layout = layout
        self.context = context
        shared = shares_inputs_with
        self.slots: Slots = Slots(layout, slots, context.device, None if shared is None else shared.slots)
        self.has_setup, self._recipes = has_setup, recipes
        self.keeps_integers: bool = has_setup or keeps_integers or (shared is not None and shared.keeps_integers)
        self.comparisons: list[Comparison] = []
        """Comparisons of all outputs so far."""
        self.findings: dict[str, Mapping[str, object]] = {}
        """Results of checks of many calls together."""
        self._release_error: WorkerLost | Rejected | None = None
        self._setup_ns: list[float] = []
        self._called: list[InputSet] = []
        self._called_slot = 0

    def __enter__(self) -> Self:
        try:
            self.ask(self.slots.message, Done, descriptors=self.slots.descriptors)
        except BaseException:
            self.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Have the worker unmap the slots, and free them; a worker that fails to is ended."""
        try:
            self.ask(Release(), Done)
        except (WorkerLost, Rejected) as error:
            self._release_error = error
            self.worker.close()
        finally:
            self.slots.close()

    def raise_if_lost(self) -> None:
        """Raise what went wrong when the slots were released: the worker has ended since."""
        if self._release_error is not None:
            raise self._release_error

    def ask(
        self,
        request: WorkerRequest,
        reply: type[R],
        *,
        extra_seconds: float = 0.0,
        descriptors: tuple[int, ...] = (),
    ) -> R:
        """Send a request to the worker, with file descriptors, and return its reply."""
        self.context.give_way()
        seconds = self.context.timeout_seconds + extra_seconds
        return check_reply(self.worker.request(request, descriptors, seconds=seconds), request, reply)

    # -- single calls ----------------------------------------------------------------------------

    def call(
        self,
        inputs: torch.Tensor,
        slot: int | None = None,
        *,
        setup_sees_values: bool = False,
        is_first: bool = False,
    ) -> torch.Tensor:
        """Call once on inputs, ``[bytes]``; returns a copy of the outputs' memory, ``[bytes]``.

        Args:
            inputs: Laid out like a slot.
            slot: None takes a secret one.
            setup_sees_values: Whether ``setup`` gets these very inputs, which it must not need.
            is_first: Whether the function and its ``setup`` may compile: they then do so while others use the device,
                and kernels that have to be tuned are called once more with the device alone.
        """
        slot = self._called_slot = SECRET.randrange(self.slots.count) if slot is None else slot
        if self.has_setup:
            seen = inputs if setup_sees_values else other_values(self._recipes, self.layout, inputs)
            self.set_up([slot], seen, is_first=is_first)
        self.slots.load(slot, inputs)
        self.slots.outputs[slot].fill_(POISON)
        self.context.synchronize()
        if is_first:
            self._call_first(slot)
        else:
            self.ask(Call(slot), Called)
        outputs = self.slots.outputs[slot].clone()  # later writes do not count
        self.check_inputs(slot, inputs)
        return outputs

    def _call_first(self, slot: int) -> None:
        with self.context.no_device_work():
            is_tuned = not self.ask(Call(slot, is_first=True), Called).untuned
        if not is_tuned:
            self.slots.outputs[slot].fill_(POISON)
            with self.context.exclusive():
                self.ask(Call(slot), Called)

    def call_each(self, inputs: torch.Tensor) -> torch.Tensor:
        """Call once on each of several inputs, ``[calls, bytes]``, in the first slots; there is no ``setup``.

        Requests are sent ahead, so that the worker does not wait for the judge between them. Returns a copy of the
        outputs' memory, ``[calls, bytes]``.
        """
        requests, used = [Call(slot) for slot in range(len(inputs))], slice(len(inputs))
        self.slots.load(used, inputs)
        self.slots.outputs[used].fill_(POISON)
        self.context.synchronize()
        self.context.give_way()
        for request in requests:
            self.worker.post(request)
        replies = [self.worker.answer(self.context.timeout_seconds) for _ in requests]
        for request, reply in zip(requests, replies, strict=True):
            check_reply(reply, request, Called)
        outputs = self.slots.outputs[used].clone()
        self.check_inputs(used, inputs)
        return outputs

    def check_inputs(self, slots: int | slice, inputs: torch.Tensor) -> None:
        """Compare the inputs in slots with those that were loaded; raises `InputsChanged` if they differ."""
        if not torch.equal(self.slots.inputs[slots], inputs):
            raise InputsChanged

    def check(self, item: InputSet, where: str, *, is_first: bool = False) -> torch.Tensor:
        """`call` on an input set and compare the outputs; `where` names the call in messages."""
        outputs = self.call(item.inputs, is_first=is_first)
        try:
            self.compare(item, outputs, where)
        except Rejected as error:
            evidence = kept_answer(outputs, self.layout, item, self._called) or self._find_evidence(item)
            raise error.with_evidence(evidence) from error
        self._called.append(item)
        return outputs

    def _find_evidence(self, item: InputSet) -> str:
        """Whether wrong outputs become right after a wait, or when ``setup`` sees the values; else nothing."""
        try:
            time.sleep(_LATE_SECONDS)
            self.ask(CollectAgain(), Done)
            if item.is_right(self.layout, self.slots.outputs[self._called_slot]):
                return "late outputs: they became right after the call had returned; work must end when a call returns"
            if self.has_setup and item.is_right(self.layout, self.call(item.inputs, setup_sees_values=True)):
                return "setup() computes the answer: the outputs are right only if it sees the floating values of run()"
        except (Rejected, WorkerLost):
            pass  # a second failure adds nothing
        return ""

    def compare(self, item: InputSet, outputs: torch.Tensor, where: str) -> None:
        """Compare the outputs of a call, ``[bytes]``, with those that are right; `where` names it in messages."""
        with self.context.phases.during(Phase.CHECK):
            verdict = item.compare(self.layout, outputs)
            if verdict.problems:
                problems = (*explain_unwritten(self.layout.output_tensors(outputs), POISON), *verdict.problems)
                verdict = attrs.evolve(verdict, problems=problems)
        _raise_if_wrong(verdict, where)
        self.comparisons += verdict.comparisons

    # -- many calls together ---------------------------------------------------------------------

    def check_together(self, prepared: PreparedWorkload) -> None:
        """Call many times on the same inputs and check the outputs together, for evaluators that ask for trials."""
        items = [item for item in prepared.bases if item.check.trials]
        if not items:
            return
        begin, seen = self.context.seconds(), []
        for index in range(max(item.check.most_trials for item in items)):
            taken = self.context.seconds() - begin
            is_enough = index >= max(item.check.trials for item in items)
            if taken > (_TOGETHER_SECONDS if is_enough else _MOST_TOGETHER_SECONDS):
                break
            for item in items:
                outputs = self.call(item.inputs)
                self.compare(item, outputs, f"trial {index} on the same inputs")
                seen.append(item.observe(self.layout, outputs))
        self.judge_together(prepared, seen, "many calls on the same inputs")

    def judge_together(self, prepared: PreparedWorkload, seen: Sequence[Observation], where: str) -> None:
        """Check the outputs of many calls together; `where` names the calls in messages and findings."""
        if seen:
            verdict = prepared.checker.judge_together(seen)
            _raise_if_wrong(verdict, where)
            self.findings[where] = verdict.extra

    # -- slots of timed passes -------------------------------------------------------------------

    def set_up(self, slots: Sequence[int], inputs: torch.Tensor, *, is_first: bool = False) -> None:
        """Run the function's ``setup`` on slots that hold these inputs, ``[bytes]``; `is_first` as for `call`."""
        for slot in slots:
            self.slots.load(slot, inputs)
        self.context.synchronize()
        with self.context.no_device_work() if is_first else nullcontext():
            reply = self.ask(SetUp(tuple(slots)), HasSetUp)
        if len(reply.taken_ns) != len(slots) or not all(0 <= taken < math.inf for taken in reply.taken_ns):
            raise WorkerLost(f"the worker answered a request to set up with {reply!r:.200}", is_forgery=True)
        self._setup_ns += reply.taken_ns

    def load_all(self, inputs: torch.Tensor) -> None:
        """Put one input set into all slots, and run ``setup`` on them if there is one."""
        if self.has_setup:
            self._setup_ns.clear()
            self.set_up(range(self.slots.count), other_values(self._recipes, self.layout, inputs))
        self.slots.load(slice(None), inputs)
        self.slots.base[:] = inputs

    @property
    def setup_ms(self) -> float | None:
        """The median time of ``setup`` on the slots, by the worker's clock; None without one."""
        return statistics.median(self._setup_ns) / 1e6 if self._setup_ns else None

    def profile(self) -> tuple[tuple[str, float], ...]:
        """The kernels of one call with their nanoseconds, by the worker's profiler: untrusted, none if it fails."""
        try:
            return self.ask(Profile(), Profiled).kernels
        except (Rejected, WorkerLost):
            return ()


def _raise_if_wrong(verdict: Verdict, where: str) -> None:
    if verdict.problems:
        message = "\n".join(f"{where}: {problem}" for problem in verdict.problems)
        raise Rejected(EvaluationStatus.INCORRECT_NUMERICAL, message, verdict.comparisons)


# -- what wrong outputs tell ---------------------------------------------------------------------------------


def kept_answer(outputs: torch.Tensor, layout: CallLayout, asked: InputSet, others: Iterable[InputSet]) -> str:
    """A message if outputs are right for the inputs of another call, which is an exploit and no bug; else nothing.

    Outputs of one value are no evidence: a kernel that writes nothing but zeros is wrong, not necessarily dishonest.
    """
    if has_one_value(layout, outputs):
        return ""
    for other in others:
        if other is not asked and other.is_right(layout, outputs) and not asked.is_right(layout, other.expected):
            return f"kept outputs: they are right for the inputs of an earlier call ({other.distribution})"
    return ""


def has_one_value(layout: CallLayout, outputs: torch.Tensor) -> bool:
    """Whether the elements of each output all have the same bits."""
    tensors = layout.output_tensors(outputs).values()
    rows = (tensor.contiguous().view(-1).view(torch.uint8).view(-1, tensor.itemsize) for tensor in tensors)
    return all(bool((each == each[:1]).all()) for each in rows)


def explain_unwritten(outputs: Mapping[str, torch.Tensor], fill: int) -> list[str]:
    """Messages about wrong outputs that still hold the byte `fill` from before the call, all or in part."""
    return [text for name, tensor in outputs.items() if (text := _explain(name, tensor, fill))]


def _explain(name: str, tensor: torch.Tensor, fill: int) -> str:
    if tensor.nbytes < _TELLING_BYTES:
        return ""
    elements = tensor.reshape(-1).view(torch.uint8).reshape(tensor.numel(), -1)
    is_unwritten = (elements == fill).all(dim=1)
    count, total = int(is_unwritten.sum()), tensor.numel()
    if count == total:
        return f"output {name!r} was never written: all {total} elements hold the fill value from before the call"
    if tensor.element_size() == 1 or count < _MIN_UNWRITTEN_SHARE * total:
        return ""
    first = [int(index) for index in torch.unravel_index(is_unwritten.to(torch.uint8).argmax(), tensor.shape)]
    what = f"{count} of {total} elements were never written (the first at {first})"
    return f"output {name!r}: {what}: they hold the fill value from before the call"
