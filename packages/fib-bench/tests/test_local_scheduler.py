"""Tests of the selection of the executor, and of the number of judges that share a device."""

import os
from types import SimpleNamespace

import pynvml
import pytest
from fib_bench import BenchmarkConfig, InvalidConfig
from fib_bench.execution.scheduler import concurrency_of, make_scheduler


@pytest.mark.parametrize(
    ("cores", "gib", "devices", "judges"),
    [
        (16, 80, 1, 4),  # a quarter of the cores
        (16, 80, 2, 2),
        (2, 80, 1, 1),
        (16, 141, 1, 4),
        (16, 40, 1, 2),  # a small GPU has fewer
        (16, 24, 1, 1),
        (16, 8, 1, 1),
        (16, None, 1, 1),  # NVML does not tell
    ],
)
def test_judges_of_a_gpu_have_cores_and_memory(monkeypatch, cores, gib, devices, judges):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: int(gib is not None))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda _: SimpleNamespace(total=(gib or 0) << 30))
    assert concurrency_of(BenchmarkConfig(), "cuda:0", devices) == judges


def test_the_configuration_decides_if_it_names_a_number():
    assert concurrency_of(BenchmarkConfig(concurrency=16), "cuda:0", devices=4) == 16
    assert concurrency_of(BenchmarkConfig(concurrency=6), "cpu") == 1  # timing on the CPU needs all of it


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"executor": "ray", "devices": ("cuda:0",)}, "devices: a Ray cluster lists its devices"),
        ({"address": "auto"}, "address: only a Ray cluster has one"),
    ],
)
def test_what_does_not_go_together(fields, said):
    with pytest.raises(InvalidConfig) as caught:
        make_scheduler(BenchmarkConfig(**fields), None, {})
    assert said in str(caught.value)
