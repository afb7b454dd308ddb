"""Tests of the compilation of autotuned kernels without tuning, with Triton's own autotuner and a recorded kernel."""

import threading

import pytest
import torch
from fib_bench.worker.autotuning import take_first_configuration, tune_briefly, untuned_kernels

autotuner = pytest.importorskip("triton.runtime.autotuner", reason="needs Triton")
CUDA = torch.device("cuda:0")


def signature(x, n):
    del x, n


class Kernel:
    """A kernel that records which configurations are compiled and launched."""

    def __init__(self, *, broken=(), too_large=()):
        self.fn, self.broken, self.too_large = signature, broken, too_large
        self.compiled: list[int] = []
        self.launched: list[int] = []
        self._lock = threading.Lock()

    def run(self, x, n, *, BLOCK, warmup=False, **_):
        del x, n
        with self._lock:
            (self.compiled if warmup else self.launched).append(BLOCK)
        if BLOCK in self.broken:
            raise autotuner.OutOfResources(1, 0, "registers")
        if BLOCK in self.too_large and not warmup:
            raise autotuner.OutOfResources(1, 0, "shared memory")
        return f"ran {BLOCK}"


@pytest.fixture(autouse=True)
def _no_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)


def make_tuner(kernel, *blocks):
    """An autotuner of a kernel, which prefers the largest block."""

    def bench(call, quantiles):
        del quantiles
        call()
        return [1.0 / kernel.launched[-1]] * 3

    configs = [autotuner.Config({"BLOCK": block}) for block in blocks]
    return autotuner.Autotuner(kernel, ["x", "n"], configs, ["n"], None, None, do_bench=bench)


def test_all_configurations_are_compiled_and_the_first_one_runs():
    kernel = Kernel()
    with untuned_kernels(CUDA) as found:
        assert make_tuner(kernel, 64, 128, 256).run("x", 7, grid=(1,)) == "ran 64"
    assert sorted(kernel.compiled) == [64, 128, 256]
    assert (kernel.launched, len(found)) == ([64], 1)


def test_the_next_call_tunes():
    kernel = Kernel()
    tuner = make_tuner(kernel, 64, 128, 256)
    with untuned_kernels(CUDA):
        tuner.run("x", 7, grid=(1,))
    assert tuner.run("x", 7, grid=(1,)) == "ran 256"
    with untuned_kernels(CUDA) as found:
        assert tuner.run("x", 7, grid=(1,)) == "ran 256"
    assert len(found) == 0


def test_configurations_that_do_not_compile_or_fit_are_passed_over():
    kernel = Kernel(broken=(64,), too_large=(128,))
    with untuned_kernels(CUDA) as found:
        assert make_tuner(kernel, 64, 128, 256).run("x", 7, grid=(1,)) == "ran 256"
    assert found


def test_an_error_of_all_configurations_reaches_the_caller():
    with untuned_kernels(CUDA), pytest.raises(autotuner.OutOfResources):
        make_tuner(Kernel(broken=(64, 128)), 64, 128).run("x", 7, grid=(1,))


def test_a_kernel_of_one_configuration_runs_as_it_is():
    kernel = Kernel()
    with untuned_kernels(CUDA) as found:
        make_tuner(kernel, 64).run("x", 7, grid=(1,))
    assert (kernel.compiled, kernel.launched, len(found)) == ([], [64], 0)


def test_nothing_is_stored_as_the_choice(monkeypatch):
    tuner, stored = make_tuner(Kernel(), 64, 128), []

    def check_disk_cache(self, key, configs, benchmark):
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


def test_the_autotuner_is_as_before_after_an_error():
    before = autotuner.Autotuner.run
    with pytest.raises(ValueError, match="broken"), untuned_kernels(CUDA):
        raise ValueError("broken")
    assert autotuner.Autotuner.run is before


def test_without_a_device_the_first_configuration_runs(monkeypatch):
    for name in ("prune_configs", "_bench"):
        monkeypatch.setattr(autotuner.Autotuner, name, vars(autotuner.Autotuner)[name])  # undone at the end
    take_first_configuration()
    configs = [autotuner.Config({"BLOCK": block}) for block in (2, 4)]
    tuner = autotuner.Autotuner(Kernel(), ["x", "n"], configs, ["n"], None, None)
    assert [tuner.run("x", n, grid=(1,)) for n in (7, 8)] == ["ran 2", "ran 2"]


class Measured:
    """Measurements by a benchmark in place of Triton's: a launch takes as many milliseconds as its block is large."""

    def __init__(self):
        self.kernel = Kernel()
        self.limits: list[tuple[float, float]] = []
        """Milliseconds of warm-up and of measured launches."""

    def do_bench(self, call, warmup=25, rep=100, quantiles=()):
        """Launch once; Triton's defaults."""
        self.limits.append((warmup, rep))
        call()
        return [float(self.kernel.launched[-1])] * len(quantiles)

    def tuner(self, *blocks, **options):
        """An autotuner that measures by Triton's defaults."""
        configs = [autotuner.Config({"BLOCK": block}) for block in blocks]
        return autotuner.Autotuner(self.kernel, ["x", "n"], configs, ["n"], None, None, **options)


@pytest.fixture
def measured(monkeypatch):
    """Measurements after `tune_briefly`."""
    found = Measured()
    monkeypatch.setattr(pytest.importorskip("triton.testing"), "do_bench", found.do_bench)
    monkeypatch.setattr(autotuner.Autotuner, "do_bench", vars(autotuner.Autotuner)["do_bench"])  # undone at the end
    tune_briefly()
    return found


def test_fast_kernels_are_measured_briefly_and_the_fastest_is_chosen(measured):
    assert measured.tuner(0.4, 0.2, 0.3).run("x", 7, grid=(1,)) == "ran 0.2"
    assert measured.limits == [(3, 12)] * 3


def test_slow_kernels_are_measured_as_long_as_by_triton(measured):
    assert measured.tuner(4.0, 0.2).run("x", 7, grid=(1,)) == "ran 0.2"
    assert measured.limits == [(3, 12), (25, 100), (3, 12)]


def test_a_kernel_that_says_how_to_measure_is_measured_so(measured):
    def largest(call, quantiles):
        call()
        return [-float(measured.kernel.launched[-1])] * len(quantiles)

    assert measured.tuner(0.4, 0.2, do_bench=largest).run("x", 7, grid=(1,)) == "ran 0.4"
    assert not measured.limits
