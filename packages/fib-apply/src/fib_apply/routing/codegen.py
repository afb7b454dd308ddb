"""Code generation: writes the functions that a routed call goes through, and maps their parameters to a definition's.

The *wrapper* is what the decorator returns. It has the user's signature and calls ``_fib_route``: the user's function
or a *route*. A route serves one function and one definition. Its fast path asks a table for the kernel of the call, and
calls it. All other calls go to the slow path, ``_fib_resolve``. Names of generated code begin with ``_fib_``; all
others are parameters.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Sequence
from inspect import Parameter
from typing import Any

import attrs
from fib_compile.signatures import POSITIONAL, VARIADIC, argument_list, given_condition, parameter_list
from fib_schema import AxisVar, Definition

from ..errors import CannotRoute

VALUE_RETURNING, DESTINATION_PASSING = "value_returning", "destination_passing"


# -- parameters ---------------------------------------------------------------------------------------

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


# -- sources ------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class RouteOptions:
    """Options of generated routes."""

    is_cached: bool = True
    """Whether shapes determine the key; else each call takes the slow path."""
    is_counted: bool = False
    catches: bool = False
    """Whether exceptions of kernels are caught."""
    shadow_ratio: float = 0.0
    """The share of calls that are made by the solution and the fallback, and compared."""


def compile_function(source: str, name: str, scope: dict[str, Any]) -> Any:
    """Make the function ``_fib_function`` of a source, under another name and with a scope of its own.

    The scope has no ``__name__``: Dynamo would import the module of that name and look for the globals in it.
    """
    exec(_compile(source), scope)  # noqa: S102 made of our templates and of identifiers
    found = scope.pop("_fib_function")
    found.__code__ = found.__code__.replace(co_name=name, co_qualname=name, co_filename=f"<fib_apply {name}>")
    found.__name__ = found.__qualname__ = name
    return found


@functools.lru_cache(maxsize=1024)
def _compile(source: str) -> types.CodeType:
    """The code of a source: functions with equal parameters share it, because it takes as long as all other work."""
    return compile(source, "<fib_apply>", "exec")


def wrapper_source(parameters: Sequence[Parameter] | None) -> str:
    """The source of a wrapper; its scope needs the `default_values` of the parameters."""
    if parameters is None:
        return "def _fib_function(*args, **kwargs):\n    return _fib_route(*args, **kwargs)\n"
    return f"def _fib_function({parameter_list(parameters)}):\n    return _fib_route({argument_list(parameters)})\n"


def notifying_source(parameters: Sequence[Parameter], callbacks: int) -> str:
    """The source of a function that calls ``_fib_callback0`` and so on, then ``_fib_target``."""
    values = ", ".join(parameter.name for parameter in parameters)
    lines = [f"def _fib_function({parameter_list(parameters, has_defaults=False)}):"]
    lines += [f"    _fib_callback{index}({values})" for index in range(callbacks)]
    return "\n".join([*lines, f"    return _fib_target({argument_list(parameters)})"]) + "\n"


def route_source(mapped: ParameterMap, options: RouteOptions) -> str:
    """The source of a route."""
    lines = [f"def _fib_function({parameter_list(mapped.parameters, has_defaults=False)}):"]
    fallback = f"return _fib_fallback({argument_list(mapped.parameters)})"
    counted = ["        _fib_count_extra()"] if options.is_counted else []
    for extra in mapped.extras:
        lines += [f"    if {given_condition(extra)}:", *counted, f"        {fallback}"]
    inputs = [name or "None" for name in mapped.inputs]
    if mapped.outputs and not mapped.has_optional_outputs:
        lines += _body(inputs, mapped.outputs, options, fallback, 1)
        return "\n".join(lines) + "\n"
    if mapped.outputs:
        lines.append(f"    if {' or '.join(f'{output} is not None' for output in mapped.outputs)}:")
        lines += _body(inputs, mapped.outputs, options, fallback, 2, returns_outputs=True)
    lines += _body(inputs, (), options, fallback, 1)
    return "\n".join(lines) + "\n"


def _body(
    inputs: Sequence[str],
    outputs: Sequence[str],
    options: RouteOptions,
    fallback: str,
    depth: int,
    *,
    returns_outputs: bool = False,
) -> list[str]:
    """The lines of one call variant: destination-passing with outputs, value-returning without.

    A function whose outputs may be omitted returns them in either case, as torch's functions with ``out`` do.
    """
    variant = DESTINATION_PASSING if outputs else VALUE_RETURNING
    args = ", ".join((*inputs, *outputs))
    returned = ", ".join(outputs) if returns_outputs else "None"
    call = ["if _fib_kernel is None:", f"    {fallback}", *_call(args, outputs, options, fallback, returned)]
    slow_path = [f"_fib_kernel = _fib_resolve_{variant}(({args},))", *call]
    if not options.is_cached:
        return _indented(slow_path, depth)
    find = [f"_fib_kernel = _fib_table_{variant}({args})", "if _fib_kernel is _fib_miss:"]
    return _indented([*find, f"    {slow_path[0]}", *call], depth)


def _call(args: str, outputs: Sequence[str], options: RouteOptions, fallback: str, returned: str) -> list[str]:
    """The lines that call the kernel; `returned` is the result of a destination-passing call."""
    lines = []
    if options.shadow_ratio:
        compared = f"_fib_compare(_fib_kernel, ({args},), lambda: {fallback.removeprefix('return ')})"
        compare = [compared, f"return {returned}"] if outputs else [f"return {compared}"]
        lines += [f"if _fib_random() < {options.shadow_ratio!r}:", *_indented(compare, 1)]
    call = [f"_fib_kernel({args})", f"return {returned}"]
    if not outputs:
        call = [
            f"_fib_result = _fib_kernel({args})",
            "if _fib_type(_fib_result) is _fib_result_type:",
            "    return _fib_result",
            "return _fib_normalize(_fib_result)",
        ]
    if options.catches:
        call = [
            "try:",
            *_indented(call, 1),
            "except _fib_errors as _fib_error:",
            "    _fib_note_error(_fib_error, _fib_kernel)",
            f"    _fib_result = {fallback.removeprefix('return ')}",
            "    _fib_leave_out(_fib_error, _fib_kernel)",
            "    return _fib_result",
        ]
    return [*lines, *call]


def shapes_expression(definition: Definition, inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """The shapes that determine all variable axes, of as few tensors as possible."""
    specs = {**definition.inputs, **definition.outputs}
    pairs = list(zip((*inputs, *outputs), specs.values(), strict=False))
    tensors = [(name, spec) for name, spec in pairs if spec.shape is not None and name != "None"]
    chosen: list[str] = []
    missing = {axis for _, spec in tensors for axis in spec.shape or () if isinstance(definition.axes[axis], AxisVar)}
    while missing or not chosen:
        gain = {name: (len(missing & set(spec.shape or ())), not spec.optional) for name, spec in tensors}
        best = max(gain, key=lambda name: gain[name], default=None)
        if best is None or best in chosen:
            break
        chosen.append(best)
        spec = dict(tensors)[best]
        missing -= set() if spec.optional else set(spec.shape or ())
        tensors = [pair for pair in tensors if pair[0] != best]
    optional = {name for name, spec in pairs if spec.optional}
    parts = [f"None if {name} is None else {name}.shape" if name in optional else f"{name}.shape" for name in chosen]
    return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"


def _indented(lines: Iterable[str], depth: int) -> list[str]:
    return [" " * (4 * depth) + line for line in lines]
