"""Times what a user of fib-compile waits for, and prints one line for each number.

Run it with ``python packages/fib-compile/benchmarks/bench_build.py [--solutions 40]`` on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path

from fib_compile import BuilderRegistry
from fib_compile.ahead import BuildState
from fib_schema import AxisVar, BuildSpec, Definition, Solution, SourceFile, TensorSpec

CPP = """
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

void Add(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  const float* from = static_cast<float*>(x.data_ptr());
  float* to = static_cast<float*>(y.data_ptr());
  for (int64_t i = 0; i < x.size(0); ++i) to[i] = from[i] + NUMBER;
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Add);
"""
PYTHON = "import torch\n\n\n@torch.no_grad()\ndef run(x):\n    return x + NUMBER\n"
VECTOR = TensorSpec(("n",), "float32")
DEFINITION = Definition(
    "add", "elementwise", {"n": AxisVar()}, {"x": VECTOR}, {"y": VECTOR}, "def run(x):\n    return x\n"
)


def cpp(number: int) -> Solution:
    """One of as many C++ solutions as one likes."""
    return _solution("cpp", "kernel.cpp", CPP, number, dps=True)


def python(number: int) -> Solution:
    """One of as many Python solutions as one likes."""
    return _solution("python", "kernel.py", PYTHON, number, dps=False)


def _solution(language: str, path: str, text: str, number: int, *, dps: bool) -> Solution:
    spec = BuildSpec(language, ("cpu",), f"{path}::run", destination_passing_style=dps)
    sources = (SourceFile(path, text.replace("NUMBER", str(number))),)
    return Solution(f"{language}_{number}", "add", "bench", spec, sources)


def load_all(make: Callable[[int], Solution], count: int) -> None:
    """Child: the median time to build what the cache holds, imports aside, in milliseconds."""
    import torch  # noqa: F401
    import tvm_ffi  # noqa: F401

    registry = BuilderRegistry.get_instance()
    registry.build(DEFINITION, make(0))
    times = []
    for number in range(1, count):
        solution = make(number)
        start = time.perf_counter()
        registry.build(DEFINITION, solution)
        times.append((time.perf_counter() - start) * 1e3)
    print(json.dumps(statistics.median(times)))


def compile_all(count: int) -> None:
    """Child: how many of the solutions were compiled by this process."""
    outcomes = BuilderRegistry.get_instance().build_many([(DEFINITION, cpp(n)) for n in range(count)], jobs=1)
    print(json.dumps(sum(outcome.state is BuildState.BUILT for outcome in outcomes)))


def _start(name: str, cache: Path, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--child", name, "--solutions", str(count)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "FIB_CACHE_PATH": str(cache)}
    )


def _finish(child: subprocess.Popen[str]) -> float:
    output, _ = child.communicate()
    return float(json.loads(output))


def _ahead(cache: Path, count: int, jobs: int) -> float:
    os.environ["FIB_CACHE_PATH"] = str(cache)
    start = time.perf_counter()
    outcomes = BuilderRegistry.get_instance().build_many([(DEFINITION, cpp(n)) for n in range(count)], jobs=jobs)
    assert all(outcome.state is BuildState.BUILT for outcome in outcomes)
    return time.perf_counter() - start


def _import_ms() -> float:
    code = "import time; s = time.perf_counter(); import fib_compile; print((time.perf_counter() - s) * 1e3)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(7)]
    return statistics.median(float(run.stdout) for run in runs)


def _hit_us() -> float:
    registry = BuilderRegistry.get_instance()
    solution = python(0)
    registry.build(DEFINITION, solution)
    count = 300_000
    best = min(timeit.repeat(lambda: registry.build(DEFINITION, solution), number=count, repeat=5))
    empty = min(timeit.repeat(lambda: None, number=count, repeat=5))
    return (best - empty) / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--solutions", type=int, default=40)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    count: int = options.solutions
    if options.child:
        children = {"cpp": lambda: load_all(cpp, count), "python": lambda: load_all(python, count)}
        children.get(options.child, lambda: compile_all(count))()
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        print(f"import fib_compile: {_import_ms():.0f} ms")
        one, two = (_ahead(root / f"jobs{jobs}", count, jobs) for jobs in (1, 2))
        print(
            f"{count} C++ solutions ahead of time: {one:.1f} s one by one, {two:.1f} s two at once ({one / two:.2f}x)"
        )
        print(f"C++ from the cache, fresh process: {_finish(_start('cpp', root / 'jobs1', count)):.2f} ms each")
        _finish(_start("python", root / "python", count))
        print(f"Python from the cache, fresh process: {_finish(_start('python', root / 'python', count)):.2f} ms each")
        print(f"in-process hit: {_hit_us():.3f} us")
        children = [_start("compile", root / "race", count) for _ in range(8)]
        compiled = sum(_finish(child) for child in children)
        print(f"8 processes, {count} C++ solutions: {compiled:.0f} compilations")


if __name__ == "__main__":
    main()
