"""Tests of evaluators: selection, entry points of other packages, and failures."""

import json
import sys

import attrs
import pytest
from fib_bench import Benchmark, BenchmarkConfig, EvalConfig, EvaluatorFailed, EvaluatorUnusable, ResolvedEvalConfig
from fib_bench.evaluators import evaluator_for, evaluator_names
from fib_schema import InvalidField, TraceSet

from .samples import DOUBLE, GOOD, make_definition, make_solution

NOTHING = "def run(*tensors): ...\n"
TOPK = "def run(x): x.topk(3)\n"
KINDS = (
    ("default", "gemm", {"A": "float16[m,k]"}, {"C": "float16[m,n]"}, NOTHING),
    ("default", "dropout", {"x": "float32[n]"}, {"y": "float32[n]"}, "def run(x): return x * torch.rand(3)\n"),
    ("default", "rmsnorm", {"hidden_states": "bfloat16[n]"}, {"hidden_states_out": "bfloat16[n]"}, NOTHING),
    ("default", "sort", {"x": "float32[n]"}, {"indices": "int64[n]"}, "def run(x): return x.argsort()\n"),
    ("default", "moe_align", {"topk_ids": "int32[n,k]"}, {"sorted_token_ids": "int32[m]"}, NOTHING),
    ("default", "gqa_paged", {"q": "bfloat16[n]"}, {"output": "bfloat16[n]", "lse": "float32[n]"}, NOTHING),
    ("default", "sampling", {"probs": "float32[n,v]"}, {"renormed": "float32[n,v]"}, NOTHING),
    ("default", "speculative", {"probs": "float32[n,v]", "uniform": "float32[n]"}, {"tokens": "int32[n]"}, NOTHING),
    ("sampling", "sampling", {"probs": "float32[n,v]"}, {"samples": "int64[n]"}, "def run(p): torch.multinomial(p)\n"),
    ("sampling", "decode", {"logits": "float32[n,v]"}, {"ids": "int32[n]"}, "def run(p): torch.rand_like(p)\n"),
    ("top_k", "dsa_paged", {"q": "bfloat16[n,d]"}, {"topk_indices": "int32[n,k]"}, "def run(q): torch.topk(q, 3)\n"),
    ("top_k", "moe", {"logits": "float32[n,e]"}, {"w": "float32[n,k]", "topk_ids": "int32[n,k]"}, TOPK),
    ("top_k", "selection", {"x": "float32[n,v]"}, {"values": "float32[n,k]", "places": "int64[n,k]"}, TOPK),
    ("top_k", "reduce", {"x": "float32[n,v]"}, {"index": "int64[n]"}, "def run(x): return x.argmax(-1)\n"),
    ("low_precision", "quantize", {"x": "bfloat16[n]"}, {"y": "float8_e4m3fn[n]", "scale": "float32"}, NOTHING),
    ("low_precision", "gemm", {"A": "bfloat16[n]"}, {"C": "float4_e2m1[n]"}, NOTHING),
    ("low_precision", "quantize", {"x": "bfloat16[n]"}, {"y": "int8[n]", "y_scale": "float32[n]"}, NOTHING),
    ("default", "quantize", {"x": "bfloat16[n]"}, {"y": "int8[n]"}, NOTHING),
    ("moe", "moe", {"hidden_states": "bfloat16[n,d]"}, {"output": "bfloat16[n,d]"}, NOTHING),
    ("moe", "fused_moe_fp8", {"x": "float8_e4m3fn[n,d]"}, {"output": "bfloat16[n,d]"}, NOTHING),
    ("state_space", "gdn", {"state": "float32[n,d]"}, {"output": "bfloat16[n]", "new_state": "float32[n,d]"}, NOTHING),
    ("state_space", "mamba_ssu", {"x": "bfloat16[n]"}, {"output": "bfloat16[n]"}, NOTHING),
    ("state_space", "conv", {"conv_state": "bfloat16[n]"}, {"conv_state_out": "bfloat16[n]"}, NOTHING),
    ("sparse_attention", "dsa_paged", {"q": "bfloat16[n]"}, {"output": "bfloat16[n]", "lse": "float32[n]"}, NOTHING),
    ("sparse_attention", "attention", {"topk_indices": "int32[n,k]"}, {"output": "bfloat16[n]"}, NOTHING),
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "op_type", "inputs", "outputs", "reference"),
    KINDS,
    ids=[f"{k[0]}-{k[1]}-{i}" for i, k in enumerate(KINDS)],
)
def test_a_definition_says_which_evaluator_is_for_it(kind, op_type, inputs, outputs, reference):
    definition = make_definition(inputs, outputs, reference, op_type=op_type)
    assert evaluator_for(definition, ResolvedEvalConfig()).name == kind


class TestSettings:
    def test_a_setting_names_the_evaluator(self):
        layers = BenchmarkConfig(op_type_config={"elementwise": EvalConfig(evaluator="moe")})
        config = layers.resolve_eval_config(DOUBLE)
        assert config.evaluator == "moe"
        assert evaluator_for(DOUBLE, config).name == "moe"

    def test_a_name_that_does_not_exist_is_told(self):
        with pytest.raises(InvalidField, match=r"no evaluator is named 'sampler'; did you mean 'sampling'\?"):
            BenchmarkConfig(evaluator="sampler")
        with pytest.raises(InvalidField, match="must be a name, got 3"):
            BenchmarkConfig(evaluator=3)

    def test_the_trace_names_the_evaluator(self, evaluate):
        solution = make_solution(GOOD)
        for forced, name in ((None, "default"), ("state_space", "state_space")):
            (evaluation,) = evaluate(solution, evaluator=forced)
            assert evaluation.status == "PASSED", evaluation.log
            assert evaluation.extra["evaluator"] == name


