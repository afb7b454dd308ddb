"""The judge. It makes inputs, obtains expected outputs, receives a solution's outputs, and decides.

Expected outputs come from the definition's reference, which runs in a worker of its own, and are copied into memory
that no worker can map. A solution's worker gets slots with inputs and poisoned outputs. Whatever is timed is verified.

A solution runs in two phases. Phase A binds each workload, checks outputs and warms up, so that everything that
compiles has compiled. Then the worker is sealed. Phase B times the workloads that passed. A lost worker costs one
workload: the others are evaluated in fresh workers.

All solutions run on a block of workloads that fit into memory, so inputs and references are computed once for all.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TypeVar

import attrs
import torch
from fib_compile.builder import INTERPRETED_LANGUAGES
from fib_compile.device import env_snapshot, parse_device
from fib_schema import (
    AxisError,
    Correctness,
    Definition,
    Environment,
    Evaluation,
    EvaluationStatus,
    InvalidField,
    Performance,
    Solution,
    Trace,
    Workload,
)
from fib_schema.padded_indices import PADDED_INDICES

from ..checking.comparison import Comparison, correctness_of
from ..checking.precision import PrecisionWatch
from ..config.model import BenchmarkConfig
from ..errors import EvaluatorFailed, EvaluatorUnusable, InputError, ReferenceFailed, UnsupportedDevice
from ..evaluators import evaluator_for
from ..events import Evaluated, Event, Phase, PhaseTimes, Skipped, Working
from ..flags import FIXED_INPUTS, UNSEALED, UNVERIFIED
from ..plan import DefinitionPlan, Skip
from ..temporary_folders import raise_if_disk_full
from ..timing.handshake import native
from ..transport.arenas import release_unused
from ..worker.client import ForkServerClient, NotCapturable, Rejected, WorkerLost
from ..worker.outside_checks import BackgroundActivity
from .device import DeviceContext, available_bytes, extra_memory, identity_of, lacks_memory, wait_for_memory
from .functions import BoundFunction, FunctionWorker, build_request, check_code
from .passes import Launch, Order, Passes
from .prepare import Preparation, needed_bytes
from .prepared import PaddedCalls, PreparedWorkload
from .record import EvaluationRecorder, log_of, of_processes, status_of
from .timer import Baselines, Interleaved, Timer

SHARE_OF_FREE_MEMORY = 0.7
"""A prepared workload takes at most this much: the reference and the solution need room of their own."""
_SHARE_OF_MEMORY = 0.5
_MOST_IN_BLOCK = 64  # all of them are prepared before the first result appears
_PADDED_SLOTS = 2
_MAX_UNUSED_BYTES = 1 << 30  # of a judge, between two evaluations
_ROOM_SECONDS = 120.0  # other judges finish their blocks meanwhile
T = TypeVar("T")
Result = Evaluation | EvaluatorFailed


class Judge(AbstractContextManager["Judge"]):
    """Evaluates solutions on one device; `UnsupportedDevice` if it is not there.

    It has a fork server of its own unless one is given. `root` is the folder of the data set, for blobs.
    """

    def __init__(
        self,
        config: BenchmarkConfig,
        *,
        root: Path | None = None,
        baselines: Mapping[str, Solution] | None = None,
        server: ForkServerClient | None = None,
    ) -> None:
        self.config, self._root = config, root
        try:
            is_cuda = parse_device(config.device) is not None
            self.environment: Environment = env_snapshot(config.device)
            """The hardware and the versions that traces state."""
        except (ValueError, RuntimeError) as error:
            raise UnsupportedDevice(config.device, str(error)) from error
        self.device = torch.device(config.device)
        if is_cuda:
            torch.cuda.set_device(self.device)
        self._server = server or ForkServerClient(config.device, () if root is None else (root,))
        where = {"host": platform.node(), "device": config.device, "device_id": identity_of(self.device)}
        self.recorder = EvaluationRecorder(self.environment, where, config.baseline, is_quick=config.quick)
        is_shared = is_cuda and (config.concurrency or 1) > 1
        self.context = DeviceContext(device=self.device, timeout_seconds=config.timeout_seconds, is_shared=is_shared)
        self.phases, self._watch = self.context.phases, self.context.watch
        if self._watch is not None:
            self._watch.start()
        self.baselines = Baselines(self._server, self.context, baselines or {})
        """The workers of the reference and the baseline of the definition that is evaluated."""
        self._cache_key = ""  # of the plan that is being executed

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers."""
        self.context.settle()
        self.baselines.close()
        if self._watch is not None:
            self._watch.stop()
        self._server.close()

    def workload_bytes(self, definition: Definition, workload: Workload) -> int:
        """About how much memory a prepared workload takes; 0 if it is invalid, which `prepare` reports."""
        try:
            return needed_bytes(definition, workload, self.config.resolve_eval_config(definition), self.device)
        except (AxisError, InvalidField):
            return 0

    def prepare(self, definition: Definition, workload: Workload) -> PreparedWorkload:
        """Make a workload's input sets, and run the reference on them.

        Raises:
            InputError: The inputs cannot be made.
            ReferenceFailed: The reference raised, hung, or is not deterministic.
            EvaluatorFailed: There is no evaluator for it, or it raised.
        """
        self._check_size(definition, workload)
        try:
            with self.phases.during(Phase.REFERENCE):
                try:
                    return self._prepare(definition, workload)
                except (torch.OutOfMemoryError, Rejected) as error:
                    if not (self.context.is_shared and lacks_memory(str(error))):
                        raise
                with self.context.device_work():  # other judges left too little memory: once more, after them
                    self.baselines.close()
                with self.phases.during(Phase.WAIT):
                    wait_for_memory(self.device)
                return self._prepare(definition, workload)
        except (WorkerLost, Rejected) as error:
            worker = self.baselines.reference_worker
            log = str(error) if worker is None else log_of(str(error), worker)
            self.baselines.close()
            raise ReferenceFailed(definition.name, workload.uuid, log) from error
        except torch.OutOfMemoryError as error:
            raise InputError(definition.name, workload.uuid, "", f"its tensors do not fit: {error}") from error
        except EvaluatorUnusable as error:
            raise EvaluatorFailed(definition.name, workload.uuid, error.evaluator, error.problem) from error

    def _prepare(self, definition: Definition, workload: Workload) -> PreparedWorkload:
        evaluator = evaluator_for(definition, self.config.resolve_eval_config(definition))
        with self.context.device_work():
            made = Preparation(definition, workload, evaluator, self.config, self.baselines, self.context, self._root)
            return made.prepare()

    def _check_size(self, definition: Definition, workload: Workload) -> None:
        """Raise `InputError` for a workload that is invalid, that this machine cannot hold or no pass can time."""
        try:
            needed = needed_bytes(definition, workload, self.config.resolve_eval_config(definition), self.device)
        except (AxisError, InvalidField) as error:
            raise InputError(definition.name, workload.uuid, "", str(error)) from error
        if needed > (free := available_bytes(self.device)) * SHARE_OF_FREE_MEMORY:
            self.context.settle()  # which gives memory back
            free = available_bytes(self.device)
        if len(definition.outputs) > native.MAX_OUTPUTS:
            problem = f"it has {len(definition.outputs)} outputs; calls with at most {native.MAX_OUTPUTS} can be timed"
        elif needed > free * SHARE_OF_FREE_MEMORY:
            problem = f"its tensors take {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free"
            problem += f", of which {SHARE_OF_FREE_MEMORY:.0%} may be used"
        else:
            return
        raise InputError(definition.name, workload.uuid, "", problem)

    def evaluate(
        self, definition: Definition, solution: Solution, workloads: Sequence[PreparedWorkload]
    ) -> Iterator[tuple[Workload, Evaluation | EvaluatorFailed]]:
        """Evaluate one solution on workloads, in a fresh worker; a lost worker costs one workload.

        A solution that does not build is built once: each workload gets the result of that attempt.

        Yields:
            Workloads with their evaluations, in the order in which they end: those that fail before timing come
            first. Where the evaluator fails there is no evaluation.
        """
        request = build_request(self.config.device, definition, solution, self._cache_key)
        with self.phases.during(Phase.START):
            candidate = FunctionWorker(self._server, request, self.context)
        try:
            for prepared, result in SolutionRun(self, candidate, definition, solution).evaluate(workloads):
                yield prepared.workload, result
        finally:
            self.context.kill(candidate.worker)

    def execute(self, part: DefinitionPlan) -> Iterator[Event]:
        """Run the plan for one definition."""
        self._cache_key = part.cache_key
        share = int(_SHARE_OF_MEMORY * available_bytes(self.device)) // (self.config.concurrency or 1)
        limit = share if self.config.memory_bytes is None else min(self.config.memory_bytes, share)
        for block, needed in self._blocks(part, limit):
            with self._room(needed, limit):
                yield from self._run_block(part, block)
            yield PhaseTimes(self.phases.take(), None if self._watch is None else self._watch.take_busy_seconds())

    def _run_block(self, part: DefinitionPlan, block: Sequence[Workload]) -> Iterator[Event]:
        name, prepared = part.definition.name, list[PreparedWorkload]()
        for workload in block:
            yield Working(name, None, workload)
            try:
                prepared.append(self.prepare(part.definition, workload))
            except (EvaluatorFailed, InputError, ReferenceFailed) as error:
                skip = Skip(name, None, workload.uuid, error.reason, is_failure=True)
                yield Skipped(skip, len(part.pending[workload.uuid]))
        wanted: dict[str, tuple[Solution, list[PreparedWorkload]]] = {}
        for item in prepared:
            for solution in part.pending[item.workload.uuid]:
                wanted.setdefault(solution.name, (solution, []))[1].append(item)
        for solution, todo in wanted.values():
            yield from self._evaluate_on(part, solution, todo)

    def _evaluate_on(
        self, part: DefinitionPlan, solution: Solution, todo: Sequence[PreparedWorkload]
    ) -> Iterator[Event]:
        """Evaluate a solution; before each wait, name the first workload that is not finished."""
        name = part.definition.name
        waiting = {item.workload.uuid: item.workload for item in todo}
        yield Working(name, solution.name, todo[0].workload)
        for workload, evaluation in self.evaluate(part.definition, solution, todo):
            if isinstance(evaluation, EvaluatorFailed):
                yield Skipped(Skip(name, solution.name, workload.uuid, evaluation.reason, is_failure=True), 1)
            else:
                yield Evaluated(Trace(name, workload, solution.name, evaluation))
            del waiting[workload.uuid]
            if waiting:
                yield Working(name, solution.name, next(iter(waiting.values())))

    def _blocks(self, part: DefinitionPlan, limit: int) -> Iterator[tuple[list[Workload], int]]:
        """Workloads that fit into memory together, and the bytes that they take."""
        block, used = list[Workload](), 0
        for workload in part.workloads:
            size = self.workload_bytes(part.definition, workload)
            if block and (used + size > limit or len(block) == _MOST_IN_BLOCK):
                yield block, used
                block, used = [], 0
            block.append(workload)
            used += size
        if block:
            yield block, used

    @contextmanager
    def _room(self, needed: int, limit: int) -> Iterator[None]:
        """Wait until a block fits into memory that other judges of the device may still use.

        One block at a time may exceed a judge's share. If there is no room in the end, the judge reports it. A
        judge that waits does not share the device: the one that holds the memory could never time a pass.
        """
        with ExitStack() as stack:
            if needed > limit and (self.config.concurrency or 1) > 1:
                with self.context.no_device_work(), self.phases.during(Phase.WAIT):
                    stack.enter_context(extra_memory(self.device))
                    wait_for_memory(self.device, needed / SHARE_OF_FREE_MEMORY, _ROOM_SECONDS)
            yield


