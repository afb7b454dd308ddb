"""The judge. It makes inputs, obtains expected outputs, receives a solution's outputs, and decides.

Expected outputs come from the definition's reference, which runs in a worker of its own, and are
copied into memory that no worker can map. A solution's worker gets slots with inputs and poisoned
outputs. `solution_run` evaluates one solution; whatever is timed is verified (`verification`).
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from fib_compile.device import env_snapshot, parse_device
from fib_schema import AxisError, Definition, Environment, Evaluation, InvalidField, Solution, Workload

from ..config.benchmark import BenchmarkConfig
from ..errors import EvaluatorFailed, EvaluatorUnusable, InputError, ReferenceFailed, UnsupportedDevice
from ..evaluators import evaluator_for
from ..evaluators.protocol import Evaluator
from ..events import Phase
from ..timing.device import settings_of, watch_clock
from ..timing.roofline import speed_of_light_of
from ..worker.client import ForkServerClient, WorkerLost, end_all
from .baselines import REFERENCE, Baselines
from .build_failure import BuildFailure, attempt
from .definition_settings import DefinitionSettings
from .device_context import DeviceContext
from .device_lock import identity_of, lock_of
from .device_memory import available_bytes, lacks_memory, wait_for_memory
from .function_worker import FunctionWorker, solution_request
from .output_checker import EvaluatorRaised
from .phase_timer import PhaseTimer
from .prepare import Preparation, needed_bytes
from .prepared import PreparedWorkload
from .record import EvaluationRecorder, isolated, log_of
from .rpc import Rejected
from .solution_run import SolutionRun

SHARE_OF_FREE_MEMORY = 0.7
"""A prepared workload takes at most this much: the reference and the solution need room of their own."""
_MAX_WORKERS, _CORES_PER_WORKER = 4, 4  # of solutions: others compile while one is timed; the cores that each needs


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
        server: ForkServerClient | None = None,
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
        self._server = server or ForkServerClient(config.device, () if root is None else (root,))
        self._busy_seconds = 0.0
        self._watch = watch_clock(self.device)
        if self._watch is not None:
            self._watch.start()
        where = {"host": platform.node(), "device": config.device, "device_id": identity_of(self.device)}
        self._recorder = EvaluationRecorder(self._environment, where, config.baseline, is_quick=config.quick)
        self._baselines = Baselines(
            self._server, config.device, config.timeout_seconds, baselines or {}, self._device_work
        )
        self._context: DeviceContext | None = None
        self.phases = PhaseTimer()
        self.cache_key = ""
        """`DefinitionPlan.cache_key` of the plan that is being executed."""
        self._evaluators: dict[str, Evaluator] = {}
        self._settings = DefinitionSettings(config)
        self._ahead: dict[str, FunctionWorker] = {}
        cores = (os.cpu_count() or 1) // (config.concurrency or 1)
        self._most_ahead = min(_MAX_WORKERS, max(cores // _CORES_PER_WORKER, 1)) - 1 if is_cuda else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all workers."""
        if self._context is not None:
            self._context.settle()
        self._baselines.close()
        self.dismiss_ahead()
        if self._watch is not None:
            self._watch.stop()
        self._server.close()

    def take_busy_seconds(self) -> float | None:
        """For how long a kernel ran on the device since the last call; None if its driver does not tell."""
        seconds = None if self._watch is None else self._watch.busy_seconds
        if seconds is None:
            return None
        before, self._busy_seconds = self._busy_seconds, seconds
        return seconds - before

    @property
    def environment(self) -> Environment:
        """The hardware and the versions that traces state."""
        return self._environment

    @property
    def context(self) -> DeviceContext:
        """The tools of this device; its roofline is measured at the first access."""
        if self._context is None:
            lock = lock_of(self.device)
            bursts = lock if self.device.type == "cuda" else None
            self._context = DeviceContext(
                device=self.device,
                timeout_seconds=self._config.timeout_seconds,
                light=speed_of_light_of(self.device, nullcontext if bursts is None else bursts.alone),
                watch=self._watch,
                settings=(settings := settings_of(self.device)),
                settings_before=None if settings is None else settings.read(),
                phases=self.phases,
                lock=lock,
                bursts=bursts,
                is_shared=(self._config.concurrency or 1) > 1 and self.device.type == "cuda",
            )
        return self._context

    def _device_work(self) -> AbstractContextManager[None]:
        """A block in which other judges of the device time no passes."""
        return self.context.device_work()

    # -- workloads -----------------------------------------------------------------------------

    def workload_bytes(self, definition: Definition, workload: Workload) -> int:
        """About how much memory a prepared workload takes; 0 if it is invalid, which `prepare` reports."""
        try:
            return needed_bytes(definition, workload, self._settings.of(definition), self.device)
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
                with self._device_work():  # other judges left too little memory: once more, when they have finished
                    self._baselines.close()
                with self.phases.during(Phase.WAIT):
                    wait_for_memory(self.device)
                return self._prepare(definition, workload)
        except (WorkerLost, Rejected) as error:
            current = self._baselines.current(REFERENCE)
            log = str(error) if current is None else log_of(str(error), current.worker)
            self._baselines.close()
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
            config = self._settings.of(definition)
            self._evaluators[definition.name] = evaluator_for(definition, config)
        return self._evaluators[definition.name]

    def _prepare(self, definition: Definition, workload: Workload) -> PreparedWorkload:
        evaluator = self._evaluator(definition)
        preparation = Preparation(
            definition=definition,
            workload=workload,
            root=self._root,
            run=self._config,
            config=evaluator.settings(self._settings.of(definition)),
            evaluator=evaluator,
            worker=self._baselines.worker(REFERENCE, definition).worker,
            context=self.context,
        )
        with self.context.device_work():
            return preparation.prepare()

    def _check_size(self, definition: Definition, workload: Workload) -> None:
        """Refuse a workload that this machine cannot hold.

        Raises:
            InputError: It lacks an axis, its layout is invalid, or its tensors are too large.
        """
        config = self._settings.of(definition)
        try:
            needed = needed_bytes(definition, workload, config, self.device)
        except (AxisError, InvalidField) as error:
            raise InputError(definition.name, workload.uuid, "", str(error)) from error
        free = available_bytes(self.device)
        if needed > free * SHARE_OF_FREE_MEMORY and self.context.ended:
            self.context.settle()  # which gives memory back
            free = available_bytes(self.device)
        if needed > free * SHARE_OF_FREE_MEMORY:
            problem = f"its tensors take {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free"
            problem += f", of which {SHARE_OF_FREE_MEMORY:.0%} may be used"
            raise InputError(definition.name, workload.uuid, "", problem)

    # -- solutions -----------------------------------------------------------------------------

    def evaluate(
        self,
        definition: Definition,
        solution: Solution,
        workloads: Sequence[PreparedWorkload],
    ) -> Iterator[tuple[Workload, Evaluation | EvaluatorFailed]]:
        """Evaluate one solution on workloads, in a fresh worker; a lost worker costs one workload.

        A solution that does not build is built once: each workload gets the result of that attempt.

        Args:
            definition: What it computes.
            solution: In any language that has a builder here.
            workloads: On what.

        Yields:
            Workloads with their evaluations, in the order in which they end: those that fail before timing come
            first. Where the evaluator fails there is no evaluation.
        """
        candidate = self._ahead.pop(solution.name, None)
        if candidate is None:
            candidate = self._spawn(definition, solution)
        else:
            self.context.settle()  # the build waits for compilers, for which other judges need not wait
        try:
            if (failure := self._build(candidate)) is not None:
                yield from self._unbuilt(solution, failure, workloads)
                return
            run = SolutionRun(
                candidate=candidate,
                definition=definition,
                solution=solution,
                config=self._config,
                settings=self._settings.of(definition),
                server=self._server,
                context=self.context,
                baselines=self._baselines,
                recorder=self._recorder,
            )
            for prepared, evaluation in run.evaluate(workloads):
                yield prepared.workload, evaluation
        finally:
            self.context.ended.add(candidate.worker)

    def _unbuilt(
        self, solution: Solution, failure: BuildFailure, workloads: Sequence[PreparedWorkload]
    ) -> Iterator[tuple[Workload, Evaluation]]:
        """The evaluations of a solution that does not build."""
        for prepared in workloads:
            evaluation = self._recorder.evaluation(solution, failure.status, failure.log)
            yield prepared.workload, isolated(failure.isolation, evaluation)

    def start_ahead(self, definition: Definition, solutions: Sequence[Solution]) -> None:
        """Start and compile the next solutions in workers of their own, on CUDA only.

        On the CPU compilation would disturb timing. The solution whose turn it is gains nothing: it would be built in
        two steps, and waited for all the same.
        """
        for solution in solutions[: self._most_ahead]:
            if solution.name not in self._ahead:
                self._ahead[solution.name] = self._spawn(definition, solution)
                self._ahead[solution.name].begin(self._config.timeout_seconds, self._device_work)

    def dismiss_ahead(self) -> None:
        """End workers that were started ahead and not used."""
        if self._ahead:
            with self._device_work():
                end_all(candidate.worker for candidate in self._ahead.values())
        self._ahead = {}

    def _spawn(self, definition: Definition, solution: Solution) -> FunctionWorker:
        request = solution_request(self._config.device, definition, solution, self.cache_key)
        with self.phases.during(Phase.START):
            return FunctionWorker(self._server.spawn(), request)

    def _build(self, candidate: FunctionWorker) -> BuildFailure | None:
        with self.phases.during(Phase.BUILD):
            return attempt(candidate, self._config.timeout_seconds, device_work=self.context.first_device_work)