MODULE = """
from fib_bench.checking.comparison import Comparison
from fib_bench.evaluators import Check, Evaluator, Verdict

class Twice(Evaluator):
    name = "twice"

    def applies(self, definition):
        return definition.op_type == "elementwise"

    def check(self, case):
        return Signs()

class Signs(Check):
    def compare(self, found, expected):
        wrong = int((found["y"].sign() != expected["y"].sign()).sum())
        comparison = Comparison("y", expected["y"].numel(), wrong)
        return Verdict((comparison,), ("another sign",) if wrong else (), {})

class Other(Twice):
    name = "other"

class Broken(Twice):
    name = "broken"
    def check(self, case):
        raise ZeroDivisionError("of course")

class Sulking(Twice):
    name = "sulking"
    def check(self, case):
        return Refusing()

class Refusing(Signs):
    count = 0
    def compare(self, found, expected):
        Refusing.count += 1
        if Refusing.count > 1:
            raise KeyError("enough")
        return super().compare(found, expected)

class NoEvaluator:
    name = "none"
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a distribution with evaluators on the path."""
    folder = tmp_path / "site"

    def put(**entries):
        info = folder / "acme_evaluators-1.0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (folder / "acme_evaluators.py").write_text(MODULE)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-evaluators\nVersion: 1.0\n")
        lines = "".join(f"{name} = {value}\n" for name, value in entries.items())
        (info / "entry_points.txt").write_text(f"[fib_bench.evaluators]\n{lines}")
        monkeypatch.syspath_prepend(str(folder))

    yield put
    sys.modules.pop("acme_evaluators", None)


class TestFromOutside:
    def test_one_that_applies_goes_before_the_built_in(self, install, evaluate):
        install(twice="acme_evaluators:Twice")
        assert "twice" in evaluator_names()
        assert evaluator_for(attrs.evolve(DOUBLE, op_type="gemm"), ResolvedEvalConfig()).name == "default"
        big, odd = (
            make_solution(f"def run(x):\n    return {code}\n", name=name)
            for name, code in (("a", "x * 90"), ("b", "-x"))
        )
        right, wrong = evaluate(big, odd)
        assert (right.status, wrong.status) == ("PASSED", "INCORRECT_NUMERICAL")
        assert wrong.log == "another sign; input set 0 (normal)"
        assert right.extra["evaluator"] == "twice"

    @pytest.mark.parametrize(
        ("entries", "said"),
        [
            ({"gone": "no_such_module:X"}, "evaluator 'gone': cannot load no_such_module:X: ModuleNotFoundError"),
            ({"gone": "acme_evaluators:Gone"}, "evaluator 'gone': cannot load acme_evaluators:Gone: AttributeError"),
            ({"none": "acme_evaluators:NoEvaluator"}, "is not a subclass of fib_bench.evaluators.Evaluator"),
            (
                {"thrice": "acme_evaluators:Twice"},
                "acme_evaluators:Twice calls itself 'twice'; the two must be the same",
            ),
            ({"moe": "acme_evaluators:Twice"}, "MixtureOfExperts and acme_evaluators:Twice both have this name"),
            (
                {"twice": "acme_evaluators:Twice", "other": "acme_evaluators:Other"},
                "applies to 'double' too; set `evaluator` to one of them",
            ),
        ],
    )
    def test_one_that_cannot_be_used_is_told(self, install, entries, said):
        install(**entries)
        with pytest.raises(EvaluatorUnusable) as caught:
            evaluator_for(DOUBLE, ResolvedEvalConfig())
        assert said in str(caught.value)

    def test_one_that_raises_costs_the_workload_and_not_the_run(self, install, make_data_set, shared_server):
        install(broken="acme_evaluators:Broken")
        other = make_definition({"x": "float32[n]"}, {"y": "float32[n]"}, "def run(x):\n    return x\n", op_type="copy")
        copy = make_solution("def run(x):\n    return x\n", name="copy", definition="made")
        root = make_data_set(make_solution(GOOD), copy, definitions=[other])
        path = root / "workloads" / "copy" / "made.jsonl"
        path.parent.mkdir(parents=True)
        line = next((root / "workloads").rglob("double.jsonl")).read_text()
        path.write_text(json.dumps({**json.loads(line.splitlines()[0]), "definition": "made"}) + "\n")
        with Benchmark(TraceSet.from_path(root), BenchmarkConfig()) as benchmark:
            result = benchmark.run()
        assert [trace.solution for trace in result.traces] == ["copy"]
        (failure,) = result.failures
        assert failure.definition == "double"
        assert failure.reason == "the evaluator 'broken' failed: ZeroDivisionError: of course"

    def test_one_that_raises_at_a_solution_is_no_verdict_on_it(self, install, evaluate):
        install(sulking="acme_evaluators:Sulking")
        (failed,) = evaluate(make_solution(GOOD), profile_baseline=False)
        assert isinstance(failed, EvaluatorFailed)
        assert failed.reason == "the evaluator 'sulking' failed: KeyError: 'enough'"
