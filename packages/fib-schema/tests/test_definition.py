import attrs
import pytest
from fib_schema import AxisConst, AxisError, InvalidField, TensorSpec


def test_axes_are_split_into_constant_and_variable(definition):
    assert definition.const_axes == {"N": 4}
    assert definition.var_axes == ["M", "K"]
    assert definition.var_axes_bindings == {"M": ("A", 0), "K": ("A", 1)}


def test_shapes_follow_from_axis_values(definition):
    assert definition.get_input_shapes({"M": 2, "K": 3}) == [(2, 3), (4, 3)]
    assert definition.get_output_shapes({"M": 2}) == [(2, 4)]


def test_a_missing_axis_value_is_named(definition):
    with pytest.raises(AxisError, match="axis 'M': is variable and has no value here"):
        definition.get_output_shapes({})


def test_axis_values_are_read_off_shapes_in_order_or_by_name(definition):
    assert definition.get_axes_values([(2, 3), (4, 3)]) == {"M": 2, "K": 3}
    assert definition.get_axes_values({"A": (2, 3), "B": (4, 3)}) == {"M": 2, "K": 3}


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(2, 3), (4, 5)], "axis 'K': is 3, but 5 in input 'B'"),
        ([(2, 3), (5, 3)], "axis 'N': is 4, but 5 in input 'B'"),
        ([(2,), (4, 3)], "input 'A' has 1 dimensions, not 2"),
        ([(2, 3)], "got 1 input, expected 2: A, B"),
        ([None, (4, 3)], "axis 'M': has no value"),
    ],
)
def test_contradicting_shapes_are_refused(definition, shapes, message):
    with pytest.raises(AxisError, match=message.replace("[", "\\[")):
        definition.get_axes_values(shapes)


def test_axis_values_are_read_off_anything_with_a_shape(definition):
    class Tensor:
        def __init__(self, *shape):
            self.shape = shape

    assert definition.get_axes_values_from_inputs([Tensor(2, 3), Tensor(4, 3)]) == {"M": 2, "K": 3}
    assert definition.get_axes_values_from_inputs({"A": Tensor(2, 3), "B": Tensor(4, 3)}) == {"M": 2, "K": 3}


def test_mixed_calls_are_ordered(definition):
    assert definition.merge_kwargs_to_args(["a"], {"B": "b"}) == ("a", "b")
    assert definition.merge_kwargs_to_args([], {"C": "c", "B": "b", "A": "a"}) == ("a", "b", "c")


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (["a"], {}, "misses argument 'B'"),
        (["a"], {"A": 1, "B": 2}, "got argument 'A' twice"),
        (["a"], {"D": 1}, "has no argument 'D'"),
        (["a", "b", "c", "d"], {}, "takes at most 3 arguments, got 4"),
    ],
)
def test_wrong_calls_are_explained(definition, args, kwargs, message):
    with pytest.raises(TypeError, match=message):
        definition.merge_kwargs_to_args(args, kwargs)


def test_an_optional_input_may_be_left_out(definition):
    bias = TensorSpec(["N"], "float16", optional=True)
    changed = attrs.evolve(definition, inputs={**definition.inputs, "bias": bias})
    assert changed.merge_kwargs_to_args(["a", "b"], {}) == ("a", "b", None)
    assert changed.get_axes_values([(2, 3), (4, 3), None]) == {"M": 2, "K": 3}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("name", "../evil", "contains a path separator"),
        ("name", "..", "would leave its folder"),
        ("name", "", "is empty"),
        ("name", "a\0b", "control character"),
        ("name", 3, "expected a string, got integer 3"),
        ("op_type", "a\\b", "path separator"),
        ("outputs", {"A": TensorSpec(["M"], "float16")}, "'A' is an input too"),
        ("outputs", {"C": TensorSpec(["X"], "float16")}, "axis 'X' is not among the axes"),
        ("reference", "def run(:", "does not parse"),
        ("reference", "x = 1", "defines no top-level function 'run'"),
        ("constraints", ["M = 3"], "is not an expression"),
        ("constraints", ["__import__('os')"], "not allowed"),
        ("tags", "abc", "expected a list, got string 'abc'"),
        ("axes", {"M": 3}, "expected AxisConst or AxisVar, got integer 3"),
        ("axes", [], "expected an object, got list"),
    ],
)
def test_bad_fields_are_refused_with_their_place(definition, field, value, message):
    with pytest.raises(InvalidField, match=message):
        attrs.evolve(definition, **{field: value})


def test_records_are_frozen_all_the_way(definition):
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        definition.name = "other"
    with pytest.raises(TypeError, match="frozen record"):
        definition.axes["M"] = AxisConst(value=1)


def test_a_constant_axis_is_a_real_integer():
    for bad in (4.0, True, "4"):
        with pytest.raises(InvalidField, match="expected an integer"):
            AxisConst(value=bad)
    with pytest.raises(InvalidField, match="must be at least 0"):
        AxisConst(value=-1)


def test_torch_dtypes_are_given_in_order(definition):
    torch = pytest.importorskip("torch", reason="torch is an optional dependency")
    assert definition.torch_input_dtypes == [torch.float16, torch.float16]
    assert definition.torch_output_dtypes == [torch.float16]
