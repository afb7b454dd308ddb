"""Tests of arguments of recorded calls: names from signatures, values as 0.7 records them."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import pytest
import torch
from fib_tracer.dump_calls import Unrecorded, arguments_of, parse_parameters, value_of
from hypothesis import given
from hypothesis import strategies as st


def _positional(a: int, b: "dict[str, tuple[int, ...]]" = {"x": (1, 2)}, c: str = "),('", *rest: Any, d=1) -> None: ...  # type: ignore[no-untyped-def]  # noqa: B006, UP037


def _keyword(self: Any, q: torch.Tensor, *, sm_scale: float | None = None, **more: Any) -> torch.Tensor: ...


def _plain(a, /, b=[1, [2, 3]], c={"k": (1,)}):  # type: ignore[no-untyped-def]  # noqa: B006, ANN
    ...


@pytest.mark.parametrize(
    ("function", "expected"),
    [(_positional, (("a", "b", "c"), "rest")), (_keyword, (("self", "q"), None)), (_plain, (("a", "b", "c"), None))],
)
def test_names_come_from_the_text_of_a_signature(function, expected):
    assert parse_parameters(str(inspect.signature(function))) == expected


def test_defaults_need_not_be_python():
    text = "(x: torch.Tensor, mode: <enum 'Mode'> = <Mode.A: 0>, dtype=torch.float32, f=<object at 0x7f>) -> (a, b)"
    assert parse_parameters(text) == (("x", "mode", "dtype", "f"), None)


@pytest.mark.parametrize("text", ["<unavailable>", "", "(a, b", "(a, 1b)"])
def test_invalid_signatures_are_refused(text):
    with pytest.raises(ValueError, match=r"signature|parameter"):
        parse_parameters(text)


@given(st.text(alphabet="(){}[],:='\"\\*ab <>", max_size=60))
def test_arbitrary_text_is_parsed_or_refused(text):
    with contextlib.suppress(ValueError):
        parse_parameters(text)


def test_arguments_get_the_names_of_their_parameters():
    x, y = torch.ones(2), torch.zeros(3)
    found = arguments_of(
        "(self, x, flag, *args)",
        {"arg_0": {"type": "W", "repr": "<W>"}, "arg_2": True, "arg_3": None, "kwarg_scale": 0.5},
        {"arg_1": x, "arg_4": y, "kwarg_out": y},
    )
    assert found.pop("self") == Unrecorded("W", "<W>")
    assert found == {"x": x, "flag": True, "args": (None, y), "scale": 0.5, "out": y}


@pytest.mark.parametrize(
    ("recorded", "message"),
    [({"arg_1": 1}, "gaps"), ({"arg_0": 1, "arg_1": 2, "arg_2": 3}, "3 positional"), ({"what": 1}, "not an argument")],
)
def test_arguments_that_have_no_parameter_are_refused(recorded, message):
    with pytest.raises(ValueError, match=message):
        arguments_of("(a, b)", recorded, {})


def test_tensors_in_a_tuple_are_put_back():
    """As 0.7 records them: (key cache, value cache)."""
    k, v = torch.ones(2), torch.zeros(2)
    items = [{"type": "torch.Tensor", "tensor_key": f"arg_0__{n}"} for n in range(2)]
    recorded = {"arg_0": {"type": "tuple", "length": 2, "items": items, "truncated": False}}
    found = arguments_of("(cache)", recorded, {"arg_0__0": k, "arg_0__1": v})
    assert found == {"cache": (k, v)}
    assert found["cache"][0] is k


@pytest.mark.parametrize(
    ("recorded", "value"),
    [
        (None, None),
        (1.5, 1.5),
        ({"type": "torch.dtype", "value": "torch.bfloat16"}, torch.bfloat16),
        ({"type": "torch.dtype", "value": "torch.save"}, Unrecorded("torch.dtype", "torch.save")),
        ({"type": "enum", "name": "Mode.A", "value": 3}, 3),
        ({"type": "tuple", "value": "(tensor([1.]), 2)"}, Unrecorded("tuple", "(tensor([1.]), 2)")),
        ({"type": "list", "items": [1], "length": 40, "truncated": True}, Unrecorded("list", "")),
        ({"type": "dict", "items": [{"key": "a", "value": {"type": "tuple", "items": [1]}}]}, {"a": (1,)}),
        ({"type": "device", "repr": "cuda:0"}, Unrecorded("device", "cuda:0")),
        ({"type": "torch.Tensor", "tensor_key": "arg_9"}, Unrecorded("torch.Tensor", "")),
    ],
)
def test_recorded_values_are_restored(recorded, value):
    assert value_of(recorded, {}) == value
