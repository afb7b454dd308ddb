"""In-process evaluation of trusted code, for many small evaluations per second.

Outputs are compared on one input set. Nothing is isolated, audited or bounded in time, and a solution that
damages the process damages the whole run. Traces carry the flag ``trusted``.
"""

from __future__ import annotations

import platform
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import attrs
import torch
from fib_compile import BuilderRegistry, BuildError, Runnable
from fib_compile.device import env_snapshot, parse_device
from fib_schema import (
    Correctness,
    Definition,
    Environment,
    Evaluation,
    EvaluationStatus,
    Performance,
    Solution,
    Trace,
    Workload,
)
from fib_schema.strides import layout_extra

from ..config.benchmark import BenchmarkConfig
from ..config.model import ResolvedEvalConfig
from ..errors import EvaluatorUnusable, InputError, UnsupportedDevice
from ..evaluators import evaluator_for
from ..events import Evaluated, Event, Skipped, Working
from ..flags import SYNTHESIZED, TRUSTED
from ..inputs.generation import make_input_values
from ..judge.device_lock import identity_of
from ..judge.output_checker import EvaluatorRaised, OutputChecker
from ..judge.prepared import InputSet
from ..judge.record import EvaluationRecorder, correctness_of
from ..judge.rpc import STATUS_OF_ASPECT
from ..judge.stopping import stop_rule
from ..plan import DefinitionPlan, Skip
from ..timing import Measurement, TimedCall, bracket_costs_ns, stopwatch_for
from ..transport.slots import CallLayout, layout_of
from ..worker.calls import PreparedCall, WrongOutputError

_CALIBRATION_SAMPLES = 50
_MAX_LOG = 16_000


@attrs.frozen(eq=False)
class _Prepared:
    """A workload with its expected outputs and the timing of its reference."""

    workload: Workload
    layout: CallLayout
    item: InputSet
    config: ResolvedEvalConfig
    reference: Measurement
    synthesized: tuple[str, ...] = ()
    """Inputs whose blobs are missing, and which were made instead."""


