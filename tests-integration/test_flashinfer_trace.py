"""The main job on the public data set, on the CPU: every evaluation is made and explained."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import attrs
import pytest
import torch
from fib_bench import Benchmark, BenchmarkConfig, make_inputs
from fib_bench.cli.main import main
from fib_bench.transport.slots import call_bytes
from fib_compile import BuilderRegistry
from fib_schema import (
    AxisConst,
    AxisVar,
    BuildSpec,
    Definition,
    EvaluationStatus,
    RandomInput,
    Solution,
    SourceFile,
    TraceSet,
    Workload,
    evaluate_constraint,
)

HERE = Path(__file__).parent
SIZES = {
    "M": 3,
    "batch_size": 3,
    "len_cu_seqlens": 4,
    "len_indptr": 4,
    "max_seq_len": 64,
    "num_kv_heads": 2,
    "num_kv_indices": 20,
    "num_pages": 24,
    "num_qo_heads": 4,
    "num_seqs": 3,
    "num_tokens": 5,
    "pool_size": 8,
    "seq_len": 3,
    "state_cache_size": 8,
    "total_kv": 20,
    "total_q": 12,
    "total_seq_len": 12,
}
"""Small values for every variable axis of the data set; together they satisfy its constraints."""
SOLUTIONS = (
    ("rmsnorm_h512", "rmsnorm_torch.py"),
    ("rmsnorm_h512", "rmsnorm_triton.py"),
    ("rmsnorm_h512", "rmsnorm.cpp"),
    ("gemm_n128_k2048", "gemm_torch.py"),
    ("gemm_n128_k2048", "gemm_triton.py"),
    ("gqa_paged_prefill_causal_h32_kv8_d128_ps1", "gqa_paged_prefill_torch.py"),
    ("gqa_paged_prefill_causal_h32_kv8_d128_ps1", "gqa_paged_prefill.cpp"),
)
SMALL = {"batch_size": 64, "M": 16, "total_q": 40, "num_kv_indices": 200, "num_pages": 5000}
"""The largest sizes of workloads to run here."""


def _data_set() -> Path:
    given = os.environ.get("FIB_TEST_DATASET")
    return Path(given) if given else HERE.parent.parent / "shared" / "flashinfer-trace"


pytestmark = pytest.mark.skipif(
    not (_data_set() / "definitions").is_dir(),
    reason="the public flashinfer-trace data set is not here; set FIB_TEST_DATASET to its folder",
)


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of definitions and workloads, with our solutions and with small workloads only."""
    for folder in ("definitions", "workloads"):
        shutil.copytree(_data_set() / folder, tmp_path / folder, ignore=_all_but_ours)
    trace_set = TraceSet.from_path(tmp_path)
    trace_set.add_solutions([_solution(definition, file) for definition, file in SOLUTIONS])
    return tmp_path


def _all_but_ours(folder: str, names: list[str]) -> list[str]:
    ours = {definition for definition, _ in SOLUTIONS}
    return [name for name in names if (Path(folder) / name).is_file() and Path(name).stem not in ours]


def _solution(definition: str, file: str) -> Solution:
    kinds = {".cpp": "cpp", ".py": "triton" if "triton" in file else "python"}
    language = kinds[Path(file).suffix]
    spec = BuildSpec(language, ("cpu",), f"{file}::run", destination_passing_style=language != "python")
    source = SourceFile(file, (HERE / "solutions" / file).read_text("utf-8"))
    return Solution(Path(file).stem + f"_{language}", definition, "tests", spec, (source,))


def _keep_small_workloads(root: Path) -> int:
    """Remove large workloads from the copy; says how many evaluations are left."""
    left = 0
    for file in (root / "workloads").rglob("*.jsonl"):
        lines = [
            line for line in file.read_text("utf-8").splitlines() if _is_small(json.loads(line)["workload"]["axes"])
        ]
        file.write_text("".join(f"{line}\n" for line in lines[:3]), "utf-8")
        left += len(lines[:3]) * sum(definition == file.stem for definition, _ in SOLUTIONS)
    return left


def _is_small(axes: Mapping[str, int]) -> bool:
    return all(size <= SMALL.get(axis, size) for axis, size in axes.items())


