"""Tests of the compilation of autotuned kernels, by Triton itself for a device that is not there, and of tuning."""

import inspect
import os
import signal
import time
from multiprocessing import active_children
from types import SimpleNamespace

import pytest
import torch
from fib_bench import BenchmarkConfig
from fib_bench.judge.evaluate import Judge
from fib_bench.transport import messages
from fib_bench.transport.protocol import is_readable
from fib_bench.worker import autotuning as ours
from fib_bench.worker import client
from fib_bench.worker.fork_server import identify_triton
from fib_bench.worker.outside_checks import descendants

from .samples import DOUBLE, FORGES, make_solution, make_workload

pytest.importorskip("triton", reason="needs Triton")

from triton import language as tl
from triton import testing
from triton.backends.compiler import GPUTarget
from triton.runtime import autotuner, jit

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of forks beside threads
SLOW = 10**6
"""Statements of a kernel that takes minutes to compile."""


def twice(x, n, BLOCK: tl.constexpr, TIMES: tl.constexpr):
    tl.static_assert(TIMES > 0, "no times")
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.load(x + at, mask=at < n)
    for _ in tl.static_range(TIMES):
        found += found
    tl.store(x + at, found, mask=at < n)


@pytest.fixture
def launched(monkeypatch, tmp_path):
    """The blocks that are launched on a device of 256 threads."""
    identify_triton(["9.0a"])
    for name in ("FIB_CACHE_PATH", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    monkeypatch.setenv(messages.COMPILE_SECONDS_VARIABLE, "600")
    monkeypatch.setattr(jit.JITFunction, "compile", None, raising=False)  # undone at the end, as are the others
    for name in ("do_bench", "prune_configs", "_bench"):
        monkeypatch.setattr(autotuner.Autotuner, name, vars(autotuner.Autotuner)[name])
    monkeypatch.setattr(ours, "send", list.append)
    found: list[int] = []
    utils = SimpleNamespace(
        get_device_properties=lambda _: {"max_shared_mem": 1 << 17}, load_binary=lambda *_: (None, 2, 3, 4, 256)
    )
    device = SimpleNamespace(
        utils=utils,
        get_current_device=lambda: 0,
        get_current_stream=lambda _: 0,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_benchmarker=lambda: testing.do_bench,
        launcher_cls=lambda src, _: lambda *_: found.append(src.constants[2,]),
    )
    monkeypatch.setattr(jit.driver, "_active", device)
    return found


def bench(call, quantiles):
    """Prefers what is measured last."""
    call()
    return [-time.monotonic()] * len(quantiles)


class Worker:
    """Calls of a kernel as in a worker; each configuration has a block, a number of statements and one of warps."""

    def __init__(self, *configs, do_bench=bench, **options):
        self._told: list[messages.Compiling] = []
        self._compiler = ours.Compiler(self._told)
        blocks = [autotuner.Config({"BLOCK": b, "TIMES": times}, num_warps=warps) for b, times, warps in configs]
        kernel = jit.JITFunction(twice)
        given = kernel, kernel.arg_names, blocks, ["n"], None, None
        self.tuner, self.data = autotuner.Autotuner(*given, do_bench=do_bench, **options), torch.zeros(64)

    def call(self, *, is_first):
        """Call the kernel; returns how many kernels are to be tuned or compiled."""
        return self._compiler.call(lambda: self.tuner[1,](self.data, 64), is_first=is_first)

    def told(self):
        """Reports to the judge about configurations that do not work."""
        return [text.partition("(")[2] for message in self._told for text in message.not_compiled]


def fail(*_):
    raise AssertionError("nothing compiles any more")


def test_first_calls_compile_all_in_processes_and_the_next_ones_nothing_and_tune(launched, monkeypatch, tmp_path):
    worker = Worker((16, 1, 4), (32, 1, 4), (64, 1, 4), cache_results=True)
    assert worker.call(is_first=False) == 1
    assert not launched
    assert worker.call(is_first=True) == 1
    assert launched == [16]
    assert not list(tmp_path.rglob("*.autotune.json"))  # no choice is stored
    monkeypatch.setattr(ours, "get_context", fail)
    assert worker.call(is_first=False) == 0
    assert launched == [16, 16, 32, 64, 64]
    assert list(tmp_path.rglob("*.autotune.json"))
    assert worker.call(is_first=True) == 0
    assert worker.told() == []


def test_what_does_not_compile_or_fit_is_left_out_told_and_not_compiled_again(launched, monkeypatch):
    for _ in range(2):
        worker = Worker((16, 0, 4), (32, 1, 16), (64, 1, 4))
        assert worker.call(is_first=True) == 1
        first, second = worker.told()
        assert "CompileTimeAssertionFailure" in first
        assert second.startswith("BLOCK: 32")
        assert "Required: 512, Hardware limit: 256" in second
        assert worker.call(is_first=False) == 0
        monkeypatch.setattr(ours, "get_context", fail)
    assert set(launched) == {64}


def test_what_is_not_ready_at_its_limit_is_left_out(launched, monkeypatch):
    Worker((16, 1, 4), (32, 1, 4)).call(is_first=True)
    monkeypatch.setenv(messages.COMPILE_SECONDS_VARIABLE, "2")
    worker = Worker((64, SLOW, 4), (16, 1, 4), (32, 1, 4))
    assert worker.call(is_first=True) == 1
    assert not active_children()
    (told,) = worker.told()
    assert told.startswith("BLOCK: 64")
    assert told.endswith("not compiled within 2 s")
    assert worker.call(is_first=False) == 0
    assert set(launched) == {16, 32}


def test_a_compiler_that_crashes_costs_its_configuration(launched, monkeypatch):
    monkeypatch.setattr(tl, "static_range", lambda _: os._exit(7))
    with pytest.raises(autotuner.PTXASError, match="its compiler ended with status 7"):
        Worker((16, 1, 4), (32, 0, 4)).call(is_first=True)
    assert not launched


@pytest.mark.usefixtures("launched")
def test_an_error_that_triton_does_not_pass_over_reaches_the_next_call():
    worker = Worker((16, 1, 4), (33, 1, 4))  # no power of two
    assert worker.call(is_first=True) == 1
    with pytest.raises(RuntimeError, match="power of 2"):
        worker.call(is_first=False)


@pytest.mark.usefixtures("launched")
def test_compilers_end_with_their_worker():
    if (pid := os.fork()) == 0:
        Worker((64, SLOW, 4), (32, SLOW, 4)).call(is_first=True)
        os._exit(0)
    while not (compiling := descendants(pid)):
        time.sleep(0.01)
    handles = [os.pidfd_open(each) for each in compiling]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for handle in handles:
        assert is_readable(handle, 60)
        os.close(handle)


COMPILES = """
import time
calls = 0
def run(x):
    global calls
    calls += 1
    for index in range(4) if calls == {} else ():
        forge({{"type": "compiling", "not_compiled": [f"kernel {{index}}"]}})
        time.sleep(0.05)
    return x * 2
"""


@pytest.mark.parametrize(("call", "status"), [(1, "PASSED"), (2, "TIMEOUT")])
def test_compilation_is_no_part_of_the_limit_of_a_first_call(evaluate, monkeypatch, call, status):
    """Between two messages pass 20 of 30 seconds."""
    read, replies = client.Worker._read_replies, []
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 20 * len(replies)))

    def counted(self):
        read(self)
        replies.extend(reply for reply in self._replies if isinstance(reply, messages.Compiling))

    monkeypatch.setattr(client.Worker, "_read_replies", counted)
    (found,) = evaluate(make_solution(FORGES + COMPILES.format(call)), timeout_seconds=30.0)
    assert found.status == status, found.log
    if found.performance is not None:
        assert found.performance.extra["timing"]["not_compiled"] == [f"kernel {index}" for index in range(4)]


