"""Environment variables start routing, at the first call of a function that may be routed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from flashinfer_bench import Correctness, Environment, Evaluation, Performance, Trace, TraceSet, env

Run = Callable[..., str]

CALL = """
import fib_apply, torch
from flashinfer_bench import apply

@apply("rmsnorm_h64")
def rmsnorm(x, weight):
    print("fallback")
    return torch.nn.functional.rms_norm(x, (64,), weight, 1e-6)

assert fib_apply.wait_until_built(120)
rmsnorm(torch.ones(8, 64), torch.ones(64))
rmsnorm(torch.ones(21, 64), torch.ones(64))
"""


@pytest.fixture
def measured(data_set: Path) -> Path:
    """A data set with a passing trace of the workload of eight rows."""
    data = TraceSet.from_path(data_set)
    evaluation = Evaluation(
        status="PASSED",
        environment=Environment(hardware="cpu"),
        timestamp="2026-01-01T00:00:00Z",
        correctness=Correctness(),
        performance=Performance(latency_ms=0.1, reference_latency_ms=1.0, speedup_factor=10.0),
    )
    workload = data.workloads["rmsnorm_h64"][1].workload
    data.add_traces([Trace(definition="rmsnorm_h64", workload=workload, solution="plain", evaluation=evaluation)])
    return data_set


@pytest.mark.slow
def test_apply_starts_by_its_variable(measured: Path, run: Run) -> None:
    assert run(CALL, FIB_DATASET_PATH=str(measured), FIB_ENABLE_APPLY="1").split() == ["fallback"]


def test_variables_are_read_at_each_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, read in (("APPLY", env.get_fib_enable_apply), ("TRACING", env.get_fib_enable_tracing)):
        for value, expected in (("1", True), ("0", False), ("", False)):
            monkeypatch.setenv(f"FIB_ENABLE_{name}", value)
            assert read() is expected
    monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path))
    monkeypatch.delenv("FIB_CACHE_PATH", raising=False)
    assert env.get_fib_dataset_path() == tmp_path
    assert env.get_fib_cache_path() == Path.home() / ".cache" / "flashinfer_bench" / "cache"
