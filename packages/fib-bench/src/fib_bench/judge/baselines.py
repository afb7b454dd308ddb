"""Baselines. Workers for the reference and the baseline, timed interleaved with each solution.

Each worker serves all workloads of a definition. Next to a solution its function reads the same input memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext

import attrs
import torch
from fib_schema import Definition, EvaluationStatus, Solution

from ..config.model import ResolvedEvalConfig
from ..secure_random import SECRET
from ..timing import Measurement
from ..transport.messages import Build
from ..worker.client import ForkServerClient, Worker, WorkerLost, end_all
from .background_activity import BackgroundActivity
from .function_worker import DeviceWork, FunctionWorker, reference_request, solution_request
from .prepared import GENERATED, InputSet, PreparedWorkload
from .rpc import NotCapturable, Rejected
from .timed_function import InputsChanged, TimedFunction
from .timer import DEVICE, Timer

REFERENCE, BASELINE = "reference", "baseline"
"""The roles."""
_ROUNDS, _FURTHER_ROUNDS = 6, 3  # of passes in the first burst and in each further one
_REFERENCE_SHARE, _TOGETHER_SHARE = 0.5, 2.0  # of `measure_seconds`: for the reference, and for all together
_TIMEOUT_SHARE = 0.3  # of the bound on a request, for timing one function
_MAX_FAILURES = 2  # of the reference on inputs of timed calls; each is retried once in a fresh worker


class Baselines:
    """The workers of a definition's reference and baseline.

    Args:
        server: Starts them.
        device: Where they run.
        timeout_seconds: The bound on a build.
        solutions: The baseline of each definition that has one.
        device_work: Entered while a worker makes or ends its device context.
    """

    def __init__(
        self,
        server: ForkServerClient,
        device: str,
        timeout_seconds: float,
        solutions: Mapping[str, Solution],
        device_work: DeviceWork = nullcontext,
    ) -> None:
        self._device_work = device_work
        self._server = server
        self._device = device
        self._timeout = timeout_seconds
        self._solutions = solutions
        self._workers: dict[str, FunctionWorker] = {}
        self._definition: str | None = None

    def worker(self, role: str, definition: Definition) -> FunctionWorker:
        """The worker of a role; it is started if there is none.

        Raises:
            Rejected: The function does not build.
            WorkerLost: The worker ended.
        """
        if self._definition != definition.name:
            with self._device_work():
                self.close()
            self._definition = definition.name
        if role not in self._workers:
            self._workers[role] = FunctionWorker(self._server.spawn(), self._request(role, definition))
            self._workers[role].build(self._timeout, self._device_work)
        function = self._workers[role]
        if function.worker.is_closed:
            function.use(self._server.spawn())
            function.build(self._timeout, self._device_work)
        return function

    def current(self, role: str) -> FunctionWorker | None:
        """The worker of a role, if there is one now."""
        return self._workers.get(role)

    def roles(self, definition: Definition) -> tuple[str, ...]:
        """The roles that a definition has."""
        return (REFERENCE, BASELINE) if definition.name in self._solutions else (REFERENCE,)

    def close(self) -> None:
        """End the workers."""
        end_all(function.worker for function in self._workers.values())
        self._workers = {}
        self._definition = None

    def _request(self, role: str, definition: Definition) -> Build:
        if role == REFERENCE:
            return reference_request(self._device, definition)
        return solution_request(self._device, definition, self._solutions[definition.name])

    def baseline_has_setup(self, definition: Definition) -> bool:
        """Whether the baseline of a definition has a ``setup``."""
        if definition.name not in self._solutions:
            return False
        try:
            return self.worker(BASELINE, definition).has_setup
        except (WorkerLost, Rejected):
            return False

    @contextmanager
    def interleaved(
        self,
        function: TimedFunction,
        definition: Definition,
        prepared: PreparedWorkload,
        config: ResolvedEvalConfig,
        *,
        is_reference_timed: bool = True,
    ) -> Iterator[InterleavedBaselines]:
        """Bind the reference and the baseline to the inputs of a solution, for as long as the block runs.

        Args:
            function: The solution; its slots are bound.
            definition: What it computes.
            prepared: On what.
            config: How to time.
            is_reference_timed: Whether the reference is timed, or only asked.
        """
        with ExitStack() as stack:
            found = InterleavedBaselines(self, function, definition, prepared, config)
            stack.callback(found.close)
            for role in self.roles(definition):
                found.open(role, is_timed=role == BASELINE or is_reference_timed)
            yield found

    @property
    def trusted_worker(self) -> Worker | None:
        """A worker that has never run code of a solution, if there is one."""
        reference = self._workers.get(REFERENCE)
        return None if reference is None else reference.worker


@attrs.define
class InterleavedBaselines:
    """The reference and the baseline next to one solution on one workload. Use `Baselines.interleaved`."""

    _baselines: Baselines
    _solution: TimedFunction
    _definition: Definition
    _prepared: PreparedWorkload
    _config: ResolvedEvalConfig
    _functions: dict[str, TimedFunction] = attrs.field(init=False, factory=dict)
    _timers: dict[str, Timer] = attrs.field(init=False, factory=dict)
    _timed: dict[str, Timer] = attrs.field(init=False, factory=dict)
    """The timers at the end of timing; later on the reference only answers, if need be in a fresh worker."""
    failures: dict[str, str] = attrs.field(init=False, factory=dict)
    """Reason for not timing a role, by role."""
    failure: str = attrs.field(init=False, default="")
    """The reason why the reference answers no more; empty while it answers."""
    _failed_answers: int = attrs.field(init=False, default=0)
    _rounds: int = attrs.field(init=False, default=_ROUNDS)
    _must_warm_up: bool = attrs.field(init=False, default=False)
    """Whether the reference has a fresh worker, in which it must be warmed up before it is timed."""

    def open(self, role: str, *, is_timed: bool) -> None:
        """Bind a function, and warm a timer of it up; if it fails, the role is left out."""
        try:
            self._bind(role)
            if is_timed:
                self._warm_up(role)
        except (Rejected, WorkerLost) as error:
            self._drop(role, error)
            if role == REFERENCE:
                self.failure = str(error)

    def close(self) -> None:
        """Release all functions."""
        for function in self._functions.values():
            function.__exit__(None, None, None)
        self._functions, self._timers, self._timed = {}, {}, {}

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

    def _warm_up(self, role: str) -> None:
        worker = self._baselines.worker(role, self._definition)
        timer = Timer(self._functions[role], may_capture=worker.may_capture, is_trusted=role == REFERENCE)
        try:
            timer.warm_up(self._prepared, self._config)
        except NotCapturable as error:
            worker.not_captured = str(error)
            self._give_up_capturing(role)
        else:
            self._timers[role] = timer

    def _give_up_capturing(self, role: str) -> None:
        """Time the function in a fresh worker without CUDA graphs."""
        self._baselines.worker(role, self._definition).may_capture = False
        self._rebind(role)
        self._warm_up(role)

    def _rebind(self, role: str) -> None:
        """Bind the function in a fresh worker."""
        self._timers.pop(role, None)
        if (function := self._functions.pop(role, None)) is not None:
            function.worker.close()
            function.__exit__(None, None, None)
        self._bind(role)

    def _drop(self, role: str, error: Exception) -> None:
        self._timers.pop(role, None)
        self.failures[role] = str(error)

    # -- timing ----------------------------------------------------------------------------------

    def time_interleaved(self, timer: Timer, max_seconds: float, activity: BackgroundActivity) -> None:
        """Time the solution and the baselines in turns until all are precise.

        A drift of the machine then affects all of them. Baselines that fail are left out.

        Args:
            timer: Of the solution; it is warm.
            max_seconds: The time for each function.
            activity: Of the worker of the solution, which must be idle while others are timed.

        Raises:
            NotCapturable: The solution must be timed in a fresh worker without graphs.
            Rejected: Outputs of the solution are wrong, or its worker is active in the background.
            WorkerLost: The worker of the solution ended.
        """
        context = self._solution.context
        seconds, begin = context.timeout_seconds, context.seconds()
        max_seconds = min(max_seconds, _TIMEOUT_SHARE * seconds)
        while True:
            if (elapsed := context.seconds() - begin) > seconds:
                raise WorkerLost(f"timing did not end within {seconds:g} s", is_timeout=True)
            self._warm_up_again()
            is_done, is_late = timer.is_done(max_seconds), elapsed > _TOGETHER_SHARE * max_seconds
            share = 0.0 if is_done and is_late else _REFERENCE_SHARE
            waiting = [role for role, other in self._timers.items() if not other.is_done(share * max_seconds)]
            if not waiting and is_done:
                self._timed = dict(self._timers)
                return
            self._time_burst(None if is_done else timer, waiting, activity)

    def _time_burst(self, solution: Timer | None, waiting: Sequence[str], activity: BackgroundActivity) -> None:
        """Have the device alone for some passes of each, then verify them.

        Each round is in random order: the order shifts a latency by up to 2 %.
        """
        timers = [*([solution] if solution else []), *(self._timers[role] for role in waiting)]
        rounds = min(timer.room_for(self._rounds) for timer in timers)
        self._rounds = _FURTHER_ROUNDS
        with self._solution.context.exclusive():
            for _ in range(rounds):
                roles: list[str | None] = [*([None] if solution else []), *waiting]
                SECRET.shuffle(roles)
                for role in roles:
                    if role is None and solution is not None:
                        solution.sample()
                    elif role is not None:
                        self._sample(role, activity)
        if solution is not None:
            solution.verify()
        for role in waiting:
            self._step(role, lambda timer: timer.verify())

    def _sample(self, role: str, activity: BackgroundActivity) -> None:
        """Time a pass of each kind of a baseline; on the CPU nothing else tells whether the solution is idle."""
        is_watched = not self._solution.context.is_cuda
        if is_watched:
            activity.begin()
        self._step(role, lambda timer: timer.sample())
        if is_watched:
            activity.end()

    def _warm_up_again(self) -> None:
        if self._must_warm_up:
            self._must_warm_up = False
            try:
                self._warm_up(REFERENCE)
            except (Rejected, WorkerLost) as error:
                self._drop(REFERENCE, error)

    def _step(self, role: str, step: Callable[[Timer], None]) -> None:
        """Make a step of a timer; a role that fails is timed without captures, or left out."""
        if role not in self._timers:
            return
        try:
            step(self._timers[role])
        except NotCapturable:
            try:
                self._give_up_capturing(role)
            except (Rejected, WorkerLost) as error:
                self._drop(role, error)
        except (Rejected, WorkerLost) as error:
            self._drop(role, error)

    def measurements(self, solution: Timer) -> dict[str, Measurement]:
        """The latencies by role, of the same kind as that of the solution."""
        solution.compare_with(self._timed.get(REFERENCE))
        found = {}
        for role, timer in self._timed.items():
            if timer.method == solution.method:
                found[role] = timer.measurement()
            elif solution.method == DEVICE:
                self.failures[role] = f"it has no device latency: {self._reason(role)}"
            else:
                found[role] = timer.eager_measurement()
        return found

    def _reason(self, role: str) -> str:
        return self._baselines.worker(role, self._definition).not_captured or "it cannot be captured"

    # -- answers ---------------------------------------------------------------------------------

    def answer(self, slot: int, inputs: torch.Tensor) -> InputSet | None:
        """Call the reference on inputs, in a slot; None if it failed, in a fresh worker as well.

        Args:
            slot: Where to call it.
            inputs: ``[bytes]``, laid out like a slot.

        Raises:
            Rejected: Someone wrote to the inputs while the reference read them.
        """
        reason = ""
        for _ in range(_MAX_FAILURES):
            try:
                if self._failed_answers:
                    self._ensure_reference()
                return self._answer(slot, inputs)
            except InputsChanged as error:
                problem = "inputs of the reference were overwritten: only the judge and the two workers can write there"
                raise Rejected(EvaluationStatus.REWARD_HACK, problem) from error
            except (Rejected, WorkerLost) as error:
                self._failed_answers += 1
                reason = str(error)
                if (function := self._functions.get(REFERENCE)) is not None:
                    function.worker.close()
        self.failure = f"the reference failed {self._failed_answers} times on inputs of timed calls: {reason}"
        return None

    def answer_each(self, inputs: torch.Tensor) -> torch.Tensor | None:
        """The outputs of the reference for several input sets, ``[calls, bytes]`` each; None if it failed.

        Then `answer` finds out why, for one set after the other.
        """
        function = self._functions.get(REFERENCE)
        if function is None or self._failed_answers:
            return None
        try:
            return function.call_each(inputs)
        except (Rejected, WorkerLost):
            function.worker.close()  # `answer` starts another one
            self._failed_answers += 1
            return None

    def _ensure_reference(self) -> None:
        """Bind the reference in a fresh worker, if it has failed in this one."""
        if REFERENCE not in self._functions or self._functions[REFERENCE].worker.is_closed:
            self._must_warm_up = self._must_warm_up or REFERENCE in self._timers
            self._rebind(REFERENCE)  # it is warmed up later: that would overwrite inputs which are still compared

    def _answer(self, slot: int, inputs: torch.Tensor) -> InputSet:
        prepared = self._prepared
        asked = InputSet(GENERATED, inputs, inputs, prepared.generated.check)
        expected = self._functions[REFERENCE].call(asked, slot)
        check = prepared.checker.check(prepared.layout, inputs, expected, config=prepared.timed_config)
        return InputSet(GENERATED, inputs, expected, check)
