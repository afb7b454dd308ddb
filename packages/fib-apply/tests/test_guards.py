"""Call validation and guards: calls that differ from verified ones are rejected by both."""

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
from apply_samples import SCALE
from fib_apply.routing import guards
from fib_apply.routing.call_variant import _MAX_SHAPES, CallVariant, PythonTable
from fib_apply.routing.guards import compile_python_guard
from fib_apply.routing.validation import CallValidator, call_strides
from fib_schema import AxisConst, AxisVar, Definition, TensorSpec
from hypothesis import given
from hypothesis import strategies as st

H = 6
DEFINITION = Definition(
    "attention",
    "gqa",
    axes={"b": AxisVar(), "p": AxisVar(), "len": AxisVar(), "h": AxisConst(H)},
    inputs={
        "q": TensorSpec(("b", "h"), "float32"),
        "k": TensorSpec(("p", "h"), "bfloat16"),
        "indptr": TensorSpec(("len",), "int32"),
        "mask": TensorSpec(("b", "p"), "bool", optional=True),
        "scale": TensorSpec(None, "float32"),
    },
    outputs={"out": TensorSpec(("b", "h"), "float32")},
    reference="def run(q, k, indptr, mask, scale):\n    return q\n",
    constraints=["len == b + 1", "len == indptr.shape[0]"],
)


def valid_args(b, p, *, has_mask, has_out):
    args = [
        torch.zeros(b, H),
        torch.zeros(p, H, dtype=torch.bfloat16),
        torch.zeros(b + 1, dtype=torch.int32),
        torch.zeros(b, p, dtype=torch.bool) if has_mask else None,
        0.5,
    ]
    return [*args, torch.zeros(b, H)] if has_out else args


class Marked(torch.Tensor):
    pass


def widened(tensor, axis):
    shape = list(tensor.shape)
    shape[axis] += 1
    return tensor.new_zeros(shape)


@attrs.frozen
class Change:
    """Changes one argument; returns None where the change does not apply."""

    name: str
    make: Callable[[torch.Tensor], Any]


OTHER_DTYPES = [torch.float64, torch.float16, torch.int64, torch.uint8, torch.float32]
CHANGES = [
    *(Change(f"as {d}", lambda t, d=d: None if t.dtype is d else t.to(d)) for d in OTHER_DTYPES),
    Change("another rank", lambda t: t.unsqueeze(-1)),
    Change("a lower rank", lambda t: t[0] if t.dim() > 1 else None),
    Change("the last axis longer", lambda t: widened(t, -1)),
    Change("the first axis longer", lambda t: widened(t, 0)),
    Change("on another device", lambda t: t.to("meta")),
    Change("transposed in memory", lambda t: t.T.contiguous().T if t.dim() > 1 and min(t.shape) > 1 else None),
    Change("with gaps", lambda t: torch.cat([t, t], -1)[..., ::2] if t.shape[-1] > 1 else None),
    Change("expanded", lambda t: t.new_zeros([1] * t.dim()).expand(t.shape) if t.numel() > 1 else None),
    Change("requiring a gradient", lambda t: t.clone().requires_grad_() if t.is_floating_point() else None),
    Change("of a subclass", lambda t: t.as_subclass(Marked)),
    Change("sparse", lambda t: t.to_sparse() if t.is_floating_point() else None),
    Change("functional", torch._to_functional_tensor),
    Change("None", lambda t: _NONE),
    Change("a number", lambda t: 1.0),
    Change("an array", lambda t: t.float().numpy()),
]
_NONE = object()
"""Stands for the argument None."""


