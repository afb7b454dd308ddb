"""TritonBuilder runs kernels through Triton's interpreter where there is no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec

import pytest
from fib_compile import PythonBuilder, TritonBuilder
from fib_schema import Solution, format_json

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


def test_triton_solutions_alone_are_taken(make_solution: Callable[..., Solution]) -> None:
    solution = make_solution(KERNEL, language="triton", dps=True)

    assert TritonBuilder().can_build(solution)
    assert not PythonBuilder().can_build(solution)


def test_a_kernel_runs_through_the_interpreter(definition, make_solution: Callable[..., Solution]) -> None:  # type: ignore[no-untyped-def]
    solution = make_solution(KERNEL, language="triton", dps=True)
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=f"{format_json(definition)}\0{format_json(solution)}",
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "triton"
