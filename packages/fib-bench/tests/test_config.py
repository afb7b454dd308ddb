"""Tests of the settings: valid values, the precedence of layers, and messages about mistakes in files."""

import itertools
import math
import os

import attrs
import pytest
import torch
from fib_bench import BenchmarkConfig, EvalConfig, InvalidConfig, ResolvedEvalConfig, Tolerance
from fib_bench.config.model import DATA_SET_FILE, ONE_STEP, Layers
from fib_schema import AxisVar, Definition, InvalidField, TensorSpec, TraceSet
from fib_schema.settings import InvalidConfigFile
from hypothesis import given
from hypothesis import strategies as st

from .samples import DOUBLE, make_solution


@pytest.fixture
def write(tmp_path):
    def write(text, name="settings.yaml"):
        path = tmp_path / name
        path.write_text(text, "utf-8")
        return path

    return write


@pytest.fixture
def trace_set():
    """A data set that knows the definition ``double`` of op_type ``elementwise`` and the solution ``good``."""
    solutions = {"double": [make_solution("def run(x):\n    return x * 2\n", name="good")]}
    return TraceSet(definitions={"double": DOUBLE}, solutions=solutions)


def problems_of(path):
    with pytest.raises(InvalidConfigFile) as caught:
        BenchmarkConfig.from_yaml(path)
    assert caught.value.path == str(path)
    return [(problem.path, problem.message) for problem in caught.value.problems]


class TestDefaults:
    def test_are_the_documented_ones(self):
        assert BenchmarkConfig().resolve_eval_config(DOUBLE) == ResolvedEvalConfig(
            warmup_runs=10,
            iterations=50,
            max_iterations=2000,
            num_trials=3,
            measure_seconds=1.0,
            confidence=0.005,
            rtol=1e-2,
            atol=1e-2,
            required_matched_ratio=None,
            error_cap=1.0,
            distributions=("normal", "wide", "tiny", "zeros_and_ones", "shifted"),
            dtypes=dict(ONE_STEP),
            extra={},
        )
        assert BenchmarkConfig().profile_baseline
        assert BenchmarkConfig.default(iterations=7) == BenchmarkConfig(iterations=7)

    @pytest.mark.parametrize(
        ("op_type", "fields"), [("moe", {"required_matched_ratio": 0.95, "distributions": ("normal",)}), ("gemm", {})]
    )
    def test_of_some_op_types_are_bundled(self, op_type, fields):
        plain = BenchmarkConfig().resolve_eval_config(DOUBLE)
        resolved = BenchmarkConfig().resolve_eval_config(attrs.evolve(DOUBLE, op_type=op_type))
        assert resolved == attrs.evolve(plain, **fields)


class TestTolerances:
    @pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
    def test_of_small_dtypes_are_one_rounding_step(self, dtype):
        tolerance = ResolvedEvalConfig().tolerance(dtype)
        values = torch.arange(256, dtype=torch.uint8).view(getattr(torch, dtype)).double()
        values = sorted(set(values[values.isfinite()].tolist()))

        def is_wrong(a, b):
            return abs(a - b) > tolerance.atol and (b == 0 or abs(a - b) / abs(b) > tolerance.rtol)

        assert not any(is_wrong(a, b) or is_wrong(b, a) for a, b in itertools.pairwise(values))
        assert any(is_wrong(a, b) for a, b in zip(values, values[2:], strict=False))

    def test_of_a_higher_layer_hold_for_every_dtype(self):
        below = ResolvedEvalConfig(dtypes={"float16": Tolerance(atol=1.0, rtol=2.0)})
        assert below.overridden_by(EvalConfig(rtol=3.0)).tolerance("float16") == Tolerance(atol=1.0, rtol=3.0)
        assert below.overridden_by(EvalConfig(atol=3.0)).tolerance("float16") == Tolerance(atol=3.0, rtol=2.0)

    def test_of_a_dtype_go_before_the_general_ones_of_the_same_layer(self):
        below = ResolvedEvalConfig(dtypes={"float16": Tolerance(atol=1.0, rtol=2.0)})
        layer = EvalConfig(rtol=3.0, atol=4.0, dtypes={"bfloat16": Tolerance(atol=5.0, rtol=6.0)})
        resolved = below.overridden_by(layer)
        assert resolved.tolerance("bfloat16") == Tolerance(atol=5.0, rtol=6.0)
        assert resolved.tolerance("float16") == resolved.tolerance("float32") == Tolerance(atol=4.0, rtol=3.0)


