"""Tests of the judge: what it prepares, refuses, decides and records."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable
from textwrap import dedent

import pytest
from fib_bench import BenchmarkConfig, InputError, ReferenceFailed, UnsupportedDevice
from fib_bench.config.model import DISTRIBUTIONS
from fib_bench.judge.evaluate import Judge
from fib_bench.judge.prepared import PreparedWorkload
from fib_bench.judge.record import timing_flags
from fib_bench.judge.timed_function import TimedFunction
from fib_bench.judge.timer import Timer
from fib_bench.judge.verification import Verification
from fib_schema import (
    Definition,
    Evaluation,
    EvaluationStatus,
    ScalarInput,
    Solution,
    SupportedLanguages,
    Workload,
    format_json,
)
from fib_schema.trace_facts import CPU_TIMING, INTERPRETED

Make = Callable[..., Definition]
MakeJudge = Callable[..., Judge]
MakeSolution = Callable[..., Solution]
MakeWorkload = Callable[..., Workload]
Evaluate = Callable[..., list[Evaluation]]


@pytest.mark.parametrize(
    ("device", "said"),
    [("cuda:99", "no device 'cuda:99' on this machine"), ("tpu", "is not a device"), ("cuda:x", "is not a device")],
)
def test_a_device_that_cannot_be_measured_on_is_refused(device: str, said: str) -> None:
    with pytest.raises(UnsupportedDevice, match=said):
        Judge(BenchmarkConfig(device=device))


class TestPrepare:
    def prepare_fails(self, judge: Judge, definition: Definition, workload: Workload) -> str:
        with pytest.raises((InputError, ReferenceFailed)) as caught:
            judge.prepare(definition, workload)
        assert caught.value.definition == definition.name
        assert caught.value.workload == workload.uuid
        return caught.value.reason

    @pytest.mark.parametrize("size", [10**12, 2**62])
    def test_refuses_tensors_that_do_not_fit(
        self, make_judge: MakeJudge, definition: Definition, make_workload: MakeWorkload, size: int
    ) -> None:
        reason = self.prepare_fails(make_judge(), definition, make_workload(definition, {"n": size}))
        assert "its tensors take" in reason

    def test_refuses_a_call_with_more_outputs_than_a_digest_takes(
        self, make_judge: MakeJudge, make_definition: Make, make_workload: MakeWorkload
    ) -> None:
        names = [f"y{index}" for index in range(13)]
        reference = f"def run(x):\n    return {', '.join(['x'] * 13)}\n"
        definition = make_definition({"x": "float32[n]"}, dict.fromkeys(names, "float32[n]"), reference)
        reason = self.prepare_fails(make_judge(), definition, make_workload(definition, {"n": 4}))
        assert "it has 13 outputs; calls with at most 12 can be timed" in reason

    def test_refuses_a_workload_without_a_size(
        self, make_judge: MakeJudge, definition: Definition, make_workload: MakeWorkload
    ) -> None:
        judge, workload = make_judge(), make_workload(definition, {})
        assert "'n': is variable and has no value here" in self.prepare_fails(judge, definition, workload)
        assert judge.workload_bytes(definition, workload) == 0

    @pytest.mark.usefixtures("slow_clock")
    @pytest.mark.parametrize(
        ("body", "said"),
        [
            ("raise ValueError('no such case')", "ValueError: no such case"),
            ("import os; os._exit(1)", "exited with status 1"),
            ("return x[:2]", "has shape (2,), expected (8,)"),
            ("return torch.rand(x.shape)", "gives other outputs when it is called again"),
            ("y = x * 2; x.zero_(); return y", "a function must not write to its inputs"),
        ],
    )
    def test_says_why_a_reference_gives_nothing_to_compare_with(
        self, make_judge: MakeJudge, make_definition: Make, make_workload: MakeWorkload, body: str, said: str
    ) -> None:
        reference = f"import torch\ndef run(x):\n    {body}\n"
        definition = make_definition({"x": "float32[n]"}, {"y": "float32[n]"}, reference)
        reason = self.prepare_fails(make_judge(), definition, make_workload(definition, {"n": 8}))
        assert reason.startswith("the reference failed: ")
        assert said in reason

    @pytest.mark.usefixtures("slow_clock")
    def test_says_where_a_reference_hangs(
        self, make_judge: MakeJudge, make_definition: Make, make_workload: MakeWorkload
    ) -> None:
        definition = make_definition(
            {"x": "float32[n]"}, {"y": "float32[n]"}, "def run(x):\n    print('hangs')\n    while True: pass\n"
        )
        judge = make_judge(timeout_seconds=0.3)
        reason = self.prepare_fails(judge, definition, make_workload(definition, {"n": 8}))
        assert "no answer within 0.3 s" in reason
        assert "line 3 in run" in reason


class TestEvaluate:
    def test_a_pass_holds_all_that_it_rests_on(self, evaluate: Evaluate, make_solution: MakeSolution) -> None:
        solution = make_solution("def run(x):\n    return x + x\n")
        (evaluation,) = evaluate(solution)
        assert evaluation.status is EvaluationStatus.PASSED
        assert evaluation.extra["solution_hash"] == solution.hash()
        assert evaluation.extra["trials"] == ["normal", "normal", "generated", *DISTRIBUTIONS[1:]]
        assert evaluation.flags == ("unranked: cpu timing",)
        correctness, performance = evaluation.correctness, evaluation.performance
        assert correctness is not None
        assert performance is not None
        assert correctness.max_absolute_error == 0.0
        assert correctness.extra is not None
        assert {"atol", "rtol", "matched_ratio"} <= correctness.extra.keys()
        assert performance.latency_ms > 0
        assert performance.speedup_factor == pytest.approx(performance.reference_latency_ms / performance.latency_ms)
        assert performance.extra is not None
        assert {"method", "samples", "spread"} <= performance.extra["timing"].keys()
        assert "reference_timing" in performance.extra
        json.loads(format_json(evaluation))

    @pytest.mark.parametrize("quick", [True, False])
    def test_kernels_are_profiled_unless_it_is_quick(
        self, evaluate: Evaluate, make_solution: MakeSolution, monkeypatch: pytest.MonkeyPatch, quick: bool
    ) -> None:
        monkeypatch.setattr("fib_bench.judge.solution_run.kernels_of", lambda function: [("double", 2.5)])
        (found,) = evaluate(make_solution("def run(x):\n    return x * 2\n"), quick=quick)
        assert found.status == "PASSED"
        assert ("kernels" in (found.performance.extra or {})) is not quick

    def test_wrong_numbers_are_explained_per_output(
        self, evaluate: Evaluate, make_definition: Make, make_solution: MakeSolution
    ) -> None:
        definition = make_definition(
            {"x": "float32[n]"}, {"y": "float32[n]", "z": "int64[]"}, "def run(x):\n    return x + 1, x.numel()\n"
        )
        solution = make_solution("def run(x):\n    return x + 1, 9\n", definition="made")
        (evaluation,) = evaluate(solution, definition=definition)
        assert evaluation.status is EvaluationStatus.INCORRECT_NUMERICAL
        assert (
            evaluation.log == "input set 0 (normal): output 'z': 1 of 1 elements are wrong; worst at []: 9 instead of 8"
        )
        assert evaluation.correctness is not None
        assert evaluation.correctness.max_absolute_error == 1.0

    @pytest.mark.parametrize(
        ("result", "fields", "status"),
        [
            ("x / 0", {}, "INCORRECT_NUMERICAL"),  # NaN where the reference has none
            ("torch.cat([x[:1] * 0, x[1:] * 2])", {}, "INCORRECT_NUMERICAL"),
            ("torch.cat([x[:1] * 0, x[1:] * 2])", {"required_matched_ratio": 0.8}, "PASSED"),
            ("torch.cat([x[:1] * 0, x[1:] * 2])", {"required_matched_ratio": 0.9}, "INCORRECT_NUMERICAL"),
            ("x * 2.1", {}, "INCORRECT_NUMERICAL"),
            ("x * 2.1", {"rtol": 0.1}, "PASSED"),
        ],
    )
    def test_tolerances_are_those_of_the_configuration(
        self, evaluate: Evaluate, make_solution: MakeSolution, result: str, fields: dict[str, float], status: str
    ) -> None:
        (evaluation,) = evaluate(make_solution(f"import torch\ndef run(x):\n    return {result}\n"), **fields)
        assert evaluation.status == status
        json.loads(format_json(evaluation))

    def test_scalars_optional_inputs_and_several_outputs_go_through(
        self, evaluate: Evaluate, make_definition: Make, make_solution: MakeSolution, make_workload: MakeWorkload
    ) -> None:
        definition = make_definition(
            {"x": "bfloat16[n,c3]", "b": "bfloat16[n]?", "factor": "float32", "count": "int32", "flag": "bool"},
            {"y": "bfloat16[n,c3]", "total": "float32", "seen": "bool[n]"},
            "def run(x, b, factor, count, flag):\n"
            "    assert b is None and count == 3 and flag is True\n"
            "    return x * factor, x.float().sum().item(), x[:, 0] > 0\n",
        )
        body = "    y.copy_(x * factor)\n    total.fill_(x.float().sum())\n    seen.copy_(x[:, 0] > 0)\n"
        inputs = {"b": None, "factor": ScalarInput(0.5), "count": ScalarInput(3), "flag": ScalarInput(True)}
        workloads = [make_workload(definition, {"n": n}, f"w{n}", **inputs) for n in (0, 1, 4)]
        evaluations = evaluate(
            make_solution(
                f"def run(x, b, factor, count, flag, y, total, seen):\n{body}", definition="made", dps=True, name="dps"
            ),
            make_solution(
                "def run(x, b, factor, count, flag):\n"
                "    return {'seen': x[:, 0] > 0, 'total': x.float().sum(), 'y': x * factor}\n",
                definition="made",
            ),
            definition=definition,
            workloads=workloads,
        )
        assert [(e.status, e.log) for e in evaluations] == [(EvaluationStatus.PASSED, "")] * 6

    def test_outputs_without_elements_pass(
        self, evaluate: Evaluate, make_solution: MakeSolution, make_workload: MakeWorkload, definition: Definition
    ) -> None:
        workloads = [make_workload(definition, {"n": 0})]
        (evaluation,) = evaluate(make_solution("def run(x):\n    return x * 2\n"), workloads=workloads)
        assert evaluation.status is EvaluationStatus.PASSED

    def test_a_solution_finds_a_folder_and_an_environment_of_its_own(
        self, evaluate: Evaluate, make_solution: MakeSolution, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SECRET_TOKEN", "hush")
        code = (
            "import os, tempfile\n"
            "def run(x):\n"
            "    here = os.getcwd()\n"
            "    assert os.listdir(here) == [] or os.listdir(here) == ['mine'], os.listdir(here)\n"
            "    assert os.path.expanduser('~') == here and tempfile.gettempdir() == here\n"
            "    assert 'SECRET_TOKEN' not in os.environ\n"
            "    open('mine', 'w').close()\n"
            "    print(here, end='')\n"
            "    return x * 2\n"
        )
        first, second = evaluate(make_solution(code), make_solution(code, name="other"))
        assert [first.status, second.status] == ["PASSED", "PASSED"], first.log + second.log
        assert first.log != second.log

    def test_descriptors_and_random_state_are_not_inherited(
        self, evaluate: Evaluate, make_solution: MakeSolution
    ) -> None:
        code = (
            "import os, random, torch\n"
            "print(random.random(), torch.rand(()).item())\n"
            "def run(x):\n"
            "    names = [f'/proc/self/fd/{name}' for name in os.listdir('/proc/self/fd')]\n"
            "    names = [name for name in names if os.path.lexists(name)]\n"
            "    own = '/proc/self/task'\n"  # isolation keeps it open
            "    links = [os.readlink(name) for name in names if not os.path.exists(name) or "
            "not os.path.samefile(name, own)]\n"
            "    odd = [l for l in links if not l.startswith(('/memfd:fib-', 'socket:', 'pipe:', '/dev/null'))]\n"
            "    assert sum(l.startswith('socket:') for l in links) == 1 and not odd, links\n"
            "    return x * 2\n"
        )
        first, second = evaluate(make_solution(code), make_solution(code, name="other"))
        assert [first.status, second.status] == ["PASSED", "PASSED"], first.log + second.log
        assert first.log != second.log

    def test_a_worker_holds_no_more_descriptors_after_many_workloads(
        self, evaluate: Evaluate, make_solution: MakeSolution, make_workload: MakeWorkload, definition: Definition
    ) -> None:
        code = "import os\ndef run(x):\n    print(len(os.listdir('/proc/self/fd')))\n    return x * 2\n"
        workloads = [make_workload(definition, {"n": n}, f"w{n}") for n in range(1, 7)]
        evaluations = evaluate(make_solution(code), workloads=workloads)
        assert evaluations[1].log.split()[0] == evaluations[-1].log.split()[0]


class TestWorkers:
    """Workers that are killed when their solution has its results, and those that start before they are needed."""

    @pytest.fixture
    def judge(self, make_judge: Callable[..., Judge]) -> Judge:
        judge = make_judge()
        judge._most_ahead = 2  # as on a device
        return judge

    @pytest.fixture
    def prepared(self, judge: Judge, definition: Definition, make_workload: MakeWorkload) -> PreparedWorkload:
        return judge.prepare(definition, make_workload(definition, {"n": 3}))

    def evaluate(self, judge: Judge, prepared: PreparedWorkload, solution: Solution) -> Evaluation:
        ((_, evaluation),) = judge.evaluate(prepared.checker.definition, solution, [prepared])
        assert isinstance(evaluation, Evaluation)
        return evaluation

    def test_the_next_worker_starts_while_the_one_before_it_ends(
        self, judge: Judge, prepared: PreparedWorkload, make_solution: MakeSolution
    ) -> None:
        pids = []
        for name in ("first", "second"):
            code = "import os\nprint(os.getpid())\ndef run(x):\n    return x * 2\n"
            evaluation = self.evaluate(judge, prepared, make_solution(code, name=name))
            assert not judge.context.is_settled
            assert evaluation.status == "PASSED"
            pids.append(int(evaluation.log))
        with pytest.raises(ProcessLookupError):
            os.kill(pids[0], 0)
        judge.context.settle()
        with pytest.raises(ProcessLookupError):
            os.kill(pids[1], 0)

    def test_a_worker_ends_where_its_evaluation_is_left(
        self, judge: Judge, prepared: PreparedWorkload, make_solution: MakeSolution
    ) -> None:
        solution = make_solution("def run(x):\n    return x * 2\n")
        evaluations = judge.evaluate(prepared.checker.definition, solution, [prepared, prepared])
        next(evaluations)
        evaluations.close()  # type: ignore[attr-defined]
        assert not judge.context.is_settled

    def test_nothing_of_an_evaluation_is_kept_until_garbage_is_collected(
        self, judge: Judge, prepared: PreparedWorkload, make_solution: MakeSolution
    ) -> None:
        """Outputs that wait for their comparison take up to a gigabyte of the device."""
        gc.collect()
        gc.disable()
        try:
            self.evaluate(judge, prepared, make_solution("def run(x):\n    return x * 2\n"))
            kept = [item for item in gc.get_objects() if type(item) in {Timer, Verification, TimedFunction}]
        finally:
            gc.enable()
        assert kept == []

    def test_they_are_used(
        self, judge: Judge, prepared: PreparedWorkload, definition: Definition, make_solution: MakeSolution
    ) -> None:
        solutions = [make_solution("def run(x):\n    return x * 2\n", name=name) for name in ("a", "b", "c")]
        judge.start_ahead(definition, solutions)
        assert judge._ahead.keys() == {"a", "b"}
        assert [self.evaluate(judge, prepared, solution).status for solution in solutions] == ["PASSED"] * 3
        assert judge._ahead == {}

    @pytest.mark.parametrize(
        ("code", "language", "said"),
        [
            ("def run(x:\n", "python", "SyntaxError"),
            ("nonsense ahead", "cpp", "does not compile\n"),  # that of the one attempt, not what a cache remembers
        ],
    )
    def test_what_does_not_compile_is_reported_when_its_turn_comes(
        self,
        judge: Judge,
        prepared: PreparedWorkload,
        definition: Definition,
        make_solution: MakeSolution,
        code: str,
        language: str,
        said: str,
    ) -> None:
        solution = make_solution(code, language=language, dps=language == "cpp")
        judge.start_ahead(definition, [solution])
        evaluation = self.evaluate(judge, prepared, solution)
        assert evaluation.status == "COMPILE_ERROR"
        assert said in evaluation.log

    def test_nothing_of_a_solution_runs_ahead_and_one_that_is_not_needed_ends(
        self, judge: Judge, definition: Definition, make_solution: MakeSolution
    ) -> None:
        judge.start_ahead(definition, [make_solution("import os\nos._exit(3)\n", name="ends")])
        (candidate,) = judge._ahead.values()
        candidate.worker.answer(60.0)
        assert not candidate.worker.is_closed
        judge.dismiss_ahead()
        assert candidate.worker.is_closed


class TestInterpreters:
    def test_the_own_one_is_switched_on_and_the_others_off(
        self, evaluate: Evaluate, make_solution: MakeSolution
    ) -> None:
        pytest.importorskip("triton", reason="Triton is optional")
        code = """
        import os
        set_to = os.environ["TRITON_INTERPRET"], os.environ["HELION_INTERPRET"]
        def run(x):
            return x * 2 if set_to == ("1", "0") else x
        """
        found, wrong = evaluate(
            make_solution(dedent(code), language="triton"),
            make_solution("def run(x):\n    return x\n", name="wrong", language="triton"),
        )
        assert found.status == "PASSED", found.log
        assert (wrong.status, wrong.flags) == ("INCORRECT_NUMERICAL", (INTERPRETED,))  # it may be right on a GPU

    @pytest.mark.parametrize("language", SupportedLanguages)
    def test_their_latencies_are_flagged(self, language: str, make_solution: MakeSolution) -> None:
        solution = make_solution("", language=language)
        is_interpreted = language in {"triton", "helion"}
        assert timing_flags(solution, "cpu") == ((CPU_TIMING, INTERPRETED) if is_interpreted else (CPU_TIMING,))
        assert timing_flags(solution, "NVIDIA H200") == ()

    @pytest.mark.slow  # the worker imports helion, which takes seconds
    def test_a_helion_kernel_runs(self, evaluate: Evaluate, make_solution: MakeSolution) -> None:
        pytest.importorskip("helion", reason="Helion is optional")
        code = """
        import helion, helion.language as hl
        @helion.kernel(config=helion.Config(block_sizes=[8]))
        def double(x, y):
            for rows in hl.tile(x.shape):
                y[rows] = x[rows] * 2
            return y
        def run(x, y):
            double(x, y)
        """
        (found,) = evaluate(make_solution(dedent(code), language="helion", dps=True), timeout_seconds=120.0)
        assert found.status == "PASSED", found.log
        assert INTERPRETED in found.flags
