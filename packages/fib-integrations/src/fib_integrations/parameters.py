"""Signatures of library functions, matched with the parameters of the adapter's `convert`.

The signature of the installed library version decides. A parameter that `convert` does not name, and that is not
declared as ignored, must be at its default. `convert` may name parameters that a version lacks, if it has defaults
for them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from inspect import Parameter
from typing import Any

import attrs
from fib_compile.signatures import argument_list, default_values, given_condition, parameter_list, starred_name

from .adapter import Call, InvalidatePlan, Plan, Target
from .errors import CannotAdapt


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
    is_positional: bool = False
    """Whether the function has only positional parameters, all of them known: the wrapper then has the same ones."""

    def source(self) -> str:
        """The parameters as source for a ``def``; positional-only ones may follow our own."""
        either = Parameter.POSITIONAL_OR_KEYWORD
        positional_only = Parameter.POSITIONAL_ONLY
        return parameter_list([p.replace(kind=either) if p.kind is positional_only else p for p in self.parameters])


def read_signature(target: Target, original: Callable[..., Any]) -> TargetSignature:
    """The signature of a target's function, matched with `convert`.

    Raises:
        CannotAdapt: The function differs from what the adapter was written for.
    """
    signature = _signature(target, original)
    is_complete = _is_complete(target, original)
    if not is_complete:
        signature = _with_other_keywords(signature)
    if isinstance(target, InvalidatePlan):
        parameters = tuple(signature.parameters.values())
        found = TargetSignature(parameters, "", "", "", (), default_values(parameters))
    else:
        leading = 1 if isinstance(target, Plan) or target.uses_plan else 0
        finalize, key = (target.finalize, target.key) if isinstance(target, Call) else (None, None)
        found = match_parameters(
            target.path,
            signature,
            target.convert,
            finalize=finalize,
            key=key,
            ignored=target.ignored,
            neutral=target.neutral if isinstance(target, Plan) else {},
            leading=leading,
        )
    return attrs.evolve(found, is_positional=is_complete and _are_positional(found.parameters))


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


def match_parameters(
    path: str,
    signature: inspect.Signature,
    convert: Callable[..., Any],
    *,
    finalize: Callable[..., Any] | None = None,
    key: Callable[..., Any] | None = None,
    ignored: Iterable[str] = (),
    neutral: Mapping[str, Any] | None = None,
    leading: int = 0,
) -> TargetSignature:
    """Match the parameters of a library function with those of `convert`, by name.

    Args:
        path: The target, for messages.
        signature: Of the library function.
        convert: The adapter's function; its parameters have the library's names.
        finalize: See `Call.finalize`.
        key: See `Call.key`.
        ignored: Parameters of the library function that do not matter.
        neutral: Keywords that do not matter if they have these values; see `Plan.neutral`.
        leading: How many of the first parameters of `convert` are not the library's: the object, or its plan.

    Raises:
        CannotAdapt: `convert` needs a parameter that the function lacks, `finalize` or `key` one that `convert`
            lacks, or the function has a required parameter that `convert` does not know.
    """
    parameters = tuple(p.replace(annotation=Parameter.empty) for p in signature.parameters.values())
    wanted = tuple(inspect.signature(convert).parameters.values())[leading:]
    finalized = () if finalize is None else tuple(inspect.signature(finalize).parameters.values())[1:]
    keyed = () if key is None else tuple(inspect.signature(key).parameters.values())
    catch_all = next((p.name for p in parameters if p.kind is Parameter.VAR_KEYWORD), None)
    scope = default_values(parameters)
    expressions = _expressions(path, wanted, {p.name for p in parameters}, catch_all, scope)
    for name, taken in (("finalize", finalized), ("key", keyed)):
        if missing := [p.name for p in taken if p.name not in expressions]:
            raise CannotAdapt(path, f"`{name}` takes {missing[0]!r}, which `convert` does not")
    known = {*expressions, *ignored}
    unsupported = list(_unsupported(path, parameters, known))
    if catch_all is not None:
        scope |= {
            "_fib_known": frozenset(known),
            "_fib_are_neutral": functools.partial(_are_neutral, known, neutral or {}),
        }
        condition = f"not _fib_known.issuperset({catch_all}) and not _fib_are_neutral({catch_all})"
        unsupported.append((f"{catch_all} and {condition}", "an unknown keyword is given"))
    converted, finished, key_arguments = (argument_list(one, expressions) for one in (wanted, finalized, keyed))
    return TargetSignature(parameters, converted, finished, key_arguments, tuple(unsupported), scope)


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
