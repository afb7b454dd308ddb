"""Recipe: what one input of a timed call may contain, as judges and workers tell each other.

`fib_bench.inputs.generator` makes recipes, and has their kinds.
"""

from __future__ import annotations

import msgspec


class Recipe(msgspec.Struct, frozen=True):
    """Valid contents of one input of a call."""

    name: str
    position: int
    """Among the inputs of the definition; equal positions and keys give equal values."""
    kind: int
    """One of the constants of this module."""
    dtype: str
    elements: int
    """A pair of fp4 numbers is one element."""
    row: int
    """Elements of a row."""
    mask: int = 0
    """Of `NORMAL`: what may occur, see `FibMask` of the header."""
    scale: float = 1.0
    low: float = 0.0
    high: float = 0.0
    """Bounds of values or factors; of `NORMAL`: of the binary logarithms of wide rows."""
    first: int = 0
    last: int = 0
    """Of `INTEGER`: bounds, both included. Of `RESCALE`: `first` is 1 if rows change places."""
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    """In elements; empty if the input is contiguous."""
    needs_base: bool = False
    """Whether values are changed rather than made; the base has the layout of the input."""
