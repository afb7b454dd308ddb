"""Calls that change after a hit: a tensor in another state, or another state of torch, leads to the fallback."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from apply_samples import data_set, new_solution, new_trace
from fib_apply import apply, enable_apply
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = pytest.mark.usefixtures("without_probes")

SOLUTION = 1000.0


class _Seen(TorchDispatchMode):
    """A mode that a user has entered to see all operators."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        return func(*args, **(kwargs or {}))


class _Subclass(torch.Tensor):
    """A tensor whose class a user has changed in place."""


def _with_data(x: torch.Tensor, other: torch.Tensor) -> None:
    x.data = other


def _with_class(x: torch.Tensor) -> None:
    x.__class__ = _Subclass


CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "transposed in place": lambda x: x.t_(),
    "resized in place": lambda x: x.resize_(3, 4),
    "other dimensions": lambda x: x.unsqueeze_(0),
    "data of another dtype": lambda x: _with_data(x, torch.ones(4, 4, dtype=torch.float64)),
    "data of other strides": lambda x: _with_data(x, torch.ones(4, 8)[:, ::2]),
    "expanded data": lambda x: _with_data(x, torch.ones(1, 4).expand(4, 4)),
    "gradients": lambda x: x.requires_grad_(True),
    "another class": _with_class,
    "negated data": lambda x: _with_data(x, torch._neg_view(torch.ones(4, 4))),
}
STATES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "a dispatch mode": _Seen,
    "fake tensors": lambda: torch._subclasses.fake_tensor.FakeTensorMode(allow_non_fake_inputs=True),
}


@pytest.fixture
def routed(guards: str) -> Any:
    """A function that a solution serves, which returns other values, so that the server of a call is known."""
    source = f"def run(x):\n    return 2 * x.detach() + {SOLUTION}\n"
    solution = new_solution("fast", content=source, passing=False)

    @apply("scale")
    def scale(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    with enable_apply(data_set(new_trace("fast", m=4), solutions=[solution])):
        yield scale


def hit(routed: Any) -> torch.Tensor:
    """A tensor with which a solution was called twice."""
    x = torch.ones(4, 4)
    for _ in range(2):
        assert routed(x)[0, 0] > SOLUTION
    return x


@pytest.mark.parametrize("change", CHANGES)
def test_a_tensor_that_was_changed_in_place_reaches_the_fallback(routed: Any, change: str) -> None:
    x = hit(routed)
    CHANGES[change](x)
    for _ in range(2):
        found = routed(x)
        assert found.dtype == x.dtype
        assert found.shape == x.shape
        assert found.requires_grad == x.requires_grad
        assert torch.equal(found, 2 * x)


@pytest.mark.parametrize("state", STATES)
def test_a_call_in_another_state_of_torch_reaches_the_fallback(routed: Any, state: str) -> None:
    x = hit(routed)
    with STATES[state]():
        found = routed(x)
    if state != "fake tensors":
        assert torch.equal(found, 2 * x)
    assert type(found) is (torch.Tensor if state != "fake tensors" else torch._subclasses.fake_tensor.FakeTensor)
    assert routed(x)[0, 0] > SOLUTION


def test_a_tensor_of_inference_mode_is_served_without_an_error(routed: Any) -> None:
    x = hit(routed)
    with torch.inference_mode():
        made = torch.ones(4, 4)
        assert routed(made)[0, 0] in (2.0, SOLUTION + 2)
        assert routed(x)[0, 0] in (2.0, SOLUTION + 2)
    assert routed(made)[0, 0] in (2.0, SOLUTION + 2)
