"""Tests of the scheduler: workers fail, differ and are stopped; each evaluation is made once or skipped."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import attrs
import pytest
from fib_bench.errors import JudgeFailed
from fib_bench.events import DeviceExcluded, Evaluated, Event, Skipped
from fib_bench.execution.scheduler import DeviceWorker, Scheduler
from fib_bench.plan import DefinitionPlan
from fib_schema import (
    AxisVar,
    BuildSpec,
    Definition,
    Environment,
    Evaluation,
    EvaluationStatus,
    RandomInput,
    Solution,
    SourceFile,
    TensorSpec,
    Trace,
    Workload,
)
from hypothesis import given, settings
from hypothesis import strategies as st

EVALUATION = Evaluation(EvaluationStatus.RUNTIME_ERROR, Environment("cpu", {}), "2026-01-01T00:00:00", "")
Open = Callable[[], DeviceWorker]


def part(name: str, workloads: int, solutions: int = 2) -> DefinitionPlan:
    axes, tensor = {"n": AxisVar()}, {"x": TensorSpec(("n",), "float32")}
    definition = Definition(name, "test", axes, tensor, {"y": TensorSpec(("n",), "float32")}, "def run(x): return x")
    spec = BuildSpec("python", ("cpu",), "m.py::run")
    source = (SourceFile("m.py", "def run(x): pass"),)
    made = tuple(Solution(f"{name}_s{index}", name, "test", spec, source) for index in range(solutions))
    some = tuple(Workload({"n": n + 1}, {"x": RandomInput()}, f"{name}-{n}") for n in range(workloads))
    return DefinitionPlan(definition, some, {workload.uuid: made for workload in some})


@attrs.define
class Fake:
    """A worker that gives a trace for each pair, until it breaks."""

    hardware: str = "cpu"
    lasts: int | None = None
    """Number of pairs that it manages."""
    pause: float = 0.0
    is_closed: bool = False

    @property
    def environment(self) -> Environment:
        return Environment(self.hardware, {})

    def execute(self, part: DefinitionPlan) -> Iterator[Event]:
        for workload in part.workloads:
            for solution in part.pending[workload.uuid]:
                if self.lasts == 0:
                    raise JudgeFailed("it broke")
                if self.lasts is not None:
                    self.lasts -= 1
                time.sleep(self.pause)
                yield Evaluated(Trace(part.definition.name, workload, solution.name, EVALUATION))

    def close(self) -> None:
        self.is_closed = True


def run(factories: Sequence[Open], parts: Sequence[DefinitionPlan]) -> list[Event]:
    with Scheduler((f"device {index}", factory) for index, factory in enumerate(factories)) as scheduler:
        return list(scheduler.execute(parts))


def pairs(events: Sequence[Event]) -> Counter[tuple[str, str]]:
    return Counter((e.trace.workload.uuid, str(e.trace.solution)) for e in events if isinstance(e, Evaluated))


def wanted(parts: Sequence[DefinitionPlan]) -> Counter[tuple[str, str]]:
    return Counter((uuid, s.name) for part in parts for uuid, some in part.pending.items() for s in some)


PARTS = (part("a", 5), part("b", 1), part("c", 7, 3))


def test_device_workers_share_the_work() -> None:
    """Each waits at its first piece for the two others to have one."""
    all_at_work, at_work = threading.Barrier(3, timeout=60), set[int]()

    class Waits(Fake):
        def execute(self, part: DefinitionPlan) -> Iterator[Event]:
            if threading.get_ident() not in at_work:
                at_work.add(threading.get_ident())
                all_at_work.wait()
            yield from Fake.execute(self, part)

    assert pairs(run([Waits] * 3, PARTS)) == wanted(PARTS)
    assert len(at_work) == 3


def test_work_that_a_device_worker_fails_at_goes_to_others() -> None:
    """It is opened again a few times, and fails each time."""
    events = run([lambda: Fake(lasts=2, pause=0.001), lambda: Fake(pause=0.005)], PARTS)
    assert pairs(events) == wanted(PARTS)


def test_a_device_of_other_hardware_is_excluded() -> None:
    opened, is_out = Counter[str](), threading.Event()

    class Waits(Fake):
        def execute(self, part: DefinitionPlan) -> Iterator[Event]:
            assert is_out.wait(60)  # else there might be no work left for the other to be tried with
            yield from Fake.execute(self, part)

    def other() -> DeviceWorker:
        opened["gpu"] += 1
        if opened["gpu"] == 3:
            is_out.set()
        return Fake("gpu")

    events = run([Waits, other], PARTS)
    assert pairs(events) == wanted(PARTS)
    (out,) = [e for e in events if isinstance(e, DeviceExcluded)]
    assert "the device is 'gpu' and the run is for 'cpu'" in out.reason


def test_the_first_device_must_open() -> None:
    def fails() -> DeviceWorker:
        raise JudgeFailed("no such device")

    with pytest.raises(JudgeFailed, match="no such device"):
        run([fails, Fake], PARTS)


def test_an_error_of_ours_ends_the_run() -> None:
    """The other worker waits for it, and cannot have done all before."""
    has_failed = threading.Event()

    class Wrong(Fake):
        def execute(self, part: DefinitionPlan) -> Iterator[Event]:
            has_failed.set()
            raise ZeroDivisionError

    class Waits(Fake):
        def execute(self, part: DefinitionPlan) -> Iterator[Event]:
            assert has_failed.wait(60)
            yield from Fake.execute(self, part)

    with pytest.raises(ZeroDivisionError):
        run([Wrong, Waits], PARTS)


def test_stopped_it_finishes_what_is_under_way() -> None:
    workers: list[Fake] = []
    is_stopped = threading.Event()

    class Waits(Fake):
        def execute(self, part: DefinitionPlan) -> Iterator[Event]:
            made = Fake.execute(self, part)
            yield next(made)
            assert is_stopped.wait(60)
            yield from made

    def opens() -> DeviceWorker:
        workers.append(Waits())
        return workers[-1]

    with Scheduler((str(index), opens) for index in range(2)) as scheduler:
        events = []
        for event in scheduler.execute(PARTS):
            events.append(event)
            scheduler.stop()
            is_stopped.set()
    assert 1 <= len(events) <= 4  # what each had made when it was told, and what it was at
    assert all(worker.is_closed for worker in workers)


def test_stopped_before_it_has_begun_it_does_nothing() -> None:
    with Scheduler([("one", Fake)]) as scheduler:
        events = scheduler.execute(PARTS)
        scheduler.stop()
        assert list(events) == []


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=4), st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_nothing_is_lost_or_doubled(lasts: list[int], sizes: list[int]) -> None:
    """Whenever workers break, each pair is evaluated once or given up."""
    parts = [part(f"d{index}", size) for index, size in enumerate(sizes)]
    events = run([lambda last=last: Fake(lasts=last) for last in lasts], parts)
    done = pairs(events)
    assert all(count == 1 for count in done.values())
    assert done <= wanted(parts)
    given_up = sum(e.count for e in events if isinstance(e, Skipped))
    assert sum(done.values()) + given_up == sum(wanted(parts).values())


class TestPieces:
    def sizes(self, parts: Sequence[DefinitionPlan], workers: int) -> list[tuple[str, int]]:
        events: list[tuple[str, int]] = []
        lock = threading.Lock()

        @attrs.define
        class Told(Fake):
            def execute(self, part: DefinitionPlan) -> Iterator[Event]:
                with lock:
                    events.append((part.definition.name, part.count))
                yield from Fake.execute(self, part)

        run([Told] * workers, parts)
        return events

    def test_of_what_is_large_are_some_of_its_workloads(self) -> None:
        found = self.sizes([part("large", 16), part("small", 1)], 2)
        assert sorted(found) == sorted([*(("large", size) for size in (10, 10, 4, 4, 2, 2)), ("small", 2)])

    def test_become_smaller(self) -> None:
        assert [size for _, size in self.sizes([part(name, 10) for name in "abcd"], 1)] == [20] * 4
        found = Counter(size for _, size in self.sizes([part(name, 10) for name in "abcd"], 4))
        assert found == {12: 4, 4: 4, 2: 8}
