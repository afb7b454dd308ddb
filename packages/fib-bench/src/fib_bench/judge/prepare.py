"""Workload preparation. Makes input sets and has the reference compute their expected outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

import attrs
import torch
from fib_schema import Definition, DType, EvaluationStatus, SafetensorsInput, Workload

from ..checking.comparison import has_same_bytes, raise_if_mostly_undefined
from ..checking.precision import error_bounds, move_inputs
from ..config.model import BenchmarkConfig, ResolvedEvalConfig
from ..errors import InputError
from ..evaluators.protocol import Evaluator
from ..events import Phase
from ..inputs.generation import (
    PaddedDraw,
    Value,
    distributions_of,
    draw_padded_calls,
    generator_of,
    make_input_values,
    refusing,
)
from ..inputs.recipes import other_scalars, plan_recipes
from ..inputs.redrawing import Structure
from ..inputs.synthesis import InputDraft
from ..recipe import Recipe
from ..secure_random import SECRET
from ..timing.handshake import native
from ..timing.work import work_of
from ..transport.arenas import CallLayout, call_bytes, layout_of
from ..worker.client import Rejected, WorkerLost
from .device import DeviceContext, total_bytes
from .functions import BoundFunction
from .prepared import GENERATED, MOVED, InputSet, OutputChecker, PaddedCalls, PreparedWorkload, fill, write_tensors
from .timer import GENERATOR, REFERENCE, Baselines

_MAX_REDRAWN_BYTES = 1 << 26  # passes of three functions keep a set for each burst
_NOT_REDRAWN = f"a generator makes it, and only up to {_MAX_REDRAWN_BYTES >> 20} MiB are made anew for timed calls"
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


class Preparation:
    """The making of one prepared workload, whose blobs are in the data set's folder.

    It raises `InputError`, `OutputsUndefined`, `EvaluatorFailed`, and `Rejected` or `WorkerLost` for the reference.
    """

    def __init__(
        self,
        definition: Definition,
        workload: Workload,
        evaluator: Evaluator,
        run: BenchmarkConfig,
        baselines: Baselines,
        context: DeviceContext,
        root: Path | None,
    ) -> None:
        self.definition, self.workload, self.evaluator = definition, workload, evaluator
        self.run, self.baselines, self.context, self.root = run, baselines, context, root
        self.config = evaluator.settings(run.resolve_eval_config(definition))
        self.reference = baselines.worker(REFERENCE, definition)
        self._deadline = context.seconds() + _REFERENCE_SECONDS
        with refusing(definition, workload):
            self._generator, self._recorded = generator_of(definition), workload
        self._given = self._generate_first()
        self._checker: OutputChecker

    def prepare(self) -> PreparedWorkload:
        """Make inputs and expected outputs."""
        made = self._inputs(0, "normal")
        values, recorded = made.values, self.workload.axes
        enlarged = {axis: made.axes[axis] for axis, size in recorded.items() if made.axes[axis] != size}
        self.workload = attrs.evolve(self.workload, axes={**recorded, **enlarged})
        layout = layout_of(self.definition, self.workload.axes, values)
        slots = slot_count(layout.size_bytes, self.context.device)
        others = {name: value for name, value in values.items() if not isinstance(value, torch.Tensor)}
        self._checker = OutputChecker(self.evaluator, self.definition, self.workload, self.config, others)
        with BoundFunction(self.reference, layout, slots) as function:
            trials = self._normal_sets(function, values)
            first, base = trials[0], trials[-1]
            with self.context.phases.during(Phase.INPUTS):
                # integers of a generator may belong to each other, and structure to them
                has_integers = any(self.definition.inputs[name].is_integer for name in self._given)
                structure = Structure(self.definition, self.workload.axes, {} if has_integers else values)
                redrawing = structure.redraw(_secret_generator())
            redraw = partial(self._redraw, structure, redrawing.changed, self._redrawn_names())
            if drawn := redraw():
                trials.append(self._expect_redrawn(function, base, "redrawn", drawn))
            if moved := self._moved_pages(structure):
                trials.append(self._expect_redrawn(function, base, MOVED, moved))
            recipes, constant, generated = self._generated(function, first, made)
            prepared = PreparedWorkload(
                workload=self.workload,
                layout=layout,
                slots=slots,
                checker=self._checker,
                trials=[*trials, *([generated] if recipes else [])],
                generated=generated,
                recipes=recipes,
                constant=constant,
                timed_config=self._timed_config(recipes),
                redraw=redraw if drawn else None,
                kept_integers=redrawing.kept,
                determined_integers=redrawing.determined,
                moved=moved,
                work=work_of(self.definition, self.workload.axes, values),
                synthesized=made.synthesized,
                enlarged=enlarged,
                error_bounds=self._error_bounds(function, first),
            )
            self._add_other_distributions(function, prepared)
        self._add_padded_calls(prepared, values)
        for changed in other_scalars(self.definition, self.workload.axes, values):
            self._add_other_scalars(prepared, values, changed)
        return prepared

    def _is_late(self) -> bool:
        return self.context.seconds() > self._deadline

    def _inputs(self, index: int, distribution: str) -> InputDraft:
        with self.context.phases.during(Phase.INPUTS):
            return make_input_values(
                self.definition,
                self.workload,
                seed=self.run.seed + index,
                root=self.root,
                synthesize_missing=self.run.synthesize_missing,
                device=self.context.device,
                distribution=distribution,
                given=self._generate(self._given, self.run.seed + index) if index else self._given,
            )

    def _redraw(
        self, structure: Structure, integers: Sequence[str], generated: Sequence[str]
    ) -> Mapping[str, torch.Tensor]:
        """Structure and inputs of a generator drawn anew, for calls that nobody can have planned."""
        drawn = structure.redraw(_secret_generator()).values if integers else {}
        found = {name: _tensor(drawn[name]).to(self.context.device) for name in integers}
        return {**found, **self._generate(generated, SECRET.getrandbits(31))}

    def _moved_pages(self, structure: Structure) -> dict[str, torch.Tensor]:
        """Integers after pages have moved between requests, or requests were emptied; none if neither may be."""
        if self.run.quick or self._is_late():
            return {}
        with self.context.phases.during(Phase.INPUTS):
            moved = structure.move_pages(_secret_generator())
        return {name: _tensor(moved.values[name]) for name in moved.changed}

    # -- inputs that the generator of the definition makes, in a worker of its own ---------------

    def _redrawn_names(self) -> list[str]:
        """The inputs of which timed calls get new values from the generator."""
        names = [name for name in self._given if name not in self._generator.parameters]
        return names if sum(self._given[name].nbytes for name in names) <= _MAX_REDRAWN_BYTES else []

    def _generate_first(self) -> Mapping[str, torch.Tensor]:
        """The inputs of the first set, after a check that a seed determines them in another process, too."""
        seed, names = self.run.seed, self._generator.names(self._recorded)
        values, other = (self._generate(names, seed, is_in_new_process=is_new) for is_new in (False, True))
        for name, value in values.items():
            if not has_same_bytes(value, other[name]):
                problem = f"makes other values of {name!r} in another process from the same seed, {seed}"
                self._refuse(f"{problem}; draw from torch, random or numpy.random, or use arguments['seed']")
        return values

    def _generate(
        self, names: Collection[str], seed: int, *, is_in_new_process: bool = False
    ) -> Mapping[str, torch.Tensor]:
        """Some of the inputs by name; `InputError` if the generator fails, or makes others than the definition says."""
        if not names:
            return {}
        made, workload, request = self._generator.call(self.definition, self._recorded, list(names), seed)
        request = {name: value.to(self.context.device) for name, value in request.items()}
        layout = layout_of(made, workload.axes, request)
        try:
            worker = self.baselines.worker(f"{GENERATOR} of {', '.join(names)}", made)
            if is_in_new_process:
                worker.build()
            with BoundFunction(worker, layout, 1) as function:
                found = layout.output_tensors(function.call(layout.pack(request, self.context.device)))
        except (Rejected, WorkerLost) as error:
            self._refuse(f"failed: {error}")
        for name, value in found.items():
            is_number = value.is_floating_point() and self.definition.inputs[name].dtype != DType.FLOAT4_E2M1
            if is_number and bool(value.float().isnan().any()):
                self._refuse(f"made NaN in {name!r} from seed {seed}")
        return found

    def _refuse(self, problem: str) -> NoReturn:
        text = f"the generator {self._generator.function!r} {problem}"
        raise InputError(self.definition.name, self.workload.uuid, "", text)

    # -- expected outputs ------------------------------------------------------------------------

    def _expect(self, function: BoundFunction, distribution: str, values: Mapping[str, Value]) -> InputSet:
        return self._expect_packed(function, distribution, function.layout.pack(values, self.context.device))

    def _expect_packed(self, function: BoundFunction, distribution: str, inputs: torch.Tensor) -> InputSet:
        expected = function.call(inputs)
        config = None if distribution in _TYPICAL else _leniently(self.config)
        again = partial(function.call, inputs)
        return self._checker.input_set(distribution, function.layout, inputs, expected, config=config, again=again)

    def _expect_redrawn(
        self, function: BoundFunction, base: InputSet, distribution: str, integers: Mapping[str, torch.Tensor]
    ) -> InputSet:
        inputs = base.inputs.clone()
        write_tensors(function.layout.input_tensors(inputs), integers)
        return self._expect_packed(function, distribution, inputs)

    def _normal_sets(self, function: BoundFunction, values: Mapping[str, Value]) -> list[InputSet]:
        """The sets of normal values; the check of the first one is what later checks refer to."""
        first = self._expect(function, "normal", values)
        raise_if_mostly_undefined(self.definition.name, self.workload.uuid, first.outputs)
        self._checker = attrs.evolve(self._checker, first=first.check)
        if not self.evaluator.is_random:
            self._check_determinism(function, first)
        sets = [first]
        for index in range(1, self.config.num_trials):
            if not self._is_late():
                sets.append(self._expect(function, "normal", self._inputs(index, "normal").values))
        return sets

    def _check_determinism(self, function: BoundFunction, item: InputSet) -> None:
        problems = item.compare(function.call(item.inputs)).problems
        if problems:
            first = "; ".join(problem.splitlines()[0] for problem in problems)
            problem = (
                f"it gives other outputs when it is called again with the same inputs ({first}); "
                f"the evaluator {self.evaluator.name!r} cannot judge such an op"
            )
            raise Rejected(EvaluationStatus.RUNTIME_ERROR, problem)

    def _error_bounds(self, function: BoundFunction, item: InputSet) -> dict[str, float]:
        if self.evaluator.is_random or self._is_late():
            return {}
        moved = item.inputs.clone()
        inputs = function.layout.input_tensors(moved)
        if not move_inputs(inputs):
            return {}
        outputs = [function.layout.output_tensors(each[None]) for each in (function.call(moved), item.expected)]
        return error_bounds(inputs, *outputs)

    def _generated(
        self, function: BoundFunction, base: InputSet, made: InputDraft
    ) -> tuple[dict[str, Recipe], dict[str, str], InputSet]:
        """The inputs that are generated for each timed call, why others are constant, and one set of such inputs.

        With all distributions mixed, if the reference has finite outputs for them; else with normal values.
        """
        reason, recipes, constant = "", dict[str, Recipe](), dict[str, str]()
        for wanted in dict.fromkeys((distributions_of(self.definition, self.config.distributions), ("normal",))):
            recipes, constant = self._plan(made, wanted)
            if not recipes:
                return {}, constant, base
            inputs = base.inputs.clone()
            fill(recipes, function.layout, inputs, base.inputs, SECRET.getrandbits(64))
            distribution = GENERATED if self._timed_config(recipes) else "normal"
            try:
                item = attrs.evolve(self._expect_packed(function, distribution, inputs), distribution=GENERATED)
            except (Rejected, WorkerLost) as error:
                reason = f"the reference failed: {error}"
                if self.context.is_cuda or function.worker.is_closed:
                    raise
                continue
            if _finite_share(item) >= _finite_share(base):
                return recipes, constant, item
            reason = "the reference gives NaN or infinity for generated values"
        return {}, {**constant, **dict.fromkeys(recipes, reason)}, base

    def _plan(self, made: InputDraft, distributions: Sequence[str]) -> tuple[dict[str, Recipe], dict[str, str]]:
        sources = self.workload.inputs.items()
        recorded = {name for name, source in sources if isinstance(source, SafetensorsInput)} - set(made.synthesized)
        recorded |= self._generator.parameters & self._given.keys()
        axes = self.definition.const_axes | self.workload.axes
        recipes, constant = plan_recipes(
            self.definition, axes, made.values, distributions=distributions, recorded=recorded
        )
        redrawn = self._redrawn_names()
        for name in self._given.keys() - self._generator.parameters:  # only the generator knows what is valid
            recipes.pop(name, None)
            constant.pop(name, None)
            constant |= {} if name in redrawn else {name: _NOT_REDRAWN}
        for name in list(recipes)[native.MAX_INPUTS :]:
            del recipes[name]
            constant[name] = f"at most {native.MAX_INPUTS} inputs of a call are generated"
        return recipes, constant

    def _timed_config(self, recipes: Mapping[str, Recipe]) -> ResolvedEvalConfig | None:
        """The settings by which timed calls are judged, if they are not those of typical values."""
        is_mixed = any(recipe.mask & ~1 for recipe in recipes.values())
        return _leniently(self.config) if is_mixed and not self.evaluator.is_random else None

    # -- further calls, which a reference may not have an answer to ------------------------------

    def _add_other_distributions(self, function: BoundFunction, prepared: PreparedWorkload) -> None:
        wanted = distributions_of(self.definition, self.config.distributions)
        for distribution in wanted[:_QUICK_DISTRIBUTIONS] if self.run.quick else wanted:
            if distribution != "normal":
                make = partial(lambda name: self._expect(function, name, self._inputs(0, name).values), distribution)
                item = self._try(prepared, distribution, make)
                if item is not None and not torch.equal(item.inputs, prepared.trials[0].inputs):
                    prepared.trials.append(item)

    def _add_other_scalars(
        self, prepared: PreparedWorkload, values: Mapping[str, Value], others: Mapping[str, int | float]
    ) -> None:
        """Add a call with other numbers in the place of scalars, which replays of a capture cannot vary."""
        name, given = f"scalar {', '.join(others)}", {**values, **others}
        layout = layout_of(self.definition, self.workload.axes, given)
        self._checker = attrs.evolve(self._checker, others={**self._checker.others, **others})
        item = self._try(prepared, name, partial(self._expect_apart, "scalars", layout, given))
        self._checker = prepared.checker
        if item is None:
            return
        if item.compare(prepared.trials[0].expected).problems:
            prepared.scalars.append((item, others))
        else:
            prepared.left_out[name] = "the outputs do not depend on it"

    def _expect_apart(self, name: str, layout: CallLayout, values: Mapping[str, Value]) -> InputSet:
        """A call in a slot of its own. With other scalars a reference may be random, as dropout is behind a switch."""
        with BoundFunction(self.reference, layout, 1) as function:
            item = self._expect(function, name, values)
            if name == "scalars" and not self.evaluator.is_random:
                self._check_determinism(function, item)
            return item

    def _add_padded_calls(self, prepared: PreparedWorkload, values: Mapping[str, Value]) -> None:
        """Add calls with padded indices, if the definition has such and the reference has time for them."""
        if self.run.quick or self.evaluator.is_random:
            return
        draws = draw_padded_calls(self.definition, self.workload.axes, values, _secret_generator())
        calls: list[tuple[PaddedDraw, InputSet]] = []
        for draw in draws:
            exact = {**values, **draw.exact}  # the reference gets the indices up to their total
            make = partial(self._expect_apart, "padded", self._layout_of(exact), exact)
            if (item := self._try(prepared, "padded", make, must_be_finite=False)) is None:
                return
            calls.append((draw, item))
        if calls:
            prepared.padded = PaddedCalls(self._layout_of({**values, **draws[0].stale}), calls)

    def _layout_of(self, values: Mapping[str, Value]) -> CallLayout:
        found = self.definition.get_axes_values_from_inputs([values[name] for name in self.definition.inputs])
        return layout_of(self.definition, {**self.workload.axes, **found}, values)

    def _try(
        self, prepared: PreparedWorkload, name: str, make: Callable[[], InputSet], *, must_be_finite: bool = True
    ) -> InputSet | None:
        """An input set for which the reference has outputs; else None, and the trace states the reason."""
        if self._is_late():
            reason = "the reference is too slow"
        elif self.reference.worker.is_closed:
            reason = "the reference has failed before"
        else:
            try:
                item = make()
            except (Rejected, WorkerLost) as error:
                reason = f"the reference failed: {error}"
                if self.context.is_cuda:
                    self.reference.worker.close()  # its context may be broken; the next workload gets a fresh one
            else:
                if not must_be_finite or _finite_share(item) >= _finite_share(prepared.trials[0]):
                    return item
                reason = "the reference gives NaN or infinity"
        prepared.left_out[name] = reason
        return None


def _secret_generator() -> torch.Generator:
    return torch.Generator().manual_seed(SECRET.getrandbits(62))


def _tensor(value: Value) -> torch.Tensor:
    assert isinstance(value, torch.Tensor)
    return value


def _finite_share(item: InputSet) -> float:
    return min((part.extent.finite_share for part in item.check.parts.values()), default=1.0)


def needed_bytes(definition: Definition, workload: Workload, config: ResolvedEvalConfig, device: torch.device) -> int:
    """About how much memory a prepared workload takes with the slots of one function; raises like `call_bytes`."""
    size = call_bytes(definition, workload)
    sets = config.num_trials + len(config.distributions) + 2
    return size * (sets + slot_count(size, device))
