"""Matches a function's parameters with a definition's inputs and outputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Any

import attrs
from fib_compile.signatures import POSITIONAL, VARIADIC
from fib_schema import Definition

from ..errors import CannotRoute

_RECEIVERS = ("self", "cls")
RESERVED = "_fib_"
"""Names in generated code begin with it; a function with such parameters is called in the general way."""


@attrs.frozen
class Form:
    """How a function's parameters make up a call of a definition."""

    parameters: tuple[Parameter, ...]
    inputs: tuple[str | None, ...]
    """The parameter of each input, in the definition's order; None for an optional input without one."""
    outputs: tuple[str, ...] = ()
    """Likewise of each output; nothing if the function returns them."""
    may_lack_outputs: bool = False
    """Whether the outputs may be None: the call then returns them."""
    extras: tuple[Parameter, ...] = ()
    """Parameters that the definition does not know: only their defaults may be passed, and nothing to variadic ones."""

    def by_name(self, definition: Definition) -> dict[str, str]:
        """The parameters by the names of the inputs and outputs that they carry."""
        pairs = (
            *zip(definition.inputs, self.inputs, strict=True),
            *zip(definition.outputs, self.outputs, strict=False),
        )
        return {name: parameter for name, parameter in pairs if parameter is not None}


def parameters_of(function: Callable[..., Any]) -> tuple[Parameter, ...] | None:
    """A function's own parameters; None if it takes anything, or does not tell."""
    try:
        found = tuple(inspect.signature(function, follow_wrapped=False).parameters.values())
    except (ValueError, TypeError):
        return None
    is_general = all(p.kind in VARIADIC for p in found) or any(p.name.startswith(RESERVED) for p in found)
    return None if is_general else found


def match(definition: Definition, parameters: Sequence[Parameter]) -> Form:
    """Match by name where all inputs are among the parameters, else by position.

    Raises:
        CannotRoute: Neither fits.
    """
    parameters = tuple(parameters)
    names = [p.name for p in parameters]
    required = [name for name, spec in definition.inputs.items() if not spec.optional]
    form = _by_name(definition, parameters) if set(required) <= set(names) else _by_position(definition, parameters)
    used = {*form.inputs, *form.outputs}
    others = [p for p in parameters if p.name not in used]
    if others and others[0] is parameters[0] and others[0].name in _RECEIVERS:
        others = others[1:]
    for parameter in others:
        if parameter.default is Parameter.empty and parameter.kind not in VARIADIC:
            raise CannotRoute(definition.name, f"parameter {parameter.name!r} is none of {_takes(definition)}")
    return attrs.evolve(form, extras=tuple(others))


def _by_name(definition: Definition, parameters: Sequence[Parameter]) -> Form:
    by_name = {p.name: p for p in parameters}
    outputs = tuple(name for name in definition.outputs if name in by_name)
    if outputs and len(outputs) < len(definition.outputs):
        missing = next(name for name in definition.outputs if name not in by_name)
        raise CannotRoute(definition.name, f"there are parameters for some outputs, and none for {missing!r}")
    inputs = tuple(name if name in by_name else None for name in definition.inputs)
    may_lack = bool(outputs) and all(by_name[name].default is None for name in outputs)
    return Form(tuple(parameters), inputs, outputs, may_lack)


def _by_position(definition: Definition, parameters: Sequence[Parameter]) -> Form:
    """What is not named like an output, or has a default, is never taken for one: it may be a residual or a bias."""
    offset = 1 if parameters and parameters[0].name in _RECEIVERS else 0
    places = [p for p in parameters[offset:] if p.kind in POSITIONAL]
    count, more = len(definition.inputs), len(definition.outputs)
    bare = [p for p in places if p.default is Parameter.empty]
    if len(places) < count or (len(bare) > count and len(bare) != count + more):
        names = ", ".join(p.name for p in parameters)
        raise CannotRoute(definition.name, f"({names}) fits neither by name nor by position {_takes(definition)}")
    outputs = tuple(p.name for p in places[count : count + more]) if len(bare) == count + more and more else ()
    order = dict(zip((*definition.inputs, *definition.outputs), (p.name for p in places), strict=False))
    for name, parameter in order.items():
        if parameter != name and parameter in (*definition.inputs, *definition.outputs):
            raise CannotRoute(definition.name, f"{parameter!r} stands where {name!r} should: {_takes(definition)}")
    for name in outputs:
        if name not in definition.outputs and "out" not in name:
            raise CannotRoute(definition.name, f"parameter {name!r} may or may not be an output: {_takes(definition)}")
    return Form(tuple(parameters), tuple(p.name for p in places[:count]), outputs)


def _takes(definition: Definition) -> str:
    return f"({', '.join(definition.inputs)}), with ({', '.join(definition.outputs)}) behind them or without"
