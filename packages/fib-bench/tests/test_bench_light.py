"""Tests of the count of workloads whose work is known, on the public data set."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType

import pytest
from fib_bench.demo import write_demo

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="needs a checkout: the benchmarks are not in the wheel")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("bench_light")


def test_only_op_types_with_declared_work_are_counted(module: ModuleType, tmp_path: Path) -> None:
    write_demo(tmp_path / "demo")
    assert module.count(tmp_path / "demo") == {"gemm": (3, 3), "rmsnorm": (3, 3), "softmax": (0, 3)}


@pytest.mark.slow
def test_light_can_be_stated_for_80_percent_of_the_public_workloads(module: ModuleType) -> None:
    given = os.environ.get("FIB_TEST_DATASET")
    here = Path(__file__).resolve()
    beside = [parent.parent / "shared" / "flashinfer-trace" for parent in here.parents if (parent / ".git").exists()]
    root = next((path for path in ([Path(given)] if given else beside) if path.is_dir()), None)
    if root is None:
        pytest.skip("the public flashinfer-trace data set is not here; set FIB_TEST_DATASET to its folder")
    known, total = (sum(counts[index] for counts in module.count(root).values()) for index in (0, 1))
    assert total > 100
    assert known >= 0.8 * total
