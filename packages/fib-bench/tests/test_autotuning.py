"""Tests of the compilation of autotuned kernels without tuning, with Triton's own autotuner and a recorded kernel."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from fib_bench.worker.autotuning import tune_briefly, untuned_kernels

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


class Measured:
    """Measurements by a benchmark in place of Triton's: a launch takes as many milliseconds as its block is large."""

    def __init__(self) -> None:
        self.kernel = Kernel()
        self.limits: list[tuple[float, float]] = []
        """Milliseconds of warm-up and of measured launches."""

    def do_bench(
        self, call: Callable[[], None], warmup: float = 25, rep: float = 100, quantiles: Sequence[float] = ()
    ) -> list[float]:
        """Launch once; Triton's defaults."""
        self.limits.append((warmup, rep))
        call()
        return [float(self.kernel.launched[-1])] * len(quantiles)

    def tuner(self, *blocks: float, **options: Any) -> Any:
        """An autotuner that measures by Triton's defaults."""
        configs = [autotuner.Config({"BLOCK": block}) for block in blocks]
        return autotuner.Autotuner(self.kernel, ["x", "n"], configs, ["n"], None, None, **options)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    """Measurements after `tune_briefly`."""
    found = Measured()
    monkeypatch.setattr(pytest.importorskip("triton.testing"), "do_bench", found.do_bench)
    monkeypatch.setattr(autotuner.Autotuner, "do_bench", vars(autotuner.Autotuner)["do_bench"])  # undone at the end
    tune_briefly()
    return found


def test_fast_kernels_are_measured_briefly_and_the_fastest_is_chosen(measured: Measured) -> None:
    assert measured.tuner(0.4, 0.2, 0.3).run("x", 7, grid=(1,)) == "ran 0.2"
    assert measured.limits == [(3, 12)] * 3


def test_slow_kernels_are_measured_as_long_as_by_triton(measured: Measured) -> None:
    assert measured.tuner(4.0, 0.2).run("x", 7, grid=(1,)) == "ran 0.2"
    assert measured.limits == [(3, 12), (25, 100), (3, 12)]


def test_a_kernel_that_says_how_to_measure_is_measured_so(measured: Measured) -> None:
    def largest(call: Callable[[], None], quantiles: Sequence[float]) -> list[float]:
        call()
        return [-float(measured.kernel.launched[-1])] * len(quantiles)

    assert measured.tuner(0.4, 0.2, do_bench=largest).run("x", 7, grid=(1,)) == "ran 0.4"
    assert not measured.limits
