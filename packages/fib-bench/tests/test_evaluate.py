"""Tests of the judge: what it prepares, refuses, decides and records."""

import gc
import json
import os
from textwrap import dedent

import pytest
from fib_bench import BenchmarkConfig, InputError, ReferenceFailed, UnsupportedDevice
from fib_bench.config.model import DISTRIBUTIONS
from fib_bench.judge.evaluate import Judge
from fib_bench.judge.functions import BoundFunction
from fib_bench.judge.passes import Verification
from fib_bench.judge.record import timing_flags
from fib_bench.judge.timer import Timer
from fib_schema import Evaluation, EvaluationStatus, ScalarInput, SupportedLanguages, format_json
from fib_schema.trace_facts import CPU_TIMING, INTERPRETED

from .samples import DOUBLE, GOOD, make_definition, make_solution, make_workload


@pytest.mark.parametrize(
    ("device", "said"),
    [("cuda:99", "no device 'cuda:99' on this machine"), ("tpu", "is not a device"), ("cuda:x", "is not a device")],
)
def test_a_device_that_cannot_be_measured_on_is_refused(device, said):
    with pytest.raises(UnsupportedDevice, match=said):
        Judge(BenchmarkConfig(device=device))


class TestPrepare:
    def prepare_fails(self, judge, definition, workload):
        with pytest.raises((InputError, ReferenceFailed)) as caught:
            judge.prepare(definition, workload)
        assert caught.value.definition == definition.name
        assert caught.value.workload == workload.uuid
        return caught.value.reason

    @pytest.mark.parametrize("size", [10**12, 2**62])
    def test_refuses_tensors_that_do_not_fit(self, make_judge, size):
        reason = self.prepare_fails(make_judge(), DOUBLE, make_workload(DOUBLE, {"n": size}))
        assert "its tensors take" in reason

    def test_refuses_a_call_with_more_outputs_than_a_digest_takes(self, make_judge):
        names = [f"y{index}" for index in range(13)]
        reference = f"def run(x):\n    return {', '.join(['x'] * 13)}\n"
        definition = make_definition({"x": "float32[n]"}, dict.fromkeys(names, "float32[n]"), reference)
        reason = self.prepare_fails(make_judge(), definition, make_workload(definition, {"n": 4}))
        assert "it has 13 outputs; calls with at most 12 can be timed" in reason

    def test_refuses_a_workload_without_a_size(self, make_judge):
        judge, workload = make_judge(), make_workload(DOUBLE, {})
        assert "'n': is variable and has no value here" in self.prepare_fails(judge, DOUBLE, workload)
        assert judge.workload_bytes(DOUBLE, workload) == 0

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
    def test_says_why_a_reference_gives_nothing_to_compare_with(self, make_judge, body, said):
        reference = f"import torch\ndef run(x):\n    {body}\n"
        definition = make_definition({"x": "float32[n]"}, {"y": "float32[n]"}, reference)
        reason = self.prepare_fails(make_judge(), definition, make_workload(definition, {"n": 8}))
        assert reason.startswith("the reference failed: ")
        assert said in reason

    @pytest.mark.usefixtures("slow_clock")
    def test_says_where_a_reference_hangs(self, make_judge):
        definition = make_definition(
            {"x": "float32[n]"}, {"y": "float32[n]"}, "def run(x):\n    print('hangs')\n    while True: pass\n"
        )
        judge = make_judge(timeout_seconds=0.3)
        reason = self.prepare_fails(judge, definition, make_workload(definition, {"n": 8}))
        assert "no answer within 0.3 s" in reason
        assert "line 3 in run" in reason


