"""Verification of timed calls.

A pass counts only if the digests that stopped the clock are those of the outputs in the slots and all calls wrote all
outputs. Calls drawn from all passes alike are compared with fresh answers of the reference. What this needs is copied
right after a pass, so that several passes can follow each other while the judge has the device alone.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import attrs
import torch
from fib_schema import EvaluationStatus

from ..checking.precision import PrecisionWatch
from ..evaluators.protocol import Observation
from ..events import Phase
from ..secure_random import SECRET
from ..transport.slots import CallLayout
from .function_worker import NotCapturable, Rejected
from .passes import Passes, TimedPass
from .prepared import GENERATED, InputSet, PreparedWorkload
from .timed_function import InputsChanged, TimedFunction, has_one_value, kept_answer

MIN_VERIFIED = 10
"""Calls of the published latency that are compared at least, unless the reference takes too long."""
_KEPT_BYTES, _UNVERIFIED_BYTES, _BATCH_BYTES = 1 << 29, 1 << 30, 1 << 28
_INPUTS_LOOKED_AT = 2  # calls of a pass whose inputs must still be as they were made
_SECONDS, _MORE_SECONDS = 0.15, 2.0  # for comparisons, and until enough calls are compared
_MAJORITY = 7  # however slow the reference: among so many, a majority of wrong calls is found with 99 %


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


@attrs.frozen(eq=False)
class _Unverified:
    """A pass that was timed, with copies of what its verification needs."""

    made: TimedPass
    sample: Sample
    outputs: torch.Tensor
    """``[calls, bytes]``"""
    looked_at: Sequence[int]
    inputs: torch.Tensor
    """The inputs of these calls after the pass, ``[looked_at, bytes]``."""


@attrs.frozen(eq=False)
class _Kept:
    """A call that may be compared with a fresh answer."""

    sample: Sample
    call: tuple[int, int]
    """Its key and its set of structural integers."""
    outputs: torch.Tensor
    """``[bytes]``"""


class Verification:
    """Verifies the timed calls of one function.

    Args:
        function: Its slots are bound.
        passes: Its passes.
        prepared: What is right.
        is_captured: Whether calls are replays of a capture, which may have missed work: then eager calls decide.
        is_compared: Whether calls are kept for `finish`.
    """

    def __init__(
        self,
        function: TimedFunction,
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
        self._unverified: list[_Unverified] = []
        self._kept: dict[Sample, list[_Kept]] = {sample: [] for sample in Sample}
        self._observed: list[Observation] = []
        self._precision = PrecisionWatch(prepared.error_bounds)

    @property
    def precision_flags(self) -> list[str]:
        """Flags of the precision of timed outputs: a function can compute with less only where it is timed."""
        return self._precision.flags()

    # -- digests -------------------------------------------------------------------------------------

    def room_for(self, passes: int) -> int:
        """The number of passes that can follow each other without verification, from one to `passes`."""
        slots = self._function.slots
        size = slots.outputs[: self._passes.calls].nbytes + _INPUTS_LOOKED_AT * slots.inputs[0].nbytes
        return max(1, min(passes, _UNVERIFIED_BYTES // max(size, 1)))

    def add(self, made: TimedPass, sample: Sample) -> None:
        """Copy what the verification of the last pass needs."""
        slots, calls = self._function.slots, len(made.words)
        looked_at = SECRET.sample(range(calls), min(_INPUTS_LOOKED_AT, calls))
        inputs = slots.inputs[torch.tensor(looked_at, dtype=torch.int64, device=slots.inputs.device)]
        self._unverified.append(_Unverified(made, sample, slots.outputs[:calls].clone(), looked_at, inputs))

    def verify(self) -> None:
        """Recompute the digests of the passes since the last time, and check that all outputs were written."""
        waiting, self._unverified = self._unverified, []
        for item in waiting:
            self._function.context.give_way()
            self._verify(item)

    def _verify(self, item: _Unverified) -> None:
        made = item.made
        if unwritten := self._passes.recompute(made, item.outputs):
            problem = f"{len(unwritten)} of {len(made.words)} timed calls left outputs unwritten"
            self._reject(Rejected(EvaluationStatus.INCORRECT_NUMERICAL, problem))
        calls = [(key, structure) for (_, _, key), structure in zip(made.words, made.structures, strict=True)]
        if not torch.equal(self._passes.inputs_of([calls[index] for index in item.looked_at]), item.inputs):
            raise InputsChanged
        for call, outputs in zip(calls, item.outputs, strict=True):
            self._keep(item.sample, call, outputs)

    def _keep(self, sample: Sample, call: tuple[int, int], outputs: torch.Tensor) -> None:
        """Keep a call or not: of all calls of a sample each has the same chance."""
        kept, most = self._kept[sample], max(1, min(sample.value, _KEPT_BYTES // max(outputs.nbytes, 1)))
        self.made[sample] += 1
        place = len(kept) if len(kept) < most else SECRET.randrange(self.made[sample])
        if self._is_compared and place < most:
            kept[place : place + 1] = [_Kept(sample, call, outputs.clone())]

    # -- fresh answers -------------------------------------------------------------------------------

    def finish(self, answer: Answer) -> None:
        """Compare some calls with fresh answers, outside the exclusive time."""
        self.verify()
        waiting = self._drawn()
        drawn = [item.outputs for item in waiting]
        seconds = self._function.context.seconds
        begin, count = seconds(), 2
        most = max(1, min(self._function.slots.count, _BATCH_BYTES // max(self._function.layout.size_bytes, 1)))
        while waiting:
            spent, compared = seconds() - begin, self.compared[Sample.PUBLISHED]
            if spent > _SECONDS and compared >= (MIN_VERIFIED if spent < _MORE_SECONDS else _MAJORITY):
                break
            some, waiting = waiting[: min(count, most)], waiting[min(count, most) :]
            if not self._compare(answer, some, drawn):
                break
            count *= 2
        try:
            self._function.judge_together(self._prepared, self._observed, "timed calls")
        except Rejected as error:
            self._reject(error)

    def _drawn(self) -> list[_Kept]:
        """The calls to compare, in random order: those with moved pages first, then two published ones to each other.

        A median is lower only if most calls are, and these might be wrong: a slow reference answers for few calls.
        """
        published, other, moved = (SECRET.sample(kept, len(kept)) for kept in (self._kept[sample] for sample in Sample))
        self._kept = {sample: [] for sample in Sample}
        order = [(index / 2, item) for index, item in enumerate(published)]
        order += [(index + 0.75, item) for index, item in enumerate(other)]
        return [*moved, *(item for _, item in sorted(order, key=lambda pair: pair[0]))]

    def _compare(self, answer: Answer, some: Sequence[_Kept], drawn: Iterable[torch.Tensor]) -> bool:
        """Compare some calls; returns whether the reference has answered."""
        inputs = self._passes.inputs_of([item.call for item in some])
        outputs = torch.stack([item.outputs for item in some])
        with self._function.context.phases.during(Phase.REFERENCE):
            expected = answer(inputs)
        if expected is None:
            return False
        if not self._are_all_right(outputs, expected):  # or they cannot be compared so: one by one
            for each in zip(inputs, outputs, expected, strict=True):
                self._compare_one(*each, drawn)
        self.compared.update(item.sample for item in some)
        return True

    def _are_all_right(self, outputs: torch.Tensor, answers: torch.Tensor) -> bool:
        if not self._prepared.checker.evaluator.has_one_rule:
            return False
        layout, parts = self._function.layout, self._prepared.generated.check.parts
        found, expected = layout.output_tensors(outputs), layout.output_tensors(answers)
        with self._function.context.phases.during(Phase.CHECK):
            comparisons = [part.compare_calls(found[name], expected[name]) for name, part in parts.items()]
        if any(comparison.wrong for comparison in comparisons):
            return False
        self._function.comparisons += comparisons
        self._precision.record_calls(found, expected)
        return True

    def _compare_one(
        self, inputs: torch.Tensor, outputs: torch.Tensor, expected: torch.Tensor, drawn: Iterable[torch.Tensor]
    ) -> None:
        layout, prepared = self._function.layout, self._prepared
        check = prepared.checker.check(layout, inputs, expected, config=prepared.timed_config)
        item = InputSet(GENERATED, inputs, expected, check)
        try:
            self._function.compare(item, outputs, "timed calls")
        except Rejected as error:
            kept = kept_answer(outputs, layout, item, prepared.trials)
            self._reject(error.with_evidence(kept or _repeated_answer(outputs, layout, drawn)))
        self._precision.record(layout.output_tensors(outputs), layout.output_tensors(expected))
        if check.is_observed:
            self._observed.append(item.observe(layout, outputs))

    def _reject(self, error: Rejected) -> None:
        """Raise; a capture may have missed work, and then eager calls decide."""
        if self._is_captured:
            raise NotCapturable(error.message)
        raise error

    def to_extra(self) -> Mapping[str, object]:
        """The fields of a trace's timing.

        `detected_share` of wrong calls among those of the published latency would have been seen with 99 %.
        """
        timed, published = (Sample.PUBLISHED, Sample.OTHER), self.compared[Sample.PUBLISHED]
        return {
            "timed_calls": sum(self.made[sample] for sample in timed),
            "verified_calls": sum(self.compared[sample] for sample in timed),
            "detected_share": round(1 - 0.01 ** (1 / published), 4) if published else None,
        }


def _repeated_answer(outputs: torch.Tensor, layout: CallLayout, others: Iterable[torch.Tensor]) -> str:
    """A message if another timed call with other inputs has the very same outputs, of more than one value."""
    is_repeated = not has_one_value(layout, outputs) and sum(torch.equal(outputs, other) for other in others) > 1
    return "kept outputs: they are the same in calls with other inputs" if is_repeated else ""
