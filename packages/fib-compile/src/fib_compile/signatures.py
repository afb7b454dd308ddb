"""Signatures of generated functions, as source code.

Wrappers, routes and adapters are generated with the parameters of the function that they stand for. Defaults are
names in the generated code's scope (`default_values`), because a default may be any object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from inspect import Parameter
from types import MappingProxyType
from typing import Any

POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_COMPARED_BY_VALUE = (bool, int, float, str, bytes)
_STARS: Mapping[Any, str] = MappingProxyType({Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"})


def default_values(parameters: Iterable[Parameter]) -> dict[str, Any]:
    """The names that stand for defaults in generated code, with their values."""
    return {_default_name(p): p.default for p in parameters if p.default is not Parameter.empty}


def parameter_list(parameters: Sequence[Parameter], *, has_defaults: bool = True) -> str:
    """Parameters in the order of a signature as they are written in a ``def``, without annotations."""
    parts: list[str] = []
    kinds = [parameter.kind for parameter in parameters]
    for index, parameter in enumerate(parameters):
        before, after = kinds[:index], kinds[index + 1 :]
        if parameter.kind is Parameter.KEYWORD_ONLY and not {*before} & {Parameter.KEYWORD_ONLY, VARIADIC[0]}:
            parts.append("*")
        is_optional = has_defaults and parameter.default is not Parameter.empty
        parts.append(starred_name(parameter) + (f"={_default_name(parameter)}" if is_optional else ""))
        if parameter.kind is Parameter.POSITIONAL_ONLY and after[:1] != [Parameter.POSITIONAL_ONLY]:
            parts.append("/")
    return ", ".join(parts)


def argument_list(parameters: Iterable[Parameter], values: Mapping[str, str] | None = None) -> str:
    """The arguments of a call that passes for each parameter an expression, by default its own name."""
    values = values or {}
    return ", ".join(
        values.get(p.name, starred_name(p))
        if p.kind in POSITIONAL or p.kind in VARIADIC
        else f"{p.name}={values.get(p.name, p.name)}"
        for p in parameters
    )


def given_condition(parameter: Parameter) -> str:
    """An expression that is true if a call passes something other than the parameter's default.

    Numbers, strings and bytes are equal by type and value, other objects by identity. The expression needs ``type``
    as ``_fib_type``, because a parameter may be called ``type``.
    """
    name, default = parameter.name, _default_name(parameter)
    if parameter.kind in VARIADIC:
        return name
    is_other = f"{name} is not {default}"
    if type(parameter.default) not in _COMPARED_BY_VALUE:
        return is_other
    return f"{is_other} and (_fib_type({name}) is not _fib_type({default}) or {name} != {default})"


def starred_name(parameter: Parameter) -> str:
    """A parameter's name, with its stars."""
    return _STARS.get(parameter.kind, "") + parameter.name


def _default_name(parameter: Parameter) -> str:
    return f"_fib_default_{parameter.name}"
