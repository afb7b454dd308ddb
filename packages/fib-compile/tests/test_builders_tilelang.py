"""TileLangBuilder compiles kernels for the C target on machines without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from fib_compile import TileLangBuilder, jit_environment
from fib_schema import Solution

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

ON_A_DEVICE = (
    KERNEL.replace('target="c"', 'target="cuda"')
    .replace("with Kernel(1)", "with T.Kernel(1, threads=128)")
    .replace("T.grid", "T.Parallel")
)

needs_tilelang = pytest.mark.skipif(
    find_spec("tilelang") is None, reason="needs tilelang: pip install 'fib-compile[tilelang]'"
)


@pytest.mark.skipif(find_spec("tilelang") is not None, reason="tilelang is installed")
def test_without_tilelang_the_builder_says_what_to_install() -> None:
    assert not TileLangBuilder.is_available()
    assert TileLangBuilder.unavailable_reason() == "tilelang is not installed; install 'fib-compile[tilelang]'"


@needs_tilelang
@pytest.mark.slow  # a process of its own imports torch and tilelang, which takes 5 s
def test_a_kernel_compiles_to_c_and_runs(
    make_solution: Callable[..., Solution], run_in_child: Callable[..., str]
) -> None:
    solution = make_solution(KERNEL, language="tilelang", dps=True)
    own_cache = jit_environment(solution)

    assert run_in_child(solution, **own_cache) == "tilelang"
    assert any(Path(own_cache["TILELANG_CACHE_DIR"]).iterdir())


@needs_tilelang
@pytest.mark.gpu
@pytest.mark.usefixtures("needs_gpu")
def test_a_kernel_compiles_and_runs_on_a_device(
    make_solution: Callable[..., Solution], run_in_child: Callable[..., str]
) -> None:
    solution = make_solution(ON_A_DEVICE, language="tilelang", dps=True)

    assert run_in_child(solution, device="cuda:0", **jit_environment(solution)) == "tilelang"
