"""Tests of the compilation of autotuned kernels without tuning, with Triton's own autotuner and a recorded kernel."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fib_bench.worker.autotuning import untuned_kernels

autotuner = pytest.importorskip("triton.runtime.autotuner", reason="needs Triton")
CUDA = torch.device("cuda:0")


def signature(x: Any, n: int) -> None:
    """The signature of the kernel."""
    del x, n


class Kernel:
    """A kernel that records which configurations are compiled and launched."""

    def __init__(self, *, broken: tuple[int, ...] = (), too_large: tuple[int, ...] = ()) -> None:
        self.fn, self.broken, self.too_large = signature, broken, too_large
        self.compiled: list[int] = []
        self.launched: list[int] = []
        self._lock = threading.Lock()

    def run(self, x: Any, n: int, *, BLOCK: int, warmup: bool = False, **_: Any) -> str:
        """Compile or launch a configuration."""
        del x, n
        with self._lock:
            (self.compiled if warmup else self.launched).append(BLOCK)
        if BLOCK in self.broken:
            raise autotuner.OutOfResources(1, 0, "registers")
        if BLOCK in self.too_large and not warmup:
            raise autotuner.OutOfResources(1, 0, "shared memory")
        return f"ran {BLOCK}"


@pytest.fixture(autouse=True)
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)


@pytest.fixture
def make_tuner() -> Callable[..., Any]:
    """An autotuner of a kernel, which prefers the largest block."""

    def make(kernel: Kernel, *blocks: int) -> Any:
        def bench(call: Callable[[], object], quantiles: object) -> list[float]:
            del quantiles
            call()
            return [1.0 / kernel.launched[-1]] * 3

        configs = [autotuner.Config({"BLOCK": block}) for block in blocks]
        return autotuner.Autotuner(kernel, ["x", "n"], configs, ["n"], None, None, do_bench=bench)

    return make


def test_all_configurations_are_compiled_and_the_first_one_runs(make_tuner: Callable[..., Any]) -> None:
    kernel = Kernel()
    with untuned_kernels(CUDA) as found:
        assert make_tuner(kernel, 64, 128, 256).run("x", 7, grid=(1,)) == "ran 64"
    assert sorted(kernel.compiled) == [64, 128, 256]
    assert (kernel.launched, found.count) == ([64], 1)


def test_the_next_call_tunes(make_tuner: Callable[..., Any]) -> None:
    kernel = Kernel()
    tuner = make_tuner(kernel, 64, 128, 256)
    with untuned_kernels(CUDA):
        tuner.run("x", 7, grid=(1,))
    assert tuner.run("x", 7, grid=(1,)) == "ran 256"
    with untuned_kernels(CUDA) as found:
        assert tuner.run("x", 7, grid=(1,)) == "ran 256"
    assert found.count == 0


def test_configurations_that_do_not_compile_or_fit_are_passed_over(make_tuner: Callable[..., Any]) -> None:
    kernel = Kernel(broken=(64,), too_large=(128,))
    with untuned_kernels(CUDA) as found:
        assert make_tuner(kernel, 64, 128, 256).run("x", 7, grid=(1,)) == "ran 256"
    assert found.count


def test_an_error_of_all_configurations_reaches_the_caller(make_tuner: Callable[..., Any]) -> None:
    with untuned_kernels(CUDA), pytest.raises(autotuner.OutOfResources):
        make_tuner(Kernel(broken=(64, 128)), 64, 128).run("x", 7, grid=(1,))


def test_a_kernel_of_one_configuration_runs_as_it_is(make_tuner: Callable[..., Any]) -> None:
    kernel = Kernel()
    with untuned_kernels(CUDA) as found:
        make_tuner(kernel, 64).run("x", 7, grid=(1,))
    assert (kernel.compiled, kernel.launched, found.count) == ([], [64], 0)


def test_nothing_is_stored_as_the_choice(make_tuner: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tuner, stored = make_tuner(Kernel(), 64, 128), []

    def check_disk_cache(self: Any, key: object, configs: object, benchmark: Callable[[], None]) -> bool:
        del self, key, configs
        benchmark()
        stored.append("choice")
        return False

    monkeypatch.setattr(autotuner.Autotuner, "check_disk_cache", check_disk_cache)
    tuner.cache_results = True
    with untuned_kernels(CUDA):
        tuner.run("x", 7, grid=(1,))
    assert not stored
    tuner.run("x", 7, grid=(1,))
    assert stored == ["choice"]


def test_the_autotuner_is_as_before_after_an_error() -> None:
    before = autotuner.Autotuner.run
    with pytest.raises(ValueError, match="broken"), untuned_kernels(CUDA):
        raise ValueError("broken")
    assert autotuner.Autotuner.run is before
