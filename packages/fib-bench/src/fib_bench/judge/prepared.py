"""Prepared workloads: the input sets of a workload, their expected outputs, and what checks them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import attrs
import torch
from fib_schema import Definition, Workload
from fib_schema.strides import layout_extra

from ..checking.sensitivity import insensitive_to_all
from ..config.model import ResolvedEvalConfig
from ..evaluators.protocol import Case, Check, Evaluator, Observation, Verdict
from ..flags import FIXED_INPUTS, SYNTHESIZED
from ..inputs.generation import Value
from ..inputs.generator import native_input
from ..inputs.index_padding import PaddedDraw
from ..recipe import Recipe
from ..secure_random import SECRET
from ..timing.handshake import native
from ..timing.work import Work
from ..transport.slots import CallLayout

GENERATED = "generated"
"""The distribution of inputs as timed calls get them."""
MOVED = "moved pages"
"""The distribution of inputs whose requests have other numbers of pages; see `move_pages`."""
T = TypeVar("T")


class EvaluatorRaised(Exception):
    """An evaluator raised; the result is not a verdict on the solution."""


def _guarded(judge: Callable[[], T]) -> T:
    """Call evaluator code; convert its exceptions to `EvaluatorRaised`."""
    try:
        return judge()
    except torch.OutOfMemoryError:
        raise  # the workload is too large for this device
    except Exception as error:
        raise EvaluatorRaised(f"{type(error).__name__}: {error}") from error


@attrs.frozen(eq=False)
class OutputChecker:
    """Makes the checks of a workload's input sets, with the evaluator, the settings and the inputs that it needs."""

    evaluator: Evaluator
    definition: Definition
    config: ResolvedEvalConfig
    others: Mapping[str, Value]
    """The inputs that are not tensors; they are the same in all sets."""
    first: Check | None = None
    """The check of the first input set, which later checks may refer to."""

    def check(
        self,
        layout: CallLayout,
        inputs: torch.Tensor,
        expected: torch.Tensor,
        *,
        config: ResolvedEvalConfig | None = None,
        again: Callable[[], torch.Tensor] | None = None,
    ) -> Check:
        """Make the check of an input set.

        Args:
            layout: Where the tensors lie in memory.
            inputs: Memory with inputs.
            expected: Memory with the outputs of the reference.
            config: Settings for inputs of another distribution than the first set.
            again: Calls the reference on the inputs once more.

        Raises:
            EvaluatorRaised: The evaluator did.
        """
        tensors = {name: tensor.contiguous() for name, tensor in layout.input_tensors(inputs).items()}
        case = Case(
            definition=self.definition,
            inputs={name: tensors.get(name, self.others.get(name)) for name in self.definition.inputs},
            expected=layout.output_tensors(expected),
            config=config or self.config,
            again=None if again is None else lambda: layout.output_tensors(again()),
            first=self.first,
            is_like_first=self.first is not None and config is None,
        )
        return _guarded(lambda: self.evaluator.check(case))

    def judge_together(self, observations: Sequence[Observation]) -> Verdict:
        """Judge the outputs of many calls together; raises `EvaluatorRaised` if the evaluator raises."""
        return _guarded(lambda: self.evaluator.judge_together(observations))


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
        """Compare the outputs in a slot with the expected ones; raises `EvaluatorRaised` if the check raises."""
        found, expected = layout.output_tensors(outputs), layout.output_tensors(self.expected)
        return _guarded(lambda: self.check.compare(found, expected))

    def is_right(self, layout: CallLayout, outputs: torch.Tensor) -> bool:
        """Whether the outputs in a slot are right."""
        return not self.compare(layout, outputs).problems

    def observe(self, layout: CallLayout, outputs: torch.Tensor) -> Observation:
        """Copy the outputs in a slot, to be judged with those of other calls."""
        return Observation(self.check, layout.output_tensors(outputs.clone()))


@attrs.frozen(eq=False)
class PaddedCalls:
    """Calls of one workload whose index inputs are longer than their total, all of the same length."""

    layout: CallLayout
    calls: Sequence[tuple[PaddedDraw, InputSet]]
    """The integers of each, and a call of the reference on the indices up to the total."""

    def input_sets(self, prepared: PreparedWorkload, *, is_poisoned: bool) -> Iterator[tuple[PaddedDraw, InputSet]]:
        """The inputs of the calls; `is_poisoned`: with numbers that are not pages behind the total."""
        base = prepared.layout.input_tensors(prepared.trials[0].inputs)
        for draw, exact in self.calls:
            memory = torch.zeros(self.layout.input_bytes, dtype=torch.uint8, device=exact.expected.device)
            self.layout.pack({**base, **(draw.poisoned if is_poisoned else draw.stale)}, memory)
            yield draw, attrs.evolve(exact, inputs=memory)


