"""Workloads made ready to judge: input sets, expected outputs, the reference's time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import torch
from fib_schema import Workload

from ..checking.sensitivity import insensitive_to_all
from ..evaluators.protocol import Check, Observation, Verdict
from ..inputs.variation import Variation
from ..timing import Measurement
from ..transport.slots import CallLayout
from .output_checker import Standard, verdict_of


@attrs.frozen(eq=False)
class InputSet:
    """One set of inputs, and what must come out of it. Only the judge has it."""

    distribution: str
    inputs: torch.Tensor
    """``[bytes]``, laid out like a slot."""
    expected: torch.Tensor
    """``[bytes]``, laid out like a slot."""
    check: Check

    def compare(self, layout: CallLayout, outputs: torch.Tensor) -> Verdict:
        """Compare what was found in a slot with what is expected.

        Raises:
            EvaluatorRaised: The check did.
        """
        return verdict_of(self.check, layout.output_tensors(outputs), layout.output_tensors(self.expected))

    def is_right(self, layout: CallLayout, outputs: torch.Tensor) -> bool:
        """Whether what was found in a slot is right."""
        return not self.compare(layout, outputs).problems

    def observe(self, layout: CallLayout, outputs: torch.Tensor) -> Observation:
        """What was found in a slot, kept to be judged with other calls."""
        return Observation(self.check, layout.output_tensors(outputs.clone()))


@attrs.frozen(eq=False)
class PreparedWorkload:
    """A workload with its input sets and the reference's latency."""

    workload: Workload
    layout: CallLayout
    rounds: tuple[InputSet, ...]
    """Checked one by one before anything is timed."""
    variants: tuple[InputSet, ...]
    """Checked among the timed calls: mixtures of the rounds' values that no call has seen before."""
    varying: Mapping[str, Variation]
    """The inputs whose values vary between timed calls, and how; empty means that inputs are fixed."""
    slots: int
    """Calls of one timed pass."""
    left_out: Mapping[str, str]
    """Distributions that do not apply, and why."""
    reference: Measurement | None
    """None if the reference is not timed."""
    standard: Standard
    """What makes checks for further inputs."""
    error_bounds: Mapping[str, float] = attrs.field(factory=dict)
    """Above which error an output was computed with less than float32; see `precision`."""

    @property
    def bases(self) -> Sequence[InputSet]:
        """The sets whose values are mixed for timed calls."""
        return [item for item in self.rounds if item.distribution == "normal"]

    def may_give(self, pattern: int) -> bool:
        """Whether right outputs of some input set consist of nothing but one byte."""
        for item in (*self.rounds, *self.variants):
            outputs = self.layout.output_tensors(item.expected).values()
            if all(bool((tensor.flatten().view(torch.uint8) == pattern).all()) for tensor in outputs):
                return True
        return False

    def to_extra(self) -> dict[str, object]:
        """What a trace says about its inputs."""
        extra: dict[str, object] = {
            "rounds": [item.distribution for item in self.rounds],
            "variants": len(self.variants),
        }
        if self.left_out:
            extra["left_out"] = dict(self.left_out)
        extra["evaluator"] = self.standard.evaluator.name
        extra["outputs"] = self.rounds[0].check.to_extra()
        return extra

    def flags(self) -> list[str]:
        """What a reader of the trace should know before trusting it."""
        flags = [] if self.varying else ["fixed_inputs"]
        for name in self.rounds[0].check.parts:
            passing = insensitive_to_all(item.check.parts[name] for item in self.rounds)
            flags += [f"insensitive: {name} to {probe}" for probe in passing]
        return flags
