"""Verification of timed calls, used by every timer.

Before a pass a `Verifier` puts fresh values into the slots, known-answer inputs into some secret slots, and
chooses other secret slots about whose inputs the reference will be asked afterwards. After the pass it
checks that every call wrote its outputs and compares those of the chosen slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs
import torch
from fib_schema import EvaluationStatus

from ..checking.comparison import Comparison
from ..checking.precision import PrecisionWatch
from ..checking.sensitivity import OutputCheck
from ..evaluators.protocol import Observation, Part
from ..events import Phase
from ..inputs.variation import vary
from ..secure_random import SECRET
from .evidence import kept_answer, stale_answer
from .prepared import InputSet, PreparedWorkload, two_of
from .rpc import NotCapturable, Rejected
from .timed_function import TimedFunction

_ORDINARY = frozenset({"normal", "variant"})  # distributions whose errors show the precision
POISON = 0x5A
"""The byte that outputs of timed calls hold before the call; another one than that of single calls."""
_CALLS_PER_KNOWN = 8  # one of eight timed calls gets known-answer inputs, on average
_MAX_KNOWN_PER_PASS = 2.0  # in one pass: comparing costs more than calling
_FEW_CALLS_NS = 2e6  # of functions that take longer there are few calls,
_FEW_CALLS_PER_KNOWN = 4  # one of four of these gets known-answer inputs, or a median could rest on unverified calls
_ASK_CHANCE, _ASK_SHARE, _ASK_SECONDS = 0.25, 0.2, 0.02
_ASK_CHANCE_AT_FIRST = 0.8  # until `_MIN_FRESH` are reached: later passes may be needed only for that
_MIN_FRESH = 4  # fresh answers for each published latency, or 2 where the reference is slow
_MIN_FRESH_OF_SLOW = 2
_MAX_ASK_SECONDS = 0.3
_MIN_OBSERVED, _MAX_OBSERVED_CALLS = 1024, 64  # elements and calls that are judged together
_UNCHANGED = "no outputs: timed calls left the poison in place, which the checked calls did not"


class FreshAnswers(Protocol):
    """Answers of the reference about inputs of timed calls."""

    @property
    def failure(self) -> str:
        """Reason for the end of the answers; empty while there are more."""
        ...

    def null_call_ns(self) -> float:
        """Nanoseconds of a request without a call in the worker of the reference; 0 if it failed."""
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
class PassPlan:
    """The calls of one pass that are verified."""

    used: range
    """The slots of the pass."""
    known: Mapping[int, InputSet]
    """The known-answer slots."""
    given: Mapping[int, torch.Tensor]
    """The inputs of the slots that the reference will answer, ``[bytes]`` each."""
    before: Mapping[int, torch.Tensor]
    """The outputs that were in both kinds of slots before the pass, ``[bytes]`` each."""


class Verifier:
    """Verifies timed calls of one function.

    Args:
        function: Its slots are filled and compared.
        answers: The reference; None if there is nobody to ask.
    """

    def __init__(self, function: TimedFunction, answers: FreshAnswers | None = None) -> None:
        self._function = function
        self.answers = answers
        self.known: Sequence[InputSet] = ()
        """Sets that known-answer slots may get, each once; `TimedFunction.load_all` returns them."""
        self.is_captured = False
        """Whether calls are replays of a capture, which may have missed work: then another timer decides."""
        self.fresh = 0
        """Timed calls that were compared with fresh answers of the reference."""
        self._precision: PrecisionWatch | None = None
        self._used_known: list[InputSet] = []
        self._ask_seconds = 0.0
        self._since: float | None = None
        self._observed: list[Observation] = []

    # -- one pass --------------------------------------------------------------------------------

    def begin(
        self, prepared: PreparedWorkload, used: range, *, call_ns: float, must_ask: bool = False, asks: int = 1
    ) -> PassPlan:
        """Fill slots for a pass, and draw the calls to verify.

        Args:
            prepared: The workload.
            used: The slots that the pass will use, without gaps.
            call_ns: About what a call takes.
            must_ask: Ask the reference in any case, rather than by chance.
            asks: About how many calls it is asked.
        """
        self._since = self._since or self._function.context.seconds()
        known = self._choose_known(used, call_ns)
        others = [slot for slot in used if slot not in known]
        drawn = SECRET.sample(others, min(asks, len(others))) if self._may_ask(must_ask) else []
        before = self._outputs_of([*known, *drawn])
        self.refresh(prepared, used)
        slots = self._function.slots
        for slot, item in known.items():
            slots.load(slot, item.inputs)
        self._function.context.synchronize()
        return PassPlan(used, known, {slot: slots.inputs[slot].clone() for slot in drawn}, before)

    def end(self, prepared: PreparedWorkload, plan: PassPlan) -> int:
        """Verify a pass; returns how many calls were compared.

        Raises:
            Rejected: Outputs are wrong or missing, or inputs were changed.
            NotCapturable: The same, for a captured call: the capture may have missed work.
        """
        after = self._outputs_of([*plan.before])
        self.check_written(prepared, plan.used)
        compared = {**plan.known, **self._ask(plan.given)}
        for slot, item in compared.items():
            self._verify(prepared, slot, item, plan.before[slot], after[slot])
        return len(compared)

    def verify_outputs(
        self, prepared: PreparedWorkload, inputs: Mapping[int, torch.Tensor], outputs: Mapping[int, torch.Tensor]
    ) -> int:
        """Compare outputs with fresh answers of the reference; the slots may have been reused since.

        The reference is called in the same slots, whose inputs are overwritten.

        Args:
            prepared: The workload.
            inputs: What the calls read, ``[bytes]`` by slot.
            outputs: What they wrote, ``[bytes]`` by slot.

        Returns:
            How many calls were compared: fewer than given if the reference fails.

        Raises:
            Rejected: Outputs are wrong.
            NotCapturable: The same, for a captured call: the capture may have missed work.
        """
        answers = self._ask(inputs)
        for slot, item in answers.items():
            self._compare(prepared, item, outputs[slot], before=None)
        return len(answers)

    def verify_many(self, prepared: PreparedWorkload, inputs: torch.Tensor, outputs: torch.Tensor) -> None:
        """Compare outputs of several calls with fresh answers of the reference, at once if all of them are right.

        The reference is called in slots, whose inputs are overwritten.

        Args:
            prepared: The workload.
            inputs: What the calls read, ``[calls, bytes]``; at most as many calls as slots.
            outputs: What they wrote, ``[calls, bytes]``.

        Raises:
            Rejected: Outputs are wrong.
            NotCapturable: The same, for a captured call: the capture may have missed work.
        """
        if not self._are_all_right(prepared, inputs, outputs):  # or they cannot be compared so: one by one
            for slot, (given, written) in enumerate(zip(inputs, outputs, strict=True)):
                self.verify_outputs(prepared, {slot: given}, {slot: written})

    def _are_all_right(self, prepared: PreparedWorkload, inputs: torch.Tensor, outputs: torch.Tensor) -> bool:
        if self.answers is None or not prepared.checker.evaluator.has_one_rule:
            return False
        begin = self._function.context.seconds()
        with self._function.context.phases.during(Phase.REFERENCE):
            answers = self.answers.answer_each(inputs)
        self._ask_seconds += self._function.context.seconds() - begin
        if answers is None:
            return False
        layout, parts = self._function.layout, prepared.variants[0].check.parts
        found, expected = layout.output_tensors(outputs), layout.output_tensors(answers)
        with self._function.context.phases.during(Phase.CHECK):
            comparisons = [_compare_calls(part, found[name], expected[name]) for name, part in parts.items()]
        if any(comparison.wrong for comparison in comparisons):
            return False
        self.fresh += len(inputs)
        self._function.comparisons += comparisons
        self._precision = self._precision or PrecisionWatch(prepared.error_bounds)
        if not self._precision.is_decided:
            self._precision.record_calls(found, expected)
        return True

    def refresh(self, prepared: PreparedWorkload, used: range | None = None) -> None:
        """Put fresh values into the inputs of slots, or of all, and poison into their outputs."""
        used = range(self._function.slots.count) if used is None else used
        function = self._function
        if prepared.varying:
            first, second = two_of(prepared.bases)
            generator = torch.Generator(function.context.device).manual_seed(SECRET.getrandbits(62))
            layout = function.layout
            sources = layout.input_tensors(first.inputs), layout.input_tensors(second.inputs)
            vary(
                layout.input_tensors(function.slots.inputs[used.start : used.stop]),
                *sources,
                prepared.varying,
                generator,
            )
        function.slots.poison(POISON, used)
        function.context.synchronize()

    def check_written(self, prepared: PreparedWorkload, used: range) -> None:
        """Reject the pass if a slot still holds poison, unless poison is a legal output.

        Raises:
            Rejected: A call wrote no outputs.
            NotCapturable: The same, for a captured call: the capture may have missed work.
        """
        unwritten = self._function.slots.unwritten(used, POISON)
        if unwritten and not prepared.may_contain(POISON):
            problem = f"{len(unwritten)} of {len(used)} timed calls wrote no outputs"
            self._reject(Rejected(EvaluationStatus.INCORRECT_NUMERICAL, problem).with_evidence(_UNCHANGED))

    # -- all passes ------------------------------------------------------------------------------

    @property
    def verified_calls(self) -> int:
        """Timed calls whose outputs were compared."""
        return self.fresh + len(self._used_known)

    @property
    def is_enough(self) -> bool:
        """Whether enough timed calls were compared with fresh answers, or no more can be had.

        Where outputs are judged together, as draws of a sampler, enough are needed to tell distributions apart.
        """
        if self.answers is None or self.answers.failure:
            return True
        if self._ask_seconds >= _MAX_ASK_SECONDS:
            return self.fresh >= _MIN_FRESH_OF_SLOW
        seen = sum(output.numel() for call in self._observed for output in call.outputs.values())
        is_seen = not self._observed or seen >= _MIN_OBSERVED or len(self._observed) >= _MAX_OBSERVED_CALLS
        return self.fresh >= _MIN_FRESH and is_seen

    @property
    def precision_flags(self) -> list[str]:
        """Flags of the precision of timed outputs: a function can compute with less only where it is timed."""
        return [] if self._precision is None else self._precision.flags()

    def check_together(self, prepared: PreparedWorkload) -> None:
        """Check the outputs of all verified calls together, for evaluators that ask for trials.

        Raises:
            Rejected: They are wrong.
            NotCapturable: The same, for a captured call: the capture may have missed work.
        """
        try:
            self._function.judge_together(prepared, self._observed, "timed calls")
        except Rejected as error:
            self._reject(error)

    def _choose_known(self, used: range, call_ns: float) -> dict[int, InputSet]:
        """Choose secret slots for known-answer inputs; no set is used twice."""
        one_of = _FEW_CALLS_PER_KNOWN if call_ns >= _FEW_CALLS_NS else _CALLS_PER_KNOWN
        whole, rest = divmod(min(len(used) / one_of, _MAX_KNOWN_PER_PASS), 1)
        slots = {SECRET.choice(used) for _ in range(int(whole) + (SECRET.random() < rest))}
        unused = [item for item in self.known if item not in self._used_known]
        chosen = dict(zip(slots, SECRET.sample(unused, min(len(slots), len(unused))), strict=False))
        self._used_known += chosen.values()
        return chosen

    def _may_ask(self, must_ask: bool) -> bool:
        """Whether to ask the reference now: by chance, while that takes a small share of the time."""
        if self.answers is None or self.answers.failure:
            return False
        if must_ask:
            return not self.is_enough
        elapsed = self._function.context.seconds() - (self._since or 0.0)
        chance = _ASK_CHANCE if self.fresh >= _MIN_FRESH else _ASK_CHANCE_AT_FIRST
        return self._ask_seconds < max(_ASK_SHARE * elapsed, _ASK_SECONDS) and SECRET.random() < chance

    def _ask(self, given: Mapping[int, torch.Tensor]) -> dict[int, InputSet]:
        """Fresh answers of the reference for these inputs, as far as it answers."""
        if self.answers is None:
            return {}
        begin = self._function.context.seconds()
        with self._function.context.phases.during(Phase.REFERENCE):
            answers = {slot: self.answers.answer(slot, inputs) for slot, inputs in given.items()}
        self._ask_seconds += self._function.context.seconds() - begin
        right = {slot: item for slot, item in answers.items() if item is not None}
        self.fresh += len(right)
        return right

    def _outputs_of(self, slots: Sequence[int]) -> dict[int, torch.Tensor]:
        """Copies of outputs: later writes do not count."""
        return {slot: self._function.slots.outputs[slot].clone() for slot in slots}

    def _verify(
        self, prepared: PreparedWorkload, slot: int, item: InputSet, before: torch.Tensor, after: torch.Tensor
    ) -> None:
        self._compare(prepared, item, after, before)
        try:
            self._function.check_inputs(slot, item)
        except Rejected as error:
            self._reject(error)

    def _compare(
        self, prepared: PreparedWorkload, item: InputSet, after: torch.Tensor, before: torch.Tensor | None
    ) -> None:
        try:
            self._function.compare(item, after, "timed calls", POISON)
        except Rejected as error:
            others = (*prepared.trials, *prepared.variants)
            stale = "" if before is None else stale_answer(after, before)
            self._reject(error.with_evidence(stale or kept_answer(after, self._function.layout, item, others)))
        self._look_at_precision(prepared, item, after)
        if item.check.is_observed:
            self._observed.append(item.observe(self._function.layout, after))

    def _look_at_precision(self, prepared: PreparedWorkload, item: InputSet, outputs: torch.Tensor) -> None:
        if item.distribution in _ORDINARY:
            self._precision = self._precision or PrecisionWatch(prepared.error_bounds)
            if self._precision.is_decided:
                return
            layout = self._function.layout
            self._precision.record(layout.output_tensors(outputs), layout.output_tensors(item.expected))

    def _reject(self, error: Rejected) -> None:
        """Raise; a capture may have missed work, and then a timer without captures decides."""
        if self.is_captured:
            raise NotCapturable(error.message)
        raise error


def _compare_calls(part: Part, found: torch.Tensor, expected: torch.Tensor) -> Comparison:
    assert isinstance(part, OutputCheck), "an evaluator with one rule has checks of this kind"
    return part.compare_calls(found, expected)
