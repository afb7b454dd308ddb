"""Tests of solution runs: two phases with a seal in between, lost workers, and a failing reference."""

import shutil
from collections import Counter
from types import SimpleNamespace

import attrs
import pytest
import torch
from fib_bench.errors import WorkerPoolFailed
from fib_bench.judge import evaluate
from fib_bench.judge.evaluate import SolutionRun
from fib_bench.judge.functions import BoundFunction, FunctionWorker, build_request
from fib_bench.transport.messages import Build
from fib_bench.worker.client import Rejected, Worker
from fib_schema import Evaluation, EvaluationStatus

from .samples import DOUBLE, GOOD, make_solution, make_workload

FIRST_PHASE = 7 + 5 + 16
"""Calls on input sets, and to warm up."""
COUNTS = "calls = 0\ndef run(x):\n    global calls\n    calls += 1\n    {}\n    return x * 2\n"


@pytest.fixture
def run(make_judge):
    """Evaluate code on workloads of these sizes; the evaluations by uuid, in the order in which they came."""

    def run(code, *sizes):
        judge = make_judge()
        prepared = [judge.prepare(DOUBLE, make_workload(DOUBLE, {"n": n}, f"n{n}")) for n in sizes]
        found = judge.evaluate(DOUBLE, make_solution(code), prepared)
        return {workload.uuid: e for workload, e in found if isinstance(e, Evaluation)}

    return run


@pytest.fixture
def seals(monkeypatch):
    """Have seals count as effective; notes the process of each."""
    pids = []

    def seal(self):
        pids.append(self.worker.pid)
        self.is_sealed = True

    monkeypatch.setattr(FunctionWorker, "seal", seal)
    return pids


@pytest.fixture
def requests(monkeypatch):
    """Counts the requests to workers of solutions, by type."""
    counts = Counter()
    pids = set()
    post = Worker.post

    def counted(worker, *messages, descriptors=()):
        if isinstance(messages[0], Build) and messages[0].solution is not None:
            pids.add(worker.pid)
        if worker.pid in pids:
            counts.update(type(message).__name__ for message in messages)
        post(worker, *messages, descriptors=descriptors)

    monkeypatch.setattr(Worker, "post", counted)
    return counts


def test_one_failed_capture_is_of_its_workload_and_two_of_a_solution_are_of_all(device_context):
    server = SimpleNamespace(spawn=lambda: None)
    solution, reference = (
        FunctionWorker(server, build_request("cpu", DOUBLE, each), device_context)
        for each in (make_solution(GOOD), None)
    )
    for worker in (solution, reference):
        worker.not_captured["large"] = "many nodes"
        assert (worker.why_not_captured("large"), worker.why_not_captured("small")) == ("many nodes", "")
        worker.not_captured["larger"] = "more nodes"
    assert solution.why_not_captured("larger") == "more nodes"
    assert solution.why_not_captured("small") == "many nodes"
    solution.has_captured = True
    assert solution.why_not_captured("small") == reference.why_not_captured("small") == ""


class TestMessages:
    def test_a_workload_takes_a_call_for_each_input_set_and_a_few_requests(self, run, requests):
        (evaluation,) = run(GOOD, 3).values()
        calls = len(evaluation.extra["trials"])
        assert requests.pop("RunCalls") > 0
        twice = dict.fromkeys(("Bind", "Release", "WarmUp", "OpenPasses"), 2)
        assert requests == {"Build": 1, **twice, "Call": calls}
        requests.clear()
        run(GOOD, 3, 4, 5)
        del requests["RunCalls"]
        assert requests == {"Build": 1, **dict.fromkeys(twice, 6), "Call": 3 * calls}


