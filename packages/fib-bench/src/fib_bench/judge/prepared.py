"""Prepared workloads: the input sets of a workload, their expected outputs, and what checks them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

import attrs
import torch
from fib_schema import Definition, Workload
from fib_schema.strides import layout_extra

from ..checking.comparison import OTHER_INPUTS, ZEROS, has_same_bytes, insensitive_to_all
from ..config.model import ResolvedEvalConfig
from ..errors import EvaluatorFailed
from ..evaluators.protocol import Case, Check, Evaluator, Observation, Tensors, Verdict
from ..flags import FIXED_INPUTS, SYNTHESIZED
from ..inputs.generation import PaddedDraw, Value
from ..inputs.recipes import native_input
from ..recipe import Recipe
from ..secure_random import SECRET
from ..timing.handshake import native
from ..timing.work import Work
from ..transport.arenas import CallLayout

GENERATED = "generated"
"""The distribution of inputs as timed calls get them."""
MOVED = "moved pages or empty requests"
"""The distribution of inputs whose requests have other numbers of pages or tokens; see `move_pages`."""
T = TypeVar("T")


@attrs.frozen(eq=False)
class OutputChecker:
    """Makes the checks of a workload's input sets, with the evaluator, the settings and the inputs that it needs."""

    evaluator: Evaluator
    definition: Definition
    workload: Workload
    config: ResolvedEvalConfig
    others: Mapping[str, Value]
    """The inputs that are not tensors; they are the same in all sets."""
    first: Check | None = None
    """The check of the first input set, which later checks may refer to."""

    def input_set(
        self,
        distribution: str,
        layout: CallLayout,
        inputs: torch.Tensor,
        expected: torch.Tensor,
        *,
        config: ResolvedEvalConfig | None = None,
        again: Callable[[], torch.Tensor] | None = None,
    ) -> InputSet:
        """Make an input set with its check; `again` calls the reference anew, `config` is for other distributions."""
        tensors = {name: tensor.contiguous() for name, tensor in layout.input_tensors(inputs).items()}
        outputs = layout.output_tensors(expected)
        case = Case(
            definition=self.definition,
            inputs={name: tensors.get(name, self.others.get(name)) for name in self.definition.inputs},
            expected=outputs,
            config=config or self.config,
            again=None if again is None else lambda: layout.output_tensors(again()),
            first=self.first,
            is_like_first=self.first is not None and config is None,
        )
        check = self.guarded(lambda: self.evaluator.check(case))
        return InputSet(distribution, layout, inputs, expected, outputs, check, self)

    def guarded(self, judge: Callable[[], T]) -> T:
        """Call evaluator code; one that raises is no verdict on a solution, but `EvaluatorFailed`."""
        try:
            return judge()
        except torch.OutOfMemoryError:
            raise  # the workload is too large for this device
        except Exception as error:
            where, problem = (self.definition.name, self.workload.uuid), f"{type(error).__name__}: {error}"
            raise EvaluatorFailed(*where, self.evaluator.name, problem) from error


