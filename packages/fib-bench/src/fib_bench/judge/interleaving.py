"""Interleaved timing: a solution, the reference and the baseline take turns, so that a drift affects all of them.

The workers of the reference and the baseline serve all workloads of a definition. Next to a solution their functions
read the same input memory. The reference also answers for calls of the solution that are verified.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Self

import torch
from fib_schema import Definition, EvaluationStatus, Solution

from ..config.model import ResolvedEvalConfig
from ..events import Phase
from ..secure_random import SECRET
from ..timing import Measurement
from ..worker.client import ForkServerClient, Worker, WorkerLost, end_all
from .device import DeviceContext
from .function_worker import (
    BackgroundActivity,
    FunctionWorker,
    NotCapturable,
    Rejected,
    reference_request,
    solution_request,
)
from .prepared import PreparedWorkload
from .timed_function import InputsChanged, TimedFunction
from .timer import DEVICE, EAGER, Timer

SOLUTION, REFERENCE, BASELINE = "solution", "reference", "baseline"
"""The roles."""
_ROUNDS, _FURTHER_ROUNDS = 6, 3  # of passes in the first burst and in each further one
_REFERENCE_SHARE, _TOGETHER_SHARE = 0.5, 2.0  # of `measure_seconds`: for the reference, and for all together
_TIMEOUT_SHARE = 0.3  # of the bound on a request, for timing one function


class Baselines:
    """The workers of a definition's reference and baseline.

    Args:
        server: Starts them.
        context: The device.
        solutions: The baseline of each definition that has one.
    """

    def __init__(self, server: ForkServerClient, context: DeviceContext, solutions: Mapping[str, Solution]) -> None:
        self._server, self._context, self._solutions = server, context, solutions
        self._workers: dict[str, FunctionWorker] = {}
        self._definition: str | None = None

    def worker(self, role: str, definition: Definition) -> FunctionWorker:
        """The worker of a role; it is started if there is none."""
        if self._definition != definition.name:
            with self._context.device_work():
                self.close()
            self._definition = definition.name
        if role not in self._workers:
            device = str(self._context.device)
            request = (
                reference_request(device, definition)
                if role == REFERENCE
                else solution_request(device, definition, self._solutions[definition.name])
            )
            self._workers[role] = FunctionWorker(self._server, request, self._context)
        if not self._workers[role].is_ready:
            self._workers[role].build()
        return self._workers[role]

    @property
    def reference_worker(self) -> Worker | None:
        """The worker of the reference, which has never run code of a solution, if there is one now."""
        reference = self._workers.get(REFERENCE)
        return None if reference is None else reference.worker

    def roles(self, definition: Definition) -> tuple[str, ...]:
        """The roles that a definition has."""
        return (REFERENCE, BASELINE) if definition.name in self._solutions else (REFERENCE,)

    def baseline_has_setup(self, definition: Definition) -> bool:
        """Whether the baseline of a definition has a ``setup``."""
        try:
            return BASELINE in self.roles(definition) and self.worker(BASELINE, definition).has_setup
        except (WorkerLost, Rejected):
            return False

    def close(self) -> None:
        """End the workers."""
        end_all(function.worker for function in self._workers.values())
        self._workers = {}
        self._definition = None


class Interleaved:
    """A solution on one workload next to the reference and the baseline, which are bound to its inputs during a block.

    Args:
        baselines: The workers of the reference and the baseline.
        solution: Its slots are bound.
        prepared: The workload.
        config: How to time.
        may_capture: Whether CUDA graphs of the solution may be tried.
        is_reference_timed: Whether the reference is timed, or only asked.
    """

    def __init__(
        self,
        baselines: Baselines,
        solution: TimedFunction,
        prepared: PreparedWorkload,
        config: ResolvedEvalConfig,
        *,
        may_capture: bool,
        is_reference_timed: bool,
    ) -> None:
        self._baselines, self._solution, self._definition = baselines, solution, prepared.checker.definition
        self._prepared, self._config, self._may_capture = prepared, config, may_capture
        self._is_reference_timed = is_reference_timed
        self._functions: dict[str, TimedFunction] = {}
        self._timers: dict[str, Timer] = {}
        self.failures: dict[str, str] = {}
        """Reason for not timing a role, by role."""
        self.failure = ""
        """The reason why the reference answers no more; empty while it answers."""
        self.timer: Timer
        """Of the solution."""

    def __enter__(self) -> Self:
        solution, may_capture = self._solution, self._may_capture
        try:
            for role in self._baselines.roles(self._definition):
                self._try(role, self._open)
            with solution.context.phases.during(Phase.WARM_UP):
                self.timer = Timer(solution, self._prepared, self._config, may_capture=may_capture, is_compared=True)
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        for function in self._functions.values():
            function.release()
        self._functions = {}

    # -- reference and baseline ------------------------------------------------------------------

    def _try(self, role: str, step: Callable[[str], None]) -> None:
        """Make a step of a role; one that fails is timed without captures in a fresh worker, or left out."""
        try:
            try:
                step(role)
            except NotCapturable as error:
                worker = self._baselines.worker(role, self._definition)
                worker.may_capture, worker.not_captured = False, str(error)
                self._bind_again(role)
                self._warm_up(role)
        except (Rejected, WorkerLost) as error:
            self._timers.pop(role, None)
            self.failures[role] = str(error)

    def _open(self, role: str) -> None:
        self._bind(role)
        if role == BASELINE or self._is_reference_timed:
            self._warm_up(role)

    def _bind(self, role: str) -> None:
        worker = self._baselines.worker(role, self._definition)
        function = TimedFunction(
            worker.worker,
            self._prepared.layout,
            self._prepared.slots,
            self._solution.context,
            shares_inputs_with=self._solution,
            has_setup=role == BASELINE and worker.has_setup,
            recipes=self._prepared.recipes,
        )
        self._functions[role] = function.__enter__()

    def _bind_again(self, role: str) -> None:
        """Bind the function in a fresh worker."""
        if (function := self._functions.pop(role, None)) is not None:
            function.worker.close()
            function.release()
        self._bind(role)

    def _warm_up(self, role: str) -> None:
        may_capture = self._baselines.worker(role, self._definition).may_capture
        function, is_trusted = self._functions[role], role == REFERENCE
        self._timers[role] = Timer(
            function, self._prepared, self._config, may_capture=may_capture, is_trusted=is_trusted
        )

    # -- timing ----------------------------------------------------------------------------------

    def time(self, max_seconds: float, activity: BackgroundActivity) -> None:
        """Time the solution and the others in turns until all are precise. Others that fail are left out.

        Args:
            max_seconds: The time for each function.
            activity: Of the worker of the solution, which must be idle while others are timed.
        """
        context, rounds = self._solution.context, _ROUNDS
        seconds, begin = context.timeout_seconds, context.seconds()
        max_seconds = min(max_seconds, _TIMEOUT_SHARE * seconds)
        while True:
            if (elapsed := context.seconds() - begin) > seconds:
                raise WorkerLost(f"timing did not end within {seconds:g} s", is_timeout=True)
            is_done, is_late = self.timer.is_done(max_seconds), elapsed > _TOGETHER_SHARE * max_seconds
            share = 0.0 if is_done and is_late else _REFERENCE_SHARE
            waiting = [role for role, other in self._timers.items() if not other.is_done(share * max_seconds)]
            if not waiting and is_done:
                return
            self._time_burst([*([] if is_done else [SOLUTION]), *waiting], rounds, activity)
            rounds = _FURTHER_ROUNDS

    def _time_burst(self, roles: Sequence[str], rounds: int, activity: BackgroundActivity) -> None:
        """Have the device alone for some passes of each, then verify them.

        Each round is in random order: the order shifts a latency by up to 2 %.
        """
        rounds = min(self._timers.get(role, self.timer).room_for(rounds) for role in roles)
        with self._solution.context.exclusive():
            for _ in range(rounds):
                for role in SECRET.sample(roles, len(roles)):
                    if role == SOLUTION:
                        self.timer.sample()
                    else:
                        self._sample(role, activity)
        for role in roles:
            if role == SOLUTION:
                self.timer.verify()
            else:
                self._try(role, self._verify)

    def _sample(self, role: str, activity: BackgroundActivity) -> None:
        """Time a pass of each kind of a role; on the CPU nothing else tells whether the solution is idle."""
        is_watched = not self._solution.context.is_cuda
        if is_watched:
            activity.begin()
        self._try(role, self._take_sample)
        if is_watched:
            activity.end()

    def _take_sample(self, role: str) -> None:
        if role in self._timers:  # else it has failed in an earlier round
            self._timers[role].sample()

    def _verify(self, role: str) -> None:
        if role in self._timers:
            self._timers[role].verify()

    def finish(self) -> None:
        """Compare timed calls of the solution with answers of the reference; raises like `Timer.finish`."""
        self.timer.finish(self.answer)

    def measurements(self) -> dict[str, Measurement]:
        """The latencies by role, of the same kind as that of the solution."""
        self.timer.compare_with(self._timers.get(REFERENCE))
        found = {}
        for role, timer in self._timers.items():
            if timer.method == self.timer.method:
                found[role] = timer.measurement()
            elif self.timer.method == DEVICE:
                reason = self._baselines.worker(role, self._definition).not_captured
                self.failures[role] = f"it has no device latency: {reason or 'it cannot be captured'}"
            else:
                found[role] = timer.measurement(EAGER)
        return found

    # -- answers ---------------------------------------------------------------------------------

    def answer(self, inputs: torch.Tensor) -> torch.Tensor | None:
        """Call the reference on several input sets, once more in a fresh worker if it fails; None if it fails again.

        Shapes:
            inputs: ``[calls, bytes]``, as is what is returned.
        """
        reason = ""
        for is_again in (False, True):
            try:
                if is_again or REFERENCE not in self._functions:
                    self._bind_again(REFERENCE)
                return self._functions[REFERENCE].call_each(inputs)
            except InputsChanged as error:
                if is_again:
                    problem = "inputs of the reference were overwritten: only the judge and two workers can write there"
                    raise Rejected(EvaluationStatus.REWARD_HACK, problem) from error
            except (Rejected, WorkerLost) as error:
                reason = str(error)
        self.failure = f"the reference failed twice on inputs of timed calls: {reason}"
        return None
