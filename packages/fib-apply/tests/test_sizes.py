"""Size readers: they read what the definition's own method reads, and accept what the validator accepts."""

import pytest
import torch
from fib_apply.key import compile_axis_reader, compile_size_reader
from fib_apply.routing.validation import CallValidator
from fib_schema import AxisConst, AxisError, AxisVar, Definition, TensorSpec
from hypothesis import given
from hypothesis import strategies as st

AXES = {"z": AxisVar(), "m": AxisVar(), "unused": AxisVar(), "h": AxisConst(2)}


STRIDED = [lambda t: t.T.contiguous().T, lambda t: t[:1].expand(4, 2), lambda t: t[::2]]


@pytest.mark.parametrize("change", STRIDED, ids=["transposed", "expanded", "every second row"])
def test_strided_tensors_are_left_to_the_validator(change):
    specs = {"x": TensorSpec(("m", "h"), "float32")}
    definition = Definition("d", "t", AXES, specs, {"y": TensorSpec(("m",), "float32")}, "def run(x):\n    return x\n")
    read = compile_size_reader(definition, lambda axes: None, has_outputs=False)
    assert read(torch.zeros(4, 2)) == (("m", 4),)
    assert read(change(torch.zeros(4, 2))) is None


def test_a_constraint_that_cannot_be_evaluated_does_not_hold():
    """It raised, and the engine saw the exception of a call that its own function serves."""
    specs = {"x": TensorSpec(("m", "h"), "float32")}
    outputs = {"y": TensorSpec(("m",), "float32")}
    reference = "def run(x):\n    return x\n"
    definition = Definition("d", "t", AXES, specs, outputs, reference, constraints=("16 % (m - 3) == 0",))
    validator = CallValidator(definition, has_outputs=False)
    assert validator.rejection([torch.zeros(4, 2)]) is None
    rejection = validator.rejection([torch.zeros(3, 2)])
    assert rejection.is_cacheable
    assert "modulo by zero" in str(rejection)


def outcome(read, inputs):
    try:
        return read(inputs)
    except (AxisError, AttributeError, TypeError) as error:
        return type(error), str(error)


@given(data=st.data())
def test_it_agrees_with_the_definition(data):
    shapes = st.one_of(st.none(), st.lists(st.sampled_from(["m", "z", "h"]), max_size=3).map(tuple))
    specs = {
        f"x{index}": TensorSpec(shape, "float32", optional=data.draw(st.booleans()))
        for index, shape in enumerate(data.draw(st.lists(shapes, min_size=1, max_size=3)))
    }
    d = Definition(
        "d", "t", AXES, specs, {"y": TensorSpec(("h",), "float32")}, f"def run({', '.join(specs)}):\n    0\n"
    )
    read = compile_axis_reader(d)
    sizes = data.draw(st.fixed_dictionaries({"m": st.integers(0, 2), "z": st.integers(0, 2)})) | {"h": 2}
    inputs = [
        1.0 if spec.shape is None else torch.zeros([sizes[axis] for axis in spec.shape]) for spec in specs.values()
    ]
    for place in data.draw(st.lists(st.integers(0, len(inputs) - 1), max_size=2)):
        inputs[place] = data.draw(
            st.sampled_from([None, 1.0, "text", torch.zeros(2), torch.zeros(3, 2), torch.zeros(())])
        )
    if data.draw(st.integers(0, 9)) == 0:
        inputs.pop()
    assert outcome(read, inputs) == outcome(d.get_axes_values_from_inputs, inputs)
