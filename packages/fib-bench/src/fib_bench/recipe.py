"""Recipe: what one input of a timed call may contain, as judges and workers tell each other.

`fib_bench.inputs` states contents, and makes recipes of them.
"""

from __future__ import annotations

import msgspec

NORMAL, UNIFORM, SHARES, DIRECTION, RESCALE, INTEGER, BYTES, MASK, SEALED = range(9)
"""Kinds of contents, those of `FibKind` in the header of the generator."""


class Content(msgspec.Struct, frozen=True):
    """Values of an input that are drawn, one by one or row by row."""

    kind: int
    """One of the constants of this module."""
    scale: float = 1.0
    """Of `NORMAL`: the standard deviation. Of `RESCALE`: what takes the place of zeros."""
    low: float = 0.0
    high: float = 0.0
    """Bounds of values or factors; of `NORMAL`: of the binary logarithms of wide rows; of `MASK`: the share of true."""
    first: int = 0
    last: int = 0
    """Of `INTEGER`: bounds, both included. Of `MASK` and `RESCALE`: see `FibInput` of the header."""
    mask: int = 0
    """Of `NORMAL`: what may occur, see `FibMask` of the header."""
    needs_base: bool = False
    """Whether values are changed rather than made; the base has the layout of the input."""


class Recipe(Content, frozen=True, kw_only=True):
    """Valid contents of one input of a call."""

    name: str
    position: int
    """Among the inputs of the definition; equal positions and keys give equal values."""
    dtype: str
    elements: int
    """A pair of fp4 numbers is one element."""
    row: int
    """Elements of a row."""
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    """In elements; empty if the input is contiguous."""
