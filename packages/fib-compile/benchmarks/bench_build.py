"""Benchmark of builds and cache hits. It prints a table in Markdown.

Run it with ``python packages/fib-compile/benchmarks/bench_build.py`` on an idle machine; it takes some minutes.
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
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from fib_compile import BuilderRegistry
from fib_compile.device import library_versions
from fib_compile.registry import BuildState
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
    """The C++ solution of a number."""
    return _solution("cpp", "kernel.cpp", CPP, number, dps=True)


def python(number: int) -> Solution:
    """The Python solution of a number."""
    return _solution("python", "kernel.py", PYTHON, number, dps=False)


def _solution(language: str, path: str, text: str, number: int, *, dps: bool) -> Solution:
    spec = BuildSpec(language, ("cpu",), f"{path}::run", destination_passing_style=dps)
    sources = (SourceFile(path, text.replace("NUMBER", str(number))),)
    return Solution(f"{language}_{number}", "add", "bench", spec, sources)


def load_all(make: Callable[[int], Solution], count: int) -> None:
    """Child process: the median time to build cached solutions, without imports, in milliseconds."""
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
    """Child: the solutions that this process compiled itself."""
    outcomes = BuilderRegistry.get_instance().build_many([(DEFINITION, cpp(n)) for n in range(count)], jobs=1)
    assert all(outcome.state is not BuildState.FAILED for outcome in outcomes)
    print(json.dumps([outcome.solution.name for outcome in outcomes if outcome.state is BuildState.BUILT]))


def _start(name: str, cache: Path, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--child", name, "--solutions", str(count)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "FIB_CACHE_PATH": str(cache)}
    )


def _finish(child: subprocess.Popen[str]) -> Any:
    output, _ = child.communicate()
    return json.loads(output)


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


def _race(cache: Path, count: int) -> str:
    children = [_start("compile", cache, count) for _ in range(8)]
    compiled = [name for child in children for name in _finish(child)]
    assert len(compiled) == len(set(compiled)), "a solution was compiled twice"
    return f"{len(compiled)} compilations"


def _rows(root: Path, solutions: int, raced: int) -> Iterator[tuple[str, str]]:
    yield "`import fib_compile`", f"{_import_ms():.0f} ms"
    one, two = (_ahead(root / f"jobs{jobs}", solutions, jobs) for jobs in (1, 2))
    title = f"{solutions} C++ solutions ahead of time, one by one / `-j 2`"
    yield title, f"{one:.1f} s / {two:.1f} s ({one / two:.2f} times as fast)"
    times = [_finish(_start("cpp", root / "jobs1", solutions)) for _ in range(3)]
    yield "C++ from the cache, fresh process, imports aside", f"{statistics.median(times):.2f} ms"
    _finish(_start("python", root / "python", solutions))
    times = [_finish(_start("python", root / "python", solutions)) for _ in range(3)]
    yield "Python from the cache, fresh process, imports aside", f"{statistics.median(times):.2f} ms"
    yield f"8 processes that build the same {raced} C++ solutions", _race(root / "race", raced)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--solutions", type=int, default=40)
    parser.add_argument("--raced", type=int, default=50)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        children = {"cpp": partial(load_all, cpp), "python": partial(load_all, python), "compile": compile_all}
        children[options.child](options.solutions)
        return
    print(f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {library_versions()}\n", flush=True)
    print("| what | time |\n| --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FIB_CACHE_PATH"] = folder
        for title, result in _rows(Path(folder), options.solutions, options.raced):
            print(f"| {title} | {result} |", flush=True)


if __name__ == "__main__":
    main()
