"""The judge: makes inputs, obtains expected outputs, receives a solution's outputs, decides.

Expected outputs come from the definition's reference, which runs in a worker of its own, and are
copied into memory that no worker can map. A solution's worker gets slots with inputs and poisoned
outputs. Whatever is timed is verified: timed calls get values that no call has seen before, and a
secret choice of them is compared.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import attrs
import torch
from fib_compile.device import env_snapshot, parse_device
from fib_schema import (
    AxisError,
    Definition,
    Environment,
    Evaluation,
    EvaluationStatus,
    Performance,
    Solution,
    Workload,
)

from ..checking.precision import PrecisionWatch
from ..config.model import BenchmarkConfig, ResolvedEvalConfig
from ..errors import EvaluatorFailed, EvaluatorUnusable, InputError, ReferenceFailed, UnsupportedDevice
from ..evaluators import evaluator_for
from ..evaluators.protocol import Evaluator
from ..execution.device_lock import identity_of, lock_of
from ..plan import BuildFailure
from ..sandbox.policy import free_memory_bytes
from ..timing.clock_monitor import watch_clock
from ..timing.measuring import CHAINS
from ..timing.roofline import speed_of_light_of, work_of
from ..transport.protocol import Calibrate, Calibrated
from ..transport.rpc import Implausible, NotCapturable, Rejected, ask
from ..worker.client import WorkerLost, WorkerServer
from .audits import LATER, audit_times
from .baselines import REFERENCE, Beside, Companions, alternate, start_over
from .build import attempt
from .device_context import Calibration, Conditions
from .function_worker import FunctionWorker, solution_request
from .output_checker import EvaluatorRaised
from .phase_timer import Ledger, Phase
from .prepare import Preparation, needed_bytes
from .prepared import PreparedWorkload
from .record import Recorder, correctness_of, isolated, log_of, status_of, with_kernels
from .stopping import stop_rule
from .timed_function import Side

_BUSY_SECONDS = {"cuda": 0.016}
_CALIBRATION_SAMPLES = 60
_MOST_AHEAD, _CORES_AHEAD = 4, 4  # workers that compile while another one is timed, and cores for each


class Judge:
    """Evaluates solutions on one device.

    Args:
        config: How to run.
        root: The data set's folder, for blobs.
        baselines: The baseline of each definition that has one.
        server: Starts workers; one of its own by default.

    Raises:
        UnsupportedDevice: There is no such device here.
    """

    def __init__(
        self,
        config: BenchmarkConfig,
        *,
        root: Path | None = None,
        baselines: Mapping[str, Solution] | None = None,
        server: WorkerServer | None = None,
    ) -> None:
        self._config = config
        self._root = root
        try:
            is_cuda = parse_device(config.device) is not None
            self._environment = env_snapshot(config.device)
        except (ValueError, RuntimeError) as error:
            raise UnsupportedDevice(config.device, str(error)) from error
        self.device = torch.device(config.device)
        if is_cuda:
            torch.cuda.set_device(self.device)
        self._server = server or WorkerServer(config.device, () if root is None else (root,))
        self._watch = watch_clock(self.device)
        if self._watch is not None:
            self._watch.start()
        where = {"host": platform.node(), "device": config.device, "device_id": identity_of(self.device)}
        self._recorder = Recorder(self._environment, where, config.baseline)
        self._companions = Companions(self._server, config.device, config.timeout_seconds, baselines or {})
        self._conditions: Conditions | None = None
        self.ledger = Ledger()
        """Where the time goes."""
        self._evaluators: dict[str, Evaluator] = {}
        self._ahead: dict[str, FunctionWorker] = {}
        self._most_ahead = min(_MOST_AHEAD, (os.cpu_count() or 1) // _CORES_AHEAD) if is_cuda else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all workers."""
        self._companions.dismiss()
        self.dismiss_ahead()
        if self._watch is not None:
            self._watch.stop()
        self._server.close()

    def launch(self) -> None:
        """Have what starts workers come up in the background."""
        self._server.launch()

    @property
    def environment(self) -> Environment:
        """The hardware and the versions that traces state."""
        return self._environment

    @property
    def conditions(self) -> Conditions:
        """What holds for everything on this device; measured when it is first asked for."""
        if self._conditions is None:
            self._conditions = Conditions(
                device=self.device,
                timeout_seconds=self._config.timeout_seconds,
                calibration=self._calibrate(),
                light=speed_of_light_of(self.device),
                watch=self._watch,
                ledger=self.ledger,
                lock=lock_of(self.device),
            )
        return self._conditions

    def _calibrate(self) -> Calibration:
        """Have a worker without a solution measure what the device's clock costs."""
        request = Calibrate(self._config.device, CHAINS[self.device.type], _CALIBRATION_SAMPLES)
        with self.ledger.during(Phase.START), self._server.spawn() as worker:
            reply = ask(worker, request, Calibrated, self._config.timeout_seconds)
        costs = {m: dict(zip(request.chains, numbers, strict=True)) for m, numbers in reply.overhead_ns.items()}
        return Calibration(costs, reply.flush_ns)

    # -- workloads -----------------------------------------------------------------------------

    def workload_bytes(self, definition: Definition, workload: Workload) -> int:
        """About how much memory a prepared workload takes; 0 if it lacks an axis, which `prepare` reports."""
        try:
            return needed_bytes(definition, workload, self._config.resolve_eval_config(definition), self.device)
        except AxisError:
            return 0

    def prepare(self, definition: Definition, workload: Workload) -> PreparedWorkload:
        """Make a workload's inputs, and run the reference on them.

        Raises:
            InputError: The inputs cannot be made.
            ReferenceFailed: The reference raised, hung, or is not deterministic.
            EvaluatorFailed: There is no evaluator for it, or it raised.
        """
        self._check_size(definition, workload)
        try:
            with self.ledger.during(Phase.REFERENCE):
                return self._prepare(definition, workload)
        except (WorkerLost, Rejected) as error:
            standing = self._companions.standing(REFERENCE)
            log = str(error) if standing is None else log_of(str(error), standing.worker)
            self._companions.dismiss()
            raise ReferenceFailed(definition.name, workload.uuid, log) from error
        except torch.OutOfMemoryError as error:
            raise InputError(definition.name, workload.uuid, "", f"its tensors do not fit: {error}") from error
        except EvaluatorUnusable as error:
            raise EvaluatorFailed(definition.name, workload.uuid, error.evaluator, error.problem) from error
        except EvaluatorRaised as error:
            name = self._evaluator(definition).name
            raise EvaluatorFailed(definition.name, workload.uuid, name, str(error)) from error

    def _evaluator(self, definition: Definition) -> Evaluator:
        """The evaluator of a definition, looked for once.

        Raises:
            EvaluatorUnusable: There is none, or it cannot be used.
        """
        if definition.name not in self._evaluators:
            config = self._config.resolve_eval_config(definition)
            self._evaluators[definition.name] = evaluator_for(definition, config)
        return self._evaluators[definition.name]

    def _prepare(self, definition: Definition, workload: Workload) -> PreparedWorkload:
        reference = self._companions.worker(REFERENCE, definition)
        try:
            return self._preparation(definition, workload, reference).prepare(may_capture=reference.may_capture)
        except NotCapturable:
            reference.may_capture = False
            reference.worker.close()
            reference = self._companions.worker(REFERENCE, definition)
            return self._preparation(definition, workload, reference).prepare(may_capture=False)

    def _preparation(self, definition: Definition, workload: Workload, reference: FunctionWorker) -> Preparation:
        config = self._config.resolve_eval_config(definition)
        evaluator = self._evaluator(definition)
        return Preparation(
            definition=definition,
            workload=workload,
            root=self._root,
            run=self._config,
            config=evaluator.settings(config),
            evaluator=evaluator,
            worker=reference.worker,
            conditions=self.conditions,
        )

    def _check_size(self, definition: Definition, workload: Workload) -> None:
        """Refuse a workload that this machine cannot hold.

        Raises:
            InputError: It lacks an axis, or its tensors are too large.
        """
        config = self._config.resolve_eval_config(definition)
        try:
            needed = needed_bytes(definition, workload, config, self.device)
        except AxisError as error:
            raise InputError(definition.name, workload.uuid, "", str(error)) from error
        free = available_bytes(self.device)
        if needed > free * 0.7:  # the reference and the solution need room of their own
            problem = f"its tensors take {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free"
            raise InputError(definition.name, workload.uuid, "", problem)

    # -- solutions -----------------------------------------------------------------------------

    def evaluate(
        self,
        definition: Definition,
        solution: Solution,
        workloads: Sequence[PreparedWorkload],
        *,
        unbuildable: BuildFailure | None = None,
    ) -> Iterator[tuple[Workload, Evaluation | EvaluatorFailed]]:
        """Evaluate one solution on workloads, in a fresh worker; a lost worker costs one workload.

        A solution that cannot be built is not built again for every workload: each gets the
        result of the one attempt. Where the evaluator fails there is none.

        Args:
            definition: What it computes.
            solution: In any language that has a builder here.
            workloads: On what.
            unbuildable: How that attempt failed, where it was made ahead.
        """
        if unbuildable is not None:
            yield from self._unbuilt(solution, unbuildable, workloads)
            return
        candidate = self._ahead.pop(solution.name, None) or self._spawn(definition, solution)
        try:
            if (failure := self._build(candidate)) is not None:
                yield from self._unbuilt(solution, failure, workloads)
                return
            for prepared in workloads:
                try:
                    evaluation = self._evaluate_one(candidate, definition, solution, prepared)
                except EvaluatorRaised as error:
                    name = prepared.standard.evaluator.name
                    yield prepared.workload, EvaluatorFailed(definition.name, prepared.workload.uuid, name, str(error))
                    continue
                yield prepared.workload, isolated(candidate.worker.isolation, evaluation)
        finally:
            candidate.worker.close()

    def _unbuilt(
        self, solution: Solution, failure: BuildFailure, workloads: Sequence[PreparedWorkload]
    ) -> Iterator[tuple[Workload, Evaluation]]:
        """What each workload gets of a solution that does not build."""
        for prepared in workloads:
            yield prepared.workload, isolated(failure.isolation, self._failed(solution, failure))

    def _failed(self, solution: Solution, failure: BuildFailure) -> Evaluation:
        return self._recorder.evaluation(solution, failure.status, failure.log)

    def start_ahead(self, definition: Definition, solutions: Sequence[Solution]) -> None:
        """Have workers of solutions that come next start and compile, where that disturbs no timing.

        Timing on the CPU would be: there is nothing ahead.
        """
        for solution in solutions[: self._most_ahead]:
            if solution.name not in self._ahead:
                self._ahead[solution.name] = self._spawn(definition, solution)
                self._ahead[solution.name].begin()

    def dismiss_ahead(self) -> None:
        """End workers that were started ahead and are not needed."""
        for candidate in self._ahead.values():
            candidate.worker.close()
        self._ahead = {}

    def _spawn(self, definition: Definition, solution: Solution) -> FunctionWorker:
        request = solution_request(self._config.device, definition, solution)
        with self.ledger.during(Phase.START):
            return FunctionWorker(self._server.spawn(), request)

    def _build(self, candidate: FunctionWorker) -> BuildFailure | None:
        with self.ledger.during(Phase.BUILD):
            return attempt(candidate, self._config.timeout_seconds)

    def _renew(self, candidate: FunctionWorker, solution: Solution) -> Evaluation | None:
        """Replace a worker that is gone or spoilt; returns the evaluation if the solution does not build any more."""
        candidate.worker.close()
        candidate.worker = self._server.spawn()
        failure = self._build(candidate)
        return None if failure is None else self._failed(solution, failure)

    def _evaluate_one(
        self, candidate: FunctionWorker, definition: Definition, solution: Solution, prepared: PreparedWorkload
    ) -> Evaluation:
        """Evaluate on one workload."""
        if candidate.worker.is_closed and (failed := self._renew(candidate, solution)) is not None:
            return failed
        try:
            with self.ledger.during(Phase.CHECK):
                return self._passed_somehow(candidate, definition, solution, prepared)
        except Rejected as error:
            log = log_of(error.message, candidate.worker)
            correctness = None
            if error.status is EvaluationStatus.INCORRECT_NUMERICAL:
                config = self._config.resolve_eval_config(definition)
                correctness = correctness_of(error.comparisons, config)
            elif self.device.type == "cuda" or error.status is EvaluationStatus.REWARD_HACK:
                candidate.worker.close()  # an error on the device spoils the process, and so does a trick
            return self._recorder.evaluation(solution, error.status, log, correctness, prepared=prepared)
        except WorkerLost as lost:
            return self._recorder.evaluation(
                solution, status_of(lost), log_of(str(lost), candidate.worker), prepared=prepared
            )

    def _passed_somehow(
        self, candidate: FunctionWorker, definition: Definition, solution: Solution, prepared: PreparedWorkload
    ) -> Evaluation:
        """Like `_passed`, in a second worker without graphs where the first could not be timed with them."""
        try:
            return self._passed(candidate, definition, solution, prepared)
        except NotCapturable:
            candidate.may_capture = False
            if (failed := self._renew(candidate, solution)) is not None:
                return failed
            return self._passed(candidate, definition, solution, prepared)

    def _passed(
        self, candidate: FunctionWorker, definition: Definition, solution: Solution, prepared: PreparedWorkload
    ) -> Evaluation:
        """The evaluation of a solution that does everything right.

        Raises:
            Rejected: It does not.
            NotCapturable: It must be timed without graphs, in a fresh worker.
            WorkerLost: It took its worker down.
        """
        config = self._config.resolve_eval_config(definition)
        with Side(
            candidate.worker,
            prepared.layout,
            prepared.slots,
            self.conditions,
            has_setup=candidate.has_setup,
            keeps_integers=self._companions.baseline_has_setup(definition),
        ) as side:
            precision = PrecisionWatch(prepared)
            for index, item in enumerate(prepared.rounds):
                precision.look(item, side.check(item, f"input set {index} ({item.distribution})"))
            side.check_together(prepared)
            with self.ledger.during(Phase.WARM_UP):
                side.warm_up(prepared, config, may_capture=candidate.may_capture)
            performance = self._time(side, definition, prepared, config)
            performance = self._against_speed_of_light(definition, prepared, performance)
            candidate.worker.confirm()
            if not candidate.is_profiled:
                candidate.is_profiled = True
                with self.ledger.during(Phase.AUDIT):
                    performance = with_kernels(performance, side)
            return self._recorder.evaluation(
                solution,
                EvaluationStatus.PASSED,
                candidate.worker.printed(),
                correctness_of(side.comparisons, config, side.findings),
                performance,
                prepared=prepared,
                precision=precision,
            )

    def _audit(self, side: Side, prepared: PreparedWorkload, reference: Side | None) -> None:
        """Look behind what the worker says.

        Args:
            side: The solution.
            prepared: The workload.
            reference: The reference beside it, if that is timed.

        Raises:
            Rejected: It does not say the truth.
            NotCapturable: It must be timed without graphs, in a fresh worker.
            WorkerLost: It took its worker down.
        """
        with self.ledger.during(Phase.AUDIT):
            side.check_rest()
            audit_times(side, prepared, self.device.type, reference)

    def _time(
        self, side: Side, definition: Definition, prepared: PreparedWorkload, config: ResolvedEvalConfig
    ) -> Performance:
        """Time a solution, in turns with what it is compared with, and look behind what it says.

        Raises:
            Rejected: Something is wrong.
            NotCapturable: It must be timed without graphs, in a fresh worker.
            WorkerLost: It took its worker down.
        """
        with ExitStack() as stack:
            with self.ledger.during(Phase.WARM_UP):
                found = self._companions.beside(side, definition, prepared, config, self.conditions)
                beside = stack.enter_context(found)
            with self.conditions.measuring():
                self._time_until_it_holds(side, beside, prepared, config)
            others = {role: other.measurement() for role, other in beside.timed.items()}
            side.check_timed_together(prepared)
            return self._recorder.performance(side, others, beside.failures, prepared)

    def _time_until_it_holds(
        self, side: Side, beside: Beside, prepared: PreparedWorkload, config: ResolvedEvalConfig
    ) -> None:
        """Take samples of all sides, and look behind them; on the CPU anew, some times, where they do not hold."""
        rule = stop_rule(config, busy_seconds=_BUSY_SECONDS.get(self.device.type, math.inf))
        for pause in (*(LATER if self.device.type == "cpu" else ()), None):
            with self.ledger.during(Phase.TIME):
                alternate(side, beside, prepared, rule)
                while not side.is_asked_enough:
                    side.sample(prepared, must_ask=True)
            try:
                self._audit(side, prepared, beside.timed.get(REFERENCE))
            except Implausible:
                if pause is None:
                    raise
                time.sleep(pause)
                start_over(side, beside)
            else:
                return

    def _against_speed_of_light(
        self, definition: Definition, prepared: PreparedWorkload, performance: Performance
    ) -> Performance:
        """The performance with what was achieved.

        Raises:
            Rejected: The device cannot be so fast.
        """
        light = self.conditions.light
        work = work_of(definition, prepared.workload.axes)
        if objection := light.objection(work, performance.latency_ms):
            raise Rejected(EvaluationStatus.REWARD_HACK, objection)
        achieved = light.to_extra(work, performance.latency_ms)
        if not achieved:
            return performance
        return attrs.evolve(performance, extra={**(performance.extra or {}), "speed_of_light": achieved})


def available_bytes(device: torch.device) -> int:
    """The memory of a device that new allocations can have."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what this process keeps is free
        return torch.cuda.mem_get_info(device)[0]
    return free_memory_bytes()
