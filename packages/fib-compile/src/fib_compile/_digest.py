"""Digests of sequences of parts, for names in the cache."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping

from fib_schema import AxisConst, Definition, TensorSpec
from fib_schema.framing import framed


def digest(parts: Iterable[str | bytes], length: int = 40) -> str:
    """Hexadecimal digits that two different sequences of parts do not share."""
    return hashlib.sha256(framed(parts)).hexdigest()[:length]


def interface_digest(definition: Definition) -> str:
    """A digest of name, axes, inputs and outputs; descriptions and reference code do not count."""
    axes = [
        framed((name, str(axis.value) if isinstance(axis, AxisConst) else "")) for name, axis in definition.axes.items()
    ]
    parts = [
        definition.name.encode(),
        framed(axes),
        framed(_tensors(definition.inputs)),
        framed(_tensors(definition.outputs)),
    ]
    return digest(parts)


def _tensors(specs: Mapping[str, TensorSpec]) -> Iterator[bytes]:
    for name, spec in specs.items():
        shape = b"scalar" if spec.shape is None else framed(("tensor", *spec.shape))
        yield framed((name, shape, spec.dtype, "optional" if spec.optional else ""))
