"""The table of a call variant before native guards are loaded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fib_apply.routing.call_variant import _MAX_SHAPES, CallVariant, PythonTable
from fib_schema import AxisVar, Definition, TensorSpec

DEFINITION = Definition(
    "copy",
    "elementwise",
    axes={"m": AxisVar()},
    inputs={"x": TensorSpec(("m",), "float32")},
    outputs={"y": TensorSpec(("m",), "float32")},
    reference="def run(x):\n    return x\n",
)


def entry(kernel: str, *, passes: bool = True) -> Any:
    return (lambda *args: passes, kernel, int)


@pytest.fixture
def variant() -> CallVariant:
    return CallVariant(DEFINITION, is_destination_passing=False, is_cached=True)


def test_an_invalidated_entry_is_neither_found_nor_installed(variant: CallVariant) -> None:
    x = torch.zeros(3)
    variant.install(entry("old"), (x,), variant.generation)
    variant.invalidate()
    assert variant.find((x,)) is None
    variant.install(entry("old"), (x,), variant.generation - 1)
    assert variant.find((x,)) is None


def test_the_oldest_of_too_many_shapes_are_forgotten(variant: CallVariant) -> None:
    for size in range(_MAX_SHAPES + 1):
        variant.install(entry("kernel"), (torch.empty(size, device="meta"),), variant.generation)
    assert variant.table(torch.zeros(1)) is PythonTable.MISS
    assert variant.table(torch.zeros(_MAX_SHAPES)) == "kernel"
