"""The judge: makes inputs, obtains expected outputs, receives a solution's outputs, decides.

Expected outputs come from the definition's reference, which runs in a worker of its own and writes
into arenas that no solution's worker ever sees. A solution's worker gets input arenas and poisoned
output arenas. Whatever is timed is verified: the timed calls write into buffers that were poisoned
before, and these are compared as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import attrs
from fib_compile.device import env_snapshot
from fib_schema import (
    AxisError,
    Correctness,
    Definition,
    Environment,
    Evaluation,
    EvaluationStatus,
    Performance,
    Solution,
    TraceSet,
    Workload,
    format_json,
)

from .buffers import Arena
from .config import BenchmarkConfig, ResolvedEvalConfig
from .correctness import Comparison, compare_all
from .errors import InputError, ReferenceFailed, UnsupportedDevice
from .inputs import make_inputs
from .prepared import PreparedSet, PreparedWorkload, Timing, set_bytes, share_set
from .wire import (
    Bind,
    Bound,
    Build,
    Built,
    Call,
    Called,
    Failed,
    InputSet,
    Measure,
    Measured,
    WorkerRequest,
    WrongOutput,
)
from .worker.pool import Worker, WorkerLost, WorkerServer

_POISON = 0xC3  # as a float of any width: finite, large or odd; as an integer: large or negative
_SECOND_POISON = 0x5A
_REFERENCE_SAMPLES = 10
_MAX_REASON = 20_000  # characters; a worker keeps to less, but it is not believed
_STATUS_OF_ASPECT = {
    "shape": EvaluationStatus.INCORRECT_SHAPE,
    "dtype": EvaluationStatus.INCORRECT_DTYPE,
    "kind": EvaluationStatus.RUNTIME_ERROR,
}
_ANSWERS: Mapping[type, type] = {Build: Built, Bind: Bound, Call: Called, Measure: Measured}


class _Rejected(Exception):
    """A solution's evaluation has ended without success."""

    def __init__(self, status: EvaluationStatus, message: str, comparisons: Sequence[Comparison] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.comparisons = tuple(comparisons)


class Judge:
    """Evaluates solutions on one device.

    Args:
        trace_set: The data set, for blobs.
        config: How to run.
    """

    def __init__(self, trace_set: TraceSet, config: BenchmarkConfig) -> None:
        if config.device != "cpu":
            raise UnsupportedDevice(config.device, "this version measures on 'cpu' only")
        self._trace_set = trace_set
        self._config = config
        self._server = WorkerServer(config.device)
        self._environment = env_snapshot(config.device)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()

    @property
    def environment(self) -> Environment:
        """The hardware and the versions that traces state."""
        return self._environment

    # -- workloads -----------------------------------------------------------------------------

    def workload_bytes(self, definition: Definition, workload: Workload) -> int:
        """How much memory a prepared workload takes; 0 if it lacks an axis, which `prepare` reports."""
        try:
            return self._set_count(definition, workload) * set_bytes(definition, workload)
        except AxisError:
            return 0

    def _set_count(self, definition: Definition, workload: Workload) -> int:
        """As many input sets as asked for, fewer if they would not fit into memory."""
        affordable = self._config.memory_bytes // set_bytes(definition, workload)
        return max(1, min(self.trials_of(definition), affordable))

    def trials_of(self, definition: Definition) -> int:
        """How many input sets are asked for."""
        return self._config.resolve_eval_config(definition).num_trials

    def prepare(self, definition: Definition, workload: Workload) -> PreparedWorkload:
        """Make a workload's inputs, and run the reference on them.

        Raises:
            InputError: The inputs cannot be made.
            ReferenceFailed: The reference raised, hung, or is not deterministic.
        """
        self._check_size(definition, workload)
        sets: list[PreparedSet] = []
        try:
            for index in range(self._set_count(definition, workload)):
                sets.append(self._prepare_set(definition, workload, index))
            timing = self._run_reference(definition, workload, sets)
        except BaseException:
            for item in sets:
                item.close()
            raise
        return PreparedWorkload(workload, tuple(sets), timing)

    def _check_size(self, definition: Definition, workload: Workload) -> None:
        """Refuse a workload that this machine cannot hold.

        Raises:
            InputError: It lacks an axis, or its tensors are too large.
        """
        try:
            needed = set_bytes(definition, workload)
        except AxisError as error:
            raise InputError(definition.name, workload.uuid, "", str(error)) from error
        free = available_bytes()
        if needed > free // 2:  # the reference and the solution need room of their own
            problem = f"its tensors take {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free"
            raise InputError(definition.name, workload.uuid, "", problem)

    def _prepare_set(self, definition: Definition, workload: Workload, index: int) -> PreparedSet:
        values = make_inputs(
            definition,
            workload,
            seed=self._config.seed + index,
            root=self._trace_set.root,
            synthesize_missing=self._config.synthesize_missing,
        )
        return share_set(definition, workload, values)

    def _run_reference(self, definition: Definition, workload: Workload, sets: Sequence[PreparedSet]) -> Timing:
        with self._server.spawn() as worker:
            try:
                return self._reference_outputs(worker, definition, sets)
            except (WorkerLost, _Rejected) as error:
                log = _log(str(error), worker)
                raise ReferenceFailed(definition.name, workload.uuid, log) from error

    def _reference_outputs(
        self,
        worker: Worker,
        definition: Definition,
        sets: Sequence[PreparedSet],
    ) -> Timing:
        """Fill the expected outputs, and time the reference on buffers that are thrown away."""
        seconds = self._config.timeout_seconds
        _ask(worker, Build(format_json(definition), None), seconds)
        _bind(worker, [(item.layout, item.inputs, item.expected) for item in sets], seconds)
        for index in range(len(sets)):
            _ask(worker, Call(index), seconds)
        _check_untouched(sets)
        scratch = [Arena.allocate(item.expected.size_bytes) for item in sets]
        try:
            triples = [(s.layout, s.inputs, arena) for s, arena in zip(sets, scratch, strict=True)]
            _bind(worker, triples, seconds)
            config = self._config.resolve_eval_config(definition)
            measured = self._measure(worker, config, min(_REFERENCE_SAMPLES, config.iterations))
            _check_untouched(sets)
            self._check_determinism(definition, sets, scratch, config)
        finally:
            for arena in scratch:
                arena.close()
        return Timing.from_measured(measured)

    def _check_determinism(
        self,
        definition: Definition,
        sets: Sequence[PreparedSet],
        again: Sequence[Arena],
        config: ResolvedEvalConfig,
    ) -> None:
        for item, arena in zip(sets, again, strict=True):
            expected = item.expected_outputs(definition.outputs)
            repeated = {
                name: arena.tensor(slot) for name, slot in zip(definition.outputs, item.layout.outputs, strict=True)
            }
            for comparison in compare_all(repeated, expected, config):
                if not comparison.is_within(config.required_matched_ratio):
                    problem = (
                        "it gives other outputs when it is called again with the same inputs "
                        f"({comparison.explain()}); comparing elements cannot judge such an op"
                    )
                    raise _Rejected(EvaluationStatus.RUNTIME_ERROR, problem)

    # -- solutions -----------------------------------------------------------------------------

    def evaluate(
        self, definition: Definition, solution: Solution, workloads: Sequence[PreparedWorkload]
    ) -> Iterator[tuple[Workload, Evaluation]]:
        """Evaluate one solution on workloads, in a fresh worker; a lost worker costs one workload.

        A solution that cannot be built is not built again for every workload: each gets the
        result of the one attempt.
        """
        worker: Worker | None = None
        unbuildable: Evaluation | None = None
        try:
            for prepared in workloads:
                if unbuildable is not None:
                    yield prepared.workload, attrs.evolve(unbuildable, timestamp=_now())
                    continue
                if worker is None:
                    worker = self._server.spawn()
                    unbuildable = self._build(worker, definition, solution)
                    if unbuildable is not None:
                        yield prepared.workload, unbuildable
                        continue
                evaluation, is_lost = self._evaluate_one(worker, definition, solution, prepared)
                if is_lost:
                    worker.close()
                    worker = None
                yield prepared.workload, evaluation
        finally:
            if worker is not None:
                worker.close()

    def _build(self, worker: Worker, definition: Definition, solution: Solution) -> Evaluation | None:
        """Have a solution built; returns the evaluation if that fails."""
        try:
            request = Build(format_json(definition), format_json(solution))
            _ask(worker, request, self._config.timeout_seconds)
        except _Rejected as error:
            return self._evaluation(solution, error.status, _log(error.message, worker))
        except WorkerLost as lost:
            message = f"while the solution was built: {lost}"
            return self._evaluation(solution, _status_of(lost), _log(message, worker))
        return None

    def _evaluate_one(
        self, worker: Worker, definition: Definition, solution: Solution, prepared: PreparedWorkload
    ) -> tuple[Evaluation, bool]:
        """Evaluate on one workload; says too whether the worker is lost."""
        config = self._config.resolve_eval_config(definition)
        self._restore_inputs(definition, prepared)
        try:
            return self._passed(worker, definition, solution, prepared, config), False
        except _Rejected as error:
            log = _log(error.message, worker)
            correctness = None
            if error.status is EvaluationStatus.INCORRECT_NUMERICAL:
                correctness = _correctness(error.comparisons, config)
            return self._evaluation(solution, error.status, log, correctness), False
        except WorkerLost as lost:
            return self._evaluation(solution, _status_of(lost), _log(str(lost), worker)), True

    def _passed(
        self,
        worker: Worker,
        definition: Definition,
        solution: Solution,
        prepared: PreparedWorkload,
        config: ResolvedEvalConfig,
    ) -> Evaluation:
        """The evaluation of a solution that does everything right.

        Raises:
            _Rejected: It does not.
            WorkerLost: It took its worker down.
        """
        seconds = self._config.timeout_seconds
        _bind(worker, [(item.layout, item.inputs, item.found) for item in prepared.sets], seconds)
        comparisons: list[Comparison] = []
        for index, item in enumerate(prepared.sets):
            item.found.fill(_POISON)
            _ask(worker, Call(index), seconds)
            comparisons += self._check(definition, item, config, f"input set {index}")
        for item in prepared.sets:
            item.found.fill(_SECOND_POISON)
        measured = self._measure(worker, config, config.iterations)
        for index, item in enumerate(prepared.sets):
            comparisons += self._check(definition, item, config, f"timed calls on input set {index}")
        timing = Timing.from_measured(measured)
        return self._evaluation(
            solution,
            EvaluationStatus.PASSED,
            worker.printed(),
            _correctness(comparisons, config),
            _performance(timing, prepared.reference),
        )

    def _check(
        self, definition: Definition, item: PreparedSet, config: ResolvedEvalConfig, where: str
    ) -> list[Comparison]:
        """Compare what a call left behind.

        Raises:
            _Rejected: An output is wrong, or an input was written to.
        """
        if item.inputs.checksum() != item.checksum:
            problem = f"{where}: an input tensor was changed; a solution must not write to its inputs"
            raise _Rejected(EvaluationStatus.RUNTIME_ERROR, problem)
        names = definition.outputs
        found, expected = item.found_outputs(names), item.expected_outputs(names)
        comparisons = compare_all(found, expected, config)
        bad = [c for c in comparisons if not c.is_within(config.required_matched_ratio)]
        if bad:
            message = "\n".join(f"{where}: {comparison.explain()}" for comparison in bad)
            raise _Rejected(EvaluationStatus.INCORRECT_NUMERICAL, message, comparisons)
        return comparisons

    def _measure(self, worker: Worker, config: ResolvedEvalConfig, samples: int) -> Measured:
        request = Measure(config.warmup_runs, samples, self._config.measure_seconds)
        reply = _ask(worker, request, self._config.timeout_seconds + self._config.measure_seconds)
        if not isinstance(reply, Measured) or not _is_plausible(reply):
            raise WorkerLost(f"the worker answered a request to measure with {reply!r:.200}")
        return reply

    def _restore_inputs(self, definition: Definition, prepared: PreparedWorkload) -> None:
        """Put back inputs that an earlier solution changed, whose worker is gone by now."""
        for index, item in enumerate(prepared.sets):
            if item.inputs.checksum() != item.checksum:
                fresh = self._prepare_set(definition, prepared.workload, index)
                item.inputs.overwrite(fresh.inputs)
                fresh.close()

    def _evaluation(
        self,
        solution: Solution,
        status: EvaluationStatus,
        log: str,
        correctness: Correctness | None = None,
        performance: Performance | None = None,
    ) -> Evaluation:
        return Evaluation(
            status=status,
            environment=self._environment,
            timestamp=_now(),
            log=log,
            correctness=correctness,
            performance=performance,
            extra={"solution_hash": solution.hash()},
        )


def _check_untouched(sets: Sequence[PreparedSet]) -> None:
    """Reject a reference that has changed its inputs."""
    if any(item.inputs.checksum() != item.checksum for item in sets):
        problem = "it writes to its inputs; clone them in the reference"
        raise _Rejected(EvaluationStatus.RUNTIME_ERROR, problem)


def available_bytes() -> int:
    """The memory that new allocations can have without swapping: free pages and droppable caches."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    kib = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return int(kib) << 10


def _ask(worker: Worker, request: WorkerRequest, seconds: float, descriptors: tuple[int, ...] = ()) -> object:
    """Send a request and take the answer to it.

    Raises:
        _Rejected: The worker reports a failure.
        WorkerLost: It is gone, or answers something else.
    """
    reply = _accepted(worker.request(request, descriptors, seconds=seconds))
    if not isinstance(reply, _ANSWERS[type(request)]):
        raise WorkerLost(f"the worker answered {type(request).__name__} with {reply!r:.200}")
    return reply


def _bind(worker: Worker, sets: Sequence[tuple[InputSet, Arena, Arena]], seconds: float) -> None:
    descriptors = tuple(d for _, inputs, outputs in sets for d in (inputs.descriptor, outputs.descriptor))
    request = Bind("cpu", tuple(layout for layout, _, _ in sets))
    _ask(worker, request, seconds, descriptors)


def _is_plausible(measured: Measured) -> bool:
    """Whether a claim is made of durations at all: a solution may have forged it."""
    samples = measured.samples_ns
    return bool(samples) and measured.calls_per_sample > 0 and all(0 < s < math.inf for s in samples)


def _accepted(reply: object) -> object:
    match reply:
        case Failed(stage="build", detail=detail):
            raise _Rejected(EvaluationStatus.COMPILE_ERROR, detail[:_MAX_REASON])
        case Failed(detail=detail):
            raise _Rejected(EvaluationStatus.RUNTIME_ERROR, detail[:_MAX_REASON])
        case WrongOutput(aspect=aspect, problem=problem):
            status = _STATUS_OF_ASPECT.get(aspect, EvaluationStatus.RUNTIME_ERROR)
            raise _Rejected(status, problem[:_MAX_REASON])
    return reply


def _status_of(lost: WorkerLost) -> EvaluationStatus:
    return EvaluationStatus.TIMEOUT if lost.is_timeout else EvaluationStatus.RUNTIME_ERROR


def _log(message: str, worker: Worker) -> str:
    printed = worker.printed()
    return f"{message}\n--- printed by the worker ---\n{printed}" if printed else message


def _correctness(comparisons: Sequence[Comparison], config: ResolvedEvalConfig) -> Correctness:
    """The worst of each number, and per output what it rests on."""
    extra = {
        "atol": config.atol,
        "rtol": config.rtol,
        "required_matched_ratio": config.required_matched_ratio,
        "raw_max_relative_error": max((c.raw_max_relative_error for c in comparisons), default=0.0),
        "matched_ratio": min((c.matched_ratio for c in comparisons), default=1.0),
    }
    return Correctness(
        max_relative_error=max((c.max_relative_error for c in comparisons), default=0.0),
        max_absolute_error=max((c.max_absolute_error for c in comparisons), default=0.0),
        extra=extra,
    )


def _performance(timing: Timing, reference: Timing) -> Performance:
    ratio = reference.latency_ms / timing.latency_ms if timing.latency_ms else 0.0
    extra = {"timing": timing.to_extra(), "reference_timing": reference.to_extra()}
    return Performance(timing.latency_ms, reference.latency_ms, ratio, extra)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
