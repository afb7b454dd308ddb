"""Workload preparation. Makes input sets and has the reference compute their expected outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import attrs
import torch
from fib_schema import Definition, EvaluationStatus, SafetensorsInput, Workload

from ..checking.comparison import raise_if_mostly_undefined
from ..checking.precision import error_bounds, move_inputs
from ..config.benchmark import BenchmarkConfig
from ..config.model import ResolvedEvalConfig
from ..evaluators.protocol import Check, Evaluator, Tensors, Verdict
from ..events import Phase
from ..inputs.generation import InputValues, Value, distributions_of, make_input_values
from ..inputs.generator import other_scalars, plan_recipes
from ..inputs.index_padding import PaddedDraw, draw_padded_calls
from ..inputs.redrawing import Redrawing, Structure, plan_structure
from ..recipe import Recipe
from ..secure_random import SECRET
from ..timing.handshake import native
from ..timing.work import work_of
from ..transport.slots import CallLayout, call_bytes, layout_of
from ..worker.client import Worker, WorkerLost
from .device_context import DeviceContext
from .device_memory import total_bytes
from .generated import fill, write_tensors
from .output_checker import OutputChecker
from .prepared import GENERATED, MOVED, InputSet, OtherScalars, PaddedCall, PaddedCalls, PreparedWorkload
from .rpc import Rejected
from .timed_function import TimedFunction

_SLOT_BYTES = {"cpu": 64 << 20, "cuda": 2 << 30}
_SLOT_SHARE = 1 / 40  # of a CUDA device at most, because several judges share it
_MAX_SLOTS = {"cpu": 16, "cuda": 32}
_REFERENCE_SECONDS = 20.0  # for the expected outputs of one workload; one of each kind is computed in any case


_QUICK_DISTRIBUTIONS = 2
_TYPICAL = ("normal", "redrawn", MOVED)
_LENIENT_RATIO = 0.99
_LENIENT_CAP = 0.25


def _leniently(config: ResolvedEvalConfig) -> ResolvedEvalConfig:
    """The settings for values that are far from typical, and for calls with padded indices, whose sums are longer.

    Sums of addends of very different size lose digits: in correct bfloat16 attention kernels, one
    element in a thousand was off by 1 to 2 % of its row. The errors that these sets are meant to find (a wrong
    epsilon, a division by zero, an overflow, another page) affect whole rows, or are as large as the output.
    """
    if config.required_matched_ratio is not None:
        return config
    return attrs.evolve(config, required_matched_ratio=_LENIENT_RATIO, error_cap=min(config.error_cap, _LENIENT_CAP))


def slot_count(size_bytes: int, device: torch.device) -> int:
    """The number of calls of one timed pass, by the bytes of a call: at least two, so that addresses differ."""
    room = _SLOT_BYTES[device.type]
    if device.type == "cuda":
        room = min(room, int(_SLOT_SHARE * total_bytes(device)))
    return int(max(2, min(_MAX_SLOTS[device.type], room // max(size_bytes, 1))))


class _Unjudged(Check):
    """The check of inputs whose expected outputs are not known yet."""

    def compare(self, found: Tensors, expected: Tensors) -> Verdict:
        """Accept everything."""
        del found, expected
        return Verdict()


@attrs.define
class Preparation:
    """The making of one prepared workload.

    Args:
        definition: What is computed.
        workload: On what.
        root: The data set's folder, for blobs.
        run: The run's settings.
        config: The definition's settings, as the evaluator would have them.
        evaluator: Makes the checks.
        worker: Holds the built reference.
        context: What holds on this device.
    """

    definition: Definition
    workload: Workload
    root: Path | None
    run: BenchmarkConfig
    config: ResolvedEvalConfig
    evaluator: Evaluator
    worker: Worker
    context: DeviceContext
    _deadline: float = attrs.field(init=False, default=0.0)
    _checker: OutputChecker = attrs.field(init=False)

    def prepare(self) -> PreparedWorkload:
        """Make inputs and expected outputs.

        Raises:
            InputError: The inputs cannot be made.
            OutputsUndefined: The reference gives NaN for most of an output.
            EvaluatorRaised: The evaluator did.
            Rejected: The reference raised, or is not deterministic.
            WorkerLost: The worker of the reference ended.
        """
        self._deadline = self.context.seconds() + _REFERENCE_SECONDS
        made = self._inputs(0, "normal")
        values = made.values
        layout = layout_of(self.definition, self.workload.axes, values)
        slots = slot_count(layout.size_bytes, self.context.device)
        others = {name: value for name, value in values.items() if not isinstance(value, torch.Tensor)}
        self._checker = OutputChecker(self.evaluator, self.definition, self.config, others)
        with TimedFunction(self.worker, layout, slots, self.context) as function:
            bases = [self._expect(function, layout, "normal", values)]
            outputs = layout.output_tensors(bases[0].expected)
            raise_if_mostly_undefined(self.definition.name, self.workload.uuid, outputs)
            self._checker = attrs.evolve(self._checker, first=bases[0].check)
            if not self.evaluator.is_random:
                self._check_determinism(function, bases[0])
            for index in range(1, self.config.num_trials):
                if self._is_late():
                    break
                bases.append(self._expect(function, layout, "normal", self._values(index, "normal")))
            structure = plan_structure(self.definition, self.workload.axes, values)
            integer_sets, redrawing = self._integer_sets(structure)
            redrawn = [self._expect_redrawn(function, bases[-1], "redrawn", found) for found in integer_sets[1:2]]
            moved = self._moved_pages(structure)
            if moved:
                redrawn.append(self._expect_redrawn(function, bases[-1], MOVED, moved))
            recipes, constant, generated = self._generated(function, bases[0], values, made.synthesized)
            prepared = PreparedWorkload(
                workload=self.workload,
                layout=layout,
                trials=(*bases, *redrawn, *([generated] if recipes else [])),
                generated=generated,
                recipes=recipes,
                constant=constant,
                timed_config=self._timed_config(recipes),
                integer_sets=integer_sets,
                redraw=partial(self._further_integers, structure, list(integer_sets[0])) if integer_sets else None,
                kept_integers=redrawing.kept,
                determined_integers=redrawing.determined,
                moved=moved,
                slots=slots,
                work=work_of(self.definition, self.workload.axes, values),
                left_out={},
                synthesized=made.synthesized,
                checker=self._checker,
                error_bounds=self._error_bounds(function, bases[0]),
            )
            prepared = self._add_other_distributions(function, prepared)
        return self._add_padded_calls(self._add_other_scalars(prepared, values), values)

    def _values(self, index: int, distribution: str) -> dict[str, Value]:
        return self._inputs(index, distribution).values

    def _inputs(self, index: int, distribution: str) -> InputValues:
        with self.context.phases.during(Phase.INPUTS):
            return make_input_values(
                self.definition,
                self.workload,
                seed=self.run.seed + index,
                root=self.root,
                synthesize_missing=self.run.synthesize_missing,
                device=self.context.device,
                distribution=distribution,
            )

    def _integer_sets(self, structure: Structure) -> tuple[tuple[Mapping[str, torch.Tensor], ...], Redrawing]:
        """The integers as recorded and redrawn, and the redrawing; the former are empty if none can change."""
        with self.context.phases.during(Phase.INPUTS):
            first = structure.redraw(_secret_generator())
        if not first.changed:
            return (), first
        sets = (structure.values, first.values)
        return tuple({name: _tensor(given[name]) for name in first.changed} for given in sets), first

    def _further_integers(self, structure: Structure, names: Sequence[str]) -> Mapping[str, torch.Tensor]:
        """Integers drawn anew, for calls that nobody can have planned."""
        drawn = structure.redraw(_secret_generator()).values
        return {name: _tensor(drawn[name]).to(self.context.device) for name in names}

    def _moved_pages(self, structure: Structure) -> dict[str, torch.Tensor]:
        """The offsets after pages have moved between requests; empty if they vary anyway, or may not."""
        if self.run.quick or self._is_late():
            return {}
        with self.context.phases.during(Phase.INPUTS):
            moved = structure.move_pages(_secret_generator())
        return {name: _tensor(moved.values[name]) for name in moved.changed}

    def _expect_redrawn(
        self, function: TimedFunction, base: InputSet, distribution: str, integers: Mapping[str, torch.Tensor]
    ) -> InputSet:
        """An input set with other integers."""
        inputs = base.inputs.clone()
        write_tensors(function.layout.input_tensors(inputs), integers)
        return self._expect_packed(function, function.layout, distribution, inputs)

    def _is_late(self) -> bool:
        return self.context.seconds() > self._deadline

    def _expect(
        self, function: TimedFunction, layout: CallLayout, distribution: str, values: Mapping[str, Value]
    ) -> InputSet:
        """An input set with the outputs of the reference."""
        inputs = torch.zeros(layout.input_bytes, dtype=torch.uint8, device=self.context.device)
        layout.pack(values, inputs)
        return self._expect_packed(function, layout, distribution, inputs)

    def _expect_packed(
        self, function: TimedFunction, layout: CallLayout, distribution: str, inputs: torch.Tensor
    ) -> InputSet:
        unjudged = InputSet(distribution, inputs, inputs, _Unjudged())
        expected = function.call(unjudged)
        config = None if distribution in _TYPICAL else _leniently(self.config)
        again = None if self._checker.first else lambda: function.call(unjudged)
        check = self._checker.check(layout, inputs, expected, config=config, again=again)
        return InputSet(distribution, inputs, expected, check)

    def _check_determinism(self, function: TimedFunction, item: InputSet) -> None:
        problems = item.compare(function.layout, function.call(item)).problems
        if problems:
            problem = (
                "it gives other outputs when it is called again with the same inputs "
                f"({'; '.join(problems)}); the evaluator {self.evaluator.name!r} cannot judge such an op"
            )
            raise Rejected(EvaluationStatus.RUNTIME_ERROR, problem)

    def _error_bounds(self, function: TimedFunction, item: InputSet) -> dict[str, float]:
        if self.evaluator.is_random or self._is_late():
            return {}
        moved = item.inputs.clone()
        inputs = function.layout.input_tensors(moved)
        if not move_inputs(inputs):
            return {}
        outputs = function.layout.output_tensors(function.call(InputSet("moved", moved, moved, _Unjudged())))
        return error_bounds(inputs, outputs, function.layout.output_tensors(item.expected))

    def _generated(
        self, function: TimedFunction, base: InputSet, values: Mapping[str, Value], synthesized: tuple[str, ...]
    ) -> tuple[Mapping[str, Recipe], Mapping[str, str], InputSet]:
        """The inputs that are generated for each timed call, why others are constant, and one set of such inputs.

        With all distributions mixed, if the reference has finite outputs for them; else with normal values.
        """
        reason = ""
        recipes: Mapping[str, Recipe] = {}
        constant: Mapping[str, str] = {}
        for wanted in dict.fromkeys((distributions_of(self.definition, self.config.distributions), ("normal",))):
            recipes, constant = self._plan(values, synthesized, wanted)
            if not recipes:
                return {}, constant, base
            try:
                item = self._expect_generated(function, base, recipes)
            except (Rejected, WorkerLost) as error:
                reason = f"the reference failed: {error}"
                if self.context.is_cuda or function.worker.is_closed:
                    raise
                continue
            if _finite_share(item) >= _finite_share(base):
                return recipes, constant, item
            reason = "the reference gives NaN or infinity for generated values"
        return {}, {**constant, **dict.fromkeys(recipes, reason)}, base

    def _plan(
        self, values: Mapping[str, Value], synthesized: tuple[str, ...], distributions: Sequence[str]
    ) -> tuple[Mapping[str, Recipe], Mapping[str, str]]:
        sources = self.workload.inputs.items()
        recorded = {name for name, source in sources if isinstance(source, SafetensorsInput)} - set(synthesized)
        axes = self.definition.const_axes | self.workload.axes
        recipes, constant = plan_recipes(self.definition, axes, values, distributions=distributions, recorded=recorded)
        for name in list(recipes)[native.MAX_INPUTS :]:
            del recipes[name]
            constant[name] = f"at most {native.MAX_INPUTS} inputs of a call are generated"
        return recipes, constant

    def _expect_generated(self, function: TimedFunction, base: InputSet, recipes: Mapping[str, Recipe]) -> InputSet:
        inputs = base.inputs.clone()
        fill(recipes, function.layout, inputs, base.inputs, SECRET.getrandbits(64))
        distribution = GENERATED if self._timed_config(recipes) else "normal"
        return attrs.evolve(
            self._expect_packed(function, function.layout, distribution, inputs), distribution=GENERATED
        )

    def _timed_config(self, recipes: Mapping[str, Recipe]) -> ResolvedEvalConfig | None:
        """The settings by which timed calls are judged, if they are not those of typical values."""
        is_mixed = any(recipe.mask & ~1 for recipe in recipes.values())
        return _leniently(self.config) if is_mixed and not self.evaluator.is_random else None

    def _add_other_distributions(self, function: TimedFunction, prepared: PreparedWorkload) -> PreparedWorkload:
        """Add sets of other distributions, unless the reference has no finite outputs for them."""
        trials, left_out = list(prepared.trials), {}
        normal = trials[0]
        wanted = distributions_of(self.definition, self.config.distributions)
        for distribution in wanted[:_QUICK_DISTRIBUTIONS] if self.run.quick else wanted:
            if distribution == "normal":
                continue
            if self._is_late():
                left_out[distribution] = "the reference is too slow"
                continue
            if function.worker.is_closed:
                left_out[distribution] = "the reference has failed on the values before these"
                continue
            try:
                item = self._expect(function, prepared.layout, distribution, self._values(0, distribution))
            except (Rejected, WorkerLost) as error:
                left_out[distribution] = f"the reference failed: {error}"
                if self.context.device.type == "cuda":
                    function.worker.close()  # its context may be broken; the next workload gets a fresh one
                continue
            if _finite_share(item) < _finite_share(normal):
                left_out[distribution] = "the reference gives NaN or infinity"
            elif not torch.equal(item.inputs, normal.inputs):
                trials.append(item)
        return attrs.evolve(prepared, trials=tuple(trials), left_out=left_out)

    def _add_other_scalars(self, prepared: PreparedWorkload, values: Mapping[str, Value]) -> PreparedWorkload:
        """Add a call with other numbers in the place of scalars, which replays of a capture cannot vary."""
        others = other_scalars(self.definition, self.workload.axes, values)
        if not others or self._is_late() or self.worker.is_closed:
            return prepared
        layout = layout_of(self.definition, self.workload.axes, {**values, **others})
        self._checker = attrs.evolve(self._checker, others={**self._checker.others, **others})
        try:
            with TimedFunction(self.worker, layout, 1, self.context) as function:
                item = self._expect(function, layout, "scalars", {**values, **others})
        except (Rejected, WorkerLost) as error:
            return prepared.without("scalars", f"the reference failed: {error}")
        finally:
            self._checker = prepared.checker
        if _finite_share(item) < _finite_share(prepared.bases[0]):
            return prepared.without("scalars", "the reference gives NaN or infinity")
        return attrs.evolve(prepared, scalars=OtherScalars(layout, item, others))

    def _add_padded_calls(self, prepared: PreparedWorkload, values: Mapping[str, Value]) -> PreparedWorkload:
        """Add calls with padded indices, if the definition has such and the reference has time for them."""
        if self.run.quick or self.evaluator.is_random:
            return prepared
        draws = draw_padded_calls(self.definition, self.workload.axes, values, _secret_generator())
        if not draws:
            return prepared
        calls: list[PaddedCall] = []
        try:
            for draw in draws:
                if self._is_late() or self.worker.is_closed:
                    return prepared.without("padded", "the reference is too slow, or has failed before")
                calls.append(self._expect_padded(prepared.bases[0], values, draw))
        except (Rejected, WorkerLost) as error:
            if self.context.device.type == "cuda":
                self.worker.close()  # its context may be broken; the next workload gets a fresh one
            return prepared.without("padded", f"the reference failed: {error}")
        layout = self._layout_of({**values, **draws[0].stale})
        return attrs.evolve(prepared, padded=PaddedCalls(layout, calls))

    def _expect_padded(self, base: InputSet, values: Mapping[str, Value], draw: PaddedDraw) -> PaddedCall:
        """A call with padded indices; the reference gets the indices up to their total."""
        if draw.is_given:
            layout, config = self._layout_of(values), _leniently(self.config)
            check = self._checker.check(layout, base.inputs, base.expected, config=config)
            return PaddedCall(draw.total, draw.stale, draw.poisoned, base.expected, check)
        exact = {**values, **draw.exact}
        layout = self._layout_of(exact)
        with TimedFunction(self.worker, layout, 1, self.context) as function:
            item = self._expect(function, layout, "padded", exact)
        return PaddedCall(draw.total, draw.stale, draw.poisoned, item.expected, item.check)

    def _layout_of(self, values: Mapping[str, Value]) -> CallLayout:
        axes = self.definition.get_axes_values_from_inputs([values[name] for name in self.definition.inputs])
        return layout_of(self.definition, axes, values)


def _secret_generator() -> torch.Generator:
    return torch.Generator().manual_seed(SECRET.getrandbits(62))


def _tensor(value: Value) -> torch.Tensor:
    assert isinstance(value, torch.Tensor)
    return value


def _finite_share(item: InputSet) -> float:
    shares = (part.undefined_share + part.infinite_share for part in item.check.parts.values())
    return 1.0 - max(shares, default=0.0)


def needed_bytes(definition: Definition, workload: Workload, config: ResolvedEvalConfig, device: torch.device) -> int:
    """About how much memory a prepared workload takes with the slots of one function.

    Raises:
        AxisError: An axis has no size.
        InvalidField: The workload's layout is invalid.
    """
    size = call_bytes(definition, workload)
    sets = config.num_trials + len(config.distributions) + 2
    return size * (sets + slot_count(size, device))
