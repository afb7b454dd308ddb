"""Solution run. One solution on several workloads, in two phases.

Phase A binds each workload, checks outputs and warms up, so that everything that compiles has compiled. Then the
worker is sealed. Phase B times the workloads that passed. A lost worker costs one workload: the others are evaluated
in fresh workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

import attrs
import torch
from fib_schema import Correctness, Definition, Evaluation, EvaluationStatus, Performance, Solution

from ..checking.comparison import Comparison
from ..checking.precision import PrecisionWatch
from ..config.benchmark import BenchmarkConfig
from ..config.model import ResolvedEvalConfig
from ..errors import EvaluatorFailed
from ..events import Phase
from ..flags import FIXED_INPUTS, UNSEALED, UNVERIFIED
from ..worker.client import WorkerLost
from .device import DeviceContext, lacks_memory, wait_for_memory
from .function_worker import BackgroundActivity, FunctionWorker, NotCapturable, Rejected
from .graph_safety import graph_fields, padding_fields, padding_problem
from .interleaving import Baselines, Interleaved
from .prepared import EvaluatorRaised, PreparedWorkload
from .record import EvaluationRecorder, correctness_of, kernels_of, log_of, status_of
from .timed_function import TimedFunction
from .timer import Timer

T = TypeVar("T")
Result = Evaluation | EvaluatorFailed


@attrs.define(eq=False)
class _Checked:
    """A workload that passed phase A, and what its calls have shown; phase B adds to that."""

    prepared: PreparedWorkload
    precision: PrecisionWatch
    comparisons: list[Comparison] = attrs.field(factory=list)
    findings: dict[str, Mapping[str, object]] = attrs.field(factory=dict)
    kernels: Sequence[tuple[str, float]] = ()
    printed: str = ""


@attrs.frozen(eq=False, kw_only=True)
class SolutionRun:
    """Evaluates one solution."""

    candidate: FunctionWorker
    """Of the solution."""
    definition: Definition
    solution: Solution
    config: BenchmarkConfig
    settings: ResolvedEvalConfig
    """Those of the definition."""
    context: DeviceContext
    baselines: Baselines
    recorder: EvaluationRecorder
    _lacked_memory: set[str] = attrs.field(init=False, factory=set)
    """Workloads that were begun anew after the device had too little memory."""

    def evaluate(self, workloads: Sequence[PreparedWorkload]) -> Iterator[tuple[PreparedWorkload, Result]]:
        """Evaluate on workloads; those that fail in phase A come first."""
        pending, batch_size = list(workloads), len(workloads)
        while pending:
            known, done = self._known_limits, set[int]()
            for prepared, result in self._evaluate_batch(pending[:batch_size]):
                done.add(id(prepared))
                yield prepared, result
            pending = [prepared for prepared in pending if id(prepared) not in done]
            if known == self._known_limits:
                batch_size = 1  # a worker was lost: from now on each workload gets a worker of its own

    @property
    def _known_limits(self) -> tuple[object, ...]:
        """The attempts that are not repeated after they have cost a worker."""
        candidate = self.candidate
        return candidate.may_capture, candidate.may_seal, candidate.padding_problem, len(self._lacked_memory)

    def _evaluate_batch(self, batch: Sequence[PreparedWorkload]) -> Iterator[tuple[PreparedWorkload, Result]]:
        """Evaluate in one worker; where that is lost, some workloads have no result."""
        if not self.candidate.is_ready and (failed := self._build()) is not None:
            yield from ((prepared, failed) for prepared in batch)
            return
        checked: list[_Checked] = []
        for prepared in batch:
            found = self._attempt(prepared, partial(self._check, prepared))
            if isinstance(found, _Checked):
                checked.append(found)
            elif found is not None:
                yield prepared, found
            if self.candidate.worker.is_closed:
                return
        for item in checked:
            result = self._time_sealed(item)
            if result is not None:
                yield item.prepared, result
            if self.candidate.worker.is_closed:
                return

    # -- failures --------------------------------------------------------------------------------

    def _build(self) -> Evaluation | None:
        """Build the solution in a fresh worker; returns the evaluation of all workloads if that fails."""
        try:
            with self.context.phases.during(Phase.BUILD):
                self.candidate.build()
        except Rejected as error:
            return self._failure(error.status, error.message)
        except WorkerLost as lost:
            return self._failure(status_of(lost), f"while the solution was built: {lost}")
        return None

    def _attempt(self, prepared: PreparedWorkload, step: Callable[[], T]) -> T | Result | None:
        """Run a step; a failure becomes a result. None: repeat it in a fresh worker with what is known now."""
        candidate = self.candidate
        try:
            with self.context.device_work(), self.context.phases.during(Phase.CHECK):
                return step()
        except EvaluatorRaised as error:
            return self._evaluator_failed(prepared, prepared.checker.evaluator.name, str(error))
        except torch.OutOfMemoryError as error:
            self._end_worker()
            return None if self._has_waited_for_memory(prepared) else self._evaluator_failed(prepared, "", str(error))
        except NotCapturable as error:
            candidate.worker.close()
            if lacks_memory(str(error)) and self._has_waited_for_memory(prepared):
                return None
            if candidate.may_capture:
                candidate.may_capture, candidate.not_captured = False, str(error)
                return None
            return self._failure(EvaluationStatus.RUNTIME_ERROR, str(error), prepared)
        except Rejected as error:
            is_runtime_error = error.status is EvaluationStatus.RUNTIME_ERROR
            if is_runtime_error and lacks_memory(error.message) and self._has_waited_for_memory(prepared):
                return None
            return self._rejected(prepared, error)
        except WorkerLost as lost:
            return self._failure(status_of(lost), str(lost), prepared)

    def _end_worker(self) -> None:
        with self.context.device_work():  # the end of its device context disturbs passes
            self.candidate.worker.close()

    def _has_waited_for_memory(self, prepared: PreparedWorkload) -> bool:
        """Whether the workload is begun anew, once, because other judges have left too little memory."""
        if not self.context.is_shared or prepared.workload.uuid in self._lacked_memory:
            return False
        self._lacked_memory.add(prepared.workload.uuid)
        self._end_worker()
        with self.context.phases.during(Phase.WAIT):
            wait_for_memory(self.context.device)
        return True

    def _evaluator_failed(self, prepared: PreparedWorkload, evaluator: str, reason: str) -> EvaluatorFailed:
        return EvaluatorFailed(self.definition.name, prepared.workload.uuid, evaluator, reason)

    def _rejected(self, prepared: PreparedWorkload, error: Rejected) -> Evaluation:
        is_wrong = error.status is EvaluationStatus.INCORRECT_NUMERICAL
        correctness = correctness_of(error.comparisons, self.settings) if is_wrong else None
        evaluation = self._failure(error.status, error.message, prepared, correctness)
        if not is_wrong and (self.context.is_cuda or error.status is EvaluationStatus.REWARD_HACK):
            self.candidate.worker.close()  # an error on the device spoils the process, and so does an exploit
        return evaluation

    def _failure(
        self,
        status: EvaluationStatus,
        message: str,
        prepared: PreparedWorkload | None = None,
        correctness: Correctness | None = None,
    ) -> Evaluation:
        worker = self.candidate.worker
        log = log_of(message, worker)
        return self.recorder.evaluation(
            self.solution, status, log, correctness, isolation=worker.isolation, prepared=prepared
        )

    # -- phase A ---------------------------------------------------------------------------------

    def _bind(self, item: _Checked) -> TimedFunction:
        prepared = item.prepared
        function = TimedFunction(
            self.candidate.worker,
            prepared.layout,
            prepared.slots,
            self.context,
            has_setup=self.candidate.has_setup,
            keeps_integers=self.baselines.baseline_has_setup(self.definition),
            recipes=prepared.recipes,
        )
        function.comparisons, function.findings = item.comparisons, item.findings
        return function

    def _check(self, prepared: PreparedWorkload) -> _Checked | None:
        """Check outputs and warm up; None if a check that decides no verdict has cost the worker."""
        candidate, phases, layout = self.candidate, self.context.phases, prepared.layout
        checked = _Checked(prepared, PrecisionWatch(prepared.error_bounds))
        with self._bind(checked) as function:
            for index, item in enumerate(prepared.trials):
                with phases.during(Phase.CHECK if index else Phase.COMPILE):
                    where = f"input set {index} ({item.distribution})"
                    outputs = function.check(item, where, is_first=not index)
                if item.distribution == "normal":
                    checked.precision.record(layout.output_tensors(outputs), layout.output_tensors(item.expected))
            function.check_together(prepared)
            with phases.during(Phase.WARM_UP):
                Timer(function, prepared, self.settings, may_capture=candidate.may_capture)
            if not (candidate.is_profiled or self.config.quick):
                candidate.is_profiled = True
                with phases.during(Phase.AUDIT):
                    checked.kernels = kernels_of(function)
            checked.printed = candidate.worker.printed()
        function.raise_if_lost()  # or it would be checked again and again
        self._check_scalars(prepared)
        if prepared.padded is not None and not candidate.padding_problem:
            with phases.during(Phase.CHECK):
                candidate.padding_problem = padding_problem(candidate, prepared, prepared.padded)
        return None if candidate.worker.is_closed else checked

    def _check_scalars(self, prepared: PreparedWorkload) -> None:
        """Check a call with other scalars; raises like `TimedFunction.check`."""
        if (other := prepared.scalars) is None:
            return
        worker, has_setup = self.candidate.worker, self.candidate.has_setup
        with TimedFunction(worker, other.layout, 1, self.context, has_setup=has_setup) as function:
            given = ", ".join(f"{name} = {value:g}" for name, value in other.values.items())
            function.check(other.item, f"a call with {given}", is_first=True)
        function.raise_if_lost()

    # -- phase B ---------------------------------------------------------------------------------

    def _time_sealed(self, item: _Checked) -> Result | None:
        """Time in the sealed worker; if the function fails there, all is repeated once in one without a seal."""
        candidate = self.candidate
        result = self._attempt(item.prepared, partial(self._time, item))
        if isinstance(result, Evaluation) and result.status is EvaluationStatus.RUNTIME_ERROR:
            if candidate.is_sealed:
                candidate.may_seal = False
                candidate.worker.close()
                return None
            if not candidate.may_seal:
                candidate.may_seal = True  # the seal was not the reason
                candidate.worker.close()
        return result

    def _time(self, item: _Checked) -> Evaluation:
        """The evaluation of a solution that passes."""
        candidate, prepared = self.candidate, item.prepared
        if candidate.may_seal and not candidate.is_sealed:
            candidate.seal()
        is_unsealed = not candidate.may_seal or (self.context.is_cuda and not candidate.is_sealed)
        with self._bind(item) as function:
            performance, flags = self._performance(function, item)
            candidate.worker.confirm()
            printed = item.printed + candidate.worker.printed()
        function.raise_if_lost()
        self.context.trim()
        return self.recorder.evaluation(
            self.solution,
            EvaluationStatus.PASSED,
            printed,
            correctness_of(item.comparisons, self.settings, item.findings),
            performance,
            isolation=candidate.worker.isolation,
            prepared=prepared,
            precision=item.precision,
            flags=[*flags, UNSEALED] if is_unsealed else flags,
        )

    def _performance(self, function: TimedFunction, item: _Checked) -> tuple[Performance, list[str]]:
        candidate, prepared = self.candidate, item.prepared
        with Interleaved(
            self.baselines,
            function,
            prepared,
            self.settings,
            may_capture=candidate.may_capture,
            is_reference_timed=self.config.profile_baseline,
        ) as timed:
            self._take_samples(timed)
            timing = self._graph_fields(function, timed.timer, prepared)
            if candidate.not_captured:
                timing["not_captured"] = candidate.not_captured
            performance = self.recorder.performance(function, timed, prepared, timing=timing, kernels=item.kernels)
            flags = [UNVERIFIED] if timed.failure else []
            flags += [] if timed.timer.passes.changed_names else [FIXED_INPUTS]
            return performance, [*flags, *timed.timer.verification.precision_flags, *self._check_code()]

    def _take_samples(self, timed: Interleaved) -> None:
        """Take the samples of the solution and the baselines."""
        context, activity = self.context, BackgroundActivity(self.candidate.worker)
        context.exclusive_seconds = 0.0
        with ExitStack() as stack:
            if not context.is_cuda:  # there, each pass and each host call has the device alone
                stack.enter_context(context.exclusive())
            stack.enter_context(context.phases.during(Phase.TIME))
            timed.time(self.settings.measure_seconds, activity)
        with context.phases.during(Phase.AUDIT):
            with context.no_device_work():
                activity.check()
            timed.finish()

    def _graph_fields(self, function: TimedFunction, timer: Timer, prepared: PreparedWorkload) -> dict[str, object]:
        """Whether the timing has shown that the solution is safe in CUDA graphs, and right with padded indices."""
        problem, fields = self.candidate.padding_problem, dict[str, object]()
        if self.context.is_cuda:
            fields = graph_fields(
                self.definition,
                prepared,
                timer,
                has_setup=function.has_setup,
                keeps_integers=function.keeps_integers,
                is_padding_right=not problem,
            )
        return fields if prepared.padded is None else fields | padding_fields(problem)

    def _check_code(self) -> list[str]:
        """Flags of a worker whose code could not be checked, and of device settings that somebody changed."""
        if not self.context.is_cuda:
            return []
        with self.context.no_device_work():
            changes = [f"device setting changed: {change}" for change in self.context.restore_settings()]
            reason = self.candidate.check_code(self.baselines.reference_worker)
        return [*changes, f"unchecked code: {reason}"] if reason else changes
