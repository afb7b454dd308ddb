"""Generates what a patched function does while somebody routes or listens: the hot path of this package.

All names of our own begin with ``_fib_``; all others are the library's parameters. The call's very arguments
come along, so that whatever is not covered goes to the original as it came.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .adapter import Call, Plan, Target
from .binding import Binding

_WRAPPER = """\
def {name}(*_fib_args, **_fib_kwargs):
    if _fib_cover is None:
{meanwhile}        return _fib_original(*_fib_args, **_fib_kwargs)
    return _fib_cover(_fib_args, _fib_kwargs, *_fib_args, **_fib_kwargs)
"""

_WRAPPER_OF_PLAIN = """\
def {name}({signature}):
    if _fib_cover is None:
{meanwhile}        return _fib_original({forwarded})
    return _fib_cover(({forwarded},), {{}}, {forwarded})
"""

_FORGET = "        _fib_forget({owner})\n"
"""Nobody routes or listens, and what is remembered is no more what was planned."""

_HEAD = """\
def {name}(_fib_args, _fib_kwargs, /, {signature}):
    if _fib_here.is_inside:
        return _fib_original(*_fib_args, **_fib_kwargs)
"""

_REFUSAL = """\
    if {condition}:
        return _fib_refuse({reason!r}, _fib_args, _fib_kwargs)
"""

_FIND_PLAN = """\
    _fib_plan = _fib_plans.get(_fib_id({owner}))
    if _fib_plan is None:
        return _fib_refuse("it was not planned since somebody routes or listens", _fib_args, _fib_kwargs)
    if _fib_type(_fib_plan.value) is _fib_str:
        return _fib_refuse(_fib_plan.value, _fib_args, _fib_kwargs)
    try:
        _fib_now = {owner}.{stamp}
    except AttributeError:
        _fib_now = None
    if _fib_now is not _fib_plan.stamp:
        return _fib_refuse("it was planned by other means since", _fib_args, _fib_kwargs)
    if _fib_plan.generation is not _fib_generation:
        _fib_renew(_fib_plan)
"""

_ROUTE = """\
    try:
        _fib_found = _fib_read({read})
        if _fib_type(_fib_found) is _fib_str:
            return _fib_refuse(_fib_found, _fib_args, _fib_kwargs)
        _fib_key, _fib_values, _fib_is_passing = _fib_found
        _fib_routes = {passing} if _fib_is_passing else {returning}
        _fib_route = _fib_routes.get(_fib_key)
    except _fib_errors as _fib_error:
        return _fib_refuse(_fib_broken(_fib_error), _fib_args, _fib_kwargs)
    if _fib_route is None:
        _fib_route = _fib_resolve(_fib_routes, _fib_key, _fib_values, _fib_is_passing, {plan})
    _fib_here.is_inside = True
    try:
        _fib_result = _fib_route(*_fib_values, _fib_args, _fib_kwargs)
    finally:
        _fib_here.is_inside = False
    if _fib_type(_fib_result) is _fib_served:
        return _fib_result.value
    return {given}
"""

_PLAN = """\
def {name}(_fib_args, _fib_kwargs, /, {signature}):
    _fib_forget({owner})
    _fib_result = _fib_original(*_fib_args, **_fib_kwargs)
    if _fib_here.is_inside:
        return _fib_result
{refusals}    try:
        _fib_found = _fib_read({read})
    except _fib_errors as _fib_error:
        _fib_found = _fib_broken(_fib_error)
    _fib_remember({owner}, _fib_found)
    return _fib_result
"""

_PLAN_REFUSAL = """\
    if {condition}:
        _fib_remember({owner}, {reason!r})
        return _fib_result
"""

_UNPLAN = """\
def {name}(_fib_args, _fib_kwargs, /, {signature}):
    _fib_forget({owner})
    return _fib_original(*_fib_args, **_fib_kwargs)
"""


def wrapper_source(name: str, target: Target, binding: Binding) -> str:
    """The source of what takes the place of a function: it calls the original, or what covers its calls.

    Args:
        name: Of the function.
        target: What its calls are.
        binding: Its parameters. Where it gets all of them, by position, this takes a fraction of what it takes to
            pass on keywords as they come.
    """
    owner = binding.parameters[0].name if binding.is_plain else "*_fib_args[:1]"
    meanwhile = "" if isinstance(target, Call) else _FORGET.format(owner=owner)
    if not binding.is_plain:
        return _WRAPPER.format(name=name, meanwhile=meanwhile)
    forwarded = ", ".join(parameter.name for parameter in binding.parameters)
    texts = {"name": name, "signature": binding.signature(), "meanwhile": meanwhile}
    return _WRAPPER_OF_PLAIN.format(forwarded=forwarded, **texts)


def cover_source(name: str, target: Target, binding: Binding, stamp: str) -> str:
    """The source of what covers the calls of a target; `stamp` is the attribute that each plan replaces."""
    texts = {"name": name, "signature": binding.signature(), "stamp": stamp}
    if binding.parameters:
        texts["owner"] = binding.parameters[0].name
    if isinstance(target, Plan):
        refusals = (_PLAN_REFUSAL.format(condition=c, reason=r, **texts) for c, r in binding.refusals)
        return _PLAN.format(refusals="".join(refusals), read=_joined(texts["owner"], binding.passed), **texts)
    if not isinstance(target, Call):
        return _UNPLAN.format(**texts)
    return _call_source(texts, target, binding)


def _call_source(texts: dict[str, str], target: Call, binding: Binding) -> str:
    lines = [_HEAD.format(**texts), *(_REFUSAL.format(condition=c, reason=r) for c, r in binding.refusals)]
    place, plan = "_fib_", "None"
    read = binding.passed
    if target.reads_plan:
        lines.append(_FIND_PLAN.format(**texts))
        place, plan = "_fib_plan.", "_fib_plan"
        read = _joined("_fib_plan.value", binding.passed)
    usual = "_fib_values[-1] if _fib_is_passing else _fib_result"
    given = usual if target.give is None else f"_fib_give({_joined('_fib_result', binding.given)})"
    lines.append(
        _ROUTE.format(read=read, plan=plan, given=given, returning=f"{place}returning", passing=f"{place}passing")
    )
    return "".join(lines)


def _joined(first: str, arguments: str) -> str:
    return f"{first}, {arguments}" if arguments else first


def compiled(source: str, name: str, scope: dict[str, Any]) -> Callable[..., Any]:
    """The function of this name that a source defines; it looks its names up in the scope."""
    exec(compile(source, f"<fib_integrations {name}>", "exec"), scope)  # noqa: S102 made of our templates and of identifiers
    found: Callable[..., Any] = scope.pop(name)
    return found


def identifier(name: str) -> str:
    """A function's name, for tracebacks."""
    return name if re.fullmatch(r"(?!_fib_)[A-Za-z_]\w*", name) else "call"
