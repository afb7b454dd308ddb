"""Prepared workloads. The input sets of a workload with their expected outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
import torch
from fib_schema import Workload
from fib_schema.strides import layout_extra

from ..checking.sensitivity import insensitive_to_all
from ..config.model import ResolvedEvalConfig
from ..evaluators.protocol import Check, Observation, Verdict
from ..flags import FIXED_INPUTS, SYNTHESIZED
from ..recipe import Recipe
from ..timing.work import Work
from ..transport.slots import CallLayout
from .output_checker import OutputChecker, verdict_of

GENERATED = "generated"
"""The distribution of inputs as timed calls get them."""
MOVED = "moved pages"
"""The distribution of inputs whose requests have other numbers of pages; see `move_pages`."""


@attrs.frozen(eq=False)
class InputSet:
    """One set of inputs with its expected outputs. It never leaves the judge."""

    distribution: str
    inputs: torch.Tensor
    """``[bytes]``, laid out like a slot."""
    expected: torch.Tensor
    """``[bytes]``, laid out like a slot."""
    check: Check

    def compare(self, layout: CallLayout, outputs: torch.Tensor) -> Verdict:
        """Compare the outputs in a slot with the expected ones.

        Raises:
            EvaluatorRaised: The check did.
        """
        return verdict_of(self.check, layout.output_tensors(outputs), layout.output_tensors(self.expected))

    def is_right(self, layout: CallLayout, outputs: torch.Tensor) -> bool:
        """Whether the outputs in a slot are right."""
        return not self.compare(layout, outputs).problems

    def observe(self, layout: CallLayout, outputs: torch.Tensor) -> Observation:
        """Copy the outputs in a slot, to be judged with those of other calls."""
        return Observation(self.check, layout.output_tensors(outputs.clone()))


@attrs.frozen(eq=False)
class PaddedCall:
    """The integers of a call whose index inputs are longer than their total, with its expected outputs."""

    total: int
    """Valid elements of the index inputs."""
    stale: Mapping[str, torch.Tensor]
    """The integers that differ from those of the workload, with valid pages behind the total."""
    poisoned: Mapping[str, torch.Tensor]
    """The same buffers, poisoned behind the total with numbers that are not pages."""
    expected: torch.Tensor
    """``[bytes]``, laid out like a slot; of the reference on the indices up to the total."""
    check: Check


@attrs.frozen(eq=False)
class PaddedCalls:
    """Calls of one workload that have the same shapes and index inputs of one length."""

    layout: CallLayout
    calls: Sequence[PaddedCall]

    def input_set(self, base: Mapping[str, torch.Tensor], call: PaddedCall, *, is_poisoned: bool) -> InputSet:
        """The inputs of one call.

        Args:
            base: Values of all inputs that the calls have in common.
            call: The call.
            is_poisoned: Whether numbers that are not pages stand behind the total.
        """
        device = call.expected.device
        memory = torch.zeros(self.layout.input_bytes, dtype=torch.uint8, device=device)
        self.layout.pack({**base, **(call.poisoned if is_poisoned else call.stale)}, memory)
        return InputSet("padded", memory, call.expected, call.check)


@attrs.frozen(eq=False)
class OtherScalars:
    """A call with other scalars: a solution that ignores their values is wrong for every other caller."""

    layout: CallLayout
    item: InputSet
    values: Mapping[str, float]


@attrs.frozen(eq=False)
class PreparedWorkload:
    """A workload with its input sets."""

    workload: Workload
    layout: CallLayout
    trials: tuple[InputSet, ...]
    """Checked one by one before timing."""
    generated: InputSet
    """Inputs as timed calls get them; the first trial, if nothing can be generated."""
    recipes: Mapping[str, Recipe]
    """The inputs that are generated for each timed call; empty means that values are fixed."""
    constant: Mapping[str, str]
    """Other inputs that are no structural integers, and why they are the same in all timed calls."""
    timed_config: ResolvedEvalConfig | None
    """The settings by which timed calls are judged; None for those of typical values."""
    slots: int
    """Calls of one timed pass."""
    left_out: Mapping[str, str]
    """Distributions that do not apply, and ``padded`` where calls with padded indices were not made, and why."""
    checker: OutputChecker
    """Makes checks for further inputs."""
    synthesized: tuple[str, ...] = ()
    """Inputs whose blobs are missing, and which were made instead."""
    integer_sets: Sequence[Mapping[str, torch.Tensor]] = ()
    """The integer inputs that can be redrawn, as recorded and once drawn anew; empty if there are none."""
    redraw: Callable[[], Mapping[str, torch.Tensor]] | None = None
    """Draws them anew."""
    kept_integers: Mapping[str, str] = attrs.field(factory=dict)
    """Integer inputs that cannot be redrawn, and why."""
    determined_integers: frozenset[str] = frozenset()
    """Kept integers that have only one valid value in calls of these sizes."""
    moved: Mapping[str, torch.Tensor] = attrs.field(factory=dict)
    """Other kept integers after pages have moved between requests, as in the trial of the distribution `MOVED`."""
    work: Work | None = None
    """The least work of a call with the recorded integers; None if unknown."""
    scalars: OtherScalars | None = None
    """A call with other scalars; None if there are none, or the reference has no finite outputs for others."""
    padded: PaddedCalls | None = None
    """Calls with padded indices; None if the definition has none, or the reference is too slow."""
    error_bounds: Mapping[str, float] = attrs.field(factory=dict)
    """The error above which an output was computed with less than float32; see `precision`."""

    @property
    def padded_integers(self) -> frozenset[str]:
        """The integer inputs that differ between calls with padded indices."""
        return frozenset() if self.padded is None else frozenset(self.padded.calls[0].stale)

    @property
    def bases(self) -> Sequence[InputSet]:
        """The sets whose values are mixed for fresh inputs."""
        return [item for item in self.trials if item.distribution == "normal"]

    def without(self, name: str, reason: str) -> PreparedWorkload:
        """The workload with the reason why it lacks a distribution or other inputs."""
        return attrs.evolve(self, left_out={**self.left_out, name: reason})

    def to_extra(self) -> dict[str, object]:
        """The fields of a trace about the inputs."""
        extra: dict[str, object] = {
            "trials": [item.distribution for item in self.trials],
        }
        if self.synthesized:
            extra["synthesized_inputs"] = list(self.synthesized)
        if self.kept_integers:
            extra["kept_integers"] = dict(self.kept_integers)
        if self.scalars is not None:
            extra["other_scalars"] = dict(self.scalars.values)
        if self.constant:
            extra["constant_inputs"] = dict(self.constant)
        if self.left_out:
            extra["left_out"] = dict(self.left_out)
        extra |= layout_extra(self.layout.strides)
        extra["evaluator"] = self.checker.evaluator.name
        extra["outputs"] = self.trials[0].check.to_extra()
        return extra

    def flags(self) -> list[str]:
        """Flags of the trace that concern the inputs."""
        flags = [] if self.recipes or len(self.integer_sets) > 1 else [FIXED_INPUTS]
        flags += [SYNTHESIZED] if self.synthesized else []
        for name in self.trials[0].check.parts:
            passing = insensitive_to_all(item.check.parts[name] for item in self.trials)
            flags += [f"insensitive: {name} to {probe}" for probe in passing]
        return flags
