"""Tests of the execution of a plan: turns of judges that wait for memory, and the death of a fork server."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from fib_bench import BenchmarkConfig
from fib_bench.errors import WorkerPoolFailed
from fib_bench.events import Evaluated
from fib_bench.execution.execution import Execution
from fib_bench.judge.device import FOLDER_VARIABLE, DeviceContext, DeviceLock, extra_memory
from fib_bench.judge.evaluate import Judge
from fib_bench.plan import DefinitionPlan
from fib_bench.worker.client import ForkServerClient
from fib_bench.worker.process_tree import descendants
from fib_schema import Definition, Solution, Workload

Told = tuple[str, tuple[str, ...]]


def test_a_judge_that_waits_for_memory_lets_others_time_passes(
    definition: Definition,
    make_solution: Callable[..., Solution],
    make_workload: Callable[..., Workload],
    device_context: DeviceContext,
    server: ForkServerClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise this judge and the one that holds the memory would wait for each other for ever."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    bursts = tmp_path / "device.lock"
    workload = make_workload(definition, {"n": 3})
    plan = DefinitionPlan(definition, (workload,), {workload.uuid: (make_solution("def run(x):\n    return x * 2\n"),)})
    events: list[object] = []
    config = BenchmarkConfig(quick=True, concurrency=2, memory_bytes=1)  # no block fits into a judge's share
    with ForkServerClient("cpu") as own, Execution(config, None, {}, own) as execution:
        context = attrs.evolve(device_context, lock=DeviceLock(bursts), takes_turns=True)
        execution._judge.context = context
        context.kill(server.spawn())  # as after the last block, until its end is waited for
        waiting = threading.Thread(target=lambda: events.extend(execution.execute(plan)))
        with extra_memory(context.device):
            waiting.start()
            was_free = _becomes_free(bursts)
            assert waiting.is_alive()
        waiting.join()
    assert was_free
    assert [event.trace.evaluation.status for event in events if isinstance(event, Evaluated)] == ["PASSED"]  # type: ignore[union-attr]


def test_a_fork_server_that_dies_during_a_call_is_no_verdict_on_the_solution(
    definition: Definition,
    make_solution: Callable[..., Solution],
    make_workload: Callable[..., Workload],
    device_context: DeviceContext,
) -> None:
    solution = make_solution("def run(x):\n    while True: pass\n")
    with ForkServerClient("cpu") as own, Judge(BenchmarkConfig(quick=True), server=own) as judge:
        judge.context = attrs.evolve(device_context, timeout_seconds=60.0)
        prepared = judge.prepare(definition, make_workload(definition, {"n": 3}))
        assert own._process is not None
        killer = threading.Thread(target=_kill_with_workers, args=(own._process.pid, 2))
        killer.start()
        with pytest.raises(WorkerPoolFailed, match="it died, and its workers with it"):
            list(judge.evaluate(definition, solution, [prepared]))
        killer.join()


def _kill_with_workers(server: int, count: int) -> None:
    """Kill a fork server as soon as it has that many workers."""
    while len(descendants(server)) < count:
        time.sleep(0.01)
    os.kill(server, signal.SIGKILL)


def _becomes_free(bursts: Path) -> bool:
    """Whether another judge can time a pass within some seconds."""
    end = time.monotonic() + 10
    with bursts.open() as another:
        while time.monotonic() < end:
            try:
                fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.01)
            else:
                return True
    return False
