"""Checks what an entry function takes against the definition, and reorders if it must."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Any

from fib_schema import Definition, Solution

from .errors import BuildError

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def adapt_entry(
    function: Callable[..., Any], definition: Definition, solution: Solution, builder: str, *, has_setup: bool
) -> Callable[..., Any]:
    """The function itself or an adapter that passes arguments by name.

    A function whose parameters are the definition's inputs (and outputs, in destination-passing
    style) in another order is called by name; any other by position.

    Raises:
        BuildError: It cannot be called with that many arguments.
    """
    expected = list(definition.inputs)
    if solution.spec.destination_passing_style:
        expected += definition.outputs
    return _adapt(function, expected, definition, solution, builder, takes_prepared=has_setup)


def adapt_setup(
    function: Callable[..., Any], definition: Definition, solution: Solution, builder: str
) -> Callable[..., Any]:
    """`setup` likewise; it takes the inputs alone.

    Raises:
        BuildError: It cannot be called with that many arguments.
    """
    return _adapt(function, list(definition.inputs), definition, solution, builder, takes_prepared=False)


def _adapt(
    function: Callable[..., Any],
    expected: Sequence[str],
    definition: Definition,
    solution: Solution,
    builder: str,
    *,
    takes_prepared: bool,
) -> Callable[..., Any]:
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return function  # it does not tell, such as a function of an extension module
    own = [p for p in signature.parameters.values() if not takes_prepared or p.name in expected]
    names = [p.name for p in own]
    is_in_order = names == list(expected) and all(p.kind in _POSITIONAL for p in own)
    if not is_in_order and sorted(names) == sorted(expected):
        return _by_name(function, own, expected, definition, takes_prepared)
    bind = signature.bind_partial if takes_prepared else signature.bind  # setup() brings the rest
    try:
        bind(*expected)
    except TypeError as error:
        where = f"{getattr(function, '__name__', 'the entry point')}{signature}"
        style = "destination-passing" if solution.spec.destination_passing_style else "value-returning"
        problem = f"wrong signature ({style} style): expected ({', '.join(expected)}), found {where}"
        raise BuildError(solution.name, builder, problem, (str(error),)) from error
    return function


def _by_name(
    function: Callable[..., Any],
    own: Sequence[Parameter],
    expected: Sequence[str],
    definition: Definition,
    takes_prepared: bool,
) -> Callable[..., Any]:
    """Generate ``lambda a0, a1: function(a1, a0)``; names of the data set stay out of the code."""
    place = {name: f"a{index}" for index, name in enumerate(expected)}
    takes = [place[name] + _default(expected[index:], definition) for index, name in enumerate(expected)]
    passes = [place[p.name] if p.kind in _POSITIONAL else f"{p.name}={place[p.name]}" for p in own]
    if takes_prepared:
        takes.append("**prepared")
        passes.append("**prepared")
    code = f"lambda {', '.join(takes)}: function({', '.join(passes)})"
    adapter: Callable[..., Any] = eval(code, {"function": function})  # noqa: S307 - made of a0, a1 and parameter names
    return adapter


def _default(rest: Sequence[str], definition: Definition) -> str:
    is_optional = all(other in definition.inputs and definition.inputs[other].optional for other in rest)
    return "=None" if is_optional else ""