@attrs.frozen(eq=False)
class OtherScalars:
    """A call with other scalars: a solution that ignores their values is wrong for every other caller."""

    layout: CallLayout
    item: InputSet
    values: Mapping[str, float]


@attrs.define(eq=False, kw_only=True)
class PreparedWorkload:
    """A workload with its input sets."""

    workload: Workload
    layout: CallLayout
    slots: int
    """Calls of one timed pass."""
    checker: OutputChecker
    """Makes checks for further inputs."""
    trials: list[InputSet]
    """Checked one by one before timing; the first one has normal values."""
    generated: InputSet
    """Inputs as timed calls get them; the first trial, if nothing can be generated."""
    recipes: Mapping[str, Recipe]
    """The inputs that are generated for each timed call; empty means that values are fixed."""
    constant: Mapping[str, str]
    """Other inputs that are no structural integers, and why they are the same in all timed calls."""
    timed_config: ResolvedEvalConfig | None
    """The settings by which timed calls are judged; None for those of typical values."""
    left_out: dict[str, str] = attrs.field(factory=dict)
    """Distributions, scalars and padded indices that do not apply, and why."""
    synthesized: tuple[str, ...] = ()
    """Inputs whose blobs are missing, and which were made instead."""
    enlarged: Mapping[str, int] = attrs.field(factory=dict)
    """Axes that are larger in the inputs than in the workload, because its sizes exclude all valid offsets."""
    redraw: Callable[[], Mapping[str, torch.Tensor]] | None = None
    """Draws the integer inputs anew that can be redrawn; None if there are none."""
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
        return frozenset() if self.padded is None else frozenset(self.padded.calls[0][0].stale)

    @property
    def bases(self) -> Sequence[InputSet]:
        """The sets of normal values."""
        return [item for item in self.trials if item.distribution == "normal"]

    @property
    def structural_outputs(self) -> list[str]:
        """Outputs that other generated values do not change: they depend on structural integers alone."""
        one, other = (self.layout.output_tensors(item.expected) for item in (self.trials[0], self.generated))
        return [name for name in one if torch.equal(_bytes(one[name]), _bytes(other[name]))]

    def to_extra(self) -> dict[str, object]:
        """The fields of a trace about the inputs."""
        optional = {
            "synthesized_inputs": list(self.synthesized),
            "enlarged_axes": dict(self.enlarged),
            "kept_integers": dict(self.kept_integers),
            "other_scalars": {} if self.scalars is None else dict(self.scalars.values),
            "constant_inputs": dict(self.constant),
            "left_out": self.left_out,
        }
        return {
            "trials": [item.distribution for item in self.trials],
            **{name: value for name, value in optional.items() if value},
            **layout_extra(self.layout.strides),
            "evaluator": self.checker.evaluator.name,
            "outputs": self.trials[0].check.to_extra(),
        }

    def flags(self) -> list[str]:
        """Flags of the trace that concern the inputs."""
        flags = [] if self.recipes or self.redraw else [FIXED_INPUTS]
        flags += [SYNTHESIZED] if self.synthesized else []
        flags += [f"constant: {name}" for name in self.constant]
        for name in self.trials[0].check.parts:
            passing = insensitive_to_all(item.check.parts[name] for item in self.trials)
            flags += [f"insensitive: {name} to {probe}" for probe in passing]
        return flags


# -- generated inputs in memory of the judge -----------------------------------------------------------------


def fill(recipes: Mapping[str, Recipe], layout: CallLayout, memory: torch.Tensor, base: torch.Tensor, key: int) -> None:
    """Generate inputs in memory laid out like a slot, as a timed call with this key gets them.

    Shapes:
        memory: ``[bytes]``
        base: ``[bytes]``, the values that some kinds of inputs change.
    """
    if recipes:
        places = ((recipe, layout.inputs[name].offset) for name, recipe in recipes.items())
        inputs = [native_input(recipe, memory.data_ptr() + at, base.data_ptr() + at) for recipe, at in places]
        native.open_native(memory.device, makes_passes=False).refill(native.call_of(inputs, ()), key)


def other_values(recipes: Mapping[str, Recipe], layout: CallLayout, inputs: torch.Tensor) -> torch.Tensor:
    """The inputs of ``setup``: structural integers, shapes and scalars of a call, but other values."""
    changed = inputs.clone()
    for name, tensor in layout.input_tensors(changed).items():
        if tensor.is_floating_point() and name not in recipes and tensor.dtype.itemsize > 1:
            tensor.mul_(torch.empty(tensor.shape, device=tensor.device).uniform_(0.5, 0.85))
    fill(recipes, layout, changed, inputs, SECRET.getrandbits(64))
    return changed


def write_tensors(targets: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
    """Copy tensors into the inputs of the same names."""
    for name, value in values.items():
        targets[name].copy_(value)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