@attrs.define(eq=False)
class _Checked:
    """A workload that passed phase A, and what its calls have shown; phase B adds to that."""

    prepared: PreparedWorkload
    precision: PrecisionWatch
    may_capture: bool
    comparisons: list[Comparison] = attrs.field(factory=list)
    findings: dict[str, Mapping[str, object]] = attrs.field(factory=dict)
    printed: str = ""


class SolutionRun:
    """Evaluates one solution."""

    def __init__(self, judge: Judge, candidate: FunctionWorker, definition: Definition, solution: Solution) -> None:
        self.candidate, self.definition, self.solution = candidate, definition, solution
        self.context, self.baselines, self.recorder = judge.context, judge.baselines, judge.recorder
        self.config, self.settings = judge.config, judge.config.resolve_eval_config(definition)
        self._lacked_memory = set[str]()  # workloads that were begun anew after the device had too little

    def evaluate(self, workloads: Sequence[PreparedWorkload]) -> Iterator[tuple[PreparedWorkload, Result]]:
        """Evaluate on workloads; those that fail in phase A come first."""
        pending, batch_size = list(workloads), len(workloads)
        while pending:
            known, done = self._known_limits, set[int]()
            for prepared, result in self._evaluate_in_processes(pending[:batch_size]):
                done.add(id(prepared))
                yield prepared, result
            pending = [prepared for prepared in pending if id(prepared) not in done]
            if known == self._known_limits:
                batch_size = 1  # a worker was lost: from now on each workload gets a worker of its own

    def _evaluate_in_processes(self, batch: Sequence[PreparedWorkload]) -> Iterator[tuple[PreparedWorkload, Result]]:
        """Evaluate on a device once; on the CPU in one process after the other, since two differ by more than noise."""
        has_latency = self.solution.spec.language not in INTERPRETED_LANGUAGES
        count = 1 if self.context.is_cuda or not has_latency else self.settings.cpu_processes
        if count == 1:
            yield from self._evaluate_batch(batch)
            return
        passed: dict[int, list[Evaluation]] = {id(prepared): [] for prepared in batch}
        for index in range(count):
            if index:
                self.candidate.worker.close()
                self.baselines.close()
            waiting, batch = batch, []
            for prepared, result in self._evaluate_batch(waiting):
                if not isinstance(result, Evaluation) or result.status is not EvaluationStatus.PASSED:
                    yield prepared, result
                    continue
                passed[id(prepared)].append(result)
                batch.append(prepared)
                if index == count - 1:
                    yield prepared, of_processes(passed[id(prepared)])

    @property
    def _known_limits(self) -> tuple[object, ...]:
        """The attempts that are not repeated after they have cost a worker."""
        candidate = self.candidate
        return len(candidate.not_captured), candidate.may_seal, candidate.padding_problem, len(self._lacked_memory)

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
            if (result := self._time_sealed(item)) is not None:
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
            if lacks_memory(error.message) and self._has_waited_for_memory("while it is built"):
                return self._build()
            return self._failure(error.status, error.message)
        except WorkerLost as lost:
            if self.candidate.is_first_kill(lost):
                return self._build()
            return self._failure(status_of(lost), f"while the solution was built: {lost}")
        return None

    def _attempt(self, prepared: PreparedWorkload, step: Callable[[], T]) -> T | Result | None:
        """Run a step; a failure becomes a result. None: repeat it in a fresh worker with what is known now."""
        candidate = self.candidate
        try:
            with self.context.device_work(), self.context.phases.during(Phase.CHECK):
                return step()
        except EvaluatorFailed as error:
            return error
        except torch.OutOfMemoryError as error:
            self._end_worker()
            failed = EvaluatorFailed(self.definition.name, prepared.workload.uuid, "", str(error))
            return None if self._has_waited_for_memory(prepared.workload.uuid) else failed
        except NotCapturable as error:
            candidate.worker.close()
            if lacks_memory(str(error)) and self._has_waited_for_memory(prepared.workload.uuid):
                return None
            if prepared.workload.uuid not in candidate.not_captured:
                candidate.not_captured[prepared.workload.uuid] = str(error)
                return None
            return self._failure(EvaluationStatus.RUNTIME_ERROR, str(error), prepared)
        except Rejected as error:
            is_runtime_error = error.status is EvaluationStatus.RUNTIME_ERROR
            if is_runtime_error and lacks_memory(error.message) and self._has_waited_for_memory(prepared.workload.uuid):
                return None
            is_wrong = error.status is EvaluationStatus.INCORRECT_NUMERICAL
            correctness = correctness_of(error.comparisons, self.settings, {}) if is_wrong else None
            evaluation = self._failure(error.status, error.message, prepared, correctness)
            if not is_wrong and (self.context.is_cuda or error.status is EvaluationStatus.REWARD_HACK):
                candidate.worker.close()  # an error on the device spoils the process, and so does an exploit
            return evaluation
        except WorkerLost as lost:
            return None if candidate.is_first_kill(lost) else self._failure(status_of(lost), str(lost), prepared)

    def _may_capture(self, prepared: PreparedWorkload) -> bool:
        return not self.candidate.why_not_captured(prepared.workload.uuid)

    def _end_worker(self) -> None:
        with self.context.device_work():  # the end of its device context disturbs passes
            self.candidate.worker.close()

    def _has_waited_for_memory(self, what: str) -> bool:
        """Whether a workload or the build is begun anew, once, because other judges have left too little memory."""
        if not self.context.is_shared or what in self._lacked_memory:
            return False
        self._lacked_memory.add(what)
        self._end_worker()
        with self.context.phases.during(Phase.WAIT):
            wait_for_memory(self.context.device)
        return True

    def _failure(
        self,
        status: EvaluationStatus,
        message: str,
        prepared: PreparedWorkload | None = None,
        correctness: Correctness | None = None,
    ) -> Evaluation:
        worker = self.candidate.worker
        raise_if_disk_full(message)
        return self.recorder.evaluation(
            self.solution, status, log_of(message, worker), correctness, isolation=worker.isolation, prepared=prepared
        )

    # -- phase A ---------------------------------------------------------------------------------

    def _bind(self, item: _Checked) -> BoundFunction:
        prepared, keeps = item.prepared, self.baselines.baseline_has_setup(self.definition)
        layout, slots = prepared.layout, prepared.slots
        function = BoundFunction(self.candidate, layout, slots, keeps_integers=keeps, prepared=prepared)
        function.comparisons, function.findings = item.comparisons, item.findings
        return function

    def _check(self, prepared: PreparedWorkload) -> _Checked | None:
        """Check outputs and warm up; None if a check that decides no verdict has cost the worker."""
        candidate, phases = self.candidate, self.context.phases
        checked = _Checked(prepared, PrecisionWatch(prepared.error_bounds), self._may_capture(prepared))
        with self._bind(checked) as function:
            for index, (item, where) in enumerate(zip(prepared.trials, prepared.places, strict=True)):
                with nullcontext() if index else phases.during(Phase.COMPILE):
                    outputs = function.call(item.inputs, is_first=not index)
                function.compare(item, outputs, where)
                if item.distribution == "normal":
                    expected = {name: tensor[None] for name, tensor in item.outputs.items()}
                    checked.precision.record(item.layout.output_tensors(outputs[None]), expected)
            function.check_together(prepared)
            with phases.during(Phase.WARM_UP):
                Timer(function, prepared, self.settings, may_capture=checked.may_capture)
            candidate.has_captured |= checked.may_capture
            checked.printed = candidate.worker.printed()
        for item, values in prepared.scalars:
            with BoundFunction(candidate, item.layout, 1) as function:
                given = ", ".join(f"{name} = {value}" for name, value in values.items())
                function.compare(item, function.call(item.inputs, is_first=True), f"with {given}")
        if prepared.padded is not None and not candidate.padding_problem:
            candidate.padding_problem = self._padding_problem(prepared, prepared.padded)
        return None if candidate.worker.is_closed else checked

    # -- padded indices --------------------------------------------------------------------------
    #
    # On a CUDA device the first call is captured and the others are its replays; on the CPU each of them is a call. The
    # result is a property beside the verdict: nothing is rejected here but tampering. A solution that fails may leave a
    # worker that must not be used any more, so this precedes all timing.

    def _padding_problem(self, prepared: PreparedWorkload, padded: PaddedCalls) -> str:
        """Reason that it was not shown to be right with padded indices; empty if it was. Closes an unusable worker."""
        candidate, worker, context = self.candidate, self.candidate.worker, self.context
        if candidate.has_setup:
            return "its setup makes a plan on the host"
        try:
            with BoundFunction(candidate, padded.layout, _PADDED_SLOTS) as function:
                _, first = next(padded.input_sets(prepared, is_poisoned=False))
                is_captured = context.is_cuda and self._may_capture(prepared)
                replay = _captured(function, first.inputs) if is_captured else partial(function.call, slot=0)
                for is_poisoned in (False, True):
                    for draw, item in padded.input_sets(prepared, is_poisoned=is_poisoned):
                        what = "no pages" if is_poisoned else "pages of other requests"
                        where = f"a call with {draw.total} indices in a longer buffer, {what} behind them"
                        function.compare(item, replay(item.inputs), where)
        except EvaluatorFailed as error:
            return f"its outputs could not be compared: {error.problem}"
        except NotCapturable as error:
            worker.close()
            return f"it cannot be captured: {_summary(str(error))}"
        except Rejected as error:
            if error.status is EvaluationStatus.REWARD_HACK:
                raise
            if error.status is not EvaluationStatus.INCORRECT_NUMERICAL and context.is_cuda:
                worker.close()  # an error on the device spoils the process
            return _summary(error.message)
        except WorkerLost as lost:
            if lost.is_forgery or (lost.is_killed and not candidate.was_killed):
                raise
            worker.close()
            return f"its worker ended: {_summary(str(lost))}"
        return ""

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
        candidate, prepared = self.candidate, item.prepared
        if candidate.may_seal and not candidate.is_sealed:
            candidate.seal()
        is_unsealed = not candidate.may_seal or (self.context.is_cuda and not candidate.is_sealed)
        with self._bind(item) as function:
            performance, flags = self._performance(function, item)
            candidate.worker.confirm()
            printed = item.printed + candidate.worker.printed()
        if self.context.is_cuda:
            release_unused(self.context.device, _MAX_UNUSED_BYTES)  # for its other judges and workers
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

    def _performance(self, function: BoundFunction, item: _Checked) -> tuple[Performance, list[str]]:
        candidate, prepared = self.candidate, item.prepared
        with Interleaved(
            self.baselines,
            function,
            prepared,
            self.settings,
            may_capture=item.may_capture,
            is_reference_timed=self.config.profile_baseline,
        ) as timed:
            self._take_samples(timed)
            problem = candidate.padding_problem
            timing = timed.timer.graph_fields(is_padding_right=not problem)
            optional = {
                f"{PADDED_INDICES}_problem": problem if prepared.padded is not None else "",
                "not_captured": "" if item.may_capture else candidate.why_not_captured(prepared.workload.uuid),
                "not_compiled": list(candidate.worker.not_compiled),
            }
            timing |= {PADDED_INDICES: not problem} if prepared.padded is not None else {}
            timing |= {name: value for name, value in optional.items() if value}
            performance = self.recorder.performance(function, timed, prepared, timing=timing)
            flags = [UNVERIFIED] if timed.failure else []
            flags += [] if timed.timer.passes.changed_names else [FIXED_INPUTS]
            return performance, [*flags, *timed.timer.verification.precision.flags(), *self._check_code()]

    def _take_samples(self, timed: Interleaved) -> None:
        context, activity = self.context, BackgroundActivity(self.candidate.worker)
        context.exclusive_seconds = 0.0
        alone = nullcontext() if context.is_cuda else context.exclusive()  # there, each burst has the device alone
        with alone, context.phases.during(Phase.TIME):
            timed.time(self.settings.measure_seconds, activity)
        with context.phases.during(Phase.AUDIT), context.no_device_work():
            activity.check()
        timed.timer.finish(timed.answer)

    def _check_code(self) -> list[str]:
        """Flags of a worker whose code could not be checked, and of device settings that somebody changed."""
        if not self.context.is_cuda:
            return []
        with self.context.no_device_work():
            changes = [f"device setting changed: {change}" for change in self.context.changed_settings()]
            candidate, trusted = self.candidate, self.baselines.reference_worker
            reason = check_code(candidate.worker, trusted, candidate.table, candidate.table_digest)
        return [*changes, f"unchecked code: {reason}"] if reason else changes


def _captured(function: BoundFunction, first: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Capture a call on inputs; returns what replays it on others in their place, with a copy of the outputs."""
    slots = function.slots
    function.call(first, 0, is_first=True)  # compiles
    passes = Passes(function, {}, first)
    slots.inputs[:] = first
    passes.compose(native.SOLUTION, Order.COLD)

    def replay(inputs: torch.Tensor) -> torch.Tensor:
        slots.inputs[:] = inputs
        made = passes.run(native.SOLUTION, Order.COLD, Launch.DEVICE)
        if passes.recompute(made, slots.outputs[: passes.calls]):
            raise NotCapturable("a replay left outputs unwritten")
        outputs = slots.outputs[0].clone()
        function.check_inputs(0, inputs)
        return outputs

    return replay


def _summary(text: str) -> str:
    """The first line of a reason, which names the error."""
    return next(iter(text.strip().splitlines()), "no reason was given")
