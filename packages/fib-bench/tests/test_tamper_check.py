"""Tests of the tamper check: a solution that replaces or leaves behind things in its process is noticed."""

import statistics
import time

import pytest
import torch
from fib_bench.timing.handshake.native import HostNative
from fib_bench.transport import arenas
from fib_bench.worker import host_reads
from fib_bench.worker.passes import Passes
from fib_bench.worker.tamper_check import Watch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


@pytest.fixture
def watch():
    return Watch()


def test_nothing_is_found_where_nothing_was_done(watch):
    torch.randn(4).sum().item()
    assert watch.findings() == []


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (time, "perf_counter_ns"),
        (statistics, "median"),
        (torch, "allclose"),
        (torch.Tensor, "copy_"),
        (torch.cuda.Event, "elapsed_time"),
        (torch.cuda, "synchronize"),
        (HostNative, "stop"),
        (Passes, "__init__"),
        (arenas, "_element_type_and_bytes"),
        (host_reads, "_SIZED"),
    ],
)
def test_what_is_replaced_is_named(watch, monkeypatch, owner, name):
    monkeypatch.setattr(owner, name, lambda *_: None)
    (found,) = watch.findings()
    assert found.startswith("replaced ")
    assert name in found


@pytest.mark.parametrize("table", [host_reads._SIZED, host_reads._NAMES])
def test_tables_of_recorded_reads_cannot_be_changed(table):
    with pytest.raises(TypeError):
        table[next(iter(table))] = "mine"


def test_other_code_in_the_same_function_is_noticed(watch, monkeypatch):
    monkeypatch.setattr(Passes.launch, "__code__", (lambda self, request: None).__code__)
    assert watch.findings() == ["replaced fib_bench.worker.passes.Passes.launch"]


def test_modes_that_are_left_active_are_named(watch):
    class Mine(TorchFunctionMode): ...

    class Below(TorchDispatchMode): ...

    with Mine(), Below():
        assert watch.findings() == [f"left active {Mine.__qualname__}", "left active a TorchDispatchMode"]
    assert watch.findings() == []


def test_a_default_device_is_no_finding(watch):
    with torch.device("cpu"):
        assert watch.findings() == []
