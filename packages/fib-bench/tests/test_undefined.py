"""Tests of undefined outputs: NaN in the reference is counted, and mostly undefined workloads are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fib_bench import OutputsUndefined
from fib_bench.checking.comparison import raise_if_mostly_undefined
from fib_schema import Definition, Evaluation, Solution, Workload

NAN = float("nan")


def test_one_output_of_which_more_is_undefined_refuses_the_workload() -> None:
    outputs = {"y": torch.tensor([NAN, NAN, 1.0]), "lse": torch.ones(3), "ids": torch.arange(3)}
    with pytest.raises(OutputsUndefined) as caught:
        raise_if_mostly_undefined("gqa", "w", outputs)
    assert caught.value.shares == {"y": pytest.approx(2 / 3), "lse": 0.0, "ids": 0.0}
    assert str(caught.value) == (
        "workload w of 'gqa': the reference leaves outputs undefined: NaN in 66.7% of 'y'; "
        "at most half of an output may be undefined"
    )


HALF = "import torch\ndef run(x):\n    return torch.where(torch.arange(len(x)) < {count}, torch.nan, x * 2)\n"


class TestWorkloads:
    """Whole preparations and evaluations of a reference that leaves elements undefined."""

    def definition(self, make_definition: Callable[..., Definition], count: int) -> Definition:
        return make_definition({"x": "float32[n]"}, {"y": "float32[n]"}, HALF.format(count=count))

    def test_a_solution_may_write_anything_where_little_is_undefined(
        self,
        evaluate: Callable[..., list[Evaluation]],
        make_definition: Callable[..., Definition],
        make_solution: Callable[..., Solution],
        make_workload: Callable[..., Workload],
    ) -> None:
        definition = self.definition(make_definition, 100)
        workloads = [make_workload(definition, {"n": 400})]
        zeros = HALF.format(count=100).replace("torch.nan", "0.0")
        more = HALF.format(count=101).replace("torch.nan", "0.0")
        solutions = [make_solution(code, definition="made", name=name) for name, code in (("a", zeros), ("b", more))]
        right, wrong = evaluate(*solutions, definition=definition, workloads=workloads)
        assert (right.status, wrong.status) == ("PASSED", "INCORRECT_NUMERICAL"), (right.log, wrong.log)
        assert right.extra is not None
        assert right.extra["outputs"]["y"]["undefined_share"] == 0.25
