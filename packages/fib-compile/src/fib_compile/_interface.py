"""A digest of what a definition promises to its solutions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fib_schema import AxisConst, Definition, TensorSpec

from ._digest import digest, framed


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