class TestLayers:
    def test_merge_what_extra_says_key_by_key(self):
        sampling = attrs.evolve(DOUBLE, op_type="sampling")
        config = BenchmarkConfig(extra={"sampling_tvd_threshold": 0.1, "more": True})
        extra = {"sampling_validation_trials": 100, "sampling_tvd_threshold": 0.1, "more": True}
        assert config.resolve_eval_config(sampling).extra == extra

    @given(
        st.lists(
            st.fixed_dictionaries(
                {
                    "iterations": st.none() | st.integers(1, 9),
                    "rtol": st.none() | st.sampled_from([0.0, 0.25, 1.0]),
                    "required_matched_ratio": st.none() | st.sampled_from([0.5, 1.0]),
                    "distributions": st.none() | st.sampled_from([("tiny",), ("wide", "normal")]),
                }
            ),
            min_size=7,
            max_size=7,
        )
    )
    def test_the_highest_that_sets_a_field_wins(self, given_fields):
        tensor = TensorSpec(("n",), "float32")
        definition = Definition("d", "t", {"n": AxisVar()}, {"x": tensor}, {"y": tensor}, "def run(x):\n    return x\n")
        stack = [EvalConfig(**fields) for fields in given_fields]
        config = BenchmarkConfig(
            data_set_layers=Layers(
                defaults=stack[0], op_type_config={"t": stack[1]}, definition_config={"d": stack[2]}
            ),
            defaults=stack[3],
            op_type_config={"t": stack[4]},
            definition_config={"d": stack[5]},
            **given_fields[6],
        )
        resolved = config.resolve_eval_config(definition)
        for name in given_fields[0]:
            said = [fields[name] for fields in given_fields if fields[name] is not None]
            assert getattr(resolved, name) == (said[-1] if said else getattr(ResolvedEvalConfig(), name))


class TestValues:
    @pytest.mark.parametrize(
        ("fields", "problem"),
        [
            ({"iterations": 0}, "iterations: must be a whole number of at least 1, got 0"),
            ({"iterations": 2.0}, "iterations: must be a whole number of at least 1, got 2.0"),
            ({"warmup_runs": -1}, "warmup_runs: must be a whole number of at least 0, got -1"),
            ({"rtol": -0.1}, "rtol: must be a finite number of at least 0, got -0.1"),
            ({"atol": math.nan}, "atol: must be a finite number of at least 0, got nan"),
            ({"atol": "0.1"}, "atol: must be a finite number of at least 0, got '0.1'"),
            ({"measure_seconds": 0}, "measure_seconds: must be a finite number above 0, got 0"),
            ({"confidence": 95}, "confidence: must be a number of at least 0 and at most 1, got 95"),
            ({"error_cap": 0}, "error_cap: must be a number above 0, got 0"),
            ({"distributions": ("normal", "wild")}, "no distribution is named 'wild'; did you mean 'wide'"),
            ({"distributions": ()}, "distributions: must name at least one, and none twice"),
            ({"distributions": "normal"}, "distributions: must be a list of names, got 'normal'"),
            ({"dtypes": {"float61": Tolerance(0, 0)}}, "no floating dtype is named 'float61'; did you mean 'float64'"),
            ({"dtypes": {"float16": 0.1}}, "dtypes: must be a mapping from names to tolerances, got {'float16': 0.1}"),
            ({"extra": 3}, "extra: must be a mapping from names to values, got 3"),
        ],
    )
    @pytest.mark.parametrize("kind", [EvalConfig, ResolvedEvalConfig])
    def test_that_make_no_sense_are_refused(self, kind, fields, problem):
        with pytest.raises(InvalidField) as caught:
            kind(**fields)
        assert str(caught.value).startswith("ResolvedEvalConfig.")
        assert problem in str(caught.value)

    def test_cuda_is_the_first_gpu(self):
        assert BenchmarkConfig(device="cuda").device == "cuda:0"
        assert BenchmarkConfig(devices=["cuda", "cuda:1"]).devices == ("cuda:0", "cuda:1")

    @pytest.mark.parametrize(
        ("fields", "problem"),
        [
            ({"definitions": "gemm"}, "definitions: must be a list of names, got 'gemm'"),
            ({"baseline": ""}, "baseline: must be a name, got ''"),
            ({"profile_baseline": 1}, "profile_baseline: must be true or false, got 1"),
            ({"max_workloads": 0}, "max_workloads: must be a whole number of at least 1, got 0"),
            ({"concurrency": 0}, "concurrency: must be a whole number of at least 1 and at most 16 (each"),
            ({"concurrency": 99}, "one of them times at a time), got 99"),
            ({"timeout_seconds": math.inf}, "timeout_seconds: must be a finite number above 0, got inf"),
            ({"op_type_config": {"moe": {}}}, "op_type_config: must be a mapping from names to EvalConfig"),
        ],
    )
    def test_of_a_run_are_checked_as_well(self, fields, problem):
        with pytest.raises(ValueError, match="BenchmarkConfig") as caught:
            BenchmarkConfig(**fields)
        assert problem in str(caught.value)


