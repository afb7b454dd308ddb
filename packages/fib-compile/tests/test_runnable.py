"""A Runnable can be called in both styles, whatever the style of the solution."""

import attrs
import pytest
import torch
from compile_samples import ADD_ONE, SUBTRACT
from fib_compile import Runnable, RunnableMetadata
from fib_schema import AxisError, AxisVar, Definition, TensorSpec
from hypothesis import given
from hypothesis import strategies as st


def runnable(function, definition, *, dps, **fields):
    return Runnable(function, RunnableMetadata("python", "d", "s", dps, definition), **fields)


def add_one_into(x, y):
    torch.add(x, 1, out=y)


X = torch.arange(8, dtype=torch.float32).reshape(2, 4)


def test_value_returning_call_of_a_dps_solution_allocates_from_the_definition():
    result = runnable(add_one_into, ADD_ONE, dps=True).call_value_returning(X)
    assert torch.equal(result, X + 1)
    assert result.dtype is torch.float32


def test_value_returning_call_checks_the_inputs_shapes():
    dps = runnable(add_one_into, ADD_ONE, dps=True)
    with pytest.raises(AxisError, match="is 4, but 5"):
        dps.call_value_returning(torch.ones(2, 5))


def test_no_outputs_are_none():
    in_place = attrs.evolve(ADD_ONE, outputs={})
    x = X.clone()
    assert runnable(lambda x: x.add_(1), in_place, dps=True).call_value_returning(x) is None
    assert torch.equal(x, X + 1)
    assert runnable(lambda x: None, in_place, dps=False).call_destination_passing(x) is None


def test_destination_passing_call_of_a_value_returning_solution_copies():
    y = torch.empty(2, 4)
    assert runnable(lambda x: (x + 1,), ADD_ONE, dps=False).call_destination_passing(X, y) is None
    assert torch.equal(y, X + 1)


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (torch.ones(4), ValueError, r"output 'y': expected shape \[2, 4\], got \[4\]"),
        (torch.ones(2, 4, dtype=torch.float64), TypeError, "output 'y': expected torch.float32, got torch.float64"),
        ((X, X), TypeError, "has 1 output, the solution returned 2"),
        (None, ValueError, "got 'NoneType'"),
        (3.0, ValueError, "got the number 3.0"),
    ],
)
def test_wrong_results_are_not_copied(returned, error, message):
    with pytest.raises(error, match=message):
        runnable(lambda x: returned, ADD_ONE, dps=False).call_destination_passing(X, torch.empty(2, 4))


def test_results_by_name_are_copied_by_name():
    buffer = torch.zeros_like(X)
    runnable(lambda x: {"y": x + 1}, ADD_ONE, dps=False).call_destination_passing(X, buffer)
    assert torch.equal(buffer, X + 1)
    with pytest.raises(TypeError, match=r"returned \['z'\], without 'y'"):
        runnable(lambda x: {"z": x}, ADD_ONE, dps=False).call_destination_passing(X, buffer)


@pytest.mark.parametrize("dps", [True, False])
def test_keywords_choose_the_style(dps):
    either = runnable(add_one_into if dps else lambda x: x + 1, ADD_ONE, dps=dps)
    y = torch.empty(2, 4)
    assert torch.equal(either.call_kwargs(x=X), X + 1)
    assert either.call_kwargs(y=y, x=X) is None
    assert torch.equal(y, X + 1)


def test_optional_inputs_may_be_left_out():
    def into(a, b, c):
        c.copy_(a if b is None else a - b)

    dps = runnable(into, SUBTRACT, dps=True)
    a = torch.ones(3)

    assert torch.equal(dps.call_kwargs(a=a), a)
    assert torch.equal(dps.call_value_returning(a), a)
    assert torch.equal(dps.call_value_returning(a, None), a)
    assert torch.equal(dps.call_value_returning(a, a), a - a)


def test_calls_that_need_a_definition_raise_without_one():
    bare = runnable(lambda x: x, None, dps=True)
    for call in (bare.call_value_returning, bare.call_kwargs):
        with pytest.raises(ValueError, match="holds no definition"):
            call()


