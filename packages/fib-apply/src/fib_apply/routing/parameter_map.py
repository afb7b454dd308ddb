"""Parameter maps: which parameters of a function carry the inputs and outputs of a definition."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Any

import attrs
from fib_compile.signatures import POSITIONAL, VARIADIC
from fib_schema import Definition

from ..errors import CannotRoute

RESERVED = "_fib_"
"""Prefix of the names in generated code; a function with such a parameter is routed like one of ``*args``."""
_RECEIVERS = ("self", "cls")


@attrs.frozen
class ParameterMap:
    """The parameters of a function that carry the inputs and outputs of a definition."""

    parameters: tuple[Parameter, ...]
    inputs: tuple[str | None, ...]
    """The parameter of each input, in the definition's order; None for an optional input without one."""
    outputs: tuple[str, ...] = ()
    """The parameter of each output; empty if the function returns them."""
    has_optional_outputs: bool = False
    """Whether the outputs may be None: the call then returns them."""
    extras: tuple[Parameter, ...] = ()
    """Parameters unknown to the definition. Calls that pass anything but their defaults are not routed."""


def parameters_of(function: Callable[..., Any]) -> tuple[Parameter, ...] | None:
    """A function's own parameters; None if all are variadic, one is reserved, or there is no signature."""
    try:
        found = tuple(inspect.signature(function, follow_wrapped=False).parameters.values())
    except (ValueError, TypeError):
        return None
    is_opaque = all(p.kind in VARIADIC for p in found) or any(p.name.startswith(RESERVED) for p in found)
    return None if is_opaque else found


def map_parameters(definition: Definition, parameters: Sequence[Parameter]) -> ParameterMap:
    """Map parameters by name if all required inputs are among them, else by position.

    Raises:
        CannotRoute: Neither fits.
    """
    parameters = tuple(parameters)
    names = {p.name for p in parameters}
    required = {name for name, spec in definition.inputs.items() if not spec.optional}
    found = _by_name(definition, parameters) if required <= names else _by_position(definition, parameters)
    used = {*found.inputs, *found.outputs}
    others = [p for p in parameters if p.name not in used]
    if others and others[0] is parameters[0] and others[0].name in _RECEIVERS:
        others = others[1:]
    for parameter in others:
        if parameter.default is Parameter.empty and parameter.kind not in VARIADIC:
            raise CannotRoute(definition.name, f"parameter {parameter.name!r} is none of {_expected(definition)}")
    return attrs.evolve(found, extras=tuple(others))


def _by_name(definition: Definition, parameters: Sequence[Parameter]) -> ParameterMap:
    by_name = {p.name: p for p in parameters}
    outputs = tuple(name for name in definition.outputs if name in by_name)
    if outputs and len(outputs) < len(definition.outputs):
        missing = next(name for name in definition.outputs if name not in by_name)
        raise CannotRoute(definition.name, f"there are parameters for some outputs, but none for {missing!r}")
    inputs = tuple(name if name in by_name else None for name in definition.inputs)
    has_optional_outputs = bool(outputs) and all(by_name[name].default is None for name in outputs)
    return ParameterMap(tuple(parameters), inputs, outputs, has_optional_outputs)


def _by_position(definition: Definition, parameters: Sequence[Parameter]) -> ParameterMap:
    """Map by position. A parameter with a default or without an output's name is not an output: it may be a bias."""
    offset = 1 if parameters and parameters[0].name in _RECEIVERS else 0
    places = [p for p in parameters[offset:] if p.kind in POSITIONAL]
    count, more = len(definition.inputs), len(definition.outputs)
    bare = [p for p in places if p.default is Parameter.empty]
    if len(places) < count or (len(bare) > count and len(bare) != count + more):
        names = ", ".join(p.name for p in parameters)
        raise CannotRoute(definition.name, f"({names}) matches neither by name nor by position {_expected(definition)}")
    outputs = tuple(p.name for p in places[count : count + more]) if len(bare) == count + more and more else ()
    order = dict(zip((*definition.inputs, *definition.outputs), (p.name for p in places), strict=False))
    for name, parameter in order.items():
        if parameter != name and parameter in (*definition.inputs, *definition.outputs):
            raise CannotRoute(definition.name, f"{parameter!r} is in the place of {name!r}: {_expected(definition)}")
    for name in outputs:
        if name not in definition.outputs and "out" not in name:
            problem = f"parameter {name!r} is ambiguous: it may be an output or not: {_expected(definition)}"
            raise CannotRoute(definition.name, problem)
    return ParameterMap(tuple(parameters), tuple(p.name for p in places[:count]), outputs)


def _expected(definition: Definition) -> str:
    return f"({', '.join(definition.inputs)}), with or without ({', '.join(definition.outputs)}) behind them"
