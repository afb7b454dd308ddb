"""Tests of the tamper check: a solution that replaces or leaves behind things in its process is noticed."""

from __future__ import annotations

import statistics
import time

import pytest
import torch
from fib_bench.timing.handshake.native import HostNative
from fib_bench.transport import arenas
from fib_bench.worker.passes import Passes
from fib_bench.worker.tamper_check import Watch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


@pytest.fixture
def watch() -> Watch:
    return Watch()


def test_nothing_is_found_where_nothing_was_done(watch: Watch) -> None:
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
    ],
)
def test_what_is_replaced_is_named(watch: Watch, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    monkeypatch.setattr(owner, name, lambda *_: None)
    (found,) = watch.findings()
    assert found.startswith("replaced ")
    assert name in found


def test_other_code_in_the_same_function_is_noticed(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Passes.launch, "__code__", (lambda self, index: None).__code__)
    assert watch.findings() == ["replaced fib_bench.worker.passes.Passes.launch"]


def test_modes_that_are_left_active_are_named(watch: Watch) -> None:
    class Mine(TorchFunctionMode): ...

    class Below(TorchDispatchMode): ...

    with Mine(), Below():
        assert watch.findings() == [f"left active {Mine.__qualname__}", "left active a TorchDispatchMode"]
    assert watch.findings() == []


def test_a_default_device_is_no_finding(watch: Watch) -> None:
    with torch.device("cpu"):
        assert watch.findings() == []
