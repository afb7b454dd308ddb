"""The judge: makes inputs, obtains expected outputs, receives a solution's outputs, decides.

Expected outputs come from the definition's reference, which runs in a worker of its own, and are
copied into memory that no worker can map. A solution's worker gets slots with inputs and poisoned
outputs. Whatever is timed is verified: timed calls get values that no call has seen before, and a
secret choice of them is compared.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import attrs
import msgspec
import torch
from fib_compile.device import env_snapshot, parse_device
from fib_schema import (
    AxisError,
    Correctness,
    Definition,
    Environment,
    Evaluation,
    EvaluationStatus,
    Performance,
    Solution,
    Workload,
    format_json,
)

from .audits import audit_chains, audit_processor_time, audit_single_calls, audit_whole_passes
from .clocks import watch_clock
from .config import BenchmarkConfig, ResolvedEvalConfig
from .correctness import Comparison
from .device_lock import identity_of, lock_of
from .dialogue import NotCapturable, Rejected, ask
from .errors import EvaluatorFailed, EvaluatorUnusable, InputError, ReferenceFailed, UnsupportedDevice
from .evaluators import evaluator_for
from .ledger import Ledger, Phase
from .precision import PrecisionWatch
from .preparation import Preparation, needed_bytes
from .prepared import InputSet, PreparedWorkload
from .sides import Calibration, Conditions, InputsChanged, Referee, RefereeFailed, Side
from .speed_of_light import speed_of_light_of, work_of
from .standard import EvaluatorRaised
from .timing import Measurement, StopRule
from .timing.measuring import CHAINS
from .wire import Build, Built, Calibrate, Calibrated
from .worker.pool import Worker, WorkerLost, WorkerServer

_ALTERNATION = 20.0  # a reference that is so many times slower is not timed again beside a solution
_BUSY_SECONDS = {"cuda": 0.016}
_CALIBRATION_SAMPLES = 60
_MOST_KERNELS = 100
_MOST_AHEAD, _CORES_AHEAD = 4, 4  # workers that compile while another one is timed, and cores for each
_REFERENCE, _BASELINE = "reference", "baseline"


class FunctionWorker:
    """A worker that holds a built function.

    Args:
        worker: Freshly forked.
        request: What to build.
    """

    def __init__(self, worker: Worker, request: Build) -> None:
        self.worker = worker
        self.request = request
        self.may_capture = True
        self.has_setup = False
        self.is_profiled = False
        """Whether its kernels have been looked at, which is done on one workload."""
        self._is_ahead = False

    def begin(self) -> None:
        """Have compilers run and the device made ready, and wait for nothing: no code of a solution runs yet."""
        try:
            self.worker.post(msgspec.structs.replace(self.request, is_ahead=True))
            self._is_ahead = True
        except WorkerLost:
            pass  # the build will find it gone, and say so

    def build(self, seconds: float) -> None:
        """Have the function built.

        Raises:
            Rejected: It cannot be.
            WorkerLost: It took its worker down.
        """
        if self._is_ahead:
            self._is_ahead = False
            self.worker.answer(seconds)
        self.has_setup = ask(self.worker, self.request, Built, seconds).has_setup


class Judge:
    """Evaluates solutions on one device.

    Args:
        config: How to run.
        root: The data set's folder, for blobs.
        baselines: The baseline of each definition that has one.

    Raises:
        UnsupportedDevice: There is no such device here.
    """

    def __init__(
        self,
        config: BenchmarkConfig,
        *,
        root: Path | None = None,
        baselines: Mapping[str, Solution] | None = None,
    ) -> None:
        self._config = config
        self._root = root
        self._baselines = baselines or {}
        try:
            is_cuda = parse_device(config.device) is not None
            self._environment = env_snapshot(config.device)
        except (ValueError, RuntimeError) as error:
            raise UnsupportedDevice(config.device, str(error)) from error
        self.device = torch.device(config.device)
        if is_cuda:
            torch.cuda.set_device(self.device)
        self._server = WorkerServer(config.device, () if root is None else (root,))
        self._watch = watch_clock(self.device)
        if self._watch is not None:
            self._watch.start()
        self._where = {"host": platform.node(), "device": config.device, "device_id": identity_of(self.device)}
        self._conditions: Conditions | None = None
        self.ledger = Ledger()
        """Where the time goes."""
        self._standing: dict[str, FunctionWorker] = {}
        self._standing_for: str | None = None
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
        self._dismiss()
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
            standing = self._standing.get(_REFERENCE)
            log = str(error) if standing is None else _log(str(error), standing.worker)
            self._dismiss()
            raise ReferenceFailed(definition.name, workload.uuid, log) from error
        except torch.OutOfMemoryError as error:
            raise InputError(definition.name, workload.uuid, "", f"its tensors do not fit: {error}") from error
        except EvaluatorUnusable as error:
            raise EvaluatorFailed(definition.name, workload.uuid, error.evaluator, error.problem) from error
        except EvaluatorRaised as error:
            name = evaluator_for(definition, self._config.resolve_eval_config(definition)).name
            raise EvaluatorFailed(definition.name, workload.uuid, name, str(error)) from error

    def _prepare(self, definition: Definition, workload: Workload) -> PreparedWorkload:
        reference = self._standing_worker(_REFERENCE, definition)
        try:
            return self._preparation(definition, workload, reference).prepare(may_capture=reference.may_capture)
        except NotCapturable:
            reference.may_capture = False
            reference.worker.close()
            reference = self._standing_worker(_REFERENCE, definition)
            return self._preparation(definition, workload, reference).prepare(may_capture=False)

    def _preparation(self, definition: Definition, workload: Workload, reference: FunctionWorker) -> Preparation:
        config = self._config.resolve_eval_config(definition)
        evaluator = evaluator_for(definition, config)
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

    def _standing_worker(self, role: str, definition: Definition) -> FunctionWorker:
        """The worker that holds a definition's reference or baseline; it serves all workloads.

        Raises:
            Rejected: The function cannot be built.
            WorkerLost: It took its worker down.
        """
        if self._standing_for != definition.name:
            self._dismiss()
            self._standing_for = definition.name
        if role not in self._standing:
            source = format_json(self._baselines[definition.name]) if role == _BASELINE else None
            known = definition if source is None else without_reference(definition)
            request = Build(self._config.device, format_json(known), source)
            self._standing[role] = FunctionWorker(self._server.spawn(), request)
            self._standing[role].build(self._config.timeout_seconds)
        function = self._standing[role]
        if function.worker.is_closed:
            function.worker.close()
            function.worker = self._server.spawn()
            function.build(self._config.timeout_seconds)
        return function

    def _dismiss(self) -> None:
        """End the workers that stand by."""
        for function in self._standing.values():
            function.worker.close()
        self._standing = {}
        self._standing_for = None

    # -- solutions -----------------------------------------------------------------------------

    def evaluate(
        self, definition: Definition, solution: Solution, workloads: Sequence[PreparedWorkload]
    ) -> Iterator[tuple[Workload, Evaluation | EvaluatorFailed]]:
        """Evaluate one solution on workloads, in a fresh worker; a lost worker costs one workload.

        A solution that cannot be built is not built again for every workload: each gets the
        result of the one attempt. Where the evaluator fails there is none.
        """
        candidate = self._ahead.pop(solution.name, None) or self._spawn(definition, solution)
        unbuildable = self._build(candidate, solution)
        try:
            for prepared in workloads:
                if unbuildable is not None:
                    yield prepared.workload, _isolated(candidate, attrs.evolve(unbuildable, timestamp=_now()))
                    continue
                try:
                    evaluation = self._evaluate_one(candidate, definition, solution, prepared)
                except EvaluatorRaised as error:
                    name = prepared.standard.evaluator.name
                    yield prepared.workload, EvaluatorFailed(definition.name, prepared.workload.uuid, name, str(error))
                    continue
                yield prepared.workload, _isolated(candidate, evaluation)
        finally:
            candidate.worker.close()

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
        request = Build(self._config.device, format_json(without_reference(definition)), format_json(solution))
        with self.ledger.during(Phase.START):
            return FunctionWorker(self._server.spawn(), request)

    def _build(self, candidate: FunctionWorker, solution: Solution) -> Evaluation | None:
        """Have a solution built; returns the evaluation if that fails."""
        try:
            with self.ledger.during(Phase.BUILD):
                candidate.build(self._config.timeout_seconds)
        except Rejected as error:
            return self._evaluation(solution, error.status, _log(error.message, candidate.worker))
        except WorkerLost as lost:
            message = f"while the solution was built: {lost}"
            return self._evaluation(solution, _status_of(lost), _log(message, candidate.worker))
        return None

    def _renew(self, candidate: FunctionWorker, solution: Solution) -> Evaluation | None:
        """Replace a worker that is gone or spoilt; returns the evaluation if the solution does not build any more."""
        candidate.worker.close()
        candidate.worker = self._server.spawn()
        return self._build(candidate, solution)

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
            log = _log(error.message, candidate.worker)
            correctness = None
            if error.status is EvaluationStatus.INCORRECT_NUMERICAL:
                config = self._config.resolve_eval_config(definition)
                correctness = _correctness(error.comparisons, config)
            elif self.device.type == "cuda" or error.status is EvaluationStatus.REWARD_HACK:
                candidate.worker.close()  # an error on the device spoils the process, and so does a trick
            return self._evaluation(solution, error.status, log, correctness, prepared=prepared)
        except WorkerLost as lost:
            return self._evaluation(solution, _status_of(lost), _log(str(lost), candidate.worker), prepared=prepared)

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
            keeps_integers=self._baseline_has_setup(definition),
        ) as side:
            precision = PrecisionWatch(prepared)
            for index, item in enumerate(prepared.rounds):
                precision.look(item, side.check(item, f"input set {index} ({item.distribution})"))
            side.check_together(prepared)
            with self.ledger.during(Phase.WARM_UP):
                side.warm_up(prepared, config, may_capture=candidate.may_capture)
            others, outside_ns = self._time(side, definition, prepared, config)
            side.check_timed_together(prepared)
            performance = self._performance(side, others, prepared, outside_ns)
            performance = self._against_speed_of_light(definition, prepared, performance)
            candidate.worker.confirm()
            if not candidate.is_profiled:
                candidate.is_profiled = True
                with self.ledger.during(Phase.AUDIT):
                    performance = _with_kernels(performance, side)
            return self._evaluation(
                solution,
                EvaluationStatus.PASSED,
                candidate.worker.printed(),
                _correctness(side.comparisons, config, side.findings),
                performance,
                prepared=prepared,
                precision=precision,
            )

    def _audit(self, side: Side, prepared: PreparedWorkload, reference: Side | None) -> float:
        """Look behind what the worker says; returns nanoseconds per call by the judge's clock.

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
            outside_ns = side.audit(prepared)
            if self.device.type == "cpu":
                audit_whole_passes(side, prepared)
                audit_processor_time(side, prepared)
            audit_chains(side, prepared, self.device.type)
            if self.device.type == "cpu":
                audit_single_calls(side, prepared, reference)
            return outside_ns

    def _baseline_has_setup(self, definition: Definition) -> bool:
        if definition.name not in self._baselines:
            return False
        try:
            return self._standing_worker(_BASELINE, definition).has_setup
        except (WorkerLost, Rejected):
            return False

    def _time(
        self, side: Side, definition: Definition, prepared: PreparedWorkload, config: ResolvedEvalConfig
    ) -> tuple[dict[str, Measurement], float]:
        """Time a solution, in turns with what it is compared with, and look behind what it says.

        Returns:
            The others' times by their roles, and nanoseconds per call by the judge's clock.
        """
        with ExitStack() as stack:
            others = {}
            for role in self._roles(definition):
                with self.ledger.during(Phase.WARM_UP):
                    other = self._companion(role, side, definition, prepared, config, stack)
                if other is not None:
                    others[role] = other
            side.referee = _referee(others[_REFERENCE], prepared) if _REFERENCE in others else None
            timed = {role: other for role, other in others.items() if other.is_warm}
            with self.conditions.measuring():
                with self.ledger.during(Phase.TIME):
                    _alternate(side, timed, prepared, self._rule(config))
                    while not side.is_asked_enough:
                        side.sample(prepared, must_ask=True)
                outside_ns = self._audit(side, prepared, timed.get(_REFERENCE))
            side.referee = None  # its slots go with this block
            return {role: other.measurement() for role, other in timed.items()}, outside_ns

    def _roles(self, definition: Definition) -> tuple[str, ...]:
        """What stands by while a solution is timed."""
        return (_REFERENCE, _BASELINE) if definition.name in self._baselines else (_REFERENCE,)

    def _is_worth_timing(self, role: str, side: Side, prepared: PreparedWorkload) -> bool:
        """Whether to time it in turns with a solution: the baseline, and a reference that is not far slower."""
        reference = prepared.reference
        if role == _BASELINE or reference is None:
            return role == _BASELINE
        return reference.latency_ms * 1e6 <= _ALTERNATION * max(side.call_ns, 1.0)

    def _companion(
        self,
        role: str,
        side: Side,
        definition: Definition,
        prepared: PreparedWorkload,
        config: ResolvedEvalConfig,
        stack: ExitStack,
    ) -> Side | None:
        """The side of a function that stands by; None if it fails on this workload."""
        try:
            function = self._standing_worker(role, definition)
            other = stack.enter_context(
                Side(
                    function.worker,
                    prepared.layout,
                    prepared.slots,
                    self.conditions,
                    beside=side,
                    has_setup=role == _BASELINE and function.has_setup,
                )
            )
            if not self._is_worth_timing(role, side, prepared):
                return other
            try:
                other.warm_up(prepared, config, may_capture=function.may_capture)
            except NotCapturable:
                function.may_capture = False
                function.worker.close()
                return self._companion(role, side, definition, prepared, config, stack)
        except (Rejected, WorkerLost):
            return None
        return other

    def _rule(self, config: ResolvedEvalConfig) -> StopRule:
        return StopRule(
            iterations=config.iterations,
            max_iterations=max(config.max_iterations, config.iterations),
            confidence=config.confidence,
            max_seconds=config.measure_seconds,
            busy_seconds=min(_BUSY_SECONDS.get(self.device.type, config.measure_seconds), config.measure_seconds),
        )

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

    def _performance(
        self,
        side: Side,
        others: Mapping[str, Measurement],
        prepared: PreparedWorkload,
        outside_ns: float,
    ) -> Performance:
        """The latency and what it is compared with."""
        found = side.measurement()
        timing = found.to_extra() | side.to_extra() | {"outside_us": round(outside_ns / 1e3, 3)}
        extra: dict[str, object] = {"timing": timing}
        reference = others.get(_REFERENCE, prepared.reference)
        if reference is not None:
            extra["reference_timing"] = reference.to_extra() | {"alternated": _REFERENCE in others}
        if self._config.baseline is not None and _BASELINE in others:
            baseline_ms = others[_BASELINE].latency_ms
            extra["baseline"] = {
                "solution": self._config.baseline,
                "latency_ms": baseline_ms,
                "speedup_factor": baseline_ms / found.latency_ms,
                "timing": others[_BASELINE].to_extra(),
            }
        reference_ms = reference.latency_ms if reference is not None else 0.0
        return Performance(found.latency_ms, reference_ms, reference_ms / found.latency_ms, extra)

    def _evaluation(
        self,
        solution: Solution,
        status: EvaluationStatus,
        log: str,
        correctness: Correctness | None = None,
        performance: Performance | None = None,
        *,
        prepared: PreparedWorkload | None = None,
        precision: PrecisionWatch | None = None,
    ) -> Evaluation:
        extra: dict[str, object] = {"solution_hash": solution.hash(), "where": self._where}
        if prepared is not None:
            extra |= prepared.to_extra()
        if precision is not None:
            extra["precision"] = precision.to_extra()
        flags = [*(prepared.flags() if prepared else ()), *(precision.flags() if precision else ())]
        if flags:
            extra["flags"] = flags
        return Evaluation(
            status=status,
            environment=self._environment,
            timestamp=_now(),
            log=log,
            correctness=correctness,
            performance=performance,
            extra=extra,
        )


