"""Tests of runs: the plan is carried out, and every evaluation is recorded."""

import time

import attrs
import pytest
from fib_bench import Benchmark, BenchmarkConfig
from fib_bench.events import Evaluated, Phase, Planned, Skipped
from fib_schema import RandomInput, Trace, TraceSet, Workload
from fib_schema.trace_facts import is_quick, latest

from .samples import DOUBLE, GOOD, make_solution

WRONG = "def run(x):\n    return x\n"

pytestmark = pytest.mark.usefixtures("shared_server")


def benchmark(root, **fields):
    return Benchmark(TraceSet.from_path(root), BenchmarkConfig(**{"timeout_seconds": 60, "cpu_processes": 1, **fields}))


def statuses(root):
    traces = TraceSet.from_path(root).traces.get("double", [])
    return sorted((t.solution, t.workload.uuid, str(t.evaluation.status)) for t in traces if t.evaluation)


def test_every_evaluation_is_on_the_disk(make_data_set):
    root = make_data_set(make_solution(GOOD, name="good"), make_solution(WRONG, name="wrong"), sizes=(2, 3))
    trace_set = benchmark(root).run_all()
    expected = [
        ("good", "n-2", "PASSED"),
        ("good", "n-3", "PASSED"),
        ("wrong", "n-2", "INCORRECT_NUMERICAL"),
        ("wrong", "n-3", "INCORRECT_NUMERICAL"),
    ]
    assert statuses(root) == expected
    assert len(trace_set.traces["double"]) == 4


WRONG_FOR_3 = "def run(x):\n    return x * (1 if x.shape[0] == 3 else 2)\n"


def test_traces_are_in_the_order_of_the_plan(make_data_set):
    """Workloads that fail end before those that are timed."""
    root = make_data_set(make_solution(WRONG_FOR_3, name="a"), make_solution(GOOD, name="b"), sizes=(2, 3))
    ended = []
    result = benchmark(root).run(observe=ended.append)
    uuids = [event.trace.workload.uuid for event in ended if isinstance(event, Evaluated)]
    assert uuids == ["n-3", "n-2", "n-2", "n-3"]
    found = [(t.workload.uuid, t.solution) for t in result.traces]
    assert found == [("n-2", "a"), ("n-2", "b"), ("n-3", "a"), ("n-3", "b")]


def test_resume_runs_what_is_missing_or_has_changed(make_data_set):
    root = make_data_set(make_solution(GOOD, name="a"), sizes=(2, 3))
    benchmark(root, max_workloads=1).run()
    assert len(benchmark(root).run(resume=True).traces) == 1
    assert benchmark(root).run(resume=True).traces == ()
    TraceSet.from_path(root).add_solutions([make_solution(WRONG, name="b")])
    assert {t.solution for t in benchmark(root).run(resume=True).traces} == {"b"}
    file = next(root.rglob("a.json"))
    file.write_text(file.read_text().replace("x * 2", "x + x"))
    assert {t.solution for t in benchmark(root).run(resume=True).traces} == {"a"}


def test_a_quick_run_checks_less_and_ranks_nobody(make_data_set):
    root = make_data_set(make_solution(GOOD, name="good"), make_solution(WRONG, name="wrong"))
    quick = {t.solution: t.evaluation for t in benchmark(root, quick=True).run().traces}
    assert quick["wrong"].status == "INCORRECT_NUMERICAL"
    assert quick["wrong"].flags == ()
    assert quick["good"].status == "PASSED"
    assert quick["good"].flags == ("unranked: cpu timing", "quick")
    assert list(quick["good"].extra["trials"]) == ["normal", "normal", "generated", "wide"]
    assert benchmark(root, quick=True).run(resume=True).traces == ()
    (full,) = benchmark(root).run(resume=True).traces
    assert (full.solution, len(full.evaluation.extra["trials"])) == ("good", 7)
    benchmark(root, quick=True).run()
    workloads = latest(TraceSet.from_path(root).traces["double"])["cpu"].values()
    assert {name: is_quick(t.evaluation) for group in workloads for name, t in group.items()} == {
        "good": False,
        "wrong": False,
    }


def test_phases_add_up_to_the_wall_time(make_data_set):
    compiles = "import time\nOLD = set()\ndef run(x):\n    OLD or time.sleep(0.3)\n    OLD.add(1)\n    return x * 2\n"
    root = make_data_set(make_solution(compiles))
    made, times = benchmark(root, quick=True), []
    begin = time.monotonic()
    result = made.run(observe=lambda _: times.append(time.monotonic()))
    assert times[-1] - begin <= sum(result.seconds.values()) <= time.monotonic() - begin
    assert result.seconds["compile"] >= 0.3
    assert list(result.seconds) == [phase for phase in Phase if phase in result.seconds]


def test_what_cannot_run_is_reported_and_the_rest_runs(make_data_set):
    root = make_data_set(make_solution(GOOD), make_solution(WRONG, name="other"), sizes=(2, 10**12, 3))
    events = []
    result = benchmark(root).run(observe=events.append)
    assert len(result.traces) == 4
    assert [str(skip) for skip in result.failures] == [str(skip) for skip in result.skipped]
    assert "GiB are free" in result.failures[0].reason
    assert [event.count for event in events if isinstance(event, Skipped)] == [2]
    assert isinstance(events[0], Planned)
    assert sum(isinstance(event, Evaluated) for event in events) == 4


@pytest.mark.parametrize("body", ["raise ValueError('broken')", "return torch.rand(x.shape)"])
def test_a_reference_that_cannot_judge_is_reported(make_data_set, body):
    broken = attrs.evolve(DOUBLE, name="broken", reference=f"import torch\ndef run(x):\n    {body}\n")
    root = make_data_set(make_solution(GOOD), definitions=[broken])
    trace_set = TraceSet.from_path(root)
    trace_set.add_solutions([make_solution(GOOD, name="of_broken", definition="broken")])
    trace_set.add_traces([Trace("broken", Workload({"n": 4}, {"x": RandomInput()}, "w"))])
    result = benchmark(root).run()
    assert {t.definition for t in result.traces} == {"double"}
    assert [(skip.definition, skip.workload) for skip in result.failures] == [("broken", "w")]
    assert result.failures[0].reason.startswith("the reference failed: ")
