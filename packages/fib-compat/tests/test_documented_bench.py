"""Documented behaviour of ``flashinfer_bench.bench``, as its users write it."""

import logging

import compat_samples as samples
import pytest
import torch
from compat_samples import NAME
from flashinfer_bench import Benchmark, BenchmarkConfig, EvaluationStatus, TraceSet
from flashinfer_bench.bench import EvalConfig, ResolvedEvalConfig
from flashinfer_bench.bench.evaluators import (
    DefaultEvaluator,
    DsaSparseAttentionEvaluator,
    DsaTopkIndexerEvaluator,
    Evaluator,
    LowBitEvaluator,
    SamplingEvaluator,
    resolve_evaluator,
)

QUICK = {"warmup_runs": 1, "iterations": 2, "num_trials": 1, "timeout_seconds": 60}


class TestConfig:
    def test_defaults(self):
        config = BenchmarkConfig()
        assert (config.use_isolated_runner, config.definitions, config.solutions) == (False, None, None)
        assert (config.timeout_seconds, config.profile_baseline) == (300, True)
        assert (config.warmup_runs, config.iterations, config.num_trials) == (None, None, None)
        assert (config.op_type_config, config.definition_config) == ({}, {})

    def test_nothing_is_read_from_yaml(self):
        """Only `default` has the bundled settings by operation type."""
        moe = samples.definition("moe_x", "moe")
        assert BenchmarkConfig().resolve_eval_config(moe) == ResolvedEvalConfig()
        assert BenchmarkConfig().resolve_eval_config(moe).required_matched_ratio is None

    def test_resolved_defaults(self):
        resolved = ResolvedEvalConfig()
        assert (resolved.warmup_runs, resolved.iterations, resolved.num_trials) == (10, 50, 3)
        assert (resolved.rtol, resolved.atol, resolved.required_matched_ratio) == (1e-2, 1e-2, None)

    def test_the_bundled_settings(self):
        config = BenchmarkConfig.default(iterations=7)
        moe = config.resolve_eval_config(samples.definition("moe_x", "moe"))
        assert (moe.required_matched_ratio, moe.iterations) == (0.95, 7)
        sampling = config.resolve_eval_config(samples.definition("top_k", "sampling"))
        assert sampling.extra["sampling_validation_trials"] == 100
        assert sampling.extra["sampling_tvd_threshold"] == 0.2

    def test_one_of_the_bundled_extra_settings_is_replaced(self):
        config = BenchmarkConfig.default(extra={"sampling_validation_trials": 5})
        sampling = config.resolve_eval_config(samples.definition("top_k", "sampling"))
        assert sampling.extra == {"sampling_validation_trials": 5, "sampling_tvd_threshold": 0.2}

    @pytest.mark.parametrize("name", ["atol", "rtol"])
    def test_a_tolerance_of_zero_is_kept(self, name):
        resolved = BenchmarkConfig(**{name: 0}).resolve_eval_config(samples.definition())
        assert getattr(resolved, name) == 0
        with pytest.raises(ValueError, match=name):
            BenchmarkConfig(**{name: -1e-9})

    def test_precedence(self):
        config = BenchmarkConfig(
            rtol=0.5,
            op_type_config={"rmsnorm": EvalConfig(rtol=0.1, atol=0.2, iterations=3)},
            definition_config={NAME: EvalConfig(atol=0.3)},
        )
        resolved = config.resolve_eval_config(samples.definition())
        assert (resolved.rtol, resolved.atol, resolved.iterations, resolved.warmup_runs) == (0.5, 0.3, 3, 10)

    def test_settings_from_yaml_with_overrides(self, tmp_path):
        path = tmp_path / "bench.yaml"
        path.write_text(
            "warmup_runs: 2\ntimeout_seconds: 30\ndefinitions: [a]\n"
            "op_type_config:\n  rmsnorm:\n    rtol: 0.25\ndefinition_config:\n  rmsnorm_h64:\n    atol: 0.5\n"
        )
        config = BenchmarkConfig.from_yaml(str(path), warmup_runs=3)
        assert (config.warmup_runs, config.timeout_seconds, list(config.definitions)) == (3, 30, ["a"])
        resolved = config.resolve_eval_config(samples.definition())
        assert (resolved.rtol, resolved.atol) == (0.25, 0.5)

    def test_settings_may_be_plain_mappings(self):
        config = BenchmarkConfig(op_type_config={"rmsnorm": {"rtol": 0.25}})
        assert config.resolve_eval_config(samples.definition()).rtol == 0.25

    @pytest.mark.parametrize(
        "wrong",
        [
            {"warmup_runs": -1},
            {"iterations": 0},
            {"num_trials": 0},
            {"rtol": -1.0},
            {"atol": -1.0},
            {"required_matched_ratio": 1.5},
            {"required_matched_ratio": -0.1},
            {"timeout_seconds": 0},
        ],
    )
    def test_values_are_checked(self, wrong):
        with pytest.raises(ValueError):
            BenchmarkConfig(**wrong)

    @pytest.mark.parametrize("right", [{"warmup_runs": 0}, {"iterations": 1}, {"required_matched_ratio": 1.0}])
    def test_limits_are_accepted(self, right):
        ((name, value),) = right.items()
        assert getattr(BenchmarkConfig(**right), name) == value


