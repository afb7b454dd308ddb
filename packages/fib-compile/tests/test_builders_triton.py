"""TritonBuilder runs kernels in Triton's interpreter on machines without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from fib_compile import jit_environment
from fib_schema import Solution

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs the extra 'triton'")

KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def add_one(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


def run(x, y):
    add_one[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
"""


@pytest.mark.slow
def test_a_kernel_runs_through_the_interpreter(
    make_solution: Callable[..., Solution], run_in_child: Callable[..., str]
) -> None:
    solution = make_solution(KERNEL, language="triton", dps=True)

    assert run_in_child(solution, TRITON_INTERPRET="1") == "triton"


@pytest.mark.gpu
@pytest.mark.usefixtures("needs_gpu")
def test_a_kernel_compiles_and_runs_on_a_device(
    make_solution: Callable[..., Solution], run_in_child: Callable[..., str]
) -> None:
    solution = make_solution(KERNEL, language="triton", dps=True)
    own_cache = jit_environment(solution)

    assert run_in_child(solution, device="cuda:0", **own_cache) == "triton"
    assert any(Path(own_cache["TRITON_CACHE_DIR"]).iterdir())
