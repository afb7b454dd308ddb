"""Generates what a call meets first: it counts, and looks its shapes up among those that are full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from fib_schema import Definition

Note: TypeAlias = Callable[..., None]
"""Called with the arguments of each call of a function, by position."""


def compiled_note(source: str, scope: dict[str, Any]) -> Note:
    """The function that a source defines; whoever has its scope can change what it finds there."""
    exec(compile(source, "<fib_tracer note>", "exec"), scope)  # noqa: S102 made of numbers
    note: Note = scope["note"]
    return note


def note_source(definition: Definition, places: Sequence[int | None], count: int, *, is_content_by_key: bool) -> str:
    """The source of a note, whose parameters are ``p0`` and so on.

    Args:
        definition: Whose calls it is called with.
        places: Where each input is among the parameters.
        count: How many parameters there are.
        is_content_by_key: Whether the key must tell all contents apart, and not only sizes.
    """
    key = _key(definition, places, is_content_by_key=is_content_by_key)
    args = "".join("None, " if place is None else f"p{place}, " for place in places)
    return f"""
def note({", ".join(f"p{index}" for index in range(count))}):
    _count()
    if _closed:
        return
    try:
        key = {key}
        if key in _full:
            return
    except _odd:
        key = None
    _take(({args}), key)
"""


def _key(definition: Definition, places: Sequence[int | None], *, is_content_by_key: bool) -> str:
    """What decides on all axes: the shape of an input for each; and scalars, where they are part of the content."""
    specs = definition.inputs
    named = {name: f"p{place}" for name, place in zip(specs, places, strict=True) if place is not None}
    sized = dict.fromkeys(name for name, _ in definition.var_axes_bindings.values())
    parts = [
        f"None if {named[name]} is None else {named[name]}.shape" if specs[name].optional else f"{named[name]}.shape"
        for name in sized
        if name in named
    ]
    if is_content_by_key:
        parts += [parameter for name, parameter in named.items() if specs[name].shape is None]
        parts += [f"{parameter} is None" for name, parameter in named.items() if specs[name].optional]
    return parts[0] if len(parts) == 1 else f"({''.join(part + ', ' for part in parts)})"