class TestPhases:
    def test_everything_is_checked_before_anything_is_timed(self, run, seals):
        evaluations = run("def run(x):\n    return x * (2 if len(x) != 4 else 3)\n", 3, 4, 5)
        assert list(evaluations) == ["n4", "n3", "n5"]
        assert [e.status for e in evaluations.values()] == ["INCORRECT_NUMERICAL", "PASSED", "PASSED"]
        assert len(seals) == 1
        assert all("unsealed" not in e.flags for e in evaluations.values())

    def test_a_worker_that_ends_costs_one_workload(self, run, seals):
        evaluations = run("import os\ndef run(x):\n    len(x) == 4 and os._exit(3)\n    return x * 2\n", 3, 4, 5)
        assert {uuid: str(e.status) for uuid, e in evaluations.items()} == {
            "n3": "PASSED", "n4": "RUNTIME_ERROR", "n5": "PASSED",
        }  # fmt: skip
        assert len(set(seals)) == len(seals) == 2

    def test_a_log_has_what_both_phases_printed(self, run):
        (evaluation,) = run("def run(x):\n    print('called', end=' ')\n    return x * 2\n", 3).values()
        assert evaluation.log.split().count("called") > 7 + 32


class TestSeal:
    def test_a_function_that_fails_only_when_sealed_passes_with_a_flag(self, run, seals, monkeypatch):
        load_all = BoundFunction.load_all

        def refuse(self, inputs):
            if self.worker.pid in seals:
                raise Rejected(EvaluationStatus.RUNTIME_ERROR, "not permitted")
            load_all(self, inputs)

        monkeypatch.setattr(BoundFunction, "load_all", refuse)
        evaluations = run(GOOD, 3, 4)
        assert [str(e.status) for e in evaluations.values()] == ["PASSED"] * 2
        assert all("unsealed" in e.flags for e in evaluations.values())
        assert len(seals) == 1

    def test_a_function_that_fails_in_any_case_fails(self, run, seals):
        code = COUNTS.format(f"assert calls <= {FIRST_PHASE}, 'worn out'")
        (evaluation,) = run(code, 3).values()
        assert evaluation.status is EvaluationStatus.RUNTIME_ERROR
        assert "worn out" in evaluation.log
        assert "unsealed" not in evaluation.flags

    def test_without_effect_it_is_no_reason_to_try_again(self, run):
        code = COUNTS.format(f"print(calls); assert calls <= {FIRST_PHASE}")
        (evaluation,) = run(code, 3).values()
        assert evaluation.status is EvaluationStatus.RUNTIME_ERROR
        assert evaluation.log.count(f"\n{FIRST_PHASE + 1}\n") == 1


class TestReference:
    def test_it_is_always_timed_next_to_the_solution(self, evaluate):
        evaluations = evaluate(make_solution(GOOD), make_solution(GOOD, name="other"))
        for evaluation in evaluations:
            assert evaluation.performance.extra["reference_timing"]["samples"] >= 3
            assert evaluation.performance.reference_latency_ms > 0

    def test_it_is_not_timed_if_that_is_not_wanted(self, evaluate):
        (evaluation,) = evaluate(make_solution(GOOD), profile_baseline=False)
        assert "reference_timing" not in evaluation.performance.extra
        assert evaluation.performance.extra["timing"]["verified_calls"] >= 4

    @pytest.fixture
    def failing(self, monkeypatch):
        """Have the reference fail so many times on inputs of timed calls; notes its processes."""

        def failing(times):
            call_each, pids = BoundFunction.call_each, []

            def fail(self, inputs):
                pids.append(self.worker.pid)
                if len(pids) <= times:
                    raise Rejected(EvaluationStatus.RUNTIME_ERROR, "the reference stumbled")
                return call_each(self, inputs)

            monkeypatch.setattr(BoundFunction, "call_each", fail)
            return pids

        return failing

    def test_one_that_fails_once_answers_from_a_fresh_worker(self, run, failing):
        pids = failing(1)
        (evaluation,) = run(GOOD, 3).values()
        assert evaluation.status is EvaluationStatus.PASSED
        assert "unverified: reference failed" not in evaluation.flags
        assert pids[0] != pids[1]
        assert len(set(pids[1:])) == 1
        assert evaluation.performance.reference_latency_ms > 0

    def test_one_that_fails_again_is_flagged(self, run, failing):
        failing(1000)
        (evaluation,) = run(GOOD, 3).values()
        assert evaluation.status is EvaluationStatus.PASSED
        assert "unverified: reference failed" in evaluation.flags
        assert "the reference stumbled" in evaluation.performance.extra["not_verified"]


