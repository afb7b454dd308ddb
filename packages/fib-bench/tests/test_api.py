"""Tests of the evaluation of solutions without a data set."""

import os
import signal
import sys
import threading
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
import torch
from fib_bench import BenchmarkConfig, JudgeProcess, evaluate, probe_isolation, remove_build_cache
from fib_bench.api import _judges, close
from fib_bench.errors import JudgeFailed
from fib_bench.events import Evaluated, Working
from fib_schema import SafetensorsInput, TraceSet, Workload

from .samples import DOUBLE, GOOD, make_solution, make_workload

WRONG = "def run(x):\n    return x * 3\n"


@pytest.fixture(scope="module", autouse=True)
def ends():
    yield
    close()


@pytest.mark.slow
def test_answers_come_from_one_process_until_it_is_gone():
    workload = make_workload(DOUBLE, {"n": 5})

    def statuses(source):
        result = evaluate(DOUBLE, make_solution(source), [workload])
        return [str(trace.evaluation.status) for trace in result.traces if trace.evaluation]

    answers = []
    thread = threading.Thread(target=lambda: answers.append(statuses(GOOD)))
    thread.start()
    thread.join()
    assert answers == [["PASSED"]]
    pid = _judges["cpu"][1]._process.pid  # the thread is gone, and the process is there
    assert statuses(WRONG) == ["INCORRECT_NUMERICAL"]
    assert statuses(GOOD) == ["PASSED"]
    assert _judges["cpu"][1]._process.pid == pid
    os.kill(pid, signal.SIGKILL)
    assert statuses(GOOD) == ["PASSED"]


@pytest.mark.slow
def test_a_cancelled_evaluation_ends_at_once_and_the_next_one_runs():
    hangs, workload, cancelled = (
        "def run(x):\n    while True:\n        pass\n",
        make_workload(DOUBLE, {"n": 5}),
        threading.Event(),
    )

    def cancel_when_it_runs(event):
        if isinstance(event, Working) and event.solution is not None:
            cancelled.set()

    with pytest.raises(CancelledError):
        evaluate(DOUBLE, make_solution(hangs), [workload], observe=cancel_when_it_runs, cancelled=cancelled)
    (trace,) = evaluate(DOUBLE, make_solution(GOOD), [workload]).traces
    assert trace.is_successful()


@pytest.mark.slow
def test_inputs_come_from_the_blobs_of_a_data_set_and_a_baseline_is_timed(tmp_path):
    trace_set = TraceSet(tmp_path)
    trace_set.add_definitions([DOUBLE])
    blob = tmp_path / "blob" / "workloads" / "x.safetensors"
    blob.parent.mkdir(parents=True)
    from safetensors.torch import save_file

    save_file({"x": torch.arange(5, dtype=torch.float32)}, blob)
    workload = Workload({"n": 5}, {"x": SafetensorsInput("blob/workloads/x.safetensors", "x")}, "from-a-blob")
    baseline = make_solution("def run(x):\n    return x + x\n", name="base")
    config = BenchmarkConfig(quick=True)
    result = evaluate(DOUBLE, make_solution(GOOD), [workload], config, root=tmp_path, baseline=baseline)
    (trace,) = result.traces
    assert trace.evaluation.performance.extra["baseline"]["solution"] == "base"


@pytest.mark.slow
def test_a_judge_process_yields_events_until_it_is_closed():
    workloads = [make_workload(DOUBLE, {"n": size}) for size in (5, 6)]
    with JudgeProcess(BenchmarkConfig(measure_seconds=0.1, cpu_processes=1)) as judge:
        assert judge.environment.hardware == "cpu"
        for source, status in ((GOOD, "PASSED"), (WRONG, "INCORRECT_NUMERICAL")):
            events = judge.run(DOUBLE, make_solution(source), workloads)
            traces = [event.trace for event in events if isinstance(event, Evaluated)]
            assert [str(trace.evaluation.status) for trace in traces if trace.evaluation] == [status, status]
    with pytest.raises(JudgeFailed):
        list(judge.run(DOUBLE, make_solution(GOOD), workloads))


STORES = """
import os
FOUND = os.path.exists(os.path.join(os.environ["FIB_CACHE_PATH"], "stored"))
def run(x):
    open(os.path.join(os.environ["FIB_CACHE_PATH"], "stored"), "w").close()
    return x * 2 + FOUND
"""


@pytest.mark.slow
def test_evaluations_with_different_cache_keys_share_no_files(monkeypatch, tmp_path):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path))
    tmp_path.chmod(0o711)
    workloads, solution = [make_workload(DOUBLE, {"n": 5})], make_solution(STORES)

    def statuses(*key):
        events = judge.run(DOUBLE, solution, workloads, *key)
        traces = [event.trace for event in events if isinstance(event, Evaluated)]
        return [str(trace.evaluation.status) for trace in traces if trace.evaluation]

    def caches():
        return len(list(tmp_path.glob("fib-bench-v1/solution-*")))

    with JudgeProcess(BenchmarkConfig(measure_seconds=0.1, cpu_processes=1)) as judge:
        assert statuses() == statuses("one") == statuses("two") == ["PASSED"]
        assert caches() == 3
        assert statuses() == statuses("one") == ["INCORRECT_NUMERICAL"]  # the file is still there
        remove_build_cache(solution, "one")
        assert caches() == 2
        assert statuses("one") == ["PASSED"]


def test_the_probe_reports_which_private_paths_a_worker_could_open(tmp_path):
    public, private = Path(sys.executable).resolve(), tmp_path / "secret"
    private.write_text("secret")
    private.chmod(0o600)
    report = probe_isolation("cpu", [public, private])
    assert report.text.startswith(f"level {report.level}")
    assert public in report.exposed
    if report.level >= 2:
        assert private not in report.exposed
