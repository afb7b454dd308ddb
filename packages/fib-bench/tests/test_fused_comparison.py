"""Tests of the fused comparison: its kernels, compiled for this machine, give what torch gives."""

from __future__ import annotations

import ctypes
import fcntl
import math
import mmap
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from fib_bench import ResolvedEvalConfig
from fib_bench.checking import fused_comparison
from fib_bench.checking.comparison import compare
from fib_bench.checking.element_statistics import Rule, statistics_in_torch
from fib_bench.checking.fused_comparison import NotFused, fallback_reason, fused, image_path, kernels_on
from fib_bench.checking.fused_kernels import KINDS, THREADS, Job, Kernels, blocks_of, source
from fib_bench.checking.fused_self_test import check_kernels, compare_ways, sample_pairs
from fib_bench.checking.kernel_cache import NotBuilt, building_ahead, built, cache_folder
from fib_bench.checking.sensitivity import examine
from fib_schema.definition import TORCH_DTYPE_NAMES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
CPU = torch.device("cpu")
DTYPES = sorted(KINDS, key=str)
EMULATION = """
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(threads)
static struct { unsigned x; } threadIdx, blockIdx, gridDim;
static double __longlong_as_double(long long bits) { double value; memcpy(&value, &bits, 8); return value; }
static long long __double_as_longlong(double value) { long long bits; memcpy(&bits, &value, 8); return bits; }
static float __uint_as_float(unsigned bits) { float value; memcpy(&value, &bits, 4); return value; }
static void __threadfence() {}
template <class T> static T min(T a, T b) { return a < b ? a : b; }
template <class T> static T atomicAdd(T* to, T value) { T old = *to; *to += value; return old; }
template <class T> static T atomicMax(T* to, T value) { T old = *to; if (value > old) *to = value; return old; }
static void __syncthreads();
"""
SCHEDULER = """
// Each thread of a block is a fibre; a barrier returns to the scheduler, which continues them in a random order.
static ucontext_t first, start[THREADS];
static jmp_buf scheduler, fibres[THREADS];  // to switch contexts takes two calls of the system each
static char stacks[THREADS][1 << 16];
static bool ended[THREADS];
static void (*kernel)(const Job);
static Job argument;

static void __syncthreads() {
  const unsigned me = threadIdx.x;
  if (!_setjmp(fibres[me])) _longjmp(scheduler, 1);
  threadIdx.x = me;
}

static void thread() {
  const unsigned me = threadIdx.x;
  kernel(argument);
  ended[me] = true;
  _longjmp(scheduler, 1);
}

static void shuffle(unsigned* order, unsigned count) {
  for (unsigned i = 0; i < count; ++i) order[i] = i;
  for (unsigned i = count; i > 1; --i) {
    const unsigned j = rand() % i, kept = order[i - 1];
    order[i - 1] = order[j];
    order[j] = kept;
  }
}

extern "C" int run(const char* name, unsigned blocks, const Job* job) {
  kernel = !strcmp(name, "fib_compare") ? fib_compare : !strcmp(name, "fib_probe") ? fib_probe : fib_extent;
  argument = *job;
  gridDim.x = blocks;
  static unsigned block_order[1 << 20], order[THREADS];
  shuffle(block_order, blocks);
  for (volatile unsigned block = 0; block < blocks; ++block) {
    blockIdx.x = block_order[block];
    for (unsigned i = 0; i < THREADS; ++i) {
      ended[i] = false;
      getcontext(&start[i]);
      start[i].uc_stack.ss_sp = stacks[i];
      start[i].uc_stack.ss_size = sizeof stacks[i];
      makecontext(&start[i], thread, 0);
    }
    volatile bool is_first = true;
    for (volatile unsigned running = THREADS; running; is_first = false) {
      shuffle(order, THREADS);
      for (volatile unsigned i = 0; i < THREADS; ++i) {
        threadIdx.x = order[i];
        if (_setjmp(scheduler)) continue;
        if (is_first) swapcontext(&first, &start[order[i]]);
        else _longjmp(fibres[order[i]], 1);
      }
      running = 0;
      for (unsigned i = 0; i < THREADS; ++i) running += !ended[i];
      if (running && running != THREADS) return 1;  // some threads wait at a barrier that others do not reach
    }
  }
  return 0;
}
extern "C" unsigned job_bytes() { return sizeof(Job); }
"""


