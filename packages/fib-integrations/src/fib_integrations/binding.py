"""How the parameters of a library's function become those of the function that reads its calls.

The library's version at hand decides: whatever parameter `read` does not name, and nobody declared to be a
hint, must be left at its default. A reader may name parameters that a version lacks, if it has defaults for them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter
from typing import Any

import attrs

from .errors import CannotAdapt

_STARS: Mapping[Any, str] = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}
_COMPARED = (bool, int, float, str)
"""Defaults of these types may be passed as another object of the same value."""


@attrs.frozen
class Binding:
    """What generated code needs to know of one function and its reader."""

    parameters: tuple[Parameter, ...]
    """Of the library's function; a method's first one is the object."""
    passed: tuple[str, ...]
    """For each parameter of the reader, what carries it: an expression."""
    given: tuple[str, ...]
    """Likewise for each parameter of `Call.give` behind the result."""
    refusals: tuple[tuple[str, str], ...]
    """Conditions under which a call is not covered, and what to say then."""
    scope: Mapping[str, Any]
    """What the expressions refer to, defaults among them."""

    def signature(self) -> str:
        """The parameters as they stand in a ``def``, with their defaults as names."""
        parts: list[str] = []
        is_bare = any(p.kind is Parameter.VAR_POSITIONAL for p in self.parameters)
        for index, parameter in enumerate(self.parameters):
            if parameter.kind is Parameter.KEYWORD_ONLY and not is_bare:
                parts.append("*")
                is_bare = True
            has_default = parameter.default is not Parameter.empty
            text = _STARS.get(parameter.kind, "") + parameter.name
            parts.append(f"{text}=_fib_default{index}" if has_default else text)
        return ", ".join(parts)


def bind(
    path: str,
    signature: inspect.Signature,
    read: Callable[..., Any],
    *,
    give: Callable[..., Any] | None = None,
    ignored: Iterable[str] = (),
    leading: int = 0,
) -> Binding:
    """Match a function's parameters with those of its reader.

    Args:
        path: What it is, for messages.
        signature: Of the library's function.
        read: The reader; its parameters are named like those of the function.
        give: Makes what the caller gets: of a result, and of what some of the reader's parameters are.
        ignored: Parameters that do not matter.
        leading: How many of the reader's first parameters are not the function's: the object, or what was planned.

    Raises:
        CannotAdapt: The reader needs a parameter that is not there, or `give` one that the reader has not.
    """
    parameters = tuple(p.replace(annotation=Parameter.empty) for p in signature.parameters.values())
    wanted = tuple(inspect.signature(read).parameters.values())[leading:]
    catch_all = next((p.name for p in parameters if p.kind is Parameter.VAR_KEYWORD), None)
    scope = {
        f"_fib_default{index}": p.default for index, p in enumerate(parameters) if p.default is not Parameter.empty
    }
    values = _values(path, wanted, {p.name for p in parameters}, catch_all, scope)
    to_give = () if give is None else tuple(inspect.signature(give).parameters.values())[1:]
    if unread := [p.name for p in to_give if p.name not in values]:
        raise CannotAdapt(path, f"`give` takes {unread[0]!r}, which `read` does not")
    known = set(values)
    given, passed = _passed(to_give, values), _passed(wanted, values)
    known |= set(ignored)
    others = _others(parameters, known)
    for _, parameter in others:
        if parameter.default is Parameter.empty and parameter.kind is not Parameter.VAR_POSITIONAL:
            raise CannotAdapt(path, f"its parameter {parameter.name!r}, which calls must give, is unknown")
    refusals = [(_is_given(index, p), f"{_STARS.get(p.kind, '')}{p.name} is given") for index, p in others]
    if catch_all is not None:
        scope["_fib_known"] = frozenset(known)
        refusals.append((f"{catch_all} and not _fib_known.issuperset({catch_all})", "an unknown keyword is given"))
    return Binding(parameters, passed, given, tuple(refusals), scope)


def _others(parameters: Sequence[Parameter], known: set[str]) -> list[tuple[int, Parameter]]:
    """Parameters that nobody reads; a method's object and keywords are looked at elsewhere."""
    found = [(index, p) for index, p in enumerate(parameters) if p.name not in known]
    return [
        (index, p)
        for index, p in found
        if p.kind is not Parameter.VAR_KEYWORD and not (index == 0 and p.name == "self")
    ]


def _values(
    path: str, wanted: Sequence[Parameter], there: set[str], catch_all: str | None, scope: dict[str, Any]
) -> dict[str, str]:
    """Expressions for a reader's parameters; one that is not there is what the reader has by default."""
    values: dict[str, str] = {}
    for parameter in wanted:
        name = parameter.name
        if name in there:
            values[name] = name
            continue
        if parameter.default is Parameter.empty:
            raise CannotAdapt(path, f"it has no parameter {name!r}")
        default = f"_fib_of_{name}"
        scope[default] = parameter.default
        values[name] = default if catch_all is None else f"{catch_all}.get({name!r}, {default})"
    return values


def _passed(parameters: Sequence[Parameter], values: Mapping[str, str]) -> tuple[str, ...]:
    """The arguments for parameters: by position, which is faster, where they may be."""
    return tuple(
        f"{p.name}={values[p.name]}" if p.kind is Parameter.KEYWORD_ONLY else values[p.name] for p in parameters
    )


def _is_given(index: int, parameter: Parameter) -> str:
    """A condition for a parameter that is not left at its default."""
    name, default = parameter.name, f"_fib_default{index}"
    if parameter.kind is Parameter.VAR_POSITIONAL:
        return name
    if type(parameter.default) in _COMPARED:
        return f"{name} is not {default} and (_fib_type({name}) is not _fib_type({default}) or {name} != {default})"
    return f"{name} is not {default}"
