"""Benchmarks, inputs and references on the public data set, on the CPU."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from fib_bench import Benchmark, BenchmarkConfig, make_inputs
from fib_schema import EvaluationStatus, TraceSet, evaluate_constraint
from public_data_set import (
    data_set_path,
    definition_names,
    narrowed,
    needs_data_set,
    public_set,
    size_bytes,
    small_workload,
)
from solution_table import entry_of

SOLUTIONS = (
    ("rmsnorm_h512", "rmsnorm_torch.py"),
    ("rmsnorm_h512", "rmsnorm_triton.py"),
    ("rmsnorm_h512", "rmsnorm.cpp"),
    ("gemm_n128_k2048", "gemm_torch.py"),
    ("gemm_n128_k2048", "gemm_triton.py"),
    ("gqa_paged_prefill_causal_h32_kv8_d128_ps1", "gqa_paged_prefill_torch.py"),
    ("gqa_paged_prefill_causal_h32_kv8_d128_ps1", "gqa_paged_prefill.cpp"),
)
LIMITS = {"batch_size": 64, "M": 16, "total_q": 40, "num_kv_indices": 200, "num_pages": 14_000}
"""The largest sizes of workloads to run here."""
WORKLOADS = 2
"""The number of workloads per definition."""
pytestmark = needs_data_set


@pytest.fixture
def root(tmp_path):
    """A copy of the definitions and workloads of `SOLUTIONS`, with these solutions."""
    for folder in ("definitions", "workloads"):
        shutil.copytree(data_set_path() / folder, tmp_path / folder, ignore=_ignore_others)
    trace_set = TraceSet.from_path(tmp_path)
    trace_set.add_solutions([entry_of(file).solution(trace_set.definitions[name], "cpu") for name, file in SOLUTIONS])
    return tmp_path


def _ignore_others(folder, names):
    ours = {definition for definition, _ in SOLUTIONS}
    return [name for name in names if (Path(folder) / name).is_file() and Path(name).stem not in ours]


def _keep_small_workloads(root):
    """Remove large and undefined workloads from the copy; returns the number of remaining evaluations."""
    left = 0
    for file in (root / "workloads").rglob("*.jsonl"):
        lines = file.read_text("utf-8").splitlines()
        kept = [line for line in lines if _is_suitable(json.loads(line)["workload"]["axes"])][:WORKLOADS]
        file.write_text("".join(f"{line}\n" for line in kept), "utf-8")
        left += len(kept) * sum(definition == file.stem for definition, _ in SOLUTIONS)
    return left


def _is_suitable(axes):
    """Whether a workload is small, and defined: in causal attention, more queries than keys leave rows without a key.

    The data set has such workloads. Their outputs are mostly NaN, and fib-bench refuses them.
    """
    is_small = all(size <= LIMITS.get(axis, size) for axis, size in axes.items())
    return is_small and axes.get("total_q", 0) <= axes.get("num_kv_indices", 0)


@pytest.mark.slow
def test_solutions_pass_and_every_trace_is_explained(root):
    count = _keep_small_workloads(root)
    assert count >= 2 * len(SOLUTIONS)
    config = BenchmarkConfig(
        synthesize_missing=True,
        iterations=5,
        num_trials=2,
        cpu_processes=1,
        measure_seconds=0.02,
        profile_baseline=False,
    )
    result = Benchmark(TraceSet.from_path(root), config).run()
    assert result.skipped == ()
    traces = [trace for group in TraceSet.from_path(root).traces.values() for trace in group]
    assert len(traces) == len(result.traces) == count
    for trace in traces:
        evaluation = trace.evaluation
        assert evaluation.status is EvaluationStatus.PASSED, f"{trace.solution}: {evaluation.log}"
        assert evaluation.extra
        assert evaluation.correctness.extra
        assert evaluation.performance.latency_ms > 0
        assert evaluation.performance.extra


@pytest.mark.parametrize("name", definition_names())
def test_inputs_satisfy_the_constraints(name):
    """Definitions whose constants make tensors of more than 8 MiB are narrowed first."""
    definition = public_set().definitions[name]
    if size_bytes(definition) > 8 << 20:
        definition = narrowed(definition)
    workload = small_workload(definition)
    inputs = make_inputs(definition, workload, seed=0)
    assert list(inputs) == list(definition.inputs)
    values = {**definition.const_axes, **workload.axes, **inputs}
    assert all(evaluate_constraint(constraint, values) for constraint in definition.constraints)
    for tensor in inputs.values():
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            assert tensor.float().isfinite().all()