ON_A_DEVICE = """
import torch, triton, triton.language as tl
configs = [triton.Config({"BLOCK": 256, "TIMES": times}) for times in (0, 1, 1000000)]
configs += [triton.Config({"BLOCK": block, "TIMES": 1}) for block in (512, 1024, 2048)]

def run(x):
    y = x.clone()
    twice[lambda given: (triton.cdiv(x.numel(), given["BLOCK"]),)](y, x.numel())
    return y

"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_kernel_passes_on_a_device_without_the_configurations_that_do_not_compile():
    judge = Judge(BenchmarkConfig(device="cuda:0", num_trials=2, measure_seconds=1.0))
    decorators = "@triton.autotune(configs, key=['n'], restore_value=['x'])\n@triton.jit\n"
    solution = make_solution(ON_A_DEVICE + decorators + inspect.getsource(twice), hardware=("cuda",))
    prepared = judge.prepare(DOUBLE, make_workload(DOUBLE, {"n": 1 << 20}))
    ((_, found),) = judge.evaluate(DOUBLE, solution, [prepared])
    judge.close()
    assert found.performance is not None, found.log
    failed, slow = found.performance.extra["timing"]["not_compiled"]
    assert "no times" in failed
    assert "not compiled within 30 s" in slow


def test_without_a_device_the_first_configuration_runs(launched):
    ours.take_first_configuration()
    tuner = Worker((16, 1, 4), (32, 1, 4)).tuner
    for size in (7, 8):
        tuner[1,](torch.zeros(8), size)
    assert launched == [16, 16]


@pytest.mark.parametrize(
    ("blocks", "expected"), [((64, 16, 32), [(3, 12)] * 3), ((128, 16), [(3, 12), (25, 100), (3, 12)])]
)
def test_fast_kernels_are_measured_briefly_and_slow_ones_as_long_as_by_triton(launched, monkeypatch, blocks, expected):
    """A launch takes as many units of 10 us as its block is large."""
    limits = []

    def do_bench(call, warmup=25, rep=100, quantiles=()):
        limits.append((warmup, rep))
        call()
        return [launched[-1] / 100] * len(quantiles)

    monkeypatch.setattr(testing, "do_bench", do_bench)
    worker = Worker(*((block, 1, 4) for block in blocks), do_bench=None)
    for is_first in (True, False):
        worker.call(is_first=is_first)
    assert (limits, launched[-1]) == (expected, 16)
    asking = Worker((16, 1, 4), (32, 1, 4))  # says how to measure
    for is_first in (True, False):
        asking.call(is_first=is_first)
    assert (len(limits), launched[-1]) == (len(expected), 32)