DRIVER = """
// What the kernels need of the CUDA driver.
extern "C" int cuModuleLoadData(void** module, const char* image) {
  *module = (void*)0x123456789abcdef0;
  return strcmp(image, "image") ? 200 : 0;
}
extern "C" int cuModuleGetFunction(const char** function, void* module, const char* name) {
  *function = strdup(name);
  return module == (void*)0x123456789abcdef0 ? 0 : 400;
}
extern "C" int cuLaunchKernel(const char* name, unsigned x, unsigned y, unsigned z, unsigned threads,
                              unsigned threads_y, unsigned threads_z, unsigned shared, void* stream, void** arguments,
                              void** extra) {
  const bool is_right = y == 1 && z == 1 && threads == THREADS && threads_y == 1 && threads_z == 1 && !shared && !extra;
  return is_right && stream == (void*)0xfedcba987654 ? run(name, x, (const Job*)arguments[0]) : 1;
}
"""
PROGRAM = """
import torch
from fib_bench.checking.fused_comparison import DriverModule, NotFused
from fib_bench.checking.fused_kernels import Kernels
from fib_bench.checking.fused_self_test import check_kernels
module = DriverModule(b"image")
for stream in (0xfedcba987654, 0):
    kernels = Kernels(lambda name, blocks, job: module.launch(name, blocks, job, stream))
    try:
        check_kernels(kernels, torch.bfloat16, torch.device("cpu"), is_brief=True)
        print("agrees")
    except NotFused as error:
        print(error)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernels, compiled for this machine."""
    path = tmp_path_factory.mktemp("kernels") / "kernels.so"
    return ctypes.CDLL(str(compiled(EMULATION + source() + SCHEDULER, path)))


def compiled(text: str, path: Path) -> Path:
    path.with_suffix(".cpp").write_text(text, "utf-8")
    flags = ["-std=c++17", "-O1", "-U_FORTIFY_SOURCE", "-w", "-shared", "-fPIC"]
    subprocess.run(["c++", *flags, "-o", str(path), str(path.with_suffix(".cpp"))], check=True)
    return path


@pytest.fixture(scope="module")
def kernels(library: ctypes.CDLL) -> Kernels:
    """The kernels on this machine."""

    def launch(name: str, blocks: int, job: Job) -> None:
        status = library.run(name.encode(), blocks, ctypes.byref(job))
        assert status == 0, "threads of a block wait at different barriers"

    return Kernels(launch)


@needs_compiler
def test_the_argument_of_the_kernels_is_the_same_in_both_languages(library: ctypes.CDLL) -> None:
    assert library.job_bytes() == ctypes.sizeof(Job)
    assert f"#define THREADS {THREADS}\n" in source()


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sample_outputs_are_compared_as_by_torch(kernels: Kernels, dtype: torch.dtype) -> None:
    check_kernels(kernels, dtype, CPU)


def test_all_dtypes_of_definitions_are_taken() -> None:
    assert {getattr(torch, name) for name in TORCH_DTYPE_NAMES.values() if hasattr(torch, name)} <= set(KINDS)


dimensions = st.lists(st.sampled_from([1, 2, 3, 7, 16, 31]), min_size=0, max_size=3)
limits = st.sampled_from([0.0, 1e-6, 1e-2, 0.125, 1.0, math.inf])


@needs_compiler
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    shape=st.one_of(
        dimensions, st.sampled_from([[255], [256], [257], [2047], [2048], [2049], [1, 2050], [683, 3], [3, 1370, 1]])
    ),
    dtype=st.sampled_from(DTYPES),
    rule=st.builds(Rule, limits, limits, limits, st.sampled_from([0.0, 0.1, 0.5])),
    chunk=st.sampled_from([6, 100, 1 << 17]),
    seed=st.integers(0, 2**32),
    alike=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    undefined=st.sampled_from([0.0, 0.1, 1.0]),
    ends=st.booleans(),
)
def test_any_outputs_are_compared_as_by_torch(
    kernels: Kernels,
    monkeypatch: pytest.MonkeyPatch,
    shape: list[int],
    dtype: torch.dtype,
    rule: Rule,
    chunk: int,
    seed: int,
    alike: float,
    undefined: float,
    ends: bool,
) -> None:
    """Outputs with undefined, infinite and tied elements, which torch's code compares in one or many chunks."""
    monkeypatch.setattr("fib_bench.checking.elements._CPU_CHUNK", chunk)
    found, expected = outputs(shape, dtype, seed, alike, undefined, ends)
    compare_ways(kernels, found, expected, (rule,), f"{dtype} {shape}")


