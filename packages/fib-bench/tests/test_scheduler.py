"""Tests of the scheduler: workers fail, differ and are stopped; each evaluation is made once or skipped."""

import threading
import time
from collections import Counter
from collections.abc import Callable

import attrs
import pytest
from fib_bench.errors import JudgeFailed
from fib_bench.events import DeviceExcluded, Evaluated, Skipped
from fib_bench.execution.scheduler import Scheduler
from fib_bench.plan import DefinitionPlan
from fib_schema import Environment, Evaluation, EvaluationStatus, Trace
from hypothesis import given, settings
from hypothesis import strategies as st

from .samples import DOUBLE, make_solution, make_workload

EVALUATION = Evaluation(EvaluationStatus.RUNTIME_ERROR, Environment("cpu", {}), "2026-01-01T00:00:00", "")


def part(name, workloads, solutions=2):
    definition = attrs.evolve(DOUBLE, name=name)
    made = tuple(make_solution("pass", name=f"{name}_s{index}", definition=name) for index in range(solutions))
    some = tuple(make_workload(definition, {"n": n + 1}, f"{name}-{n}") for n in range(workloads))
    return DefinitionPlan(definition, some, {workload.uuid: made for workload in some})


@attrs.define
class Fake:
    """A worker that gives a trace for each pair, until it breaks."""

    hardware: str = "cpu"
    lasts: int | None = None
    """Number of pairs that it manages."""
    pause: float = 0.0
    before: Callable[[DefinitionPlan], object] = lambda _: None
    """Called before the first pair of each piece."""
    is_closed: bool = False

    @property
    def environment(self):
        return Environment(self.hardware, {})

    def execute(self, part):
        self.before(part)
        for workload in part.workloads:
            for solution in part.pending[workload.uuid]:
                if self.lasts == 0:
                    raise JudgeFailed("it broke")
                if self.lasts is not None:
                    self.lasts -= 1
                time.sleep(self.pause)
                yield Evaluated(Trace(part.definition.name, workload, solution.name, EVALUATION))

    def close(self):
        self.is_closed = True


def run(factories, parts):
    with Scheduler((f"device {index}", factory) for index, factory in enumerate(factories)) as scheduler:
        return list(scheduler.execute(parts))


def pairs(events):
    return Counter((e.trace.workload.uuid, str(e.trace.solution)) for e in events if isinstance(e, Evaluated))


def wanted(parts):
    return Counter((uuid, s.name) for part in parts for uuid, some in part.pending.items() for s in some)


PARTS = (part("a", 5), part("b", 1), part("c", 7, 3))


def test_device_workers_share_the_work():
    """Each waits at its first piece for the two others to have one."""
    all_at_work, at_work = threading.Barrier(3, timeout=60), set[int]()

    def wait(_):
        if threading.get_ident() not in at_work:
            at_work.add(threading.get_ident())
            all_at_work.wait()

    assert pairs(run([lambda: Fake(before=wait)] * 3, PARTS)) == wanted(PARTS)
    assert len(at_work) == 3


def test_work_that_a_device_worker_fails_at_goes_to_others():
    """It is opened again a few times, and fails each time."""
    events = run([lambda: Fake(lasts=2, pause=0.001), lambda: Fake(pause=0.005)], PARTS)
    assert pairs(events) == wanted(PARTS)


def test_a_device_of_other_hardware_is_excluded():
    opened, is_out = Counter[str](), threading.Event()

    def waits(_):
        assert is_out.wait(60)  # else there might be no work left for the other to be tried with

    def other():
        opened["gpu"] += 1
        if opened["gpu"] == 3:
            is_out.set()
        return Fake("gpu")

    events = run([lambda: Fake(before=waits), other], PARTS)
    assert pairs(events) == wanted(PARTS)
    (out,) = [e for e in events if isinstance(e, DeviceExcluded)]
    assert "the device is 'gpu' and the run is for 'cpu'" in out.reason


def test_the_first_device_must_open():
    def fails():
        raise JudgeFailed("no such device")

    with pytest.raises(JudgeFailed, match="no such device"):
        run([fails, Fake], PARTS)


def test_an_error_of_ours_ends_the_run():
    """The other worker waits for it, and cannot have done all before."""
    has_failed = threading.Event()

    def fails(_):
        has_failed.set()
        raise ZeroDivisionError

    def waits(_):
        assert has_failed.wait(60)

    with pytest.raises(ZeroDivisionError):
        run([lambda: Fake(before=fails), lambda: Fake(before=waits)], PARTS)


def test_stopped_it_finishes_what_is_under_way():
    workers = []
    is_stopped = threading.Event()

    class Waits(Fake):
        def execute(self, part):
            made = Fake.execute(self, part)
            yield next(made)
            assert is_stopped.wait(60)
            yield from made

    def opens():
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


def test_stopped_before_it_has_begun_it_does_nothing():
    with Scheduler([("one", Fake)]) as scheduler:
        events = scheduler.execute(PARTS)
        scheduler.stop()
        assert list(events) == []


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=4), st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_nothing_is_lost_or_doubled(lasts, sizes):
    """Whenever workers break, each pair is evaluated once or given up."""
    parts = [part(f"d{index}", size) for index, size in enumerate(sizes)]
    events = run([lambda last=last: Fake(lasts=last) for last in lasts], parts)
    done = pairs(events)
    assert all(count == 1 for count in done.values())
    assert done <= wanted(parts)
    given_up = sum(e.count for e in events if isinstance(e, Skipped))
    assert sum(done.values()) + given_up == sum(wanted(parts).values())


class TestPieces:
    def sizes(self, parts, workers):
        events = []
        told = lambda part: events.append((part.definition.name, part.count))  # noqa: E731 atomic
        run([lambda: Fake(before=told)] * workers, parts)
        return events

    def test_of_what_is_large_are_some_of_its_workloads(self):
        found = self.sizes([part("large", 16), part("small", 1)], 2)
        assert sorted(found) == sorted([*(("large", size) for size in (10, 10, 4, 4, 2, 2)), ("small", 2)])

    def test_of_little_work_are_single_workloads_the_largest_first(self):
        found = self.sizes([part("a", 3, 1), part("b", 5, 1)], 2)
        assert Counter(found) == {("a", 1): 3, ("b", 1): 5}
        assert {name for name, _ in found[:2]} == {"b"}
        assert len(self.sizes([part("a", 1, 9)], 3)) == 3  # of one workload they are solutions
        assert len(self.sizes([part("a", 3, 9)], 8)) == 9

    def test_become_smaller(self):
        assert [size for _, size in self.sizes([part(name, 10) for name in "abcd"], 1)] == [20] * 4
        found = Counter(size for _, size in self.sizes([part(name, 10) for name in "abcd"], 4))
        assert found == {12: 4, 4: 4, 2: 8}
