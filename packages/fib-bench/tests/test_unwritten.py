"""Tests of messages about outputs that a call did not write."""

import pytest
import torch
from fib_bench.judge.functions import explain_unwritten

from .samples import make_solution

FILL = 0xC3


def filled(*shape, dtype=torch.float32):
    count = torch.empty(shape, dtype=dtype).nbytes
    return torch.full((count,), FILL, dtype=torch.uint8).view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8, torch.bool, torch.float8_e4m3fn])
def test_an_output_that_still_holds_the_fill_byte_was_never_written(dtype):
    assert explain_unwritten({"y": filled(4, 8, dtype=dtype)}, FILL) == [
        "y: never written; all 32 elements are as before the call"
    ]


def test_a_part_that_was_not_written_is_counted_and_located():
    tensor = filled(4, 8)
    tensor[:3] = 1.0
    assert explain_unwritten({"y": tensor}, FILL) == ["y: 8 of 32 elements never written; the first one is [3, 0]"]


@pytest.mark.parametrize("tensor", [torch.zeros(4), filled(1, dtype=torch.int8), torch.zeros(0), torch.tensor(1.0)])
def test_nothing_is_said_about_written_outputs_and_where_the_fill_may_occur_by_chance(tensor):
    assert explain_unwritten({"y": tensor}, FILL) == []


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("pass", "y: never written; all 8 elements are as before the call; input set 0 (normal)"),
        ("y[:6] = x[:6] * 2", "y: 2 of 8 elements never written; the first one is [6]; input set 0 (normal)"),
    ],
)
def test_the_first_line_of_the_log_says_what_was_not_written(code, message, evaluate):
    (found,) = evaluate(make_solution(f"def run(x, y):\n    {code}\n", dps=True))
    first, *_ = found.log.splitlines()
    assert found.status == "INCORRECT_NUMERICAL"
    assert first == message
