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
from fib_schema import Definition, Evaluation, EvaluationStatus, Performance, Solution

from ..checking.comparison import Comparison
from ..checking.precision import PrecisionWatch
from ..config.benchmark import BenchmarkConfig
from ..config.model import ResolvedEvalConfig
from ..errors import EvaluatorFailed
from ..events import Phase
from ..flags import FIXED_INPUTS, UNSEALED, UNVERIFIED
from ..worker.client import ForkServerClient, WorkerLost
from .background_activity import BackgroundActivity
from .baselines import Baselines, InterleavedBaselines
from .build_failure import BuildFailure, attempt
from .device_context import DeviceContext
from .device_memory import lacks_memory, trim, wait_for_memory
from .function_worker import FunctionWorker
from .graph_safety import GraphEvidence, discrete_inputs, graph_fields
from .integrity import check_code
from .output_checker import EvaluatorRaised
from .padding_check import padding_fields, padding_problem
from .prepared import PreparedWorkload
from .record import EvaluationRecorder, correctness_of, isolated, kernels_of, log_of, status_of
from .rpc import NotCapturable, Rejected
from .timed_function import TimedFunction
from .timer import DEVICE, Timer

T = TypeVar("T")


@attrs.frozen(eq=False)
class _Checked:
    """A workload that passed phase A."""

    prepared: PreparedWorkload
    comparisons: Sequence[Comparison]
    findings: Mapping[str, Mapping[str, object]]
    precision: PrecisionWatch
    kernels: Sequence[tuple[str, float]]
    printed: str


