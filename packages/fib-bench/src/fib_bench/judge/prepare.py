"""Prepares workloads: makes input sets and has the reference compute what must come out of them."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path

import attrs
import torch
from fib_schema import Definition, EvaluationStatus, Workload

from ..checking.precision import bounds_of, moved_inputs
from ..config.model import BenchmarkConfig, ResolvedEvalConfig
from ..evaluators.protocol import Check, Evaluator, Tensors, Verdict
from ..inputs.generation import Value, distributions_of, make_inputs
from ..inputs.variation import Variation, vary, varying_inputs
from ..secure_random import SECRET
from ..timing import Measurement, StopRule
from ..transport.rpc import Rejected
from ..transport.slots import CallLayout, call_bytes, layout_of
from ..worker.client import Worker, WorkerLost
from .device_context import Conditions
from .output_checker import Standard
from .phase_timer import Phase
from .prepared import InputSet, PreparedWorkload
from .timed_function import Side, two_of

VARIANTS = 4
_SLOT_BYTES = {"cpu": 64 << 20, "cuda": 512 << 20}
_MOST_SLOTS = 32
_REFERENCE_SECONDS = 20.0  # for the expected outputs of one workload; one of each kind is computed in any case
_REFERENCE_SAMPLES = 10


_TYPICAL = ("normal", "variant")
_LENIENT_RATIO = 0.99
_LENIENT_CAP = 0.25


def _leniently(config: ResolvedEvalConfig) -> ResolvedEvalConfig:
    """The settings for values that are far from typical.

    Sums of addends of very different size lose digits: of correct bfloat16 attention kernels, one
    element in a thousand was off by 1 to 2 % of its row. What these rounds are for (a wrong epsilon,
    a division by zero, an overflow) is wrong in whole rows, or by as much as the output is large.
    """
    if config.required_matched_ratio is not None:
        return config
    return attrs.evolve(config, required_matched_ratio=_LENIENT_RATIO, error_cap=min(config.error_cap, _LENIENT_CAP))


def slot_count(size_bytes: int, device: torch.device) -> int:
    """How many calls of a size one timed pass makes: at least two, so that addresses differ."""
    return int(max(2, min(_MOST_SLOTS, _SLOT_BYTES[device.type] // max(size_bytes, 1))))


class _Unjudged(Check):
    """The check of inputs for which the reference has yet to say what is right."""

    def compare(self, found: Tensors, expected: Tensors) -> Verdict:
        """Nothing is known."""
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
        evaluator: Says what is right.
        worker: Holds the built reference.
        conditions: What holds on this device.
    """

    definition: Definition
    workload: Workload
    root: Path | None
    run: BenchmarkConfig
    config: ResolvedEvalConfig
    evaluator: Evaluator
    worker: Worker
    conditions: Conditions
    _deadline: float = attrs.field(init=False, default=0.0)
    _standard: Standard = attrs.field(init=False)

    def prepare(self, *, may_capture: bool) -> PreparedWorkload:
        """Make inputs and expected outputs, and time the reference.

        Args:
            may_capture: Whether CUDA graphs may be tried on the reference.

        Raises:
            InputError: The inputs cannot be made.
            EvaluatorRaised: The evaluator did.
            Rejected: The reference raised, or is not deterministic.
            NotCapturable: A fresh worker is needed, without graphs.
            WorkerLost: The reference took its worker down.
        """
        self._deadline = time.monotonic() + _REFERENCE_SECONDS
        values = self._values(0, "normal")
        layout = layout_of(self.definition, self.workload.axes, values)
        slots = slot_count(layout.size_bytes, self.conditions.device)
        others = {name: value for name, value in values.items() if not isinstance(value, torch.Tensor)}
        self._standard = Standard(self.evaluator, self.definition, self.config, others)
        with Side(self.worker, layout, slots, self.conditions) as side:
            bases = [self._expect(side, layout, "normal", values)]
            self._standard = attrs.evolve(self._standard, first=bases[0].check)
            if not self.evaluator.is_random:
                self._check_determinism(side, bases[0])
            for index in range(1, self.config.num_trials):
                if self._is_late():
                    break
                bases.append(self._expect(side, layout, "normal", self._values(index, "normal")))
            varying = varying_inputs(self.definition, [layout.input_tensors(base.inputs) for base in bases])
            prepared = PreparedWorkload(
                workload=self.workload,
                layout=layout,
                rounds=tuple(bases),
                variants=tuple(self._variants(side, layout, bases, varying)),
                varying=varying,
                slots=slots,
                left_out={},
                reference=None,
                standard=self._standard,
                error_bounds=self._error_bounds(side, bases[0]),
            )
            if self.run.profile_baseline:
                prepared = attrs.evolve(prepared, reference=self._time(side, prepared, may_capture))
            return self._add_other_distributions(side, prepared)

    def _values(self, index: int, distribution: str) -> dict[str, Value]:
        with self.conditions.ledger.during(Phase.INPUTS):
            return make_inputs(
                self.definition,
                self.workload,
                seed=self.run.seed + index,
                root=self.root,
                synthesize_missing=self.run.synthesize_missing,
                device=self.conditions.device,
                distribution=distribution,
            )

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline

    def _expect(self, side: Side, layout: CallLayout, distribution: str, values: Mapping[str, Value]) -> InputSet:
        """An input set with what the reference gives for it."""
        inputs = torch.zeros(layout.input_bytes, dtype=torch.uint8, device=self.conditions.device)
        layout.pack(values, inputs)
        return self._expect_packed(side, layout, distribution, inputs)

    def _expect_packed(self, side: Side, layout: CallLayout, distribution: str, inputs: torch.Tensor) -> InputSet:
        unjudged = InputSet(distribution, inputs, inputs, _Unjudged())
        expected = side.call(unjudged)
        config = None if distribution in _TYPICAL else _leniently(self.config)
        again = None if self._standard.first else lambda: side.call(unjudged)
        check = self._standard.check(layout, inputs, expected, config=config, again=again)
        return InputSet(distribution, inputs, expected, check)

    def _check_determinism(self, side: Side, item: InputSet) -> None:
        problems = item.compare(side.layout, side.call(item)).problems
        if problems:
            problem = (
                "it gives other outputs when it is called again with the same inputs "
                f"({'; '.join(problems)}); the evaluator {self.evaluator.name!r} cannot judge such an op"
            )
            raise Rejected(EvaluationStatus.RUNTIME_ERROR, problem)

    def _error_bounds(self, side: Side, item: InputSet) -> dict[str, float]:
        moved = None if self.evaluator.is_random or self._is_late() else moved_inputs(side.layout, item.inputs)
        if moved is None:
            return {}
        outputs = side.call(InputSet("moved", moved, moved, _Unjudged()))
        return bounds_of(side.layout, outputs, item.expected)

    def _variants(
        self, side: Side, layout: CallLayout, bases: list[InputSet], varying: Mapping[str, Variation]
    ) -> list[InputSet]:
        """Mixtures of the bases with their outputs; the bases themselves if nothing can vary."""
        if not varying:
            return bases
        made: list[InputSet] = []
        while not made or (len(made) < VARIANTS and not self._is_late()):
            first, second = two_of(bases)
            inputs = first.inputs.clone()
            generator = torch.Generator(self.conditions.device).manual_seed(SECRET.getrandbits(62))
            sources = layout.input_tensors(first.inputs), layout.input_tensors(second.inputs)
            vary(layout.input_tensors(inputs.unsqueeze(0)), *sources, varying, generator)
            made.append(self._expect_packed(side, layout, "variant", inputs))
        return made

    def _time(self, side: Side, prepared: PreparedWorkload, may_capture: bool) -> Measurement:
        rule = StopRule(
            iterations=min(_REFERENCE_SAMPLES, self.config.iterations),
            max_iterations=min(_REFERENCE_SAMPLES, self.config.iterations),
            confidence=self.config.confidence,
            max_seconds=self.config.measure_seconds / 4,
            busy_seconds=math.inf,
        )
        side.warm_up(prepared, self.config, may_capture=may_capture)
        with self.conditions.measuring():
            while not side.is_done(rule):
                side.sample(prepared)
        return side.measurement()

    def _add_other_distributions(self, side: Side, prepared: PreparedWorkload) -> PreparedWorkload:
        """Rounds with other values; where the reference has no finite answer to them, they do not apply."""
        rounds, left_out = list(prepared.rounds), {}
        normal = rounds[0]
        for distribution in distributions_of(self.definition, self.config.distributions):
            if distribution == "normal":
                continue
            if self._is_late():
                left_out[distribution] = "the reference is too slow"
                continue
            if side.worker.is_closed:
                left_out[distribution] = "the reference has failed on the values before these"
                continue
            try:
                item = self._expect(side, prepared.layout, distribution, self._values(0, distribution))
            except (Rejected, WorkerLost) as error:
                left_out[distribution] = f"the reference failed: {error}"
                if self.conditions.device.type == "cuda":
                    side.worker.close()  # its context may be broken; the next workload gets a fresh one
                continue
            if _finite_share(item) < _finite_share(normal):
                left_out[distribution] = "the reference gives NaN or infinity"
            elif not torch.equal(item.inputs, normal.inputs):
                rounds.append(item)
        return attrs.evolve(prepared, rounds=tuple(rounds), left_out=left_out)


def _finite_share(item: InputSet) -> float:
    return min((1.0 - part.non_finite_share for part in item.check.parts.values()), default=1.0)


def needed_bytes(definition: Definition, workload: Workload, config: ResolvedEvalConfig, device: torch.device) -> int:
    """About how much memory a prepared workload takes with the slots of one side.

    Raises:
        AxisError: An axis has no size.
    """
    size = call_bytes(definition, workload.axes)
    sets = config.num_trials + len(config.distributions) + VARIANTS
    return size * (sets + slot_count(size, device))
