"""Tests of the selection of the executor, and of the number of judges that share a device."""

from __future__ import annotations

from typing import Any

import pytest
from fib_bench import BenchmarkConfig, InvalidConfig
from fib_bench.execution import executors
from fib_bench.execution.executors import concurrency_of, make_executor

GIB = 1 << 30


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine of 16 cores with a GPU of 80 GiB."""
    monkeypatch.setattr(executors.os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(executors, "_smallest_memory_bytes", lambda: 80 * GIB)
    return monkeypatch


def test_a_quarter_of_the_cores_share_a_gpu(machine: pytest.MonkeyPatch) -> None:
    assert concurrency_of(BenchmarkConfig(), "cuda:0") == 4
    assert concurrency_of(BenchmarkConfig(), "cuda:0", devices=2) == 2
    machine.setattr(executors.os, "sched_getaffinity", lambda _: {0, 1})
    assert concurrency_of(BenchmarkConfig(), "cuda:0") == 1


@pytest.mark.parametrize(("gib", "judges"), [(141, 4), (40, 2), (24, 1), (8, 1), (0, 1)])
def test_a_small_gpu_has_fewer(machine: pytest.MonkeyPatch, gib: int, judges: int) -> None:
    machine.setattr(executors, "_smallest_memory_bytes", lambda: gib * GIB)
    assert concurrency_of(BenchmarkConfig(), "cuda:0") == judges


def test_the_configuration_decides_if_it_names_a_number(machine: pytest.MonkeyPatch) -> None:
    del machine
    assert concurrency_of(BenchmarkConfig(concurrency=16), "cuda:0", devices=4) == 16


def test_timing_on_the_cpu_needs_all_of_it(machine: pytest.MonkeyPatch) -> None:
    del machine
    assert concurrency_of(BenchmarkConfig(concurrency=6), "cpu") == 1


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"executor": "ray", "devices": ("cuda:0",)}, "devices: a Ray cluster lists its devices"),
        ({"address": "auto"}, "address: only a Ray cluster has one"),
    ],
)
def test_what_does_not_go_together(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        make_executor(BenchmarkConfig(**fields), None, {})
    assert said in str(caught.value)
