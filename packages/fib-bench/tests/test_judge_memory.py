"""Tests of the execution of a plan: turns of judges that wait for memory."""

import fcntl
import threading
import time

import attrs
from fib_bench import BenchmarkConfig
from fib_bench.events import Evaluated
from fib_bench.judge.device import FOLDER_VARIABLE, DeviceLock, extra_memory
from fib_bench.judge.evaluate import Judge
from fib_bench.plan import DefinitionPlan
from fib_bench.worker.client import ForkServerClient

from .samples import DOUBLE, GOOD, make_solution, make_workload


def test_a_judge_that_waits_for_memory_lets_others_time_passes(device_context, server, tmp_path, monkeypatch):
    """Otherwise this judge and the one that holds the memory would wait for each other for ever."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    bursts = tmp_path / "device.lock"
    workload = make_workload(DOUBLE, {"n": 3})
    plan = DefinitionPlan(DOUBLE, (workload,), {workload.uuid: (make_solution(GOOD),)})
    events = []
    config = BenchmarkConfig(quick=True, concurrency=2, memory_bytes=1)  # no block fits into a judge's share
    with ForkServerClient("cpu") as own, Judge(config, server=own) as judge:
        context = attrs.evolve(device_context, lock=DeviceLock(bursts), takes_turns=True)
        judge.context = context
        context.kill(server.spawn())  # as after the last block, until its end is waited for
        waiting = threading.Thread(target=lambda: events.extend(judge.execute(plan)))
        with extra_memory(context.device):
            waiting.start()
            was_free = _becomes_free(bursts)
            assert waiting.is_alive()
        waiting.join()
    assert was_free
    assert [event.trace.evaluation.status for event in events if isinstance(event, Evaluated)] == ["PASSED"]


def _becomes_free(bursts):
    """Whether another judge can time a pass within a minute."""
    end = time.monotonic() + 60
    with bursts.open() as another:
        while time.monotonic() < end:
            try:
                fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.01)
            else:
                return True
    return False
