"""What stands by while solutions are timed: a definition's reference, and its baseline if it has one.

Each has a worker that serves all workloads of the definition. Beside a solution's side it reads the
same inputs, is timed in turns with it, and the reference is asked what must have come out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import attrs
import torch
from fib_schema import Definition, EvaluationStatus, Solution

from ..config.model import ResolvedEvalConfig
from ..timing import StopRule
from ..transport.protocol import Build
from ..transport.rpc import NotCapturable, Rejected
from ..worker.client import WorkerLost, WorkerServer
from .device_context import Conditions
from .function_worker import FunctionWorker, reference_request, solution_request
from .prepared import InputSet, PreparedWorkload
from .timed_function import InputsChanged, Referee, RefereeFailed, Side

REFERENCE, BASELINE = "reference", "baseline"
"""The roles."""
_ALTERNATION = 20.0  # a reference that is so many times slower is not timed again beside a solution


@attrs.define
class Beside:
    """The sides beside a solution's, by their roles."""

    sides: dict[str, Side] = attrs.field(factory=dict)
    failures: dict[str, str] = attrs.field(factory=dict)
    """Why others are not there, or were left out."""

    @property
    def timed(self) -> dict[str, Side]:
        """Those that are to be timed."""
        return {role: side for role, side in self.sides.items() if side.is_warm}

    def fail(self, role: str, error: Exception) -> None:
        """Leave one out."""
        self.sides.pop(role, None)
        self.failures[role] = str(error)


class Companions:
    """The workers that stand by.

    Args:
        server: Starts them.
        device: Where they run.
        timeout_seconds: The bound on a build.
        baselines: The baseline of each definition that has one.
    """

    def __init__(
        self, server: WorkerServer, device: str, timeout_seconds: float, baselines: Mapping[str, Solution]
    ) -> None:
        self._server = server
        self._device = device
        self._timeout = timeout_seconds
        self._baselines = baselines
        self._standing: dict[str, FunctionWorker] = {}
        self._standing_for: str | None = None

    def worker(self, role: str, definition: Definition) -> FunctionWorker:
        """The worker that holds a definition's reference or baseline; it serves all workloads.

        Raises:
            Rejected: The function cannot be built.
            WorkerLost: It took its worker down.
        """
        if self._standing_for != definition.name:
            self.dismiss()
            self._standing_for = definition.name
        if role not in self._standing:
            self._standing[role] = FunctionWorker(self._server.spawn(), self._request(role, definition))
            self._standing[role].build(self._timeout)
        function = self._standing[role]
        if function.worker.is_closed:
            function.worker.close()
            function.worker = self._server.spawn()
            function.build(self._timeout)
        return function

    def standing(self, role: str) -> FunctionWorker | None:
        """The worker in a role, if there is one now."""
        return self._standing.get(role)

    def dismiss(self) -> None:
        """End the workers that stand by."""
        for function in self._standing.values():
            function.worker.close()
        self._standing = {}
        self._standing_for = None

    def _request(self, role: str, definition: Definition) -> Build:
        if role == REFERENCE:
            return reference_request(self._device, definition)
        return solution_request(self._device, definition, self._baselines[definition.name])

    def baseline_has_setup(self, definition: Definition) -> bool:
        """Whether there is a baseline that is set up before it is called."""
        if definition.name not in self._baselines:
            return False
        try:
            return self.worker(BASELINE, definition).has_setup
        except (WorkerLost, Rejected):
            return False

    @contextmanager
    def beside(
        self,
        side: Side,
        definition: Definition,
        prepared: PreparedWorkload,
        config: ResolvedEvalConfig,
        conditions: Conditions,
    ) -> Iterator[Beside]:
        """What stands by on a workload, warm where it is worth timing, beside a side that is warm.

        The side's referee is set meanwhile, if the reference does not fail.
        """
        with ExitStack() as stack:
            found = Beside()
            for role in (REFERENCE, BASELINE) if definition.name in self._baselines else (REFERENCE,):
                try:
                    found.sides[role] = self._side(role, side, definition, prepared, config, conditions, stack)
                except (Rejected, WorkerLost) as error:
                    found.fail(role, error)
            side.referee = _referee(found.sides[REFERENCE], prepared) if REFERENCE in found.sides else None
            try:
                yield found
            finally:
                side.referee = None  # its slots go with this block

    def _side(
        self,
        role: str,
        side: Side,
        definition: Definition,
        prepared: PreparedWorkload,
        config: ResolvedEvalConfig,
        conditions: Conditions,
        stack: ExitStack,
    ) -> Side:
        function = self.worker(role, definition)
        has_setup = role == BASELINE and function.has_setup
        other = stack.enter_context(
            Side(function.worker, prepared.layout, prepared.slots, conditions, beside=side, has_setup=has_setup)
        )
        if not _is_worth_timing(role, side, prepared):
            return other
        try:
            other.warm_up(prepared, config, may_capture=function.may_capture)
        except NotCapturable:
            function.may_capture = False
            function.worker.close()
            return self._side(role, side, definition, prepared, config, conditions, stack)
        return other


def _is_worth_timing(role: str, side: Side, prepared: PreparedWorkload) -> bool:
    """Whether to time it in turns with a solution: the baseline, and a reference that is not far slower."""
    reference = prepared.reference
    if role == BASELINE or reference is None:
        return role == BASELINE
    return reference.latency_ms * 1e6 <= _ALTERNATION * max(side.call_ns, 1.0)


def alternate(side: Side, beside: Beside, prepared: PreparedWorkload, rule: StopRule) -> None:
    """Time sides in turns, so that what drifts drifts for all, until each has enough samples.

    Of the others, those that fail are left out.

    Raises:
        NotCapturable: The solution must be timed without graphs, in a fresh worker.
        Rejected: Its timed calls' outputs are wrong.
        WorkerLost: It took its worker down.
    """
    while True:
        waiting = {role: other for role, other in beside.timed.items() if not other.is_done(rule)}
        if not waiting and side.is_done(rule):
            return
        if not side.is_done(rule):
            side.sample(prepared)
        for role, other in waiting.items():
            try:
                other.sample(prepared)
            except (Rejected, NotCapturable, WorkerLost) as error:
                beside.fail(role, error)


def start_over(side: Side, beside: Beside) -> None:
    """Have all sides forget their samples: none may be from another time than those that they are compared with.

    Raises:
        Rejected: The solution raised.
        WorkerLost: It took its worker down.
    """
    side.start_over()
    for role, other in beside.timed.items():
        try:
            other.start_over()
        except (Rejected, NotCapturable, WorkerLost) as error:
            beside.fail(role, error)


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
