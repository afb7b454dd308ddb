"""Whatever differs from verified calls is refused, by torch's own guards and by generated Python alike."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
from fib_apply.routing import guards
from fib_apply.routing.guards import Guard, check_of
from fib_schema import AxisConst, AxisVar, Definition, TensorSpec
from hypothesis import given, settings
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


def right(b: int, p: int, *, has_mask: bool, has_out: bool) -> list[Any]:
    """The arguments of a call that must be admitted."""
    args: list[Any] = [
        torch.zeros(b, H),
        torch.zeros(p, H, dtype=torch.bfloat16),
        torch.zeros(b + 1, dtype=torch.int32),
        torch.zeros(b, p, dtype=torch.bool) if has_mask else None,
        0.5,
    ]
    return [*args, torch.zeros(b, H)] if has_out else args


class Marked(torch.Tensor):
    pass


def widened(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """One element more along an axis."""
    shape = list(tensor.shape)
    shape[axis] += 1
    return tensor.new_zeros(shape)


@attrs.frozen
class Change:
    """Makes one argument different from what was verified; returns None where it cannot."""

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
    Change("None", lambda t: _NONE),
    Change("a number", lambda t: 1.0),
    Change("an array", lambda t: t.float().numpy()),
]
_NONE = object()
"""Stands for None, which means that a change does not apply."""


@pytest.fixture(params=["torch", "python"])
def checks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    make = guards._by_torch if request.param == "torch" else guards._by_python
    monkeypatch.setattr(guards, "_pattern_check", lambda: make)
    return str(request.param)


def test_torch_s_guards_do_what_they_should_here() -> None:
    guards._pattern_check.cache_clear()
    assert guards._pattern_check() is guards._by_torch


def test_guards_that_admit_too_much_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "_by_torch", lambda tensors: lambda *args: True)
    guards._pattern_check.cache_clear()
    try:
        assert guards._pattern_check() is guards._by_python
    finally:
        guards._pattern_check.cache_clear()


@settings(max_examples=300, deadline=None)
@given(
    b=st.integers(1, 5),
    p=st.integers(1, 5),
    has_mask=st.booleans(),
    has_out=st.booleans(),
    place=st.integers(0, 5),
    change=st.sampled_from(CHANGES),
    by=st.sampled_from(["torch", "python"]),
)
def test_a_call_that_differs_in_one_argument_is_refused_and_fails_the_check_of_one_that_does_not(
    b: int, p: int, has_mask: bool, has_out: bool, place: int, change: Change, by: str
) -> None:
    args = right(b, p, has_mask=has_mask, has_out=has_out)
    guard = Guard(DEFINITION, has_outputs=has_out)
    assert guard.refusal(args) is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guards, "_pattern_check", lambda: guards._by_torch if by == "torch" else guards._by_python)
        check = check_of(args, is_aligned=False)
    assert check(*args)
    assert check(*right(b, p, has_mask=has_mask, has_out=has_out))
    old = args[place % len(args)]
    new = change.make(old) if isinstance(old, torch.Tensor) else "another"
    if new is None:
        return
    changed = list(args)
    changed[place % len(args)] = None if new is _NONE else new
    is_free = change.name == "the first axis longer" and place % len(args) == 1 and not has_mask
    if new is _NONE and place % len(args) == 3:
        is_free = True  # it is optional
    if is_free:
        assert guard.refusal(changed) is None
    else:
        assert guard.refusal(changed) is not None
    assert not check(*changed)


def test_reasons_are_told() -> None:
    guard = functools.partial(Guard(DEFINITION, has_outputs=True).refusal)
    args = right(2, 3, has_mask=True, has_out=True)

    def with_(place: int, value: Any) -> str:
        return str(guard([*args[:place], value, *args[place + 1 :]]))

    assert with_(0, torch.zeros(2, H + 1)) == (
        "definition 'attention', axis 'h': is 6, but 7 in input 'q'"
    ) or "h" in with_(0, torch.zeros(2, H + 1))
    assert with_(1, torch.zeros(3, H)) == "k: torch.float32 instead of torch.bfloat16"
    assert with_(2, torch.zeros(4, dtype=torch.int32)) == "the constraint 'len == b + 1' does not hold"
    assert with_(4, 1) == "scale: int instead of float"
    assert with_(5, torch.zeros(3, H)) == "out: shape [3, 6] instead of [2, 6]"
    assert with_(5, args[0]) == "an output overlaps another argument"


def test_checks_with_alignment_want_addresses_as_benchmarked_tensors_have() -> None:
    memory = torch.zeros(101)
    aligned, shifted = memory[:96].view(16, 6), memory[1:97].view(16, 6)
    if aligned.data_ptr() % 16:
        aligned, shifted = shifted, aligned
    assert check_of([aligned], is_aligned=True)(aligned)
    assert not check_of([aligned], is_aligned=True)(shifted)
    assert check_of([aligned], is_aligned=False)(shifted)
