"""Wrapper code generation: the hot path of a patched function, for the signature of the installed library version.

A *wrapper* replaces the library function. It calls the original while nothing is enabled, else the *dispatch
function*, which converts the call, looks up the handler of its key and calls it. Our own names begin with ``_fib_``;
all others are the library's parameters. The original arguments come along, so that an unsupported call reaches the
original unchanged. A parameter that `convert` does not name, and that is not declared as ignored, must be at its
default. `convert` may name parameters that a version lacks, if it has defaults for them.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from inspect import Parameter
from typing import Any

import attrs
from fib_compile.signatures import argument_list, default_values, given_condition, parameter_list, starred_name

from .adapter import Call, CannotAdapt, Plan, Target


@attrs.frozen
class TargetSignature:
    """Facts for generated code about a library function and its `convert`."""

    parameters: tuple[Parameter, ...]
    """Of the library function; a method's first one is the object."""
    convert_arguments: str
    """The arguments of `convert`, as source."""
    finalize_arguments: str
    """The arguments of `Call.finalize` after the result."""
    key_arguments: str
    """The arguments of `Call.key`."""
    unsupported: tuple[tuple[str, str], ...]
    """Conditions under which a call is unsupported, each with the reason."""
    scope: Mapping[str, Any]
    """The names in the expressions, defaults among them."""
    is_positional: bool
    """Whether the function has only positional parameters, all of them known: the wrapper then has the same ones."""

    def source(self) -> str:
        """The parameters as source for a ``def``; positional-only ones may follow our own."""
        either = Parameter.POSITIONAL_OR_KEYWORD
        positional_only = Parameter.POSITIONAL_ONLY
        return parameter_list([p.replace(kind=either) if p.kind is positional_only else p for p in self.parameters])


def read_signature(target: Target, original: Callable[..., Any]) -> TargetSignature:
    """The signature of a target's function, matched by name with `convert`, `finalize` and `key`.

    Raises:
        CannotAdapt: The function lacks a parameter of `convert`, or has a required one that `convert` does not know;
            or `finalize` or `key` takes one that `convert` does not.
    """
    signature, path = _signature(target, original), target.path
    is_complete = _is_complete(target, original)
    if not is_complete:
        signature = _with_other_keywords(signature)
    finalize, key = (target.finalize, target.key) if isinstance(target, Call) else (None, None)
    parameters = tuple(p.replace(annotation=Parameter.empty) for p in signature.parameters.values())
    wanted = _parameters(target.convert)[1 if isinstance(target, Plan) or target.uses_plan else 0 :]
    finalized, keyed = _parameters(finalize)[1:], _parameters(key)
    catch_all = next((p.name for p in parameters if p.kind is Parameter.VAR_KEYWORD), None)
    scope = default_values(parameters)
    expressions = _expressions(path, wanted, {p.name for p in parameters}, catch_all, scope)
    for name, taken in (("finalize", finalized), ("key", keyed)):
        if missing := [p.name for p in taken if p.name not in expressions]:
            raise CannotAdapt(path, f"`{name}` takes {missing[0]!r}, which `convert` does not")
    known = {*expressions, *target.ignored}
    unsupported = list(_unsupported(path, parameters, known))
    if catch_all is not None:
        neutral = target.neutral if isinstance(target, Plan) else {}
        scope |= {"_fib_known": frozenset(known), "_fib_are_neutral": functools.partial(_are_neutral, known, neutral)}
        condition = f"not _fib_known.issuperset({catch_all}) and not _fib_are_neutral({catch_all})"
        unsupported.append((f"{catch_all} and {condition}", "an unknown keyword is given"))
    return TargetSignature(
        parameters=parameters,
        convert_arguments=argument_list(wanted, expressions),
        finalize_arguments=argument_list(finalized, expressions),
        key_arguments=argument_list(keyed, expressions),
        unsupported=tuple(unsupported),
        scope=scope,
        is_positional=is_complete and _are_positional(parameters),
    )


def _parameters(function: Callable[..., Any] | None) -> tuple[Parameter, ...]:
    return () if function is None else tuple(inspect.signature(function).parameters.values())


