"""The judge. It makes inputs, obtains expected outputs, receives a solution's outputs, and decides.

Expected outputs come from the definition's reference, which runs in a worker of its own, and are
copied into memory that no worker can map. A solution's worker gets slots with inputs and poisoned
outputs. `solution_run` evaluates one solution; whatever is timed is verified (`verification`).
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Self

import torch
from fib_compile.device import env_snapshot, parse_device
from fib_schema import AxisError, Definition, Environment, Evaluation, InvalidField, Solution, Workload

from ..config.benchmark import BenchmarkConfig
from ..config.model import ResolvedEvalConfig
from ..errors import EvaluatorFailed, EvaluatorUnusable, InputError, ReferenceFailed, UnsupportedDevice
from ..evaluators import evaluator_for
from ..evaluators.protocol import Evaluator
from ..events import Phase
from ..timing.device import settings_of, watch_clock
from ..timing.handshake.native import MAX_OUTPUTS
from ..timing.roofline import speed_of_light_of
from ..worker.client import ForkServerClient, WorkerLost, end_all
from .device import (
    DeviceContext,
    PhaseTimer,
    available_bytes,
    identity_of,
    lacks_memory,
    lock_of,
    wait_for_memory,
)
from .function_worker import FunctionWorker, Rejected, solution_request
from .interleaving import REFERENCE, Baselines
from .prepare import Preparation, needed_bytes
from .prepared import EvaluatorRaised, PreparedWorkload
from .record import EvaluationRecorder, log_of
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
            self.environment: Environment = env_snapshot(config.device)
            """The hardware and the versions that traces state."""
        except (ValueError, RuntimeError) as error:
            raise UnsupportedDevice(config.device, str(error)) from error
        self.device = torch.device(config.device)
        if is_cuda:
            torch.cuda.set_device(self.device)
        self._server = server or ForkServerClient(config.device, () if root is None else (root,))
        self._watch = watch_clock(self.device)
        if self._watch is not None:
            self._watch.start()
        self._busy_seconds = 0.0
        where = {"host": platform.node(), "device": config.device, "device_id": identity_of(self.device)}
        self._recorder = EvaluationRecorder(self.environment, where, config.baseline, is_quick=config.quick)
        self._baseline_solutions = baselines or {}
        self.phases = PhaseTimer()
        self.cache_key = ""
        """`DefinitionPlan.cache_key` of the plan that is being executed."""
        self._settings: dict[tuple[str, str], ResolvedEvalConfig] = {}
        self._evaluators: dict[str, Evaluator] = {}
        self._ahead: dict[str, FunctionWorker] = {}
        cores = (os.cpu_count() or 1) // (config.concurrency or 1)
        self._most_ahead = min(_MAX_WORKERS, max(cores // _CORES_PER_WORKER, 1)) - 1 if is_cuda else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers."""
        if "context" in self.__dict__:
            self.context.settle()
        if "_baselines" in self.__dict__:
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

    @cached_property
    def context(self) -> DeviceContext:
        """The device; its roofline is measured at the first access."""
        lock, is_cuda = lock_of(self.device), self.device.type == "cuda"
        settings = settings_of(self.device)
        return DeviceContext(
            device=self.device,
            timeout_seconds=self._config.timeout_seconds,
            light=speed_of_light_of(self.device, lock.alone if is_cuda else nullcontext),
            watch=self._watch,
            settings=settings,
            settings_before=None if settings is None else settings.read(),
            phases=self.phases,
            lock=lock,
            takes_turns=is_cuda,
            is_shared=(self._config.concurrency or 1) > 1 and is_cuda,
        )

    @cached_property
    def _baselines(self) -> Baselines:
        return Baselines(self._server, self.context, self._baseline_solutions)

    def _settings_of(self, definition: Definition) -> ResolvedEvalConfig:
        """The settings of a definition, merged once: that takes 0.1 ms on an idle processor."""
        key = (definition.name, definition.op_type)
        if key not in self._settings:
            self._settings[key] = self._config.resolve_eval_config(definition)
        return self._settings[key]

    # -- workloads -----------------------------------------------------------------------------

    def workload_bytes(self, definition: Definition, workload: Workload) -> int:
        """About how much memory a prepared workload takes; 0 if it is invalid, which `prepare` reports."""
        try:
            return needed_bytes(definition, workload, self._settings_of(definition), self.device)
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
                    self._baselines.close()
                with self.phases.during(Phase.WAIT):
                    wait_for_memory(self.device)
                return self._prepare(definition, workload)
        except (WorkerLost, Rejected) as error:
            worker = self._baselines.reference_worker
            log = str(error) if worker is None else log_of(str(error), worker)
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
        """The evaluator of a definition, looked for once; raises `EvaluatorUnusable` if there is none."""
        if definition.name not in self._evaluators:
            config = self._settings_of(definition)
            self._evaluators[definition.name] = evaluator_for(definition, config)
        return self._evaluators[definition.name]

    def _prepare(self, definition: Definition, workload: Workload) -> PreparedWorkload:
        evaluator = self._evaluator(definition)
        preparation = Preparation(
            definition=definition,
            workload=workload,
            root=self._root,
            run=self._config,
            config=evaluator.settings(self._settings_of(definition)),
            evaluator=evaluator,
            worker=self._baselines.worker(REFERENCE, definition).worker,
            context=self.context,
        )
        with self.context.device_work():
            return preparation.prepare()

    def _check_size(self, definition: Definition, workload: Workload) -> None:
        """Raise `InputError` for a workload that is invalid, that this machine cannot hold or no pass can time."""
        problem = ""
        try:
            needed = needed_bytes(definition, workload, self._settings_of(definition), self.device)
        except (AxisError, InvalidField) as error:
            raise InputError(definition.name, workload.uuid, "", str(error)) from error
        free = available_bytes(self.device)
        if needed > free * SHARE_OF_FREE_MEMORY:
            self.context.settle()  # which gives memory back
            free = available_bytes(self.device)
        if needed > free * SHARE_OF_FREE_MEMORY:
            problem = f"its tensors take {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free"
            problem += f", of which {SHARE_OF_FREE_MEMORY:.0%} may be used"
        if len(definition.outputs) > MAX_OUTPUTS:
            problem = f"it has {len(definition.outputs)} outputs; calls with at most {MAX_OUTPUTS} can be timed"
        if problem:
            raise InputError(definition.name, workload.uuid, "", problem)

    # -- solutions -----------------------------------------------------------------------------

    def evaluate(
        self, definition: Definition, solution: Solution, workloads: Sequence[PreparedWorkload]
    ) -> Iterator[tuple[Workload, Evaluation | EvaluatorFailed]]:
        """Evaluate one solution on workloads, in a fresh worker; a lost worker costs one workload.

        A solution that does not build is built once: each workload gets the result of that attempt.

        Yields:
            Workloads with their evaluations, in the order in which they end: those that fail before timing come
            first. Where the evaluator fails there is no evaluation.
        """
        candidate = self._ahead.pop(solution.name, None) or self._start(definition, solution)
        run = SolutionRun(
            candidate=candidate,
            definition=definition,
            solution=solution,
            config=self._config,
            settings=self._settings_of(definition),
            context=self.context,
            baselines=self._baselines,
            recorder=self._recorder,
        )
        try:
            for prepared, result in run.evaluate(workloads):
                yield prepared.workload, result
        finally:
            self.context.kill(candidate.worker)

    def start_ahead(self, definition: Definition, solutions: Sequence[Solution]) -> None:
        """Start and compile the next solutions in workers of their own, on CUDA only.

        On the CPU compilation would disturb timing. The solution whose turn it is gains nothing: it would be built in
        two steps, and waited for all the same.
        """
        for solution in solutions[: self._most_ahead]:
            if solution.name not in self._ahead:
                self._ahead[solution.name] = self._start(definition, solution)
                self._ahead[solution.name].begin()

    def dismiss_ahead(self) -> None:
        """End workers that were started ahead and not used."""
        if self._ahead:
            with self.context.device_work():
                end_all(candidate.worker for candidate in self._ahead.values())
        self._ahead = {}

    def _start(self, definition: Definition, solution: Solution) -> FunctionWorker:
        request = solution_request(self._config.device, definition, solution, self.cache_key)
        with self.phases.during(Phase.START):
            return FunctionWorker(self._server, request, self.context)
