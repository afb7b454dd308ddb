"""Comparison of outputs element by element, in every kind of dtype."""

import pytest
import torch
from fib_agents.failures import _compare
from fib_bench.config import ResolvedEvalConfig
from fib_schema import AxisVar, Definition, TensorSpec

DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "int32", "bool")


def compare(dtype, change, value):
    """The wrong outputs where one element of sixteen is changed and the last one unwritten."""
    definition = Definition(
        "d",
        "elementwise",
        {"n": AxisVar()},
        {"x": TensorSpec(("n",), "float32"), "k": TensorSpec(None, "int32")},
        {"y": TensorSpec(("n",), dtype)},
        "def run(x, k):\n    return x\n",
    )
    kind = getattr(torch, dtype)
    values = {"x": torch.arange(16.0), "k": 3}
    expected = (values["x"] % 2).to(kind)
    found = expected.clone()
    found[change] = torch.tensor(value).to(kind)
    found.view(torch.uint8)[-kind.itemsize :] = 0xC3
    return list(_compare(definition, values, {"y": found}, {"y": expected}, ResolvedEvalConfig()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_wrong_and_unwritten_elements_are_found_in_each_dtype(dtype):
    (output,) = compare(dtype, 3, 0.0)
    assert output.elements[0].index == (3,)
    assert output.elements[0].inputs == {"x[3]": "3", "k": "3"}
    assert output.unwritten == 1
    assert not output.elements[0].is_unwritten


def test_an_element_that_is_no_number_is_wrong():
    (output,) = compare("float32", 3, float("nan"))
    assert output.elements[0].index == (3,)