@attrs.frozen(eq=False)
class InputSet:
    """One set of inputs with its expected outputs. It never leaves the judge."""

    distribution: str
    layout: CallLayout
    inputs: torch.Tensor
    """``[bytes]``, laid out like a slot."""
    expected: torch.Tensor
    """``[bytes]``, laid out like a slot."""
    outputs: Tensors
    """The same by name."""
    check: Check
    checker: OutputChecker

    def compare(self, outputs: torch.Tensor) -> Verdict:
        """Compare the outputs in a slot with the expected ones."""
        found = self.layout.output_tensors(outputs)
        return self.checker.guarded(lambda: self.check.compare(found, self.outputs))

    def observe(self, outputs: torch.Tensor) -> Observation:
        """Copy the outputs in a slot, to be judged with those of other calls."""
        return Observation(self.check, self.layout.output_tensors(outputs.clone()))


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
            given = {**base, **(draw.poisoned if is_poisoned else draw.stale)}
            inputs = self.layout.pack(given, exact.expected.device)
            yield draw, attrs.evolve(exact, layout=self.layout, inputs=inputs)


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
    synthesized: Sequence[str] = ()
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
    """Other integers after pages have moved or requests were emptied, as in the trial of the distribution `MOVED`."""
    work: Work | None = None
    """The least work of a call with the recorded integers; None if unknown."""
    scalars: list[tuple[InputSet, Mapping[str, float]]] = attrs.field(factory=list)
    """Calls with other scalars, for which the reference has other finite outputs: wrong if a solution ignores them."""
    padded: PaddedCalls | None = None
    """Calls with padded indices; None if the definition has none, or the reference is too slow."""
    error_bounds: Mapping[str, float] = attrs.field(factory=dict)
    """The error above which an output was computed with less than float32; see `precision`."""

    @property
    def padded_integers(self) -> frozenset[str]:
        """The integer inputs that differ between calls with padded indices."""
        return frozenset() if self.padded is None else frozenset(self.padded.calls[0][0].stale)

    @cached_property
    def places(self) -> Sequence[str]:
        """The names of the trials in messages; that of generated values names the inputs that first differ there."""
        same, places = list(self.layout.inputs), []
        first = self.layout.input_tensors(self.trials[0].inputs)
        for index, item in enumerate(self.trials):
            tensors = self.layout.input_tensors(item.inputs)
            other = [name for name in same if not has_same_bytes(tensors[name], first[name])]
            same = [name for name in same if name not in other]
            place = f"first with other {', '.join(other)}" if other and item is self.generated else f"input set {index}"
            places.append(f"{place} ({item.distribution})")
        return places

    @property
    def structural_outputs(self) -> list[str]:
        """Outputs that other generated values do not change: they depend on structural integers alone."""
        one, other = self.trials[0].outputs, self.generated.outputs
        return [name for name in one if has_same_bytes(one[name], other[name])]

    @property
    def hidden_from_setup(self) -> Callable[[], Mapping[str, torch.Tensor]] | None:
        """Draws other integers for a ``setup``, which could compute outputs that depend on integers alone."""
        return self.redraw if self.redraw and self.structural_outputs else None

    def to_extra(self) -> dict[str, object]:
        """The fields of a trace about the inputs."""
        optional = {
            "synthesized_inputs": list(self.synthesized),
            "enlarged_axes": dict(self.enlarged),
            "kept_integers": dict(self.kept_integers),
            "other_scalars": {name: value for _, values in self.scalars for name, value in values.items()},
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
        return flags + self._insensitive

    @cached_property
    def _insensitive(self) -> list[str]:
        """The flags of outputs for which wrong answers pass on all input sets, that of another set among them."""
        flags = []
        for name in self.trials[0].check.parts:
            passing = insensitive_to_all([item.check.parts[name] for item in self.trials])
            if ZEROS not in passing and self._ignores_inputs(name):
                passing = (*passing, OTHER_INPUTS)
            flags += [f"insensitive: {name} to {probe}" for probe in passing]
        return flags

    def _ignores_inputs(self, name: str) -> bool:
        """Whether the first set's answer passes on all sets, and there are some with other inputs."""
        first, *others = self.trials
        found = first.outputs[name]
        if not found.numel():
            return False
        others = [item for item in others if not torch.equal(item.inputs, first.inputs)]
        checks = ((item.check.parts[name], item.outputs[name]) for item in others)
        return bool(others) and all(check.is_right(check.compare(found, expected)) for check, expected in checks)


def fill(
    recipes: Mapping[str, Recipe], layout: CallLayout, memory: torch.Tensor, base: torch.Tensor, *keys: int
) -> None:
    """Generate inputs as timed calls with these keys get them, in memory laid out like a slot or like one for each key.

    Shapes:
        memory: ``[bytes]``, or ``[calls, bytes]``.
        base: ``[bytes]``, the values that some kinds of inputs change.
    """
    if recipes:
        target, source = memory.data_ptr(), base.data_ptr()
        places = [(recipe, layout.inputs[name].offset) for name, recipe in recipes.items()]
        inputs = [native_input(recipe, target + offset, source + offset) for recipe, offset in places]
        native.open_native(memory.device).refill(inputs, keys, memory.stride(0))


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
