"""Tests of the judge's process: it gives the same results, and its death costs one workload."""

import os
import signal
from contextlib import closing
from pathlib import Path

import pytest
from fib_bench import Benchmark, BenchmarkConfig, UnsupportedDevice
from fib_bench.errors import JudgeFailed
from fib_bench.events import Skipped, Working
from fib_bench.execution.judge_process import JudgeProcess
from fib_bench.plan import Skip
from fib_schema import TraceSet, Workload

from .samples import GOOD, make_solution

QUICK = {"warmup_runs": 1, "iterations": 3, "num_trials": 2, "confidence": 1.0, "timeout_seconds": 60.0}
WRONG = "def run(x):\n    return x\n"
CRASHES = "import os\ndef run(x):\n    if len(x) == 3: os.abort()\n    return x * 2\n"
HANGS = "import time\ndef run(x):\n    if len(x) == 3: time.sleep(1e6)\n    return x * 2\n"


def statuses(traces):
    return sorted((t.solution, t.workload.uuid, str(t.evaluation.status)) for t in traces if t.evaluation)


def child_pid(module, parent="self"):
    """The child of a process that runs a module."""
    children = " ".join(path.read_text() for path in Path(f"/proc/{parent}/task").glob("*/children")).split()
    (pid,) = [pid for pid in children if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return int(pid)


def kill_judge():
    os.kill(child_pid("fib_bench.execution.judge_process"), signal.SIGKILL)


def kill_fork_server():
    server = child_pid("fib_bench.worker.fork_server", child_pid("fib_bench.execution.judge_process"))
    os.kill(server, signal.SIGKILL)


SERVER_DIED = "the worker server failed: "
JUDGE_DIED = "it was ended by SIGKILL"


@pytest.mark.slow
class TestRuns:
    """With real processes, which take seconds to import everything."""

    def test_results_are_those_of_a_judge_in_this_process(self, make_data_set, survivors, request):
        codes = {"good": GOOD, "wrong": WRONG, "crashes": CRASHES}
        root = make_data_set(*(make_solution(code, name=name) for name, code in codes.items()), sizes=(2, 3))
        config = BenchmarkConfig(**QUICK, baseline="good")
        found = Benchmark(TraceSet.from_path(root), config).run()
        assert survivors() == {}
        request.getfixturevalue("shared_server")
        expected = Benchmark(TraceSet.from_path(root), config).run(dump_traces=False)
        assert statuses(found.traces) == statuses(expected.traces)
        assert found.skipped == expected.skipped == ()
        assert [status for _, _, status in statuses(found.traces)] == [
            "PASSED", "RUNTIME_ERROR", "PASSED", "PASSED", "INCORRECT_NUMERICAL", "INCORRECT_NUMERICAL",
        ]  # fmt: skip
        for trace in (*found.traces, *expected.traces):
            performance = trace.evaluation and trace.evaluation.performance
            assert bool(performance) is trace.is_successful()
            assert not performance or performance.extra["baseline"]["solution"] == "good"

    @pytest.mark.parametrize(("kill", "died"), [(kill_judge, JUDGE_DIED), (kill_fork_server, SERVER_DIED)])
    def test_a_process_of_the_harness_that_dies_twice_costs_one_workload(self, make_data_set, survivors, kill, died):
        root = make_data_set(make_solution(HANGS, name="a_hangs"), make_solution(GOOD, name="good"), sizes=(2, 3, 4))
        events = []

        def observe(event):
            events.append(event)
            match event:
                case Working(solution="a_hangs", workload=Workload(uuid="n-2")):
                    kill()

        config = BenchmarkConfig(**{**QUICK, "timeout_seconds": 20.0})
        result = Benchmark(TraceSet.from_path(root), config).run(observe=observe)
        assert statuses(result.traces) == [
            ("a_hangs", "n-3", "TIMEOUT"),
            ("a_hangs", "n-4", "PASSED"),
            ("good", "n-2", "PASSED"),
            ("good", "n-3", "PASSED"),
            ("good", "n-4", "PASSED"),
        ]
        (failure,) = result.failures
        assert failure.reason.startswith(f"the judge process died twice during this evaluation: {died}")
        assert failure == Skip("double", "a_hangs", "n-2", failure.reason, is_failure=True, is_crash=True)
        assert [event.count for event in events if isinstance(event, Skipped)] == [1]
        assert len(TraceSet.from_path(root).traces["double"]) == 5
        assert survivors() == {}

    @pytest.mark.parametrize("at", [(None, "n-2"), ("good", "n-2")], ids=["reference", "solution"])
    @pytest.mark.parametrize("kill", [kill_judge, kill_fork_server])
    def test_a_process_of_the_harness_that_dies_once_decides_nothing(self, make_data_set, survivors, kill, at):
        root = make_data_set(make_solution(GOOD, name="good"), sizes=(2, 3))
        killed = []

        def observe(event):
            if isinstance(event, Working) and (event.solution, event.workload.uuid) == at and not killed:
                killed.append(event)
                kill()

        result = Benchmark(TraceSet.from_path(root), BenchmarkConfig(**QUICK)).run(observe=observe)
        assert statuses(result.traces) == [("good", "n-2", "PASSED"), ("good", "n-3", "PASSED")]
        assert result.failures == ()
        assert len(killed) == 1
        assert survivors() == {}


class TestStart:
    def test_a_device_that_does_not_exist_is_told_as_in_this_process(self, survivors):
        with pytest.raises(UnsupportedDevice) as caught:
            JudgeProcess(BenchmarkConfig(device="cuda:99"), None, {})
        assert caught.value.device == "cuda:99"
        assert "no device 'cuda:99' on this machine" in caught.value.problem
        assert survivors() == {}

    def test_a_process_that_does_not_start_is_an_error(self, monkeypatch, tmp_path, capfd, survivors):
        (tmp_path / "torch.py").write_text("raise RuntimeError('broken installation')")
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
        with pytest.raises(JudgeFailed, match=r"did not start \(its messages are above\): it exited with status 1"):
            JudgeProcess(BenchmarkConfig(), None, {})
        assert "broken installation" in capfd.readouterr().err
        assert survivors() == {}

    @pytest.mark.slow
    def test_it_can_be_closed_without_having_worked(self, survivors):
        with closing(JudgeProcess(BenchmarkConfig(), None, {})) as judge:
            assert judge.environment.hardware == "cpu"
            assert len(survivors()) in {1, 2}  # itself, and its server if that has come up
            judge.close()
        assert survivors() == {}
