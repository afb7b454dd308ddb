"""Wrapper code generation: the hot path of a patched function.

A *wrapper* replaces the library function. It calls the original while nothing is enabled, else the *dispatch
function*, which converts the call, looks up the handler of its key and calls it. Our own names begin with ``_fib_``;
all others are the library's parameters. The original arguments come along, so that an unsupported call reaches the
original unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .adapter import Call, Plan, Target
from .parameters import TargetSignature

_WRAPPER = """\
def {name}(*_fib_args, **_fib_kwargs):
    if _fib_dispatch is None:
{disabled}        return _fib_original(*_fib_args, **_fib_kwargs)
    return _fib_dispatch(_fib_args, _fib_kwargs, *_fib_args, **_fib_kwargs)
"""

_POSITIONAL_WRAPPER = """\
def {name}({signature}):
    if _fib_dispatch is None:
{disabled}        return _fib_original({forwarded})
    return _fib_dispatch(({forwarded},), {{}}, {forwarded})
"""

_INVALIDATE = "        _fib_invalidate({owner})\n"
"""While nothing is enabled, plans are not recorded: a recorded plan becomes stale. So does that of a call which changes
it in a way that the adapter does not know."""

_HEAD = """\
def {name}(_fib_args, _fib_kwargs, /, {signature}):
    if _fib_thread.is_in_handler:
        return _fib_original(*_fib_args, **_fib_kwargs)
"""

_UNSUPPORTED = """\
    if {condition}:
{stale}        return _fib_fall_through({reason!r}, _fib_args, _fib_kwargs)
"""

_PASS_ON = """\
        _fib_thread.is_in_handler = True
        try:
            return _fib_original(*_fib_args, **_fib_kwargs)
        finally:
            _fib_thread.is_in_handler = False
"""

_PASS_ON_BY_KEY = """\
    try:
        _fib_handler = _fib_handlers.get(_fib_make_key({key_arguments}))
    except _fib_errors:
        _fib_handler = None
    if _fib_type(_fib_handler) is _fib_passed_on and not _fib_handler.callbacks:  # only a plan's are counted
"""

_PASS_ON_BY_PLAN = """\
    if _fib_plan.passed_on is not None and _fib_plan.passed_key is _fib_plan.value.current:
        if _fib_plan.passed_on.count is not None:
            _fib_plan.passed_on.count()
"""

_FIND_PLAN = """\
    _fib_plan = _fib_plans.get(_fib_id({owner}))
    if _fib_plan is None:
        return _fib_fall_through("it was not planned while routing or tracing was enabled", _fib_args, _fib_kwargs)
    if _fib_type(_fib_plan.value) is _fib_str:
        return _fib_fall_through(_fib_plan.value, _fib_args, _fib_kwargs)
    try:
        _fib_state = {owner}.{state_attribute}
    except AttributeError:
        _fib_state = None
    if _fib_state is not _fib_plan.state and not _fib_plan.renew({owner}, _fib_state):
        return _fib_fall_through("it was replanned without a call of the patched plan method", _fib_args, _fib_kwargs)
    if _fib_plan.generation is not _fib_generation:
        _fib_start_plan(_fib_plan)
"""

_CALL = """\
    try:  # the original is called outside of it: its own errors are the caller's
        _fib_converted = _fib_convert({arguments})
        if _fib_type(_fib_converted) is not _fib_str:
            _fib_key, _fib_values, _fib_is_dps = _fib_converted
            _fib_by_key = {place}dps_handlers if _fib_is_dps else {place}handlers
            _fib_handler = _fib_by_key.get(_fib_key)
    except _fib_errors as _fib_error:
        _fib_converted = _fib_conversion_failed(_fib_error)
    if _fib_type(_fib_converted) is _fib_str:
        return _fib_fall_through(_fib_converted, _fib_args, _fib_kwargs)
    _fib_thread.is_in_handler = True
    try:
        if _fib_handler is None:  # it may set a solution up, whose own calls of the library go to the originals
            _fib_handler = _fib_add_handler(_fib_by_key, _fib_key, _fib_values, _fib_is_dps, {plan})
        if _fib_type(_fib_handler) is _fib_passed_on:
            if _fib_handler.count is not None:
                _fib_handler.count()
            for _fib_callback in _fib_handler.callbacks:
                _fib_callback(*_fib_values[:_fib_handler.arity])
            return _fib_original(*_fib_args, **_fib_kwargs)
        _fib_result = _fib_handler(*_fib_values, _fib_args, _fib_kwargs)
    finally:
        _fib_thread.is_in_handler = False
    if _fib_type(_fib_result) is _fib_original_result:
        return _fib_result.value
    return {result}