def outputs(
    shape: list[int], dtype: torch.dtype, seed: int, alike: float, undefined: float, ends: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    size, count = torch.empty(0, dtype=dtype).element_size(), math.prod(shape)
    few = torch.randint(256, (4, size), generator=generator, dtype=torch.uint8)  # few values: errors that are the same
    expected, found = (few[torch.randint(4, (count,), generator=generator)] for _ in range(2))
    is_alike = torch.rand(count, generator=generator) < alike
    if ends:
        is_alike[[0, -1]] = False
    found[is_alike] = expected[is_alike]
    found, expected = (tensor.reshape(-1).view(dtype) for tensor in (found, expected))
    if dtype.is_floating_point and size > 1:
        expected[torch.rand(count, generator=generator) < undefined] = math.nan
    return found.view(shape), expected.view(shape)


@needs_compiler
@pytest.mark.parametrize("fill", [0, 1])
def test_outputs_of_more_blocks_than_threads_are_compared_as_by_torch(kernels: Kernels, fill: int) -> None:
    found = torch.full((300_001, 2), fill, dtype=torch.int8)
    found[[0, 262_144, -1]] = 3
    compare_ways(kernels, found, torch.zeros_like(found), (Rule(0.0, 0.0),), "many blocks")


@given(count=st.one_of(st.integers(1, 10_000), st.integers(1, 2**40)))
def test_blocks_share_all_elements(count: int) -> None:
    blocks, per_block = blocks_of(count)
    assert (blocks - 1) * per_block < count <= blocks * per_block
    assert blocks <= 1024


@pytest.fixture
def guarded() -> Iterator[torch.Tensor]:
    """The last bytes before a page that nobody may read."""
    size = 16 * mmap.PAGESIZE
    memory = mmap.mmap(-1, size + mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    library = ctypes.CDLL(None, use_errno=True)
    assert library.mprotect(ctypes.c_void_p(address + size), mmap.PAGESIZE, 0) == 0
    yield torch.frombuffer(memory, dtype=torch.uint8, count=size)
    assert library.mprotect(ctypes.c_void_p(address + size), mmap.PAGESIZE, 3) == 0


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nothing_behind_an_output_is_read(kernels: Kernels, guarded: torch.Tensor, dtype: torch.dtype) -> None:
    """A read there would end this process."""
    for count in (1, 255, 2050):
        size = count * torch.empty(0, dtype=dtype).element_size()
        found = guarded[-size:].view(dtype)
        expected = found.clone()
        compare_ways(kernels, found, expected, (Rule(0.0, 0.0),), "found")
        compare_ways(kernels, expected, found, (Rule(0.0, 0.0),), "expected")


@pytest.mark.slow
@needs_compiler
def test_the_driver_is_called_with_the_arguments_that_it_expects(tmp_path: Path) -> None:
    """An emulation of the driver launches the emulated kernels, and checks all other arguments."""
    compiled(EMULATION + source() + SCHEDULER + DRIVER, tmp_path / "libcuda.so").rename(tmp_path / "libcuda.so.1")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=False)
    assert (run.stdout, run.stderr) == ("agrees\ncuLaunchKernel failed with error 1 of the CUDA driver\n", "")


@needs_compiler
def test_outputs_of_other_sizes_and_dtypes_are_refused(kernels: Kernels) -> None:
    """The kernels would read beyond them."""
    for found in (torch.ones(3), torch.ones(4, dtype=torch.int32), torch.ones(4, device="meta")):
        with pytest.raises(ValueError, match="cannot compare"):
            kernels.statistics(found, torch.ones(4), Rule(0.0, 0.0), has_undefined=False)


class TestUse:
    """The checks use the kernels, here as on a device."""

    @pytest.fixture(autouse=True)
    def _as_on_a_device(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in ("elements", "element_statistics", "fused_comparison"):
            monkeypatch.setattr(f"fib_bench.checking.{module}.is_on_cpu", lambda tensor: False)
        monkeypatch.setattr(fused_comparison, "_opened", {})

    def opened(self, kernels: Kernels) -> None:
        fused_comparison._opened[CPU] = fused_comparison._Opened(CPU, kernels=kernels)

    @needs_compiler
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_comparisons_are_the_same_in_all_fields(self, kernels: Kernels, dtype: torch.dtype) -> None:
        config = ResolvedEvalConfig(atol=1e-2, rtol=1e-2, error_cap=0.5, required_matched_ratio=0.9)
        for found, expected in sample_pairs(dtype):
            fused_comparison._opened.clear()
            fused_comparison._opened[CPU] = fused_comparison._Opened(CPU, problem="not wanted")
            wanted = compare("y", found, expected, config)
            check = examine("y", expected, {"x": found, "z": expected.clone()}, config)
            self.opened(kernels)
            assert compare("y", found, expected, config) == wanted
            assert examine("y", expected, {"x": found, "z": expected.clone()}, config) == check
            assert fallback_reason() == ""

    def test_kernels_that_give_another_result_are_not_used(self) -> None:
        self.opened(Kernels(lambda name, blocks, job: None))
        result = compare("y", torch.tensor([1.0, 5.0]), torch.tensor([1.0, 2.0]), ResolvedEvalConfig())
        assert (result.wrong, result.worst) == (1, "at [1]: 5.0 instead of 2.0")
        assert fallback_reason().startswith("KernelsDiffer: extent of float32[43, 53]: the kernels give Extent(")

    def test_kernels_that_cannot_be_launched_are_not_used(self) -> None:
        def launch(name: str, blocks: int, job: Job) -> None:
            raise NotFused("cuLaunchKernel failed with error 700 of the CUDA driver")

        self.opened(Kernels(launch))
        assert compare("y", torch.ones(3), torch.zeros(3), ResolvedEvalConfig()).wrong == 3
        assert fallback_reason() == "NotFused: cuLaunchKernel failed with error 700 of the CUDA driver"

    def test_kernels_that_cannot_be_opened_are_not_used(self) -> None:
        """As without a device: an expected tensor on the CPU, of which the driver knows nothing."""
        assert compare("y", torch.ones(3), torch.zeros(3), ResolvedEvalConfig()).wrong == 3
        assert fallback_reason() != ""

    @needs_compiler
    def test_outputs_that_the_kernels_do_not_take_are_compared_by_torch(self, kernels: Kernels) -> None:
        self.opened(kernels)
        for output in (torch.ones(2, dtype=torch.uint16), torch.ones(0)):
            assert fused(output, lambda kernels: kernels) is None
            assert compare("y", output, output.clone(), ResolvedEvalConfig()).is_within(None)
        assert fallback_reason() == ""

    @needs_compiler
    def test_outputs_with_gaps_are_compared(self, kernels: Kernels) -> None:
        self.opened(kernels)
        expected = torch.arange(60.0).view(6, 10)[:, :7].t()
        found = expected.clone()
        found[3, 2] += 1
        assert compare("y", found, expected, ResolvedEvalConfig()).worst == "at [3, 2]: 24.0 instead of 23.0"


class TestCache:
    """Kernels are built once, by a process of its own."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path))
        return tmp_path / "fib-bench-comparison-v1"

    def path(self) -> Path:
        return cache_folder() / "comparison-x.cubin"

    def test_built_kernels_are_read(self) -> None:
        self.path().write_bytes(b"kernels")
        assert built(self.path(), "cuda:0") == b"kernels"

    def test_a_failed_build_is_remembered_with_its_reason(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("fib_bench.checking.kernel_cache.sys.executable", shutil.which("false"))
        for _ in range(2):
            reason = r"the process that checks the kernels ended with status 1 \(to try again, delete .*failed\)"
            with pytest.raises(NotBuilt, match=reason):
                built(self.path(), "cuda:0")
            monkeypatch.setattr("fib_bench.checking.kernel_cache.sys.executable", "it would not start")
        assert folder.stat().st_mode & 0o777 == 0o700

    @pytest.mark.slow
    @pytest.mark.skipif(torch.cuda.device_count() > 0, reason="needs a machine without a CUDA device")
    def test_the_builder_says_what_it_lacks(self) -> None:
        with pytest.raises(NotBuilt, match=r"Error: .*to try again, delete"):
            built(self.path(), "cuda:0")

    def builder(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A program in place of Python, which ends when something is written to a pipe."""
        program, pipe = folder / "builder", folder / "pipe"
        program.write_text(f"#!/bin/sh\nread line < {pipe}")
        program.chmod(0o700)
        os.mkfifo(pipe)
        monkeypatch.setattr("fib_bench.checking.kernel_cache.sys.executable", str(program))
        return pipe

    def test_a_build_ahead_holds_the_lock(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A judge that needs the kernels waits until the process has ended, and other judges start none."""
        pipe = self.builder(tmp_path, monkeypatch)
        with building_ahead("cuda:0") as process:
            assert process is not None
            with building_ahead("cuda:0") as another:
                assert another is None
            with (cache_folder() / "lock").open("wb") as file, pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.path().write_bytes(b"kernels")
            pipe.write_text("end\n")
            assert process.wait() == 0
            assert built(self.path(), "cuda:0") == b"kernels"

    def test_a_build_ahead_ends_with_its_judge(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.builder(tmp_path, monkeypatch)
        with building_ahead("cuda:0") as process:
            assert process is not None
        assert process.returncode == -signal.SIGKILL

    def test_nothing_is_built_ahead_where_kernels_are_or_no_device_is(self) -> None:
        with building_ahead("cpu") as process:
            assert process is None
        self.path().write_bytes(b"kernels")
        with building_ahead("cuda:0") as process:
            assert process is None

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
    def test_another_user_cannot_plant_kernels(self, folder: Path) -> None:
        folder.mkdir()
        os.chown(folder, 12345, 12345)
        with building_ahead("cuda:0") as process:
            assert process is None
        with pytest.raises(PermissionError, match="belongs to user 12345"):
            cache_folder()


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() == 0, reason="needs a CUDA device")
class TestOnDevice:
    """The same kernels, compiled by NVRTC."""

    @pytest.fixture(scope="class")
    @classmethod
    def kernels(cls) -> Kernels:
        device = torch.device("cuda:0")
        return kernels_on(device, built(image_path(device), str(device)))

    def test_they_are_used(self) -> None:
        assert fused(torch.ones(3, device="cuda:0"), lambda kernels: True) is True
        assert fallback_reason() == ""

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_sample_outputs_are_compared_as_by_torch(self, kernels: Kernels, dtype: torch.dtype) -> None:
        check_kernels(kernels, dtype, torch.device("cuda:0"))

    @settings(deadline=None)
    @given(
        shape=st.one_of(dimensions, st.sampled_from([[2049], [683, 3], [3, 400_000], [3_000_000], [1_000_001, 3]])),
        dtype=st.sampled_from(DTYPES),
        rule=st.builds(Rule, limits, limits, limits, st.sampled_from([0.0, 0.1, 0.5])),
        seed=st.integers(0, 2**32),
        alike=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
        undefined=st.sampled_from([0.0, 0.1, 1.0]),
        ends=st.booleans(),
    )
    def test_any_outputs_are_compared_as_by_torch(
        self,
        kernels: Kernels,
        shape: list[int],
        dtype: torch.dtype,
        rule: Rule,
        seed: int,
        alike: float,
        undefined: float,
        ends: bool,
    ) -> None:
        found, expected = (tensor.cuda() for tensor in outputs(shape, dtype, seed, alike, undefined, ends))
        compare_ways(kernels, found, expected, (rule,), f"{dtype} {shape}")

    def test_a_comparison_takes_three_launches_at_most(self, kernels: Kernels) -> None:
        found, expected = (torch.randn(64, 512, device="cuda:0").bfloat16() for _ in range(2))
        rule = Rule(1e-2, 1e-2)

        def launches(compare: Callable[[], object]) -> int:
            compare()
            torch.cuda.synchronize()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
                compare()
                torch.cuda.synchronize()
            return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profile.events())

        by_torch = launches(lambda: statistics_in_torch(found, expected, rule, has_undefined=True))
        by_kernels = launches(lambda: kernels.statistics(found, expected, rule, has_undefined=True))
        assert 1 <= by_kernels <= 3
        assert by_torch > 20