@attrs.frozen(eq=False)
class SolutionRun:
    """Evaluates one solution.

    Args:
        candidate: Its worker; the solution is built.
        definition: What it computes.
        solution: The solution.
        config: How to run.
        settings: Those of the definition.
        server: Starts further workers.
        context: What holds on this device.
        baselines: The reference and the baseline.
        recorder: Makes evaluations.
    """

    candidate: FunctionWorker
    definition: Definition
    solution: Solution
    config: BenchmarkConfig
    settings: ResolvedEvalConfig
    server: ForkServerClient
    context: DeviceContext
    baselines: Baselines
    recorder: EvaluationRecorder
    _lacked_memory: set[str] = attrs.field(init=False, factory=set)
    """Workloads that were begun anew after the device had too little memory."""

    def evaluate(
        self, workloads: Sequence[PreparedWorkload]
    ) -> Iterator[tuple[PreparedWorkload, Evaluation | EvaluatorFailed]]:
        """Evaluate on workloads; those that fail in phase A come first."""
        pending, batch_size = list(workloads), len(workloads)
        while pending:
            batch, known = pending[:batch_size], self._known_limits
            done: set[int] = set()
            for prepared, evaluation in self._evaluate_batch(batch):
                done.add(id(prepared))
                if isinstance(evaluation, Evaluation):
                    evaluation = isolated(self.candidate.worker.isolation, evaluation)
                yield prepared, evaluation
            pending = [prepared for prepared in pending if id(prepared) not in done]
            if known == self._known_limits:
                batch_size = 1  # a worker was lost: from now on each workload gets a worker of its own

    @property
    def _known_limits(self) -> tuple[bool, str, int]:
        """The attempts that are not repeated after they have cost a worker."""
        return self.candidate.may_capture, self.candidate.padding_problem, len(self._lacked_memory)

    def _evaluate_batch(
        self, batch: Sequence[PreparedWorkload]
    ) -> Iterator[tuple[PreparedWorkload, Evaluation | EvaluatorFailed]]:
        """Evaluate in one worker; where that is lost, some workloads have no result."""
        if (self.candidate.worker.is_closed or self.candidate.is_sealed) and (failed := self._renew()) is not None:
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
            evaluation = self._time_or_retry(item)
            if evaluation is not None:
                yield item.prepared, evaluation
            if self.candidate.worker.is_closed:
                return

    def _renew(self) -> Evaluation | None:
        """Build in a fresh worker; returns the evaluation if the solution does not build any more."""
        self.candidate.use(self.server.spawn())
        with self.context.phases.during(Phase.BUILD):
            failure = attempt(self.candidate, self.config.timeout_seconds, device_work=self.context.device_work)
        return None if failure is None else self.failed(failure)

    def failed(self, failure: BuildFailure) -> Evaluation:
        """The evaluation of a solution that does not build."""
        return self.recorder.evaluation(self.solution, failure.status, failure.log)

    def _attempt(self, prepared: PreparedWorkload, step: Callable[[], T]) -> T | Evaluation | EvaluatorFailed | None:
        """Run a step; a failure becomes an evaluation. None: repeat it in a fresh worker, once for lack of memory."""
        try:
            return self._attempt_once(prepared, step)
        except torch.OutOfMemoryError as error:
            problem = str(error)
        with self.context.device_work():  # the end of its device context disturbs passes
            self.candidate.worker.close()
        if self.context.is_shared and prepared.workload.uuid not in self._lacked_memory:
            self._lacked_memory.add(prepared.workload.uuid)
            with self.context.phases.during(Phase.WAIT):
                wait_for_memory(self.context.device)
            return None
        return EvaluatorFailed(self.definition.name, prepared.workload.uuid, "", problem)

    def _attempt_once(
        self, prepared: PreparedWorkload, step: Callable[[], T]
    ) -> T | Evaluation | EvaluatorFailed | None:
        """Run a step.

        Raises:
            torch.OutOfMemoryError: The judge has too little memory, or the worker may have too little beside others.
        """
        candidate = self.candidate
        try:
            with self.context.device_work(), self.context.phases.during(Phase.CHECK):
                return step()
        except EvaluatorRaised as error:
            name = prepared.checker.evaluator.name
            return EvaluatorFailed(self.definition.name, prepared.workload.uuid, name, str(error))
        except NotCapturable as error:
            candidate.worker.close()
            is_begun_anew = not self.context.is_shared or prepared.workload.uuid in self._lacked_memory
            if not is_begun_anew and lacks_memory(str(error)):
                raise torch.OutOfMemoryError(str(error)) from error
            if candidate.may_capture:
                candidate.may_capture, candidate.not_captured = False, str(error)
                return None
            return self.recorder.evaluation(
                self.solution, EvaluationStatus.RUNTIME_ERROR, str(error), prepared=prepared
            )
        except Rejected as error:
            is_begun_anew = not self.context.is_shared or prepared.workload.uuid in self._lacked_memory
            if not is_begun_anew and error.status is EvaluationStatus.RUNTIME_ERROR and lacks_memory(error.message):
                raise torch.OutOfMemoryError(error.message) from error
            return self._rejected(prepared, error)
        except WorkerLost as lost:
            log = log_of(str(lost), candidate.worker)
            return self.recorder.evaluation(self.solution, status_of(lost), log, prepared=prepared)

    def _rejected(self, prepared: PreparedWorkload, error: Rejected) -> Evaluation:
        log = log_of(error.message, self.candidate.worker)
        correctness = None
        if error.status is EvaluationStatus.INCORRECT_NUMERICAL:
            correctness = correctness_of(error.comparisons, self.settings)
        elif self.context.is_cuda or error.status is EvaluationStatus.REWARD_HACK:
            self.candidate.worker.close()  # an error on the device spoils the process, and so does an exploit
        return self.recorder.evaluation(self.solution, error.status, log, correctness, prepared=prepared)

    def _bind(self, prepared: PreparedWorkload) -> TimedFunction:
        return TimedFunction(
            self.candidate.worker,
            prepared.layout,
            prepared.slots,
            self.context,
            has_setup=self.candidate.has_setup,
            keeps_integers=self.baselines.baseline_has_setup(self.definition),
            recipes=prepared.recipes,
        )

    # -- phase A ---------------------------------------------------------------------------------

    def _check(self, prepared: PreparedWorkload) -> _Checked | None:
        """Check outputs and warm up; None if a check that decides no verdict has cost the worker.

        Raises:
            Rejected: Outputs are wrong, or the function raised.
            NotCapturable: It must be timed in a fresh worker without graphs.
            WorkerLost: The worker ended.
        """
        with self._bind(prepared) as function:
            precision = PrecisionWatch(prepared.error_bounds)
            for index, item in enumerate(prepared.trials):
                with self.context.phases.during(Phase.CHECK if index else Phase.COMPILE):
                    where = f"input set {index} ({item.distribution})"
                    outputs = function.check(item, where, is_first=not index)
                if item.distribution == "normal":
                    layout = prepared.layout
                    precision.record(layout.output_tensors(outputs), layout.output_tensors(item.expected))
            function.check_together(prepared)
            with self.context.phases.during(Phase.WARM_UP):
                timer = Timer(function, may_capture=self.candidate.may_capture)
                timer.warm_up(prepared, self.settings)
            kernels: list[tuple[str, float]] = []
            if not (self.candidate.is_profiled or self.config.quick):
                self.candidate.is_profiled = True
                with self.context.phases.during(Phase.AUDIT):
                    kernels = kernels_of(function)
            printed = self.candidate.worker.printed()
        function.raise_if_lost()  # or it would be checked again and again
        self._check_scalars(prepared)
        self._check_padding(prepared)
        if self.candidate.worker.is_closed:
            return None
        return _Checked(prepared, function.comparisons, function.findings, precision, kernels, printed)

    def _check_scalars(self, prepared: PreparedWorkload) -> None:
        """Check a call with other scalars.

        Raises:
            Rejected: Outputs are wrong, or the function raised.
            WorkerLost: The worker ended.
        """
        if (other := prepared.scalars) is None:
            return
        with TimedFunction(
            self.candidate.worker, other.layout, 1, self.context, has_setup=self.candidate.has_setup
        ) as function:
            given = ", ".join(f"{name} = {value:g}" for name, value in other.values.items())
            function.check(other.item, f"a call with {given}", is_first=True)
        function.raise_if_lost()

    def _check_padding(self, prepared: PreparedWorkload) -> None:
        """Check calls with padded indices, unless the workload has none or others have failed.

        Raises:
            Rejected: The worker was tampered with.
            WorkerLost: It forged a reply.
        """
        candidate = self.candidate
        if prepared.padded is None or candidate.padding_problem:
            return
        bind = partial(TimedFunction, candidate.worker, context=self.context)
        with self.context.phases.during(Phase.CHECK):
            candidate.padding_problem = padding_problem(candidate, prepared, bind)

    # -- phase B ---------------------------------------------------------------------------------

    def _time_or_retry(self, item: _Checked) -> Evaluation | EvaluatorFailed | None:
        """Time in the sealed worker, and once more in a fresh one without a seal if the function fails there."""
        result = self._attempt(item.prepared, lambda: self._time(item))
        if not self.candidate.is_sealed or not _is_runtime_error(result):
            return result
        self.candidate.may_seal = False
        if (failed := self._renew()) is not None:
            return failed
        again = self._attempt(item.prepared, lambda: self._check_and_time(item.prepared))
        self.candidate.may_seal = _is_runtime_error(again)  # then the seal was not the reason
        self.candidate.worker.close()
        return again

    def _check_and_time(self, prepared: PreparedWorkload) -> Evaluation | None:
        checked = self._check(prepared)
        return None if checked is None else self._time(checked)

    def _time(self, item: _Checked) -> Evaluation:
        """The evaluation of a solution that passes.

        Raises:
            Rejected: Outputs of timed calls are wrong, or something else is.
            NotCapturable: It must be timed in a fresh worker without graphs.
            WorkerLost: The worker ended.
        """
        candidate, prepared = self.candidate, item.prepared
        if candidate.may_seal and not candidate.is_sealed:
            candidate.seal(self.context.timeout_seconds)
        with self._bind(prepared) as function:
            performance, flags = self._performance(function, item)
            candidate.worker.confirm()
            printed = item.printed + candidate.worker.printed()
        function.raise_if_lost()
        trim(self.context.device)
        return self.recorder.evaluation(
            self.solution,
            EvaluationStatus.PASSED,
            printed,
            correctness_of(
                [*item.comparisons, *function.comparisons], self.settings, {**item.findings, **function.findings}
            ),
            performance,
            prepared=prepared,
            precision=item.precision,
            flags=[*flags, UNSEALED] if self._is_unsealed else flags,
        )

    @property
    def _is_unsealed(self) -> bool:
        """Whether the worker should be sealed and is not."""
        return not self.candidate.may_seal or (self.context.is_cuda and not self.candidate.is_sealed)

    def _performance(self, function: TimedFunction, item: _Checked) -> tuple[Performance, list[str]]:
        prepared, config = item.prepared, self.settings
        is_reference_timed = self.config.profile_baseline
        with self.baselines.interleaved(
            function, self.definition, prepared, config, is_reference_timed=is_reference_timed
        ) as baselines:
            timer = Timer(function, baselines, may_capture=self.candidate.may_capture)
            with self.context.phases.during(Phase.WARM_UP):
                timer.warm_up(prepared, config)
            self._time_with(timer, baselines, config)
            reason = self.candidate.not_captured
            graphs = self._graph_fields(function, timer, prepared) if self.context.is_cuda else {}
            padding = {} if prepared.padded is None else padding_fields(self.candidate.padding_problem)
            performance = self.recorder.performance(
                function, timer, baselines, not_captured=reason, further={**graphs, **padding}
            )
            flags = [UNVERIFIED] if baselines.failure else []
            flags += [] if timer.changed_names() else [FIXED_INPUTS]
            flags += [*timer.verification.precision_flags, *self._check_code()]
        return self._with_roofline(prepared, self.recorder.with_kernels(performance, item.kernels)), flags

    def _graph_fields(self, function: TimedFunction, timer: Timer, prepared: PreparedWorkload) -> Mapping[str, object]:
        """Whether the timing has shown that the solution is safe in CUDA graphs."""
        evidence = GraphEvidence(
            method=timer.method,
            has_setup=function.has_setup,
            verified_calls=timer.verification.compared,
            discrete=discrete_inputs(self.definition, prepared.layout.inputs.keys() - prepared.determined_integers),
            changed=timer.changed_names() if timer.method == DEVICE else (),
            changed_in_padded_calls=() if self.candidate.padding_problem else prepared.padded_integers,
            kept_integers=function.keeps_integers and not function.has_setup,
        )
        return graph_fields(evidence)

    def _check_code(self) -> list[str]:
        """Flags of a worker whose code could not be checked, and of device settings that somebody changed.

        Raises:
            Rejected: The code was changed.
        """
        if not self.context.is_cuda:
            return []
        candidate = self.candidate
        with self.context.no_device_work():
            changes = [f"device setting changed: {change}" for change in self.context.restore_settings()]
            trusted = self.baselines.trusted_worker
            reason = check_code(candidate.worker, trusted, candidate.table, candidate.table_digest)
        return [*changes, f"unchecked code: {reason}"] if reason else changes

    def _time_with(self, timer: Timer, baselines: InterleavedBaselines, config: ResolvedEvalConfig) -> None:
        """Take the samples of the solution and the baselines."""
        context, activity = self.context, BackgroundActivity(self.candidate.worker)
        context.exclusive_time.reset()
        with ExitStack() as stack:
            if not context.is_cuda:  # there, each pass and each host call has the device alone
                stack.enter_context(context.exclusive())
            stack.enter_context(context.phases.during(Phase.TIME))
            baselines.time_interleaved(timer, config.measure_seconds, activity)
        with context.phases.during(Phase.AUDIT):
            with context.no_device_work():
                activity.check()
            timer.finish()

    def _with_roofline(self, prepared: PreparedWorkload, performance: Performance) -> Performance:
        """The performance with the share of the roofline that it reaches.

        Raises:
            Rejected: The device cannot be so fast.
        """
        light = self.context.light
        if objection := light.objection(prepared.work, performance.latency_ms):
            raise Rejected(EvaluationStatus.REWARD_HACK, objection)
        achieved = light.to_extra(prepared.work, performance.latency_ms)
        if not achieved:
            return performance
        return attrs.evolve(performance, extra={**(performance.extra or {}), "speed_of_light": achieved})


def _is_runtime_error(result: object) -> bool:
    return isinstance(result, Evaluation) and result.status is EvaluationStatus.RUNTIME_ERROR
