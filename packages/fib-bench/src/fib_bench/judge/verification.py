"""Verification of timed calls.

A pass counts only if the digests that stopped the clock are those of the outputs in the slots and all calls wrote all
outputs. Calls drawn from all passes alike are compared with fresh answers of the reference. What this needs is copied
right after a pass, so that several passes can follow each other while the judge has the device alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import attrs
import torch
from fib_schema import EvaluationStatus

from ..checking.precision import PrecisionWatch
from ..evaluators.protocol import Observation
from ..events import Phase
from ..secure_random import SECRET
from .evidence import kept_answer, repeated_answer
from .passes import Passes, TimedPass
from .prepared import InputSet, PreparedWorkload
from .rpc import NotCapturable, Rejected
from .timed_function import TimedFunction

MIN_VERIFIED = 10
"""Timed calls that are compared with fresh answers at least, unless the reference takes too long."""
_SAMPLED = 90  # calls of all passes that wait for a comparison
_KEPT_BYTES, _UNVERIFIED_BYTES, _BATCH_BYTES = 1 << 30, 1 << 30, 1 << 28
_INPUTS_LOOKED_AT = 2  # calls of a pass whose inputs must still be as they were made
_FIRST = 1 << 62
_SECONDS, _MORE_SECONDS = 0.15, 2.0  # for comparisons, and until enough calls are compared


class FreshAnswers(Protocol):
    """Answers of the reference about inputs of timed calls."""

    @property
    def failure(self) -> str:
        """Reason for the end of the answers; empty while there are more."""
        ...

    def answer_each(self, inputs: torch.Tensor) -> torch.Tensor | None:
        """Call the reference on several input sets; None if it failed, or cannot be asked so.

        Shapes:
            inputs: ``[calls, bytes]``, as is what is returned.
        """
        ...

    def answer(self, slot: int, inputs: torch.Tensor) -> InputSet | None:
        """Call the reference on inputs, in a slot; None if it failed.

        Raises:
            Rejected: Someone wrote to the inputs.
        """
        ...


@attrs.frozen(eq=False)
class _Unverified:
    """A pass that was timed, with copies of what its verification needs."""

    made: TimedPass
    outputs: torch.Tensor
    """``[calls, bytes]``"""
    looked_at: Sequence[int]
    inputs: torch.Tensor
    """The inputs of these calls after the pass, ``[looked_at, bytes]``."""
    must_compare: int


@attrs.frozen(eq=False)
class _Sampled:
    """A timed call that may be compared with a fresh answer."""

    lot: int
    key: int
    structure: int
    outputs: torch.Tensor
    """``[bytes]``"""


class Verification:
    """Verifies the timed calls of one function.

    Args:
        function: Its slots are bound.
        answers: The reference; None if there is nobody to ask.
    """

    def __init__(self, function: TimedFunction, answers: FreshAnswers | None = None) -> None:
        self._function, self.answers = function, answers
        self.is_captured = False
        """Whether calls are replays of a capture, which may have missed work: then eager calls decide."""
        self.compared = 0
        """Timed calls that were compared with fresh answers of the reference."""
        self.counted = 0
        """Timed calls, from which those to compare were drawn."""
        self._unverified: list[_Unverified] = []
        self._sampled: list[_Sampled] = []
        self._drawn: list[torch.Tensor] = []
        self._observed: list[Observation] = []
        self._precision: PrecisionWatch | None = None
        self._fixed: Callable[[int], torch.Tensor]
        self._passes: Passes

    def bind(self, passes: Passes, fixed: Callable[[int], torch.Tensor]) -> None:
        """Take the passes to verify, and what a slot with a set of structural integers held before a pass."""
        self._passes, self._fixed = passes, fixed

    @property
    def precision_flags(self) -> list[str]:
        """Flags of the precision of timed outputs: a function can compute with less only where it is timed."""
        return [] if self._precision is None else self._precision.flags()

    # -- digests -------------------------------------------------------------------------------------

    def room_for(self, passes: int) -> int:
        """The number of passes that can follow each other without verification, from one to `passes`."""
        slots = self._function.slots
        size = slots.outputs[: self._passes.calls].nbytes + _INPUTS_LOOKED_AT * slots.inputs[0].nbytes
        return max(1, min(passes, _UNVERIFIED_BYTES // max(size, 1)))

    def add(self, made: TimedPass, must_compare: int = 0) -> None:
        """Copy what the verification of the last pass needs.

        Args:
            made: The pass.
            must_compare: Calls that are compared in any case; such a pass is not timed, and no others of it are.
        """
        slots, calls = self._function.slots, len(made.words)
        looked_at = SECRET.sample(range(calls), min(_INPUTS_LOOKED_AT, calls))
        inputs = slots.inputs[torch.tensor(looked_at, dtype=torch.int64, device=slots.inputs.device)]
        self._unverified.append(_Unverified(made, slots.outputs[:calls].clone(), looked_at, inputs, must_compare))

    def verify(self) -> None:
        """Recompute the digests of the passes since the last time, and check that all outputs were written.

        Raises:
            NotCapturable: Outputs are missing, for which the capture may be to blame.
            Rejected: A pass was not the one that was composed, or inputs were changed.
        """
        waiting, self._unverified = self._unverified, []
        for item in waiting:
            self._function.context.give_way()
            self._verify(item)

    def _verify(self, item: _Unverified) -> None:
        made = item.made
        if unwritten := self._passes.recompute(made, item.outputs):
            problem = f"{len(unwritten)} of {len(made.words)} timed calls left outputs unwritten"
            self._reject(Rejected(EvaluationStatus.INCORRECT_NUMERICAL, problem))
        read = self._passes.inputs_of(
            [made.words[call][2] for call in item.looked_at],
            [self._fixed(made.structures[call]) for call in item.looked_at],
        )
        if not torch.equal(read, item.inputs):
            problem = "an input tensor was changed; a function must not write to its inputs"
            raise Rejected(EvaluationStatus.RUNTIME_ERROR, problem)
        self._sample(made, item.outputs, item.must_compare)

    def _sample(self, made: TimedPass, outputs: torch.Tensor, must_compare: int) -> None:
        """Keep calls with the highest lots: each call of all timed passes has the same chance."""
        most = max(2, min(_SAMPLED, _KEPT_BYTES // max(outputs[0].nbytes, 1))) + must_compare
        for call, (_, _, key) in enumerate(made.words[:must_compare] if must_compare else made.words):
            self.counted += not must_compare
            if self.answers is None:
                continue  # nobody to compare with
            lot = _FIRST if must_compare else SECRET.getrandbits(62)
            if len(self._sampled) < most or lot > self._sampled[-1].lot:
                self._sampled.append(_Sampled(lot, key, made.structures[call], outputs[call].clone()))
                self._sampled.sort(key=lambda item: -item.lot)
                del self._sampled[most:]

    # -- fresh answers -------------------------------------------------------------------------------

    def finish(self, prepared: PreparedWorkload) -> None:
        """Compare sampled calls with fresh answers, outside the exclusive time.

        Raises:
            NotCapturable: Outputs are wrong, for which the capture may be to blame.
            Rejected: The same, without a capture.
            WorkerLost: The worker ended.
        """
        self.verify()
        waiting, self._sampled = self._sampled, []
        self._drawn = [item.outputs for item in waiting]
        seconds = self._function.context.seconds
        begin, count = seconds(), 2
        most = max(1, min(self._function.slots.count, _BATCH_BYTES // max(self._function.layout.size_bytes, 1)))
        while waiting and self._may_ask():
            spent = seconds() - begin
            if spent > _MORE_SECONDS or (spent > _SECONDS and self.compared >= MIN_VERIFIED):
                break
            some, waiting = waiting[: min(count, most)], waiting[min(count, most) :]
            self._compare(prepared, some)
            count *= 2
        self._judge_together(prepared)

    def _may_ask(self) -> bool:
        return self.answers is not None and not self.answers.failure

    def _compare(self, prepared: PreparedWorkload, some: Sequence[_Sampled]) -> None:
        inputs = self._passes.inputs_of([item.key for item in some], [self._fixed(item.structure) for item in some])
        outputs = torch.stack([item.outputs for item in some])
        if not self._are_all_right(prepared, inputs, outputs):  # or they cannot be compared so: one by one
            for slot, (given, written) in enumerate(zip(inputs, outputs, strict=True)):
                self._compare_one(prepared, slot, given, written)

    def _are_all_right(self, prepared: PreparedWorkload, inputs: torch.Tensor, outputs: torch.Tensor) -> bool:
        if self.answers is None or not prepared.checker.evaluator.has_one_rule:
            return False
        with self._function.context.phases.during(Phase.REFERENCE):
            answers = self.answers.answer_each(inputs)
        if answers is None:
            return False
        layout, parts = self._function.layout, prepared.generated.check.parts
        found, expected = layout.output_tensors(outputs), layout.output_tensors(answers)
        with self._function.context.phases.during(Phase.CHECK):
            comparisons = [part.compare_calls(found[name], expected[name]) for name, part in parts.items()]
        if any(comparison.wrong for comparison in comparisons):
            return False
        self.compared += len(inputs)
        self._function.comparisons += comparisons
        self._watch_precision(prepared).record_calls(found, expected)
        return True

    def _compare_one(self, prepared: PreparedWorkload, slot: int, inputs: torch.Tensor, outputs: torch.Tensor) -> None:
        assert self.answers is not None
        with self._function.context.phases.during(Phase.REFERENCE):
            item = self.answers.answer(slot, inputs)
        if item is None:
            return
        layout = self._function.layout
        try:
            self._function.compare(item, outputs, "timed calls")
        except Rejected as error:
            kept = kept_answer(outputs, layout, item, prepared.trials)
            self._reject(error.with_evidence(kept or repeated_answer(outputs, layout, self._drawn)))
        self.compared += 1
        self._watch_precision(prepared).record(layout.output_tensors(outputs), layout.output_tensors(item.expected))
        if item.check.is_observed:
            self._observed.append(item.observe(layout, outputs))

    def _watch_precision(self, prepared: PreparedWorkload) -> PrecisionWatch:
        self._precision = self._precision or PrecisionWatch(prepared.error_bounds)
        return self._precision

    def _judge_together(self, prepared: PreparedWorkload) -> None:
        """Judge outputs of timed calls together, for evaluators that ask for that, as those of samplers."""
        try:
            self._function.judge_together(prepared, self._observed, "timed calls")
        except Rejected as error:
            self._reject(error)

    def _reject(self, error: Rejected) -> None:
        """Raise; a capture may have missed work, and then eager calls decide."""
        if self.is_captured:
            raise NotCapturable(error.message)
        raise error

    def to_extra(self) -> Mapping[str, object]:
        """The fields of a trace's timing: `detected_share` of wrong calls would have been seen with 99 %."""
        share = round(1 - 0.01 ** (1 / self.compared), 4) if self.compared else None
        return {"timed_calls": self.counted, "verified_calls": self.compared, "detected_share": share}
