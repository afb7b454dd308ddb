"""Code generation: writes the functions that a routed call goes through.

The *wrapper* is what the decorator returns. It has the user's signature and calls ``_fib_route``: the user's function
or a *route*. A route serves one function and one definition. Its fast path asks a native table for the kernel of the
call; without one, it tries the guard of the inline-cache entry, then that of the entry for the call's shapes. Then it
calls the kernel. All other calls go to the slow path, ``_fib_resolve``. Names of generated code begin with ``_fib_``;
all others are parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from inspect import Parameter
from typing import Any

import attrs
from fib_compile.signatures import argument_list, given_condition, parameter_list
from fib_schema import AxisVar, Definition

from .parameter_map import ParameterMap

VALUE_RETURNING, DESTINATION_PASSING = "value_returning", "destination_passing"


@attrs.frozen(kw_only=True)
class RouteOptions:
    """Options of generated routes."""

    is_cached: bool = True
    """Whether shapes determine the key; else each call takes the slow path."""
    is_native: bool = False
    """Whether a native table finds entries, and counts calls."""
    is_counted: bool = False
    catches: bool = False
    """Whether exceptions of kernels are caught."""
    shadow_ratio: float = 0.0
    """The share of calls that are made by the solution and the fallback, and compared."""


def compile_function(source: str, name: str, scope: dict[str, Any], filename: str = "fib_apply") -> Callable[..., Any]:
    """Compile the function of this name that a source defines, with a scope of its own.

    The scope has no ``__name__``: Dynamo would import the module of that name and look for the globals in it.
    """
    exec(compile(source, f"<{filename} {name}>", "exec"), scope)  # noqa: S102 made of our templates and of identifiers
    found: Callable[..., Any] = scope[name]
    return found


def wrapper_source(name: str, parameters: Sequence[Parameter]) -> str:
    """The source of a wrapper; its scope needs the `default_values` of the parameters."""
    return f"def {name}({parameter_list(parameters)}):\n    return _fib_route({argument_list(parameters)})\n"


def notifying_source(name: str, parameters: Sequence[Parameter], callbacks: int) -> str:
    """The source of a function that calls ``_fib_callback0`` and so on, then ``_fib_target``."""
    values = ", ".join(parameter.name for parameter in parameters)
    lines = [f"def {name}({parameter_list(parameters, has_defaults=False)}):"]
    lines += [f"    _fib_callback{index}({values})" for index in range(callbacks)]
    return "\n".join([*lines, f"    return _fib_target({argument_list(parameters)})"]) + "\n"


def route_source(name: str, definition: Definition, mapped: ParameterMap, options: RouteOptions) -> str:
    """The source of a route."""
    lines = [f"def {name}({parameter_list(mapped.parameters, has_defaults=False)}):"]
    fallback = f"return _fib_fallback({argument_list(mapped.parameters)})"
    counted = ["        _fib_count_extra()"] if options.is_counted else []
    for extra in mapped.extras:
        lines += [f"    if {given_condition(extra)}:", *counted, f"        {fallback}"]
    inputs = [name or "None" for name in mapped.inputs]
    if mapped.outputs and not mapped.has_optional_outputs:
        lines += _body(definition, inputs, mapped.outputs, options, fallback, 1)
        return "\n".join(lines) + "\n"
    if mapped.outputs:
        lines.append(f"    if {' or '.join(f'{output} is not None' for output in mapped.outputs)}:")
        lines += _body(definition, inputs, mapped.outputs, options, fallback, 2, returns_outputs=True)
    lines += _body(definition, inputs, (), options, fallback, 1)
    return "\n".join(lines) + "\n"


def _body(
    definition: Definition,
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
    counted = ["_fib_count()"] if options.is_counted else []
    returned = ", ".join(outputs) if returns_outputs else "None"
    call = ["if _fib_kernel is None:", f"    {fallback}", *_call(args, outputs, options, fallback, returned)]
    slow_path = [f"_fib_kernel = _fib_resolve_{variant}(({args},))", *call]
    if not options.is_cached:
        return _indented(slow_path, depth)
    if options.is_native:
        find = [f"_fib_kernel = _fib_table_{variant}({args})", "if _fib_kernel is _fib_miss:"]
        return _indented([*find, f"    {slow_path[0]}", *call], depth)
    lines = [
        "try:",
        f"    _fib_is_nested = {_nested_expression(definition, inputs, outputs)}",
        "except _fib_errors as _fib_error:  # not a tensor",
        "    _fib_raise_interrupt(_fib_error)",
        "    _fib_is_nested = True",
        "if _fib_is_nested:  # guards abort for a nested tensor",
        *_indented(slow_path, 1),
        f"_fib_guard, _fib_kernel, _fib_count = _fib_inline_cache_{variant}[0]",
        f"if not _fib_guard({args}):",
        "    try:",
        f"        _fib_shapes = {shapes_expression(definition, inputs, outputs)}",
        f"        _fib_entry = _fib_find_{variant}(_fib_shapes)",
        "    except _fib_errors as _fib_error:",
        "        _fib_raise_interrupt(_fib_error)",
        "        _fib_entry = None",
        f"    if _fib_entry is None or not _fib_entry[0]({args}):  # slow path",
        *_indented(slow_path, 2),
        f"    if _fib_count_miss_{variant}():",
        f"        _fib_promote_{variant}(_fib_shapes, _fib_entry)",
        "    _fib_guard, _fib_kernel, _fib_count = _fib_entry",
        *counted,
        *call,
    ]
    return _indented(lines, depth)


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
            "    _fib_handle_error(_fib_error, _fib_kernel)",
            fallback,
        ]
    return [*lines, *call]


def _nested_expression(definition: Definition, inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """The condition that a value may be a nested tensor: its `is_nested` is anything but False, as for proxies."""
    specs = [*definition.inputs.values(), *definition.outputs.values()]
    conditions = [
        f"{'' if not spec.optional else f'{name} is not None and '}{name}.is_nested is not False"
        for name, spec in zip((*inputs, *outputs), specs, strict=False)
        if spec.shape is not None and name != "None"
    ]
    return " or ".join(conditions) or "False"


def shapes_expression(definition: Definition, inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """The shapes that determine all variable axes, of as few tensors as possible: the cache key of a call."""
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