class TestEvaluate:
    def test_a_pass_holds_all_that_it_rests_on(self, evaluate):
        solution = make_solution("def run(x):\n    return x + x\n")
        (evaluation,) = evaluate(solution)
        assert evaluation.status is EvaluationStatus.PASSED
        assert evaluation.extra["solution_hash"] == solution.hash()
        assert evaluation.extra["trials"] == ["normal", "normal", "generated", *DISTRIBUTIONS[1:]]
        assert evaluation.flags == ("unranked: cpu timing",)
        correctness, performance = evaluation.correctness, evaluation.performance
        assert correctness.max_absolute_error == 0.0
        assert {"atol", "rtol", "matched_ratio"} <= correctness.extra.keys()
        assert performance.latency_ms > 0
        assert performance.speedup_factor == pytest.approx(performance.reference_latency_ms / performance.latency_ms)
        assert {"method", "samples", "spread"} <= performance.extra["timing"].keys()
        assert "reference_timing" in performance.extra
        json.loads(format_json(evaluation))

    def test_wrong_numbers_are_explained_per_output(self, evaluate):
        definition = make_definition(
            {"x": "float32[n]"}, {"y": "float32[n]", "z": "int64[]"}, "def run(x):\n    return x + 1, x.numel()\n"
        )
        solution = make_solution("def run(x):\n    return x + 1, 9\n", definition="made")
        (evaluation,) = evaluate(solution, definition=definition)
        assert evaluation.status is EvaluationStatus.INCORRECT_NUMERICAL
        assert evaluation.log == "z: 1 of 1 wrong; first [] is 9, not 8; input set 0 (normal)"
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
    def test_tolerances_are_those_of_the_configuration(self, evaluate, result, fields, status):
        (evaluation,) = evaluate(make_solution(f"import torch\ndef run(x):\n    return {result}\n"), **fields)
        assert evaluation.status == status
        json.loads(format_json(evaluation))

    def test_scalars_optional_inputs_and_several_outputs_go_through(self, evaluate):
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

    def test_outputs_without_elements_pass(self, evaluate):
        workloads = [make_workload(DOUBLE, {"n": 0})]
        (evaluation,) = evaluate(make_solution(GOOD), workloads=workloads)
        assert evaluation.status is EvaluationStatus.PASSED

    def test_a_solution_finds_a_folder_and_an_environment_of_its_own(self, evaluate, monkeypatch):
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

    def test_descriptors_and_random_state_are_not_inherited(self, evaluate):
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

    def test_a_worker_holds_no_more_descriptors_after_many_workloads(self, evaluate):
        code = "import os\ndef run(x):\n    print(len(os.listdir('/proc/self/fd')))\n    return x * 2\n"
        workloads = [make_workload(DOUBLE, {"n": n}, f"w{n}") for n in range(1, 7)]
        evaluations = evaluate(make_solution(code), workloads=workloads)
        assert evaluations[1].log.split()[0] == evaluations[-1].log.split()[0]


class TestWorkers:
    """Workers that are killed when their solution has its results."""

    @pytest.fixture
    def judge(self, make_judge):
        return make_judge()

    @pytest.fixture
    def prepared(self, judge):
        return judge.prepare(DOUBLE, make_workload(DOUBLE, {"n": 3}))

    def evaluate(self, judge, prepared, solution):
        ((_, evaluation),) = judge.evaluate(prepared.checker.definition, solution, [prepared])
        assert isinstance(evaluation, Evaluation)
        return evaluation

    def test_the_next_worker_starts_while_the_one_before_it_ends(self, judge, prepared):
        pids = []
        for name in ("first", "second"):
            code = "import os\nprint(os.getpid())\ndef run(x):\n    return x * 2\n"
            evaluation = self.evaluate(judge, prepared, make_solution(code, name=name))
            assert judge.context._ending
            assert evaluation.status == "PASSED"
            pids.append(int(evaluation.log))
        with pytest.raises(ProcessLookupError):
            os.kill(pids[0], 0)
        judge.context.settle()
        with pytest.raises(ProcessLookupError):
            os.kill(pids[1], 0)

    def test_a_worker_ends_where_its_evaluation_is_left(self, judge, prepared):
        solution = make_solution(GOOD)
        evaluations = judge.evaluate(prepared.checker.definition, solution, [prepared, prepared])
        next(evaluations)
        evaluations.close()
        assert judge.context._ending

    def test_nothing_of_an_evaluation_is_kept_until_garbage_is_collected(self, judge, prepared):
        """Outputs that wait for their comparison take up to a gigabyte of the device."""
        gc.collect()
        gc.disable()
        try:
            self.evaluate(judge, prepared, make_solution(GOOD))
            kept = [item for item in gc.get_objects() if type(item) in {Timer, Verification, BoundFunction}]
        finally:
            gc.enable()
        assert kept == []


class TestInterpreters:
    def test_the_own_one_is_switched_on_and_the_others_off(self, evaluate):
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
    def test_their_latencies_are_flagged(self, language):
        solution = make_solution("", language=language)
        is_interpreted = language in {"triton", "helion"}
        assert timing_flags(solution, "cpu") == ((CPU_TIMING, INTERPRETED) if is_interpreted else (CPU_TIMING,))
        assert timing_flags(solution, "NVIDIA H200") == ()

    @pytest.mark.slow  # the worker imports helion, which takes seconds
    def test_a_helion_kernel_runs(self, evaluate):
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