class TestRuns:
    @pytest.mark.slow
    def test_results_have_the_workloads_too(self):
        results = Benchmark(samples.trace_set(), BenchmarkConfig(**QUICK)).run_all(dump_traces=False)
        assert isinstance(results, TraceSet)
        assert [trace.evaluation.status for trace in results.traces[NAME]] == [EvaluationStatus.PASSED] * 2
        assert [trace.workload.uuid for trace in results.workloads[NAME]] == ["b4", "b8"]
        assert results.definitions.keys() == {NAME}
        assert results.solutions[NAME][0].name == "plain"

    @pytest.mark.slow
    def test_traces_are_written_only_if_asked_for(self, tmp_path):
        trace_set = TraceSet.from_path(str(samples.write(tmp_path)))
        Benchmark(trace_set, BenchmarkConfig(**QUICK)).run_all(dump_traces=False)
        assert not TraceSet.from_path(str(tmp_path)).traces.get(NAME)
        benchmark = Benchmark(trace_set, BenchmarkConfig(**QUICK))
        benchmark.run_all(dump_traces=True)
        benchmark.close()
        assert len(TraceSet.from_path(str(tmp_path)).traces[NAME]) == 2
        assert benchmark.get_trace_set() is trace_set
        assert len(trace_set.traces[NAME]) == 2

    def test_when_nothing_runs_the_reasons_are_logged(self, caplog):
        trace_set = samples.trace_set(solutions={}, workloads={})
        with caplog.at_level(logging.WARNING):
            results = Benchmark(trace_set, BenchmarkConfig(**QUICK)).run_all(dump_traces=False)
        assert not any(results.traces.values())
        assert NAME in caplog.text

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("settings", "absent"),
        [
            ({"definitions": [NAME, "absent_d7"], "definition_config": {"absent_d8": EvalConfig()}}, ["d7", "d8"]),
            ({"solutions": ["plain", "absent_d9"]}, ["d9"]),
        ],
        ids=["definitions", "solutions"],
    )
    def test_absent_names_in_the_configuration_warn_and_the_rest_runs(self, caplog, settings, absent):
        with caplog.at_level(logging.WARNING):
            results = Benchmark(samples.trace_set(), BenchmarkConfig(**QUICK, **settings)).run_all(dump_traces=False)
        assert len(results.traces[NAME]) == 2
        assert all(f"absent_{name}" in caplog.text for name in absent)

    @pytest.mark.slow
    def test_a_solution_that_was_appended_runs(self):
        trace_set = samples.trace_set()
        trace_set.solutions[NAME].append(samples.solution("wrong", samples.MARKED))
        results = Benchmark(trace_set, BenchmarkConfig(**QUICK)).run_all(dump_traces=False)
        found = {(trace.solution, str(trace.evaluation.status.value)) for trace in results.traces[NAME]}
        assert found == {("plain", "PASSED"), ("wrong", "INCORRECT_NUMERICAL")}

    @pytest.mark.gpu
    def test_a_gpu_is_used(self):
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
        gpu, trace_set = torch.cuda.get_device_name(0), samples.trace_set()
        trace_set.solutions[NAME] = [samples.solution(hardware=gpu)]
        results = Benchmark(trace_set, BenchmarkConfig(**QUICK)).run_all(dump_traces=False)
        assert {trace.evaluation.environment.hardware for trace in results.traces[NAME]} == {gpu}

    def test_the_configuration_is_optional(self):
        assert Benchmark(samples.trace_set()).get_trace_set() is not None


class TestEvaluators:
    def test_an_ordinary_definition_has_the_default_one(self):
        assert resolve_evaluator(samples.definition()) is DefaultEvaluator
        assert DefaultEvaluator.can_evaluate(samples.definition())

    @pytest.mark.parametrize(
        "evaluator", [LowBitEvaluator, SamplingEvaluator, DsaSparseAttentionEvaluator, DsaTopkIndexerEvaluator]
    )
    def test_special_ones_do_not_evaluate_it(self, evaluator):
        assert issubclass(evaluator, Evaluator)
        assert not evaluator.can_evaluate(samples.definition())
