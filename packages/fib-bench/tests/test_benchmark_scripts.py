"""Tests of the scripts of the benchmarks' folder: the published run, the options on a GPU, the count of known work."""

import importlib
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from fib_bench.demo import write_demo
from fib_schema import Trace, TraceSet

from .samples import DOUBLE, make_definition, make_workload

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="needs a checkout: the benchmarks are not in the wheel")


def load(name):
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCHMARKS))


class TestOptions:
    def test_documented_sections_exist(self):
        module = load("on_gpu")
        assert all(f"``{name}``" in str(module.__doc__) for name in module.SECTIONS)

    def test_all_sections_with_a_limit_run_by_default(self):
        options = load("on_gpu")._parser().parse_args(["--dataset", "x"])
        assert " ".join(options.sections) == "same repeat cupti uncertainty exploits honest coverage exclusive"


def test_only_op_types_with_declared_work_are_counted(tmp_path):
    write_demo(tmp_path / "demo")
    assert load("bench_light").count(tmp_path / "demo") == {"gemm": (3, 3), "rmsnorm": (3, 3), "softmax": (0, 3)}


GEMM = make_definition(
    {"A": "float16[M,K]", "B": "float16[N,K]"},
    {"C": "float16[M,N]"},
    "import torch\n\n\ndef run(A, B):\n    return torch.matmul(A, B.T)\n",
    name="gemm_n32_k16",
    op_type="gemm",
    constants={"N": 32, "K": 16},
)
SCALE = make_definition(
    {"x": "float32[batch_size,64]"}, {"y": "float32[batch_size,64]"}, DOUBLE.reference, name="double_n64"
)


def public_set(root):
    root.mkdir()
    trace_set = TraceSet.from_path(root)
    trace_set.add_definitions([GEMM, SCALE])
    trace_set.add_traces([Trace(GEMM.name, make_workload(GEMM, {"M": rows}, f"m-{rows}")) for rows in (4, 1, 0, 16, 8)])
    return trace_set


def test_recorded_workloads_of_the_published_set_are_spread_by_size_without_empty_ones(tmp_path):
    module = load("published_set")
    chosen, sizes = module.workloads_of(public_set(tmp_path / "set"), GEMM, 2)
    assert ([workload.axes["M"] for workload in chosen], sizes) == ([1, 16], module.RECORDED)


def test_solutions_of_the_published_set_are_those_of_the_table_for_the_device():
    module = load("published_set")
    assert [one.name for one in module.solutions_of(GEMM, "cpu")] == ["gemm_n32_k16_torch"]
    found = {one.name: one.spec.language for one in module.solutions_of(GEMM, "NVIDIA H200")}
    assert found == {"gemm_n32_k16_torch": "python", "gemm_n32_k16_triton": "triton", "gemm_n32_k16_cu": "cuda"}


def test_solutions_of_others_have_different_names():
    assert len({one.name for one in load("others").entries()}) == len(load("others").entries())


def run_script(tmp_path, budget):
    """Run the script on the CPU; returns its output folder."""
    public, out = public_set(tmp_path / "public").root, tmp_path / "out"
    script = [sys.executable, str(BENCHMARKS / "published_run.py"), "--dataset", str(public), "--output", str(out)]
    environment = os.environ | {"FIB_CACHE_PATH": str(tmp_path / "cache")}
    subprocess.run([*script, "--device", "cpu", "--budget", str(budget)], check=True, env=environment)
    return out


@pytest.mark.slow
def test_it_writes_the_data_set_with_traces_the_summary_and_the_page(tmp_path):
    pytest.importorskip("vl_convert", reason="needs the extra 'report'")
    out = run_script(tmp_path, 600)
    with tarfile.open(out / "data-set.tar.xz") as archive:
        archive.extractall(tmp_path / "made", filter="data")
    trace_set = TraceSet.from_path(tmp_path / "made" / "fib-cpu")
    measured = [trace for traces in trace_set.traces.values() for trace in traces if trace.is_successful()]
    assert sorted(str(one.solution) for one in measured) == ["double_n64_reference"] * 3 + ["gemm_n32_k16_torch"] * 3
    assert "gemm_n32_k16_torch" in (out / "summary.txt").read_text()
    assert "for 1 definitions a few workloads that are recorded in the public" in (out / "report.html").read_text()
    assert sum(file.stat().st_size for file in out.iterdir()) < 5 << 20


@pytest.mark.slow
def test_a_spent_budget_ends_it_with_what_was_measured(tmp_path):
    out = run_script(tmp_path, 1)
    assert all(text in (out / "run.txt").read_text() for text in ("not run: the budget is spent", "0 evaluations"))
    assert (out / "data-set.tar.xz").exists()
