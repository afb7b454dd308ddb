"""Tests of the number of judges that share a device."""

from __future__ import annotations

import pytest
from fib_bench import BenchmarkConfig
from fib_bench.execution import local
from fib_bench.execution.local import concurrency_of

GIB = 1 << 30


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine of 16 cores with a GPU of 80 GiB."""
    monkeypatch.setattr(local.os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(local, "_smallest_memory_bytes", lambda: 80 * GIB)
    return monkeypatch


def test_a_quarter_of_the_cores_share_a_gpu(machine: pytest.MonkeyPatch) -> None:
    assert concurrency_of(BenchmarkConfig(), "cuda:0") == 4
    assert concurrency_of(BenchmarkConfig(), "cuda:0", devices=2) == 2
    machine.setattr(local.os, "sched_getaffinity", lambda _: {0, 1})
    assert concurrency_of(BenchmarkConfig(), "cuda:0") == 1


@pytest.mark.parametrize(("gib", "judges"), [(141, 4), (40, 2), (24, 1), (8, 1), (0, 1)])
def test_a_small_gpu_has_fewer(machine: pytest.MonkeyPatch, gib: int, judges: int) -> None:
    machine.setattr(local, "_smallest_memory_bytes", lambda: gib * GIB)
    assert concurrency_of(BenchmarkConfig(), "cuda:0") == judges


def test_the_configuration_decides_if_it_names_a_number(machine: pytest.MonkeyPatch) -> None:
    del machine
    assert concurrency_of(BenchmarkConfig(concurrency=16), "cuda:0", devices=4) == 16


def test_timing_on_the_cpu_needs_all_of_it(machine: pytest.MonkeyPatch) -> None:
    del machine
    assert concurrency_of(BenchmarkConfig(concurrency=6), "cpu") == 1