def _alternate(side: Side, others: dict[str, Side], prepared: PreparedWorkload, rule: StopRule) -> None:
    """Time sides in turns, so that what drifts drifts for all, until each has enough samples.

    Of the others, those that fail are taken out.
    """
    while True:
        waiting = {role: other for role, other in others.items() if not other.is_done(rule)}
        if not waiting and side.is_done(rule):
            return
        if not side.is_done(rule):
            side.sample(prepared)
        for role, other in waiting.items():
            try:
                other.sample(prepared)
            except (Rejected, NotCapturable, WorkerLost):
                del others[role]


def _with_kernels(performance: Performance, side: Side) -> Performance:
    """The performance with names and microseconds of a call's kernels, where a profiler is installed; no verdict."""
    try:
        kernels = [[name, round(taken_ns / 1e3, 3)] for name, taken_ns in side.profile()[:_MOST_KERNELS]]
    except (Rejected, WorkerLost):
        return performance
    if not kernels:
        return performance
    return attrs.evolve(performance, extra={**(performance.extra or {}), "kernels": kernels})


def _referee(side: Side, prepared: PreparedWorkload) -> Referee:
    """Asks the reference on its side, which has the same inputs in its slots."""

    def expect(slot: int, inputs: torch.Tensor) -> InputSet:
        asked = InputSet("variant", inputs, inputs, prepared.variants[0].check)
        try:
            expected = side.call(asked, slot)
        except InputsChanged as error:
            problem = "somebody wrote to inputs that the reference was called on, and which nobody else has"
            raise Rejected(EvaluationStatus.REWARD_HACK, problem) from error
        except (Rejected, WorkerLost) as error:
            raise RefereeFailed(str(error)) from error
        return InputSet("variant", inputs, expected, prepared.standard.check(prepared.layout, inputs, expected))

    return expect