"""

_PLAN = """\
def {name}(_fib_args, _fib_kwargs, /, {signature}):
    _fib_previous = _fib_invalidate({owner})
    _fib_result = _fib_original(*_fib_args, **_fib_kwargs)
    if _fib_thread.is_in_handler:
        return _fib_result
{unsupported}    try:
        _fib_converted = _fib_convert({arguments})
    except _fib_errors as _fib_error:
        _fib_converted = _fib_conversion_failed(_fib_error)
    _fib_record_plan({owner}, _fib_converted, _fib_previous)
    return _fib_result
"""

_UNSUPPORTED_PLAN = """\
    if {condition}:
        _fib_record_plan({owner}, {reason!r}, _fib_previous)
        return _fib_result
"""

_INVALIDATE_PLAN = """\
def {name}(_fib_args, _fib_kwargs, /, {signature}):
    _fib_previous = _fib_invalidate({owner})
    return _fib_original(*_fib_args, **_fib_kwargs)
"""


_INLINED = """\
def {name}(_fib_args, _fib_kwargs, /, *_fib_same, **_fib_named):
    return _fib_original(*_fib_args, **_fib_kwargs)
"""


def inlined_source(name: str) -> str:
    """The source of a function with the parameters of a dispatch function that only calls the original."""
    return _INLINED.format(name=name)


def wrapper_source(name: str, target: Target, signature: TargetSignature) -> str:
    """The source of the wrapper.

    Forwarding ``*args, **kwargs`` costs about three times as much as forwarding known parameters by position.
    """
    owner = signature.parameters[0].name if signature.is_positional else "*_fib_args[:1]"
    keeps_plan = isinstance(target, Call) and not target.changes_plan
    disabled = "" if keeps_plan else _INVALIDATE.format(owner=owner)
    if not signature.is_positional:
        return _WRAPPER.format(name=name, disabled=disabled)
    forwarded = ", ".join(parameter.name for parameter in signature.parameters)
    return _POSITIONAL_WRAPPER.format(name=name, signature=signature.source(), disabled=disabled, forwarded=forwarded)


def dispatch_source(name: str, target: Target, signature: TargetSignature, state_attribute: str) -> str:
    """The source of the dispatch function; for `state_attribute` see `Plan`."""
    texts = {"name": name, "signature": signature.source(), "state_attribute": state_attribute}
    if signature.parameters:
        texts["owner"] = signature.parameters[0].name
    if isinstance(target, Plan):
        unsupported = (_UNSUPPORTED_PLAN.format(condition=c, reason=r, **texts) for c, r in signature.unsupported)
        arguments = _joined(texts["owner"], signature.convert_arguments)
        return _PLAN.format(unsupported="".join(unsupported), arguments=arguments, **texts)
    if not isinstance(target, Call):
        return _INVALIDATE_PLAN.format(**texts)
    return _call_source(texts, target, signature)


def _call_source(texts: dict[str, str], target: Call, signature: TargetSignature) -> str:
    stale = _INVALIDATE.format(**texts) if target.changes_plan else ""
    unsupported = (_UNSUPPORTED.format(condition=c, reason=r, stale=stale) for c, r in signature.unsupported)
    lines = [_HEAD.format(**texts), *unsupported]
    place, plan, arguments = "_fib_", "None", signature.convert_arguments
    if target.key is not None:
        lines += [_PASS_ON_BY_KEY.format(key_arguments=signature.key_arguments), _PASS_ON]
    if target.uses_plan:
        lines.append(_FIND_PLAN.format(**texts))
        if not target.changes_plan:
            lines += [_PASS_ON_BY_PLAN, _PASS_ON]
        place, plan, arguments = "_fib_plan.", "_fib_plan", _joined("_fib_plan.value", arguments)
    result = "_fib_values[-1] if _fib_is_dps else _fib_result"
    if target.finalize is not None:
        result = f"_fib_finalize({_joined('_fib_result', signature.finalize_arguments)})"
    lines.append(_CALL.format(arguments=arguments, plan=plan, place=place, result=result))
    return "".join(lines)


def _joined(first: str, arguments: str) -> str:
    return f"{first}, {arguments}" if arguments else first


def compiled(source: str, name: str, scope: dict[str, Any]) -> Callable[..., Any]:
    """The function of this name that a source defines; its globals are the scope."""
    exec(compile(source, f"<fib_integrations {name}>", "exec"), scope)  # noqa: S102 made of our templates and of identifiers
    found: Callable[..., Any] = scope.pop(name)
    return found


def identifier(name: str) -> str:
    """A function's name for tracebacks, if it is safe to use in generated code."""
    return name if re.fullmatch(r"(?!_fib_)[A-Za-z_]\w*", name) else "call"
