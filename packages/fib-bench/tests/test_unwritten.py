"""Tests of messages about outputs that a call did not write."""

import pytest
import torch
from fib_bench.judge.functions import explain_unwritten

from .samples import make_solution

FILL = 0xC3


def filled(*shape, dtype=torch.float32):
    count = torch.empty(shape, dtype=dtype).nbytes
    return torch.full((count,), FILL, dtype=torch.uint8).view(dtype).reshape(shape)


@pytest.mark.parametrize("tensor", [torch.zeros(4), filled(1, dtype=torch.int8), torch.zeros(0), torch.tensor(1.0)])
def test_nothing_is_said_about_written_outputs_and_where_the_fill_may_occur_by_chance(tensor):
    assert explain_unwritten({"y": tensor}, FILL) == []


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("return x", "y: never written; destination_passing_style=true ignores returned values; input set 0 (normal)"),
        ("y[:6] = x[:6] * 2", "y: 2 of 8 elements never written; the first one is [6]; input set 0 (normal)"),
    ],
)
def test_the_first_line_of_the_log_says_what_was_not_written(code, message, evaluate):
    (found,) = evaluate(make_solution(f"def run(x, y):\n    {code}\n", dps=True))
    first, *_ = found.log.splitlines()
    assert found.status == "INCORRECT_NUMERICAL"
    assert first == message