def test_solutions_run_on_it_and_every_trace_is_explained(root: Path) -> None:
    count = _keep_small_workloads(root)
    assert count >= 2 * len(SOLUTIONS)
    config = BenchmarkConfig(synthesize_missing=True, iterations=5, num_trials=2, measure_seconds=0.2)
    result = Benchmark(TraceSet.from_path(root), config).run()
    assert result.skipped == ()
    traces = [trace for group in TraceSet.from_path(root).traces.values() for trace in group]
    assert len(traces) == len(result.traces) == count
    for trace in traces:
        evaluation = trace.evaluation
        assert evaluation is not None
        assert evaluation.status is EvaluationStatus.PASSED, f"{trace.solution}: {evaluation.log}"
        assert evaluation.extra
        assert evaluation.correctness is not None
        assert evaluation.correctness.extra
        assert evaluation.performance is not None
        assert evaluation.performance.latency_ms > 0
        assert evaluation.performance.extra


def test_without_its_blobs_the_command_says_what_is_missing_and_runs_the_rest(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("rmsnorm_torch_python", "gqa_paged_prefill_torch_python")
    assert main(["run", str(root), "--solutions", *names, "--max-workloads", "1", "--json"]) == 1
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert [trace["solution"] for trace in result["traces"]] == ["rmsnorm_torch_python"]
    assert "pass --synthesize-missing to make valid inputs" in result["skipped"][0]["reason"]


def _definitions() -> list[str]:
    folder = _data_set() / "definitions"
    return list(TraceSet.from_path(folder.parent).definitions) if folder.is_dir() else []


def _small_workload(definition: Definition) -> Workload:
    axes = {axis: SIZES[axis] for axis in definition.var_axes}
    return Workload(axes, {name: RandomInput() for name in definition.inputs}, "small")


def _narrowed(definition: Definition) -> Definition:
    """The definition with its wide axes cut to a sixteenth: the rules are the same, the tensors are not huge."""
    axes: dict[str, AxisConst | AxisVar] = {}
    for name, axis in definition.axes.items():
        is_wide = isinstance(axis, AxisConst) and axis.value >= 512
        axes[name] = AxisConst(axis.value // 16) if isinstance(axis, AxisConst) and is_wide else axis
    return attrs.evolve(definition, axes=axes)


@pytest.mark.parametrize("name", _definitions())
def test_inputs_that_satisfy_the_constraints_can_be_made(name: str) -> None:
    """Definitions whose constants make tensors of more than 256 MiB are narrowed first."""
    definition = TraceSet.from_path(_data_set()).definitions[name]
    if call_bytes(definition, _small_workload(definition).axes) > 256 << 20:
        definition = _narrowed(definition)
    workload = _small_workload(definition)
    inputs = make_inputs(definition, workload, seed=0)
    assert list(inputs) == list(definition.inputs)
    values = {**definition.const_axes, **workload.axes, **inputs}
    assert all(evaluate_constraint(constraint, values) for constraint in definition.constraints)
    for tensor in inputs.values():
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            assert tensor.float().isfinite().all()


OP_TYPES = (
    "dsa_paged",
    "gdn",
    "gemm",
    "gqa_paged",
    "gqa_ragged",
    "mamba_ssu",
    "mla_paged",
    "mla_ragged",
    "rmsnorm",
    "rope",
    "sampling",
)
"""All but ``moe``: its smallest reference needs gigabytes, and checks its constants."""


@pytest.mark.parametrize("op_type", OP_TYPES)
def test_references_make_something_of_the_inputs(op_type: str) -> None:
    """Finite and not all zero, for every definition of the op_type that is not large."""
    trace_set = TraceSet.from_path(_data_set())
    small = [d for d in trace_set.definitions.values() if d.op_type == op_type]
    small = [d for d in small if call_bytes(d, _small_workload(d).axes) <= 64 << 20]
    assert small
    for definition in small:
        inputs = make_inputs(definition, _small_workload(definition), seed=0)
        results = BuilderRegistry.get_instance().build_reference(definition).call_value_returning(*inputs.values())
        outputs = results if isinstance(results, tuple) else (results,)
        for name, output in zip(definition.outputs, outputs, strict=True):
            assert output.float().isfinite().all(), f"{definition.name}: {name}"
            assert output.float().abs().sum() > 0, f"{definition.name}: {name}"
