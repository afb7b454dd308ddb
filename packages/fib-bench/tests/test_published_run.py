"""Tests of the published run: its choice of workloads and solutions, and that it ends with a report."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest
from fib_schema import AxisConst, AxisVar, Definition, RandomInput, TensorSpec, Trace, TraceSet, Workload

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="needs a checkout: the benchmarks are not in the wheel")

GEMM = Definition(
    "gemm_n32_k16",
    "gemm",
    axes={"M": AxisVar(), "N": AxisConst(value=32), "K": AxisConst(value=16)},
    inputs={"A": TensorSpec(("M", "K"), "float16"), "B": TensorSpec(("N", "K"), "float16")},
    outputs={"C": TensorSpec(("M", "N"), "float16")},
    reference="import torch\n\n\ndef run(A, B):\n    return torch.matmul(A, B.T)\n",
)
DOUBLE = Definition(
    "double_n64",
    "elementwise",
    axes={"batch_size": AxisVar(), "n": AxisConst(value=64)},
    inputs={"x": TensorSpec(("batch_size", "n"), "float32")},
    outputs={"y": TensorSpec(("batch_size", "n"), "float32")},
    reference="def run(x):\n    return x * 2\n",
)


@pytest.fixture(scope="module")
def module() -> ModuleType:
    """The module that makes the data set."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module("published_set")
    finally:
        sys.path.remove(str(BENCHMARKS))


def gemm_workload(rows: int) -> Workload:
    return Workload({"M": rows}, {"A": RandomInput(), "B": RandomInput()}, f"m-{rows}")


def public_set(root: Path) -> TraceSet:
    root.mkdir()
    trace_set = TraceSet.from_path(root)
    trace_set.add_definitions([GEMM, DOUBLE])
    trace_set.add_traces([Trace(GEMM.name, gemm_workload(rows)) for rows in (4, 1, 0, 16, 8)])
    return trace_set


class TestWorkloads:
    def test_recorded_ones_are_spread_by_size_and_an_empty_one_is_left_out(
        self, module: ModuleType, tmp_path: Path
    ) -> None:
        chosen, sizes = module.workloads_of(public_set(tmp_path / "set"), GEMM, 2)
        assert [workload.axes["M"] for workload in chosen] == [1, 16]
        assert sizes == module.RECORDED


class TestSolutions:
    def test_they_are_those_of_the_table_for_the_device(self, module: ModuleType) -> None:
        assert [one.name for one in module.solutions_of(GEMM, "cpu")] == ["gemm_n32_k16_torch"]
        found = {one.name: one.spec.language for one in module.solutions_of(GEMM, "NVIDIA H200")}
        assert found == {"gemm_n32_k16_torch": "python", "gemm_n32_k16_triton": "triton", "gemm_n32_k16_cu": "cuda"}


def run_script(tmp_path: Path, budget: int) -> Path:
    """Run the script on the CPU; returns its output folder."""
    public, out = public_set(tmp_path / "public").root, tmp_path / "out"
    script = [sys.executable, str(BENCHMARKS / "published_run.py"), "--dataset", str(public), "--output", str(out)]
    environment = os.environ | {"FIB_CACHE_PATH": str(tmp_path / "cache")}
    subprocess.run([*script, "--device", "cpu", "--budget", str(budget)], check=True, env=environment)
    return out


@pytest.mark.slow
def test_it_writes_the_data_set_with_traces_the_summary_and_the_page(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="needs the extra 'report'")
    out = run_script(tmp_path, 600)
    with tarfile.open(out / "data-set.tar.xz") as archive:
        archive.extractall(tmp_path / "made", filter="data")
    trace_set = TraceSet.from_path(tmp_path / "made" / "fib-cpu")
    measured = [trace for traces in trace_set.traces.values() for trace in traces if trace.is_successful()]
    assert {trace.solution for trace in measured} == {"gemm_n32_k16_torch", "double_n64_reference"}
    assert len(measured) == 6
    assert "gemm_n32_k16_torch" in (out / "summary.txt").read_text()
    assert "for 1 definitions a few workloads that are recorded in the public" in (out / "report.html").read_text()
    assert sum(file.stat().st_size for file in out.iterdir()) < 5 << 20


@pytest.mark.slow
def test_a_spent_budget_ends_it_with_what_was_measured(tmp_path: Path) -> None:
    out = run_script(tmp_path, 1)
    assert "not run: the budget is spent" in (out / "run.txt").read_text()
    assert "0 evaluations" in (out / "run.txt").read_text()
    assert (out / "data-set.tar.xz").exists()
