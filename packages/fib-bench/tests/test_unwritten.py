"""Tests of messages about outputs that a call did not write."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fib_bench.judge.timed_function import explain_unwritten
from fib_schema import Evaluation, Solution

FILL = 0xC3


def filled(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    count = torch.empty(shape, dtype=dtype).nbytes
    return torch.full((count,), FILL, dtype=torch.uint8).view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8, torch.bool, torch.float8_e4m3fn])
def test_an_output_that_still_holds_the_fill_byte_was_never_written(dtype: torch.dtype) -> None:
    assert explain_unwritten({"y": filled(4, 8, dtype=dtype)}, FILL) == [
        "output 'y' was never written: all 32 elements hold the fill value from before the call"
    ]


def test_a_part_that_was_not_written_is_counted_and_located() -> None:
    tensor = filled(4, 8)
    tensor[:3] = 1.0
    assert explain_unwritten({"y": tensor}, FILL) == [
        "output 'y': 8 of 32 elements were never written (the first at [3, 0]): "
        "they hold the fill value from before the call"
    ]


@pytest.mark.parametrize("tensor", [torch.zeros(4), filled(1, dtype=torch.int8), torch.zeros(0), torch.tensor(1.0)])
def test_nothing_is_said_about_written_outputs_and_where_the_fill_may_occur_by_chance(tensor: torch.Tensor) -> None:
    assert explain_unwritten({"y": tensor}, FILL) == []


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("pass", "output 'y' was never written: all 8 elements hold the fill value from before the call"),
        ("y[:6] = x[:6] * 2", "output 'y': 2 of 8 elements were never written (the first at [6]): they hold the fill"),
    ],
)
def test_the_first_line_of_the_log_says_what_was_not_written(
    code: str, message: str, evaluate: Callable[..., list[Evaluation]], make_solution: Callable[..., Solution]
) -> None:
    (found,) = evaluate(make_solution(f"def run(x, y):\n    {code}\n", dps=True))
    first, *_ = found.log.splitlines()
    assert found.status == "INCORRECT_NUMERICAL"
    assert message in first