def test_cleanup_runs_once():
    calls = []
    cleaned = runnable(lambda: None, None, dps=True, cleaner=lambda: calls.append(1))
    assert not cleaned.is_cleaned
    cleaned.cleanup()
    cleaned.cleanup()
    assert calls == [1]
    assert cleaned.is_cleaned


def test_plan_binds_what_setup_returns():
    def run(x, *, rows):
        return x + rows

    planned = runnable(run, ADD_ONE, dps=False, setup=lambda x: {"rows": x.shape[0]}).plan(X)

    assert torch.equal(planned(X), X + 2)
    assert planned.setup is None


def test_an_output_axis_without_an_input_is_an_error():
    axes = {**ADD_ONE.axes, "m": AxisVar()}
    open_axis = attrs.evolve(ADD_ONE, axes=axes, outputs={"y": TensorSpec(("m",), "float32")})
    with pytest.raises(AxisError, match="'m'"):
        runnable(add_one_into, open_axis, dps=True).call_value_returning(X)


Y = X + 1


@pytest.mark.parametrize(
    ("returned", "own", "by_definition"),
    [
        (42, 42, 42),
        ((42,), 42, 42),
        ([42], 42, 42),
        ({"y": 42}, {"y": 42}, 42),
        ({"y": 42, "more": 1}, {"y": 42, "more": 1}, 42),
        ((), (), TypeError),
        ([], [], TypeError),
        ({}, {}, TypeError),
        ((1, 2), (1, 2), TypeError),
        (((),), (), ()),
    ],
)
def test_one_output_is_returned_as_it_is(returned, own, by_definition):
    either = runnable(lambda x: returned, ADD_ONE, dps=False)
    assert either(X) == own
    if by_definition is TypeError:
        with pytest.raises(TypeError):
            either.call_value_returning(X)
    else:
        assert either.call_value_returning(X) == by_definition


@pytest.mark.parametrize("returned", [1, (1,), (1, 2, 3), (), {"a": 1}])
def test_a_wrong_number_of_outputs_is_an_error(returned):
    two = attrs.evolve(ADD_ONE, outputs=dict.fromkeys("ab", TensorSpec(None, "int64")))
    with pytest.raises(TypeError, match=r"has 2 outputs, the solution returned|without 'b'"):
        runnable(lambda x: returned, two, dps=False).call_value_returning(X)


@pytest.mark.parametrize("returned", [Y, (Y,), {"y": Y}, 0, 3.5, True, Y.sum()])
def test_a_value_returned_by_a_dps_solution_is_an_error_and_not_lost(returned):
    dps = runnable(lambda *args: returned, ADD_ONE, dps=True)
    for call in (lambda: dps.call_value_returning(X), lambda: dps.call_destination_passing(X, torch.empty(2, 4))):
        with pytest.raises(TypeError, match="declared as destination-passing, but returned a value of type"):
            call()


def test_a_dps_solution_may_return_its_outputs():
    for shaped in (lambda y: y, lambda y: (y,), lambda y: [None, y], lambda y: {"y": y}, lambda y: y.view(2, 4)):

        def into(x, y, shaped=shaped):
            return shaped(torch.add(x, 1, out=y))

        dps = runnable(into, ADD_ONE, dps=True)
        assert torch.equal(dps.call_value_returning(X), Y)
        dps.call_destination_passing(X, torch.empty(2, 4))


NAMES = (
    "_x input0 input1 input0_ input1_ _key _sizes _out0 _known _device _returned x None class lambda match type"
    " value_returning \ufb01 fi \u00b5 \u03bc _ __"
)


@given(names=st.lists(st.sampled_from(NAMES.split()), min_size=1, max_size=6, unique=True))
def test_inputs_may_have_any_names(names):
    tensor = TensorSpec(("n",), "float32")
    definition = Definition(
        "sum", "elementwise", {"n": AxisVar()}, dict.fromkeys(names, tensor), {"total": tensor}, "def run(): ...\n"
    )

    def into(*args):
        args[-1].copy_(sum(index * value for index, value in enumerate(args[:-1])))

    values = [torch.full((2,), float(index)) for index in range(len(names))]
    result = runnable(into, definition, dps=True).call_value_returning(*values)
    assert result[0].item() == sum(index**2 for index in range(len(names)))
    assert runnable(into, definition, dps=True).call_kwargs(**dict(zip(names, values, strict=True))).equal(result)
