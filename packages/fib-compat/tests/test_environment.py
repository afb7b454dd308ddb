"""The environment alone starts routing and tracing, at the first call of a function that may be routed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from flashinfer_bench import env

Run = Callable[..., str]

CALL = """
import sys
import torch
from flashinfer_bench import TraceSet, apply

@apply("rmsnorm_h64")
def rmsnorm(x, weight):
    print("fallback")
    return torch.nn.functional.rms_norm(x, (64,), weight, 1e-6)

rmsnorm(torch.ones(8, 64), torch.ones(64))
rmsnorm(torch.ones(21, 64), torch.ones(64))
"""
RECORD = """
import sys
from flashinfer_bench import *
data = TraceSet.from_path(sys.argv[1])
evaluation = Evaluation(status="PASSED", environment=Environment(hardware="cpu"), timestamp="2026-01-01T00:00:00Z",
    correctness=Correctness(), performance=Performance(latency_ms=0.1, reference_latency_ms=1.0, speedup_factor=10.0))
workload = data.workloads["rmsnorm_h64"][1].workload
data.add_traces([Trace(definition="rmsnorm_h64", workload=workload, solution="plain", evaluation=evaluation)])
"""
SIZES = """
import sys
from flashinfer_bench import TraceSet
print(sorted({trace.workload.axes["batch"] for trace in TraceSet.from_path(sys.argv[1]).workloads["rmsnorm_h64"]}))
"""


def test_apply_starts_by_its_variable(data_set: Path, run: Run) -> None:
    run("-c", RECORD, data_set)
    assert run("-c", CALL, FIB_DATASET_PATH=str(data_set)).split() == ["fallback", "fallback"]
    assert run("-c", CALL, FIB_DATASET_PATH=str(data_set), FIB_ENABLE_APPLY="1").split() == ["fallback"]


def test_tracing_starts_by_its_variable(data_set: Path, run: Run) -> None:
    run("-c", CALL, FIB_DATASET_PATH=str(data_set))
    assert run("-c", SIZES, data_set) == "[1, 8]"
    run("-c", CALL, FIB_DATASET_PATH=str(data_set), FIB_ENABLE_TRACING="1")
    assert run("-c", SIZES, data_set) == "[1, 8, 21]"


def test_variables_are_read_when_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, ask in (("APPLY", env.get_fib_enable_apply), ("TRACING", env.get_fib_enable_tracing)):
        for value, expected in (("1", True), ("0", False), ("", False)):
            monkeypatch.setenv(f"FIB_ENABLE_{name}", value)
            assert ask() is expected
    monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path))
    monkeypatch.delenv("FIB_CACHE_PATH", raising=False)
    assert env.get_fib_dataset_path() == tmp_path
    assert env.get_fib_cache_path() == Path.home() / ".cache" / "flashinfer_bench" / "cache"