class TestFiles:
    def test_hold_any_field_of_the_configuration(self, write):
        path = write("""
            device: cuda:0
            definitions: [a, b]
            timeout_seconds: 60
            baseline: torch
            profile_baseline: false
            iterations: 20
            required_matched_ratio:
            defaults:
              dtypes:
                bfloat16: {atol: 1e-3, rtol: 2.5E2}
            op_type_config:
              gemm: {rtol: 1e-5, distributions: [normal, tiny]}
              moe:
            definition_config:
              gemm_n128: {extra: {any: [thing]}}
        """)
        assert BenchmarkConfig.from_yaml(path) == BenchmarkConfig(
            device="cuda:0",
            definitions=("a", "b"),
            timeout_seconds=60,
            baseline="torch",
            profile_baseline=False,
            iterations=20,
            defaults=EvalConfig(dtypes={"bfloat16": Tolerance(atol=1e-3, rtol=250.0)}),
            op_type_config={"gemm": EvalConfig(rtol=1e-5, distributions=("normal", "tiny")), "moe": EvalConfig()},
            definition_config={"gemm_n128": EvalConfig(extra={"any": ["thing"]})},
        )

    def test_yield_to_what_is_said_beside_them(self, write):
        config = BenchmarkConfig.from_yaml(write("{iterations: 20, rtol: 0.5}"), iterations=30)
        assert (config.iterations, config.rtol) == (30, 0.5)

    @pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "op_type_config:\n"])
    def test_may_be_empty(self, write, text):
        assert BenchmarkConfig.from_yaml(write(text)) == BenchmarkConfig()

    def test_are_told_all_their_mistakes_at_once(self, write):
        path = write("""
            iterrations: 5
            rtol: small
            defaults:
              warmup_runs: -1
              dtypes:
                float61: {atol: 1, rtol: 1}
                float16: {atol: -1}
                bfloat16: {atol: 1}
                float32: 3
            op_type_config:
              gem: {atol: 0.5}
              moe: [1]
              gemm: {distributions: [wild]}
            definition_config:
              duble: {iterations: 2.5}
        """)
        problems = dict(problems_of(path))
        assert problems == {
            "iterrations": (
                "no setting is named 'iterrations'; did you mean 'iterations', 'max_iterations', 'distributions'?"
            ),
            "rtol": "got 'small', expected a number",
            "defaults.warmup_runs": "must be a whole number of at least 0, got -1",
            "defaults.dtypes.float16.atol": "must be a finite number of at least 0, got -1",
            "defaults.dtypes.float16.rtol": "is missing",
            "defaults.dtypes.bfloat16.rtol": "is missing",
            "defaults.dtypes.float32": "got 3, expected a mapping of settings to values",
            "op_type_config.moe": "got [1], expected a mapping of settings to values",
            "op_type_config.gemm.distributions": "no distribution is named 'wild'; did you mean 'wide'?",
            "definition_config.duble.iterations": "got 2.5, expected a whole number",
        }


class TestDataSets:
    @pytest.fixture
    def root(self, make_data_set):
        return make_data_set()

    def test_may_bring_layers_of_their_own(self, root):
        (root / DATA_SET_FILE).write_text("op_type_config: {elementwise: {rtol: 0.5, atol: 0.5}}")
        config = BenchmarkConfig(defaults=EvalConfig(atol=0.25)).for_data_set(TraceSet.from_path(root))
        resolved = config.resolve_eval_config(DOUBLE)
        assert (resolved.rtol, resolved.atol) == (0.5, 0.25)

    def test_may_have_no_pipe_in_their_place(self, root):
        os.mkfifo(root / DATA_SET_FILE)
        with pytest.raises(OSError, match="it is a named pipe"):
            BenchmarkConfig().for_data_set(TraceSet.from_path(root))

    def test_without_them_change_nothing(self, root):
        config = BenchmarkConfig(iterations=3)
        assert config.for_data_set(TraceSet.from_path(root)) == config
        assert config.for_data_set(TraceSet()) == config

    def test_may_not_say_what_to_run_or_override_the_user(self, root):
        (root / DATA_SET_FILE).write_text("{device: cpu, rtol: 0.5}")
        with pytest.raises(InvalidConfigFile) as caught:
            BenchmarkConfig().for_data_set(TraceSet.from_path(root))
        assert [problem.path for problem in caught.value.problems] == ["device", "rtol"]

    def test_must_know_the_names_in_their_file(self, root):
        (root / DATA_SET_FILE).write_text("definition_config: {duble: {rtol: 0.5}}")
        with pytest.raises(InvalidConfig, match=rf"{DATA_SET_FILE}.*no definition is named 'duble'"):
            BenchmarkConfig().for_data_set(TraceSet.from_path(root))

    def test_must_know_the_names_in_a_configuration(self, trace_set):
        layer = EvalConfig(rtol=0.5)
        config = BenchmarkConfig(
            definition_config={"double": layer, "duble": layer},
            op_type_config={"elementwise": layer, "moe": layer, "element": layer},
            baseline="god",
        )
        with pytest.raises(InvalidConfig) as caught:
            config.for_data_set(trace_set)
        assert [problem.path for problem in caught.value.problems] == [
            "$.definition_config.duble",
            "$.op_type_config.element",
            "$.baseline",
        ]
        assert "did you mean 'good'" in str(caught.value)
        BenchmarkConfig(baseline="good").for_data_set(trace_set)
