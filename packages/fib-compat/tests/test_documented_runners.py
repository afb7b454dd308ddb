"""Documented runners, members and adapter classes of the first release, as its users write them."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import attrs
import compat_samples as samples
import pytest
from compat_samples import NAME
from flashinfer_bench import Benchmark, BenchmarkConfig, EvaluationStatus, TraceSet
from flashinfer_bench.bench import ResolvedEvalConfig
from flashinfer_bench.bench.runner import BaselineHandle, Runner, RunnerError
from flashinfer_bench.bench.runners.mp_runner import MultiProcessRunner
from flashinfer_bench.compile.builders import PythonBuilder
from flashinfer_bench.compile.builders.cuda_builder import CUDA_ALLOWED_EXTS, CUDA_DEPS, CUDA_DEPS_INCLUDE_PATTERNS
from flashinfer_bench.data import AxisVar, BuildSpec, Evaluation
from flashinfer_bench.integration.flashinfer.adapters.gqa_paged_decode import GQAPagedDecodeAdapter
from flashinfer_bench.integration.flashinfer.adapters.gqa_paged_prefill import GQAPagedPrefillAdapter
from flashinfer_bench.integration.flashinfer.adapters.mla_paged import MLAPagedAdapter
from flashinfer_bench.integration.flashinfer.adapters.ragged_prefill import RaggedPrefillAdapter
from flashinfer_bench.integration.patch_manager import PatchSpec

QUICK: dict[str, Any] = {"warmup_runs": 1, "iterations": 2, "num_trials": 1, "timeout_seconds": 60}
CONFIG = BenchmarkConfig(**QUICK)


def test_a_runner_runs_solutions_against_a_baseline() -> None:
    runner = MultiProcessRunner("cpu")
    assert isinstance(runner, Runner)
    baseline = runner.run_ref(samples.definition(), samples.workload(4), CONFIG)
    assert isinstance(baseline, BaselineHandle)
    assert runner.run_solution(samples.solution(), baseline, CONFIG).status == EvaluationStatus.PASSED
    wrong = runner.run_solution(samples.solution("wrong", samples.MARKED), baseline, CONFIG)
    assert wrong.status == EvaluationStatus.INCORRECT_NUMERICAL
    runner.release(baseline)
    with pytest.raises(RunnerError, match="no baseline"):
        runner.run_solution(samples.solution(), baseline, CONFIG)
    runner.close()


def test_a_reference_that_fails_is_a_runner_error() -> None:
    broken = samples.definition(reference="def run(x, weight):\n    raise RuntimeError('broken')\n")
    with pytest.raises(RunnerError, match="broken"):
        MultiProcessRunner("cpu").run_ref(broken, samples.workload(4), CONFIG)


def test_evaluate_returns_traces_and_flush_writes_them(tmp_path: Path) -> None:
    benchmark = Benchmark(TraceSet.from_path(str(samples.write(tmp_path))))
    results = benchmark.evaluate(CONFIG)
    benchmark.close()
    assert [trace.workload.uuid for trace in results.traces[NAME]] == ["b4", "b8"]
    assert not TraceSet.from_path(str(tmp_path)).traces.get(NAME)
    benchmark.flush()
    benchmark.flush()
    assert len(TraceSet.from_path(str(tmp_path)).traces[NAME]) == 2


def test_settings_have_their_documented_fields() -> None:
    assert ResolvedEvalConfig().profile_baseline
    resolved = BenchmarkConfig(profile_baseline=False).resolve_eval_config(samples.definition())
    assert not resolved.profile_baseline
    assert BenchmarkConfig(log_level="DEBUG").log_level == "DEBUG"
    assert BenchmarkConfig().log_level == "INFO"


def test_an_evaluation_has_a_log_file_and_an_error() -> None:
    failed = attrs.evolve(samples.evaluation("RUNTIME_ERROR"), log="no kernel é")
    assert Path(failed.log_file).read_text("utf-8") == "no kernel é"
    assert (failed.error, samples.evaluation().error) == ("no kernel é", None)
    old = Evaluation.model_validate({**failed.model_dump(), "log_file": "/tmp/a.log", "error": "bad"})
    assert (old.log_file, old.error) == ("/tmp/a.log", "bad")


def test_records_show_fields_of_older_files() -> None:
    assert AxisVar().parent is None
    assert AxisVar.model_validate({"type": "var", "parent": "rows"}).parent == "rows"
    spec = samples.solution().spec
    assert list(spec.build_commands) == []
    again = BuildSpec.model_validate({**spec.model_dump(), "build_commands": ["make"]})
    assert list(again.build_commands) == ["make"]


def test_a_builder_has_no_cache_to_clear() -> None:
    builder = PythonBuilder()
    runnable = builder.build(samples.definition(), samples.solution())
    builder.clear_cache()
    assert builder.build(samples.definition(), samples.solution()) is not runnable


def test_the_tables_of_the_cuda_builder() -> None:
    assert {".cu", ".cuh", ".cpp", ".h"} <= set(CUDA_ALLOWED_EXTS)
    assert set(CUDA_DEPS) == set(CUDA_DEPS_INCLUDE_PATTERNS) == {"cublas", "cudnn", "cutlass"}


@pytest.mark.parametrize("cls", [GQAPagedDecodeAdapter, GQAPagedPrefillAdapter, MLAPagedAdapter, RaggedPrefillAdapter])
def test_an_adapter_has_targets_and_wraps_them(cls: type[Any]) -> None:
    adapter = cls()
    specs = adapter.targets()
    assert all(isinstance(spec, PatchSpec) and spec.path.startswith("flashinfer.") for spec in specs)
    spec = next(spec for spec in specs if spec.path.endswith(".plan"))

    target = next(target for target in cls.adapter.targets if target.path == spec.path)

    def plan(*args: object) -> str:
        return f"planned {len(args)}"

    owner, *others = inspect.signature(target.convert).parameters.values()
    plan.__signature__ = inspect.Signature([owner.replace(name="self"), *others])  # type: ignore[attr-defined]
    wrapper = adapter.make_wrapper(spec, plan)
    assert wrapper is not plan
    assert callable(wrapper)
    with pytest.raises(ValueError, match="not a target"):
        adapter.make_wrapper(PatchSpec("flashinfer.other.function"), len)
