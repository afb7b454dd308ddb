"""Generated signatures equal those that they are made from."""

import inspect
from inspect import Parameter

import pytest
from fib_compile.signatures import argument_list, default_values, given_condition, parameter_list

SIGNATURES = [
    lambda: None,
    lambda x, y: None,
    lambda x, /, y=1: None,
    lambda x, y="no", /: None,
    lambda x, *, y, z=None: None,
    lambda x=1, *args, y, **kwargs: None,
    lambda *args, **kwargs: None,
]


def parameters_of(function):
    return list(inspect.signature(function).parameters.values())


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: str(inspect.signature(function)))
def test_a_rendered_signature_is_the_same_signature(function):
    parameters = parameters_of(function)
    generated = eval(f"lambda {parameter_list(parameters)}: None", default_values(parameters))
    required = eval(f"lambda {parameter_list(parameters, has_defaults=False)}: None")
    assert parameters_of(generated) == parameters
    assert parameters_of(required) == [p.replace(default=Parameter.empty) for p in parameters]


def test_arguments_go_by_position_where_they_may():
    parameters = parameters_of(lambda x, /, y, *args, z, **kwargs: None)
    assert argument_list(parameters) == "x, y, *args, z=z, **kwargs"
    assert argument_list(parameters[:2], {"x": "a.b", "y": "c"}) == "a.b, c"


@pytest.mark.parametrize(
    ("default", "value", "is_given"),
    [
        (1.5, float("1.5"), False),
        (1000, int("1000"), False),
        ("default", "".join(["def", "ault"]), False),
        (None, None, False),
        (1, True, True),
        (1, 1.0, True),
        (True, False, True),
        (None, 0, True),
        ((), [], True),
    ],
)
def test_a_default_is_recognised_by_type_and_value(default, value, is_given):
    parameter = Parameter("x", Parameter.KEYWORD_ONLY, default=default)
    scope = {"_fib_type": type, "x": value, **default_values([parameter])}
    assert eval(given_condition(parameter), scope) is is_given


def test_variadic_parameters_are_given_if_they_hold_something():
    assert given_condition(Parameter("args", Parameter.VAR_POSITIONAL)) == "args"
