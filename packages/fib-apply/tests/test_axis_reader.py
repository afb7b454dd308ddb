"""Axis readers: they return and raise what the definition's own method does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fib_apply.axis_reader import compile_axis_reader
from fib_schema import AxisConst, AxisError, AxisVar, Definition, TensorSpec
from hypothesis import given
from hypothesis import strategies as st

AXES = {"m": AxisVar(), "n": AxisVar(), "h": AxisConst(2)}


def outcome(read: Any, inputs: Any) -> Any:
    try:
        return read(inputs)
    except (AxisError, AttributeError, TypeError) as error:
        return type(error), str(error)


@given(data=st.data())
def test_it_agrees_with_the_definition(data: st.DataObject) -> None:
    shapes = st.one_of(st.none(), st.lists(st.sampled_from(sorted(AXES)), max_size=3).map(tuple))
    specs = {
        f"x{index}": TensorSpec(shape, "float32", optional=data.draw(st.booleans()))
        for index, shape in enumerate(data.draw(st.lists(shapes, min_size=1, max_size=3)))
    }
    d = Definition(
        "d", "t", AXES, specs, {"y": TensorSpec(("h",), "float32")}, f"def run({', '.join(specs)}):\n    0\n"
    )
    read = compile_axis_reader(d)
    sizes = data.draw(st.fixed_dictionaries({"m": st.integers(0, 2), "n": st.integers(0, 2)})) | {"h": 2}
    inputs: list[Any] = [
        1.0 if spec.shape is None else torch.zeros([sizes[axis] for axis in spec.shape]) for spec in specs.values()
    ]
    for place in data.draw(st.lists(st.integers(0, len(inputs) - 1), max_size=2)):
        inputs[place] = data.draw(
            st.sampled_from([None, 1.0, "text", torch.zeros(2), torch.zeros(3, 2), torch.zeros(())])
        )
    if data.draw(st.integers(0, 9)) == 0:
        inputs.pop()
    assert outcome(read, inputs) == outcome(d.get_axes_values_from_inputs, inputs)


def test_an_error_names_the_input_that_differs() -> None:
    specs = {"x": TensorSpec(("m", "h"), "float32")}
    d = Definition("d", "t", AXES, specs, {"y": TensorSpec(("m",), "float32")}, "def run(x):\n    return x\n")
    read = compile_axis_reader(d)
    assert read([torch.zeros(5, 2)]) == {"m": 5}
    with pytest.raises(AxisError, match="'x'"):
        read([torch.zeros(5, 3)])