def without_reference(definition: Definition) -> Definition:
    """A definition as a solution's worker gets it: what the reference computes is for the solution to know."""
    return attrs.evolve(definition, reference="def run(*inputs):\n    raise NotImplementedError\n")


def _isolated(candidate: FunctionWorker, evaluation: Evaluation) -> Evaluation:
    """An evaluation that says how its worker was isolated, if that has said so."""
    isolation = candidate.worker.isolation
    if isolation is None:
        return evaluation
    return attrs.evolve(evaluation, extra={**(evaluation.extra or {}), "isolation": isolation.to_extra()})


def available_bytes(device: torch.device) -> int:
    """The memory that new allocations can have: on the CPU without swapping, free pages and droppable caches."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what this process keeps is free
        return torch.cuda.mem_get_info(device)[0]
    lines = Path("/proc/meminfo").read_text().splitlines()
    kib = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return int(kib) << 10


def _status_of(lost: WorkerLost) -> EvaluationStatus:
    if lost.is_forgery:
        return EvaluationStatus.REWARD_HACK
    return EvaluationStatus.TIMEOUT if lost.is_timeout else EvaluationStatus.RUNTIME_ERROR


def _log(message: str, worker: Worker) -> str:
    printed = worker.printed()
    return f"{message}\n--- printed by the worker ---\n{printed}" if printed else message


def _correctness(
    comparisons: Sequence[Comparison], config: ResolvedEvalConfig, findings: Mapping[str, object] | None = None
) -> Correctness:
    """The worst of each number, what it rests on, and what was seen in many calls together."""
    extra: dict[str, object] = {
        "atol": config.atol,
        "rtol": config.rtol,
        "required_matched_ratio": config.required_matched_ratio,
        "raw_max_relative_error": max((c.raw_max_relative_error for c in comparisons), default=0.0),
        "matched_ratio": min((c.matched_ratio for c in comparisons), default=1.0),
    }
    return Correctness(
        max_relative_error=max((c.max_relative_error for c in comparisons), default=0.0),
        max_absolute_error=max((c.max_absolute_error for c in comparisons), default=0.0),
        extra=extra | ({"together": dict(findings)} if findings else {}),
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