def _signature(target: Target, original: Callable[..., Any]) -> inspect.Signature:
    """The function's own signature, or the one that the adapter states."""
    stated = getattr(target, "signature", None)
    if stated is not None:
        scope: dict[str, Any] = {}
        exec(f"def stated({stated}): ...", scope)  # noqa: S102 the source is the adapter's own
        return inspect.signature(scope["stated"])
    try:
        return inspect.signature(original)
    except (ValueError, TypeError) as error:
        raise CannotAdapt(target.path, f"its signature cannot be read ({error}); state one in the target") from error


def _is_complete(target: Target, original: Callable[..., Any]) -> bool:
    """Whether the signature has all parameters; a wrapper that shows another function's signature may take more."""
    is_stated = getattr(target, "signature", None) is not None
    return (
        inspect.isfunction(original) and not is_stated and not {"__wrapped__", "__signature__"} & vars(original).keys()
    )


def _with_other_keywords(signature: inspect.Signature) -> inspect.Signature:
    """A signature that accepts any further keyword arguments, which the original may know."""
    parameters = tuple(signature.parameters.values())
    if parameters and parameters[-1].kind is Parameter.VAR_KEYWORD:
        return signature
    return signature.replace(parameters=(*parameters, Parameter("_fib_others", Parameter.VAR_KEYWORD)))


def _are_positional(parameters: Sequence[Parameter]) -> bool:
    """Whether all parameters may be passed by position, and none collides with our generated names."""
    return bool(parameters) and all(
        p.kind is Parameter.POSITIONAL_OR_KEYWORD and not p.name.startswith("_fib_") for p in parameters
    )


def _are_neutral(known: Container[str], neutral: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Whether all keywords that an adapter does not know have their defaults."""
    others = {name: value for name, value in given.items() if name not in known}
    return all(
        name in neutral and type(value) is type(neutral[name]) and value == neutral[name]
        for name, value in others.items()
    )


def _unsupported(path: str, parameters: Sequence[Parameter], known: set[str]) -> Iterable[tuple[str, str]]:
    """For each parameter that `convert` does not know, the condition that it is given, and the reason to state."""
    for index, parameter in enumerate(parameters):
        is_self = index == 0 and parameter.name == "self"
        if parameter.name in known or parameter.kind is Parameter.VAR_KEYWORD or is_self:
            continue
        if parameter.default is Parameter.empty and parameter.kind is not Parameter.VAR_POSITIONAL:
            raise CannotAdapt(path, f"its required parameter {parameter.name!r} is unknown to the adapter")
        yield given_condition(parameter), f"{starred_name(parameter)} is given"


def _expressions(
    path: str, wanted: Sequence[Parameter], available: set[str], catch_all: str | None, scope: dict[str, Any]
) -> dict[str, str]:
    """The expression for each parameter of `convert`; its own default for one that the function lacks."""
    found: dict[str, str] = {}
    for parameter in wanted:
        name = parameter.name
        if name in available:
            found[name] = name
            continue
        if parameter.default is Parameter.empty:
            raise CannotAdapt(path, f"it has no parameter {name!r}")
        default = f"_fib_of_{name}"
        scope[default] = parameter.default
        found[name] = default if catch_all is None else f"{catch_all}.get({name!r}, {default})"
    return found


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
        _fib_is_passed_on = _fib_make_key({key_arguments}) in _fib_keys_passed_on
    except _fib_errors:
        _fib_is_passed_on = False
    if _fib_is_passed_on:
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
        _fib_state = {owner}._plan_info
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


def dispatch_source(name: str, target: Target, signature: TargetSignature) -> str:
    """The source of the dispatch function."""
    texts = {"name": name, "signature": signature.source()}
    if signature.parameters:
        texts["owner"] = signature.parameters[0].name
    if isinstance(target, Plan):
        unsupported = (_UNSUPPORTED_PLAN.format(condition=c, reason=r, **texts) for c, r in signature.unsupported)
        arguments = _joined(texts["owner"], signature.convert_arguments)
        return _PLAN.format(unsupported="".join(unsupported), arguments=arguments, **texts)
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
