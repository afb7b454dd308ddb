"""Precision: what was computed with less than float32 is told, whatever sums in another order leave is not."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from fib_bench.checking.precision import MOVED, bounds_of, moved_inputs, relative_errors
from fib_bench.transport.slots import CallLayout, layout_of
from fib_schema import Definition, Evaluation, Solution, Workload

Evaluate = Callable[..., list[Evaluation]]
Make = Callable[..., Definition]


def layout(make_definition: Make, inputs: dict[str, str], values: dict[str, torch.Tensor]) -> CallLayout:
    definition = make_definition(inputs, {"y": "float32[n]"}, "def run(*inputs): ...")
    return layout_of(definition, {"n": len(next(iter(values.values())))}, values)


class TestMovedInputs:
    def packed(self, make_definition: Make, dtype: torch.dtype, spec: str) -> tuple[CallLayout, torch.Tensor]:
        values = {"x": torch.randn(100).to(dtype), "n_ids": torch.arange(100, dtype=torch.int32)}
        made = layout(make_definition, {"x": spec, "n_ids": "int32[n]"}, values)
        memory = torch.zeros(made.input_bytes, dtype=torch.uint8)
        made.pack(values, memory)
        return made, memory

    def test_floats_move_a_little_and_integers_stay(self, make_definition: Make) -> None:
        made, memory = self.packed(make_definition, torch.float32, "float32[n]")
        moved = moved_inputs(made, memory)
        assert moved is not None
        before, after = made.input_tensors(memory), made.input_tensors(moved)
        assert torch.equal(before["n_ids"], after["n_ids"])
        share = ((after["x"] - before["x"]) / before["x"]).abs().max()
        assert 0 < share <= 1.1 * MOVED

    def test_what_comes_in_with_less_is_not_judged(self, make_definition: Make) -> None:
        made, memory = self.packed(make_definition, torch.bfloat16, "bfloat16[n]")
        assert moved_inputs(made, memory) is None


def test_errors_are_relative_to_the_whole_output(make_definition: Make) -> None:
    made = layout(make_definition, {"x": "float32[n]"}, {"x": torch.zeros(4)})
    found, expected = (torch.zeros(made.output_bytes, dtype=torch.uint8) for _ in range(2))
    made.output_tensors(expected)["y"].copy_(torch.tensor([3.0, 4.0, math.inf, 0.0]))
    made.output_tensors(found)["y"].copy_(torch.tensor([3.0, 4.5, math.inf, 0.0]))
    assert relative_errors(made, found, expected) == {"y": pytest.approx(0.1)}


@pytest.mark.parametrize(
    ("moves", "bounds"),
    [
        (1e-5, {"y": 2**-14}),
        (1e-4, {"y": pytest.approx(4e-4, rel=0.01)}),
        (1e-2, {}),  # it jumps
        (0.0, {}),  # it stays: it was rounded
    ],
)
def test_outputs_that_jump_or_stay_are_not_judged(
    make_definition: Make, moves: float, bounds: dict[str, float]
) -> None:
    made = layout(make_definition, {"x": "float32[n]"}, {"x": torch.zeros(100)})
    moved, expected = (torch.zeros(made.output_bytes, dtype=torch.uint8) for _ in range(2))
    made.output_tensors(expected)["y"].copy_(torch.linspace(1, 2, 100))
    made.output_tensors(moved)["y"].copy_(torch.linspace(1, 2, 100) * (1 + moves))
    assert bounds_of(made, moved, expected) == bounds


GEMM = "def run(x, weight):\n    return x @ weight.t()\n"
ROUNDED = """
import torch
def rounded(x, bits):
    half = 1 << (22 - bits)
    return ((x.view(torch.int32) + half) & -(2 * half)).view(torch.float32)
def run(x, weight):
    return rounded(x, {bits}) @ rounded(weight, {bits}).t()
"""
IN_ANOTHER_ORDER = """
import torch
def run(x, weight):
    y = torch.zeros(len(x), len(weight))
    for a, b in zip(x.t().split({step}), weight.t().split({step})):
        y.addmm_(a.t(), b)
    return y
"""


@pytest.fixture
def flags(
    evaluate: Evaluate,
    make_definition: Make,
    make_solution: Callable[..., Solution],
    make_workload: Callable[..., Workload],
) -> Callable[[str, int], list[str]]:
    """What a solution of a matrix product over `k` addends is flagged with."""

    def run(code: str, k: int) -> list[str]:
        definition = make_definition(
            {"x": "float32[m,k]", "weight": "float32[n,k]"}, {"y": "float32[m,n]"}, GEMM, op_type="gemm"
        )
        workloads = [make_workload(definition, {"m": 8, "n": 16, "k": k})]
        (evaluation,) = evaluate(make_solution(code, definition="made"), definition=definition, workloads=workloads)
        assert evaluation.status == "PASSED", evaluation.log
        return list(evaluation.flags)

    return run


@pytest.mark.slow
class TestFlags:
    @pytest.mark.parametrize("k", [64, 1024, 16_384])
    @pytest.mark.parametrize("step", [1, 7, 64])
    def test_an_honest_sum_in_any_order_is_not_flagged(
        self, flags: Callable[[str, int], list[str]], k: int, step: int
    ) -> None:
        if k == 16_384 and step == 1:
            step = 3  # one by one takes a second
        assert flags(IN_ANOTHER_ORDER.format(step=step), k) == []

    @pytest.mark.parametrize("k", [64, 1024, 16_384])
    @pytest.mark.parametrize("bits", [10, 9])
    def test_operands_with_few_bits_are_flagged(
        self, flags: Callable[[str, int], list[str]], k: int, bits: int
    ) -> None:
        assert flags(ROUNDED.format(bits=bits), k) == ["low_precision"]

    def test_exact_sums_are_not_flagged(self, flags: Callable[[str, int], list[str]]) -> None:
        assert flags("def run(x, weight):\n    return (x.double() @ weight.double().t()).float()\n", 4096) == []

    def test_a_reference_that_rounds_sets_no_bound(
        self,
        evaluate: Evaluate,
        make_definition: Make,
        make_solution: Callable[..., Solution],
    ) -> None:
        """Where the reference itself computes in bfloat16, doing it better is no offence."""
        rough = "def run(x):\n    return (x.bfloat16() * 3).float()\n"
        definition = make_definition({"x": "float32[n]"}, {"y": "float32[n]"}, rough)
        (evaluation,) = evaluate(
            make_solution("def run(x):\n    return x * 3\n", definition="made"), definition=definition
        )
        assert (evaluation.status, evaluation.flags) == ("PASSED", ())
