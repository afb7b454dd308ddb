"""Generates the two functions that a routed call goes through.

The *wrapper* is what the decorator returns. It has the user's signature and calls whatever stands in
``_fib_route``: the user's function, or a *route*. A route knows one function and one definition: it
has the check of one favoured entry look at the call, else that of the entry of the call's shapes, and
calls the entry's kernel; whatever it does not find it leaves to ``_fib_resolve``. All names of our own
begin with ``_fib_``, all others are parameters, which Python has checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from inspect import Parameter
from typing import Any

import attrs
from fib_compile.signatures import argument_list, given_condition, parameter_list
from fib_schema import AxisVar, Definition

from .matching import Form


@attrs.frozen(kw_only=True)
class Style:
    """What a route does beside the least."""

    is_memoised: bool = True
    """Whether shapes decide; else each call is resolved anew."""
    is_counted: bool = False
    catches: bool = False
    """Whether what a kernel raises is caught."""
    shadow_ratio: float = 0.0
    """The share of calls that are made both ways."""


def compiled(source: str, name: str, scope: dict[str, Any]) -> Callable[..., Any]:
    """The function of this name that a source defines, with a scope of its own."""
    exec(compile(source, f"<fib_apply {name}>", "exec"), scope)  # noqa: S102 made of our templates and of identifiers
    found: Callable[..., Any] = scope[name]
    return found


def wrapper_source(name: str, parameters: Sequence[Parameter]) -> str:
    """The source of a wrapper; `default_values` of the parameters belong into its scope."""
    return f"def {name}({parameter_list(parameters)}):\n    return _fib_route({argument_list(parameters)})\n"


def listened_source(name: str, parameters: Sequence[Parameter], notes: int) -> str:
    """The source of what calls ``_fib_note0`` and so on with the arguments by position, and then ``_fib_target``."""
    values = ", ".join(parameter.name for parameter in parameters)
    lines = [f"def {name}({parameter_list(parameters, has_defaults=False)}):"]
    lines += [f"    _fib_note{index}({values})" for index in range(notes)]
    return "\n".join([*lines, f"    return _fib_target({argument_list(parameters)})"]) + "\n"


def route_source(name: str, definition: Definition, form: Form, style: Style) -> str:
    """The source of a route."""
    lines = [f"def {name}({parameter_list(form.parameters, has_defaults=False)}):"]
    fallback = f"return _fib_fallback({argument_list(form.parameters)})"
    counted = ["        _fib_count_extra()"] if style.is_counted else []
    for extra in form.extras:
        lines += [f"    if {given_condition(extra)}:", *counted, f"        {fallback}"]
    inputs = [name or "None" for name in form.inputs]
    if form.outputs and not form.may_lack_outputs:
        lines += _body(definition, inputs, form.outputs, style, fallback, "passing", 1)
        return "\n".join(lines) + "\n"
    if form.outputs:
        lines.append(f"    if {' or '.join(f'{output} is not None' for output in form.outputs)}:")
        lines += _body(definition, inputs, form.outputs, style, fallback, "passing", 2)
    lines += _body(definition, inputs, (), style, fallback, "returning", 1)
    return "\n".join(lines) + "\n"


def _body(
    definition: Definition,
    inputs: Sequence[str],
    outputs: Sequence[str],
    style: Style,
    fallback: str,
    way: str,
    depth: int,
) -> list[str]:
    """The lines for one way of calling: ``returning`` values, or ``passing`` outputs."""
    args = ", ".join((*inputs, *outputs))
    counted = ["_fib_count()"] if style.is_counted else []
    serve = ["if _fib_kernel is None:", f"    {fallback}", *_call(args, outputs, style, fallback)]
    resolve = [f"_fib_kernel = _fib_resolve_{way}(({args},))"]
    if not style.is_memoised:
        return _indented([*resolve, *serve], depth)
    lines = [
        f"_fib_check, _fib_kernel, _fib_count = _fib_favourite_{way}[0]",
        f"if not _fib_check({args}):",
        "    try:",
        f"        _fib_shapes = {key_expression(definition, inputs, outputs)}",
        f"        _fib_entry = _fib_memo_{way}(_fib_shapes)",
        "    except _fib_no_shapes:",
        "        _fib_entry = None",
        f"    if _fib_entry is None or not _fib_entry[0]({args}):",
        *_indented([*resolve, *serve], 2),
        f"    if _fib_is_time_{way}():",
        f"        _fib_favour_{way}(_fib_shapes, _fib_entry)",
        "    _fib_check, _fib_kernel, _fib_count = _fib_entry",
        *counted,
        *serve,
    ]
    return _indented(lines, depth)


def _call(args: str, outputs: Sequence[str], style: Style, fallback: str) -> list[str]:
    lines = []
    if style.shadow_ratio:
        both = f"_fib_compare(_fib_kernel, ({args},), lambda: {fallback.removeprefix('return ')})"
        lines += [f"if _fib_random() < {style.shadow_ratio!r}:", f"    return {both}"]
    call = [f"_fib_kernel({args})", "return None"]
    if not outputs:
        call = [
            f"_fib_result = _fib_kernel({args})",
            "if _fib_type(_fib_result) is _fib_usual:",
            "    return _fib_result",
            "return _fib_unpack(_fib_result)",
        ]
    if style.catches:
        call = [
            "try:",
            *_indented(call, 1),
            "except _fib_errors as _fib_error:",
            "    _fib_failed(_fib_error, _fib_kernel)",
            fallback,
        ]
    return [*lines, *call]


def key_expression(definition: Definition, inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """Shapes that decide on all variable axes: of as few tensors as will do."""
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