@pytest.mark.parametrize("ignores_sizes", [False, True])
def test_guards_of_torch_that_accept_too_much_are_not_used(ignores_sizes, monkeypatch, caplog):
    """They are private to torch, so that another version may have others."""
    args = valid_args(2, 3, has_mask=True, has_out=True)
    assert compile_python_guard(args) is not None
    make = guards._tensor_guard

    def make_wrong(tensors, *, ignores_sizes=False, wrong=ignores_sizes):
        if ignores_sizes is wrong:
            return lambda *args: True
        return make(tensors, ignores_sizes=ignores_sizes)

    monkeypatch.setattr(guards, "_tensor_guard", make_wrong)
    guards._tensor_guard_problem.cache_clear()
    try:
        assert compile_python_guard(args) is None
    finally:
        guards._tensor_guard_problem.cache_clear()
    assert "no call takes the fast path until native guards are loaded" in caplog.text


@given(
    b=st.integers(1, 5),
    p=st.integers(1, 5),
    has_mask=st.booleans(),
    has_out=st.booleans(),
    place=st.integers(0, 5),
    change=st.sampled_from(CHANGES),
)
def test_a_call_that_differs_in_one_argument_is_rejected_by_the_validator_and_by_the_guard(
    b, p, has_mask, has_out, place, change
):
    args = valid_args(b, p, has_mask=has_mask, has_out=has_out)
    validator = CallValidator(DEFINITION, has_outputs=has_out)
    assert validator.rejection(args) is None
    guard = compile_python_guard(args)
    assert guard(*args)
    assert guard(*valid_args(b, p, has_mask=has_mask, has_out=has_out))
    old = args[place % len(args)]
    new = change.make(old) if isinstance(old, torch.Tensor) else "another"
    if new is None:
        return
    changed = list(args)
    changed[place % len(args)] = None if new is _NONE else new
    is_free = change.name == "the first axis longer" and place % len(args) == 1 and not has_mask
    if new is _NONE and place % len(args) == 3:
        is_free = True  # it is optional
    is_input = place % len(args) < len(DEFINITION.inputs) and isinstance(old, torch.Tensor)
    if is_input and change.name in {"transposed in memory", "with gaps"}:
        is_free = True  # inputs may have other strides, which are part of the key
        assert call_strides(DEFINITION, changed) != call_strides(DEFINITION, args)
    if is_free:
        assert validator.rejection(changed) is None
    else:
        assert validator.rejection(changed) is not None
    assert not guard(*changed)


def test_a_rejection_states_the_problem():
    rejection = CallValidator(DEFINITION, has_outputs=True).rejection
    args = valid_args(2, 3, has_mask=True, has_out=True)

    def with_(place, value):
        return rejection([*args[:place], value, *args[place + 1 :]]).problem

    assert with_(0, torch.zeros(2, H + 1)) == (
        "definition 'attention', axis 'h': is 6, but 7 in input 'q'"
    ) or "h" in with_(0, torch.zeros(2, H + 1))
    assert with_(1, torch.zeros(3, H)) == "k: torch.float32 instead of torch.bfloat16"
    assert with_(2, torch.zeros(4, dtype=torch.int32)) == "constraint 'len == b + 1' does not hold"
    assert with_(4, 1) == "scale: int instead of float"
    assert with_(5, torch.zeros(3, H)) == "out: shape [3, 6] instead of [2, 6]"
    assert with_(5, args[0]) == "an output overlaps another argument"


def entry(kernel):
    return (lambda *args: True, kernel, int)


@pytest.fixture
def variant():
    return CallVariant(SCALE, is_destination_passing=False, is_cached=True)


def test_an_invalidated_entry_is_neither_found_nor_installed(variant):
    x = torch.zeros(3, 4)
    variant.install(entry("old"), (x,), variant.generation)
    variant.invalidate()
    assert variant.find((x,)) is None
    variant.install(entry("old"), (x,), variant.generation - 1)
    assert variant.find((x,)) is None


def test_the_oldest_of_too_many_shapes_are_forgotten(variant):
    for size in range(_MAX_SHAPES + 1):
        variant.install(entry("kernel"), (torch.empty(size, 4, device="meta"),), variant.generation)
    assert variant.table(torch.zeros(1, 4)) is PythonTable.MISS
    assert variant.table(torch.zeros(_MAX_SHAPES, 4)) == "kernel"