@pytest.mark.parametrize(
    ("step", "free"), [("raise OSError(28, 'No space left on device')", 1 << 29), ("raise ValueError", 1 << 19)]
)
def test_a_failure_on_a_full_disk_is_none_of_the_solution(run, monkeypatch, step, free):
    usage = shutil.disk_usage("/")._replace(free=free)
    monkeypatch.setattr("fib_bench.temporary_folders.shutil.disk_usage", lambda _: usage)
    for code in (f"{step}\ndef run(x):\n    return x * 2\n", f"def run(x):\n    {step}\n"):
        with pytest.raises(WorkerPoolFailed, match=f"is full, {free >> 10} KiB are free"):
            run(code, 3)


class TestMemory:
    """A device that several judges share may have too little memory for one of them, for a while."""

    @pytest.fixture
    def run(self, make_judge, monkeypatch):
        """Evaluate code on two workloads; `is_shared` as on a device with several judges."""
        monkeypatch.setattr(evaluate, "wait_for_memory", lambda *_: None)

        def run(code, *, is_shared):
            judge = make_judge()
            judge.context = attrs.evolve(judge.context, is_shared=is_shared)
            prepared = [judge.prepare(DOUBLE, make_workload(DOUBLE, {"n": n}, f"n{n}")) for n in (3, 4)]
            return {workload.uuid: e for workload, e in judge.evaluate(DOUBLE, make_solution(code), prepared)}

        return run

    @pytest.fixture
    def failing(self, monkeypatch):
        """Have the first comparisons of the second workload fail for lack of memory; notes the workloads compared."""

        def fail(times):
            compared = []
            check = SolutionRun._check

            def checked(self, prepared):
                compared.append(prepared.workload.uuid)
                if prepared.workload.uuid == "n4" and compared.count("n4") <= times:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 240.00 MiB.")
                return check(self, prepared)

            monkeypatch.setattr(SolutionRun, "_check", checked)
            return compared

        return fail

    @pytest.mark.parametrize(("times", "is_shared", "attempts"), [(1, True, 2), (9, True, 2), (9, False, 1)])
    def test_a_judge_that_lacks_it_begins_the_workload_anew_once(self, run, failing, times, is_shared, attempts):
        compared = failing(times)
        found = run(GOOD, is_shared=is_shared)
        assert str(found["n3"].status) == "PASSED"
        assert compared.count("n4") == attempts
        if times < attempts:
            assert str(found["n4"].status) == "PASSED"
        else:
            assert found["n4"].reason == "CUDA out of memory. Tried to allocate 240.00 MiB."

    @pytest.mark.parametrize(("is_shared", "workers"), [(True, 2), (False, 1)])
    def test_a_solution_that_lacks_it_fails_after_another_attempt(self, run, requests, is_shared, workers):
        fails = "raise torch.OutOfMemoryError('CUDA out of memory')"
        code = f"import torch\ndef run(x):\n    if len(x) == 4:\n        {fails}\n    return x * 2\n"
        found = run(code, is_shared=is_shared)
        assert {uuid: str(e.status) for uuid, e in found.items()} == {"n3": "PASSED", "n4": "RUNTIME_ERROR"}
        assert "CUDA out of memory" in found["n4"].log
        assert requests["Build"] == workers
        requests.clear()
        run(f"import torch\n{fails}\n", is_shared=is_shared)
        assert requests["Build"] == workers
