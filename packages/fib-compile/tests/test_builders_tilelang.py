"""TileLangBuilder compiles kernels for the C target where there is no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from fib_compile import PythonBuilder, TileLangBuilder, jit_environment
from fib_schema import Definition, Solution, format_json

KERNEL = """
import tilelang
import tilelang.language as T
from tilelang.language.kernel import Kernel


@tilelang.jit(target="c")
def compiled(rows, columns):
    @T.prim_func
    def add_one(x: T.Tensor((rows, columns), "float32"), y: T.Tensor((rows, columns), "float32")):
        with Kernel(1) as _:
            for i, j in T.grid(rows, columns):
                y[i, j] = x[i, j] + T.float32(1)

    return add_one


def run(x, y):
    compiled(*x.shape)(x, y)
"""

CHILD = """
import sys, torch
from fib_compile import BuilderRegistry
from fib_schema import Definition, Solution, parse_json

definition, solution = sys.stdin.read().split("\\0")
runnable = BuilderRegistry.get_instance().build(parse_json(definition, Definition), parse_json(solution, Solution))
x = torch.arange(200, dtype=torch.float32).reshape(50, 4)
assert torch.equal(runnable.call_value_returning(x), x + 1)
print(runnable.metadata.build_type)
"""


def test_tilelang_solutions_alone_are_taken(make_solution: Callable[..., Solution]) -> None:
    solution = make_solution("def run(x): ...", language="tilelang")

    assert TileLangBuilder().can_build(solution)
    assert not PythonBuilder().can_build(solution)


@pytest.mark.skipif(find_spec("tilelang") is not None, reason="tilelang is installed")
def test_without_tilelang_the_builder_says_what_to_install() -> None:
    assert not TileLangBuilder.is_available()
    assert TileLangBuilder.unavailable_reason() == "tilelang is not installed; install 'fib-compile[tilelang]'"


@pytest.mark.skipif(find_spec("tilelang") is None, reason="needs the extra 'tilelang'")
def test_a_kernel_compiles_to_c_and_runs(definition: Definition, make_solution: Callable[..., Solution]) -> None:
    solution = make_solution(KERNEL, language="tilelang", dps=True)
    own_cache = jit_environment(solution)
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=f"{format_json(definition)}\0{format_json(solution)}",
        env={**os.environ, **own_cache},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "tilelang"
    assert any(Path(own_cache["TILELANG_CACHE_DIR"]).iterdir())