class InProcessWorker:
    """A device worker that runs solutions in this process.

    Args:
        config: Settings of the run.
        root: The data set's folder, for blobs.

    Raises:
        UnsupportedDevice: There is no such device here.
    """

    def __init__(self, config: BenchmarkConfig, root: Path | None) -> None:
        self._config = config
        self._root = root
        try:
            parse_device(config.device)
            self._environment = env_snapshot(config.device)
        except (ValueError, RuntimeError) as error:
            raise UnsupportedDevice(config.device, str(error)) from error
        self._device = torch.device(config.device)
        where = {"host": platform.node(), "device": config.device, "device_id": identity_of(self._device)}
        self._recorder = EvaluationRecorder(self._environment, where, None, is_quick=config.quick)
        self._registry = BuilderRegistry.get_instance()
        self._costs: dict[tuple[str, int], float] = {}

    @property
    def environment(self) -> Environment:
        """The hardware and the versions that traces state."""
        return self._environment

    def close(self) -> None:
        """Do nothing: no process was started."""

    def execute(self, part: DefinitionPlan) -> Iterator[Event]:
        """Run the plan for one definition."""
        definition = part.definition
        built: dict[str, Runnable | BuildError] = {}
        for workload in part.workloads:
            yield Working(definition.name, None, workload)
            try:
                prepared = self._prepare(definition, workload)
            except (InputError, EvaluatorUnusable, EvaluatorRaised, BuildError) as error:
                skip = Skip(definition.name, None, workload.uuid, str(error), is_failure=True)
                yield Skipped(skip, len(part.pending[workload.uuid]))
                continue
            for solution in part.pending[workload.uuid]:
                if solution.name not in built:
                    built[solution.name] = self._build(definition, solution)
                try:
                    evaluation = self._evaluate(definition, solution, built[solution.name], prepared)
                except EvaluatorRaised as error:
                    reason = f"the evaluator failed: {error}"
                    yield Skipped(Skip(definition.name, solution.name, workload.uuid, reason, is_failure=True), 1)
                    continue
                evaluation = _with_synthesized(evaluation, prepared.synthesized)
                evaluation = _with_layout(evaluation, prepared.layout)
                yield Evaluated(Trace(definition.name, workload, solution.name, evaluation))

    def _build(self, definition: Definition, solution: Solution) -> Runnable | BuildError:
        try:
            return self._registry.build(definition, solution)
        except BuildError as error:
            return error

    def _prepare(self, definition: Definition, workload: Workload) -> _Prepared:
        config = self._config.resolve_eval_config(definition)
        evaluator = evaluator_for(definition, config)
        config = evaluator.settings(config)
        made = make_input_values(
            definition,
            workload,
            seed=self._config.seed,
            root=self._root,
            synthesize_missing=self._config.synthesize_missing,
            device=self._device,
            distribution="normal",
        )
        values = made.values
        layout = layout_of(definition, workload.axes, values)
        inputs = torch.zeros(layout.input_bytes, dtype=torch.uint8, device=self._device)
        layout.pack(values, inputs)
        call = self._call(self._registry.build_reference(definition), definition, layout, inputs)
        try:
            measurement, expected = self._time(*call, config)
        except Exception as error:
            raise InputError(definition.name, workload.uuid, "", f"the reference failed: {_first(error)}") from error
        others = {name: value for name, value in values.items() if not isinstance(value, torch.Tensor)}
        check = OutputChecker(evaluator, definition, config, others).check(layout, inputs, expected)
        item = InputSet("normal", inputs, expected, check)
        return _Prepared(workload, layout, item, config, measurement, made.synthesized)

    def _call(
        self, function: Runnable, definition: Definition, layout: CallLayout, inputs: torch.Tensor
    ) -> tuple[PreparedCall, torch.Tensor]:
        outputs = torch.full((layout.output_bytes,), 0xC3, dtype=torch.uint8, device=self._device)
        call = PreparedCall(function, definition, layout.message, inputs.clone(), outputs)
        if function.setup is not None:
            call.set_up()
        return call, outputs

    def _time(
        self, call: PreparedCall, outputs: torch.Tensor, config: ResolvedEvalConfig
    ) -> tuple[Measurement, torch.Tensor]:
        """Time a call; returns the measurement and the outputs of the first call."""
        call.prepare()
        call.collect(call.invoke())
        first = outputs.clone()
        stopwatch = stopwatch_for(self._device, [TimedCall(call.invoke, call.collect, call.prepare)], may_capture=False)
        warmth = stopwatch.warm_up(config.warmup_runs, config.measure_seconds / 4)
        rule = stop_rule(config)
        overhead_ns = self._cost(warmth.method, warmth.chain)
        taken: list[float] = []
        begin = time.perf_counter()
        while not rule.is_done(taken, elapsed := time.perf_counter() - begin, elapsed, warmth.chain):
            taken += [max(sample - overhead_ns, 1.0) / warmth.chain for sample in stopwatch.sample(1)]
        measurement = Measurement(
            samples_ns=tuple(taken),
            method=warmth.method,
            chain=warmth.chain,
            host_ns=warmth.host_ns,
            overhead_ns=overhead_ns,
        )
        return measurement, first

    def _cost(self, method: str, chain: int) -> float:
        if (method, chain) not in self._costs:
            (self._costs[method, chain],) = bracket_costs_ns(self._device, method, (chain,), _CALIBRATION_SAMPLES)
        return self._costs[method, chain]

    def _evaluate(
        self, definition: Definition, solution: Solution, function: Runnable | BuildError, prepared: _Prepared
    ) -> Evaluation:
        if isinstance(function, BuildError):
            return self._record(solution, EvaluationStatus.COMPILE_ERROR, str(function))
        try:
            call, outputs = self._call(function, definition, prepared.layout, prepared.item.inputs)
            measurement, first = self._time(call, outputs, prepared.config)
        except WrongOutputError as error:
            status = STATUS_OF_ASPECT.get(error.reply.aspect, EvaluationStatus.RUNTIME_ERROR)
            return self._record(solution, status, error.reply.problem)
        except Exception:  # noqa: BLE001 an exception of a solution is a result
            return self._record(solution, EvaluationStatus.RUNTIME_ERROR, traceback.format_exc()[-_MAX_LOG:])
        verdict = prepared.item.compare(prepared.layout, first)
        correctness = correctness_of(verdict.comparisons, prepared.config)
        if verdict.problems:
            return self._record(
                solution, EvaluationStatus.INCORRECT_NUMERICAL, "\n".join(verdict.problems), correctness
            )
        latency = measurement.latency_ms
        reference_ms = prepared.reference.latency_ms
        reference = prepared.reference.to_extra() | {"alternated": False}
        extra = {"timing": measurement.to_extra(), "reference_timing": reference}
        performance = Performance(latency, reference_ms, reference_ms / latency, extra)
        return self._record(solution, EvaluationStatus.PASSED, "", correctness, performance)

    def _record(
        self,
        solution: Solution,
        status: EvaluationStatus,
        log: str,
        correctness: Correctness | None = None,
        performance: Performance | None = None,
    ) -> Evaluation:
        evaluation = self._recorder.evaluation(solution, status, log, correctness, performance)
        return attrs.evolve(evaluation, extra={**(evaluation.extra or {}), "flags": [TRUSTED, *evaluation.flags]})


def _with_synthesized(evaluation: Evaluation, names: tuple[str, ...]) -> Evaluation:
    """The evaluation with the inputs that were made in place of missing blobs."""
    if not names:
        return evaluation
    added = {"synthesized_inputs": list(names), "flags": [*evaluation.flags, SYNTHESIZED]}
    return attrs.evolve(evaluation, extra={**(evaluation.extra or {}), **added})


def _with_layout(evaluation: Evaluation, layout: CallLayout) -> Evaluation:
    """The evaluation with the strides of inputs that are not contiguous."""
    if not layout.strides:
        return evaluation
    return attrs.evolve(evaluation, extra={**(evaluation.extra or {}), **layout_extra(layout.strides)})


def _first(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
