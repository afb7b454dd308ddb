"""Plan runner, in the judge process: prepares workloads, has the judge evaluate solutions, and yields events.

Workloads are prepared in blocks that fit into memory, and all solutions run on a block: inputs and
references are computed once, not once per solution.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path

from fib_schema import Environment, Solution, Trace, Workload

from ..config.model import BenchmarkConfig
from ..errors import EvaluatorFailed, InputError, ReferenceFailed
from ..events import Evaluated, Event, Phase, PhaseTimes, Skipped, Working
from ..judge.device import available_bytes, extra_memory
from ..judge.evaluate import SHARE_OF_FREE_MEMORY, Judge
from ..judge.prepared import PreparedWorkload
from ..plan import DefinitionPlan, Skip
from ..worker.client import ForkServerClient

_SHARE_OF_MEMORY = 0.5
_MOST_IN_BLOCK = 64  # all of them are prepared before the first result appears
_ROOM_SECONDS, _ROOM_POLL_SECONDS = 120.0, 0.05  # other judges finish their blocks meanwhile


class PlanRunner(AbstractContextManager["PlanRunner"]):
    """Runs plans in this process; `UnsupportedDevice` if there is no such device here."""

    def __init__(
        self,
        config: BenchmarkConfig,
        root: Path | None,
        baselines: Mapping[str, Solution],
        server: ForkServerClient | None = None,
    ) -> None:
        self._config = config
        self._judges = config.concurrency or 1
        self._judge = Judge(config, root=root, baselines=baselines, server=server)

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def environment(self) -> Environment:
        """The hardware and the versions that traces state."""
        return self._judge.environment

    def close(self) -> None:
        """Terminate the judge's workers."""
        self._judge.close()

    def execute(self, part: DefinitionPlan) -> Iterator[Event]:
        """Run the plan for one definition."""
        self._judge.cache_key = part.cache_key
        limit = self._memory_bytes()
        for block in self._blocks(part, limit):
            with self._room(part, block, limit):
                yield from self._run_block(part, block)
            watch = self._judge.context.watch
            yield PhaseTimes(self._judge.phases.take(), None if watch is None else watch.take_busy_seconds())

    def settle(self, request: Connection) -> None:
        """Wait for the end of the workers of solutions, or until a request arrives."""
        self._judge.context.settle_before(request)

    def _run_block(self, part: DefinitionPlan, block: Sequence[Workload]) -> Iterator[Event]:
        prepared: list[PreparedWorkload] = []
        yield from self._prepare(part, block, prepared)
        found = {s.name: s for workload in block for s in part.pending[workload.uuid]}
        solutions = list(found.values()) if prepared else []
        names = {workload.uuid: {s.name for s in part.pending[workload.uuid]} for workload in block}
        for solution in solutions:
            todo = [p for p in prepared if solution.name in names[p.workload.uuid]]
            yield from self._evaluate(part, solution, todo)

    def _prepare(
        self, part: DefinitionPlan, block: Sequence[Workload], prepared: list[PreparedWorkload]
    ) -> Iterator[Event]:
        for workload in block:
            yield Working(part.definition.name, None, workload)
            try:
                prepared.append(self._judge.prepare(part.definition, workload))
            except (EvaluatorFailed, InputError, ReferenceFailed) as error:
                skip = Skip(part.definition.name, None, workload.uuid, error.reason, is_failure=True)
                yield Skipped(skip, len(part.pending[workload.uuid]))

    def _evaluate(self, part: DefinitionPlan, solution: Solution, todo: Sequence[PreparedWorkload]) -> Iterator[Event]:
        """Evaluate a solution; before each wait, name the first workload that is not finished."""
        name = part.definition.name
        waiting = {item.workload.uuid: item.workload for item in todo}
        yield from (Working(name, solution.name, workload) for workload in islice(waiting.values(), 1))
        evaluations = self._judge.evaluate(part.definition, solution, todo)
        for workload, evaluation in evaluations:
            if isinstance(evaluation, EvaluatorFailed):
                yield Skipped(Skip(name, solution.name, workload.uuid, evaluation.reason, is_failure=True), 1)
            else:
                yield Evaluated(Trace(name, workload, solution.name, evaluation))
            del waiting[workload.uuid]
            yield from (Working(name, solution.name, workload) for workload in islice(waiting.values(), 1))

    def _blocks(self, part: DefinitionPlan, limit: int) -> Iterator[list[Workload]]:
        block: list[Workload] = []
        used = 0
        for workload in part.workloads:
            size = self._judge.workload_bytes(part.definition, workload)
            if block and (used + size > limit or len(block) == _MOST_IN_BLOCK):
                yield block
                block, used = [], 0
            block.append(workload)
            used += size
        if block:
            yield block

    def _memory_bytes(self) -> int:
        share = int(_SHARE_OF_MEMORY * available_bytes(self._judge.device)) // self._judges
        return share if self._config.memory_bytes is None else min(self._config.memory_bytes, share)

    @contextmanager
    def _room(self, part: DefinitionPlan, block: Sequence[Workload], limit: int) -> Iterator[None]:
        """Wait until a block fits into memory that other judges of the device may still use.

        One block at a time may exceed a judge's share. If there is no room in the end, the judge reports it. A
        judge that waits does not share the device: the one that holds the memory could never time a pass.
        """
        needed = sum(self._judge.workload_bytes(part.definition, workload) for workload in block)
        if self._judges == 1 or needed <= limit:
            yield
            return
        with ExitStack() as stack:
            with self._judge.context.no_device_work(), self._judge.phases.during(Phase.WAIT):
                stack.enter_context(extra_memory(self._judge.device))
                end = time.monotonic() + _ROOM_SECONDS
                while available_bytes(self._judge.device) < needed / SHARE_OF_FREE_MEMORY and time.monotonic() < end:
                    time.sleep(_ROOM_POLL_SECONDS)
            yield
