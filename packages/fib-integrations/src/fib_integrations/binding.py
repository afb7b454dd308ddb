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
from fib_compile.signatures import argument_list, default_values, given_condition, parameter_list, starred_name

from .adapter import Call, Plan, Target, Unplan
from .errors import CannotAdapt


@attrs.frozen
class Binding:
    """What generated code needs to know of one function and its reader."""

    parameters: tuple[Parameter, ...]
    """Of the library's function; a method's first one is the object."""
    passed: str
    """The arguments for the reader."""
    given: str
    """The arguments for `Call.give`, behind the result."""
    refusals: tuple[tuple[str, str], ...]
    """Conditions under which a call is not covered, and what to say then."""
    scope: Mapping[str, Any]
    """What the expressions refer to, defaults among them."""
    is_plain: bool = False
    """Whether these are all parameters that the function takes, and by position, so that it may get all of them."""

    def signature(self) -> str:
        """The parameters as they stand in a ``def``, with their defaults as names."""
        either = Parameter.POSITIONAL_OR_KEYWORD
        positional_only = Parameter.POSITIONAL_ONLY
        return parameter_list([p.replace(kind=either) if p.kind is positional_only else p for p in self.parameters])


def binding_of(target: Target, original: Callable[..., Any]) -> Binding:
    """What generated code needs to know of a target's function.

    Raises:
        CannotAdapt: It is not what the adapter was written for.
    """
    signature = _signature(target, original)
    is_exact = _is_exact(target, original)
    if not is_exact:
        signature = _with_others(signature)
    if isinstance(target, Unplan):
        found = Binding(tuple(signature.parameters.values()), "", "", (), default_values(signature.parameters.values()))
    else:
        leading = 1 if isinstance(target, Plan) or target.reads_plan else 0
        give = target.give if isinstance(target, Call) else None
        found = bind(target.path, signature, target.read, give=give, ignored=target.ignored, leading=leading)
    return attrs.evolve(found, is_plain=is_exact and _takes_all_by_position(found.parameters))


def _signature(target: Target, original: Callable[..., Any]) -> inspect.Signature:
    """The parameters of a function, its own or as the adapter states them."""
    stated = getattr(target, "signature", None)
    if stated is not None:
        scope: dict[str, Any] = {}
        exec(f"def stated({stated}): ...", scope)  # noqa: S102 an adapter's own words
        return inspect.signature(scope["stated"])
    try:
        return inspect.signature(original)
    except (ValueError, TypeError) as error:
        raise CannotAdapt(target.path, f"its parameters cannot be told ({error}); state a signature") from error


def _is_exact(target: Target, original: Callable[..., Any]) -> bool:
    """Whether a function takes just the parameters that are known; one that shows another's may take more."""
    is_stated = getattr(target, "signature", None) is not None
    return (
        inspect.isfunction(original) and not is_stated and not {"__wrapped__", "__signature__"} & vars(original).keys()
    )


def _with_others(signature: inspect.Signature) -> inspect.Signature:
    """Parameters, and whatever keywords there are besides: the original knows what to do with them."""
    parameters = tuple(signature.parameters.values())
    if parameters and parameters[-1].kind is Parameter.VAR_KEYWORD:
        return signature
    return signature.replace(parameters=(*parameters, Parameter("_fib_others", Parameter.VAR_KEYWORD)))


def _takes_all_by_position(parameters: Sequence[Parameter]) -> bool:
    """Whether all of a function's parameters may be passed by position, under names that are not ours."""
    return bool(parameters) and all(
        p.kind is Parameter.POSITIONAL_OR_KEYWORD and not p.name.startswith("_fib_") for p in parameters
    )


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
    scope = default_values(parameters)
    values = _values(path, wanted, {p.name for p in parameters}, catch_all, scope)
    to_give = () if give is None else tuple(inspect.signature(give).parameters.values())[1:]
    if unread := [p.name for p in to_give if p.name not in values]:
        raise CannotAdapt(path, f"`give` takes {unread[0]!r}, which `read` does not")
    known = set(values)
    given, passed = argument_list(to_give, values), argument_list(wanted, values)
    known |= set(ignored)
    others = _others(parameters, known)
    for parameter in others:
        if parameter.default is Parameter.empty and parameter.kind is not Parameter.VAR_POSITIONAL:
            raise CannotAdapt(path, f"its parameter {parameter.name!r}, which calls must give, is unknown")
    refusals = [(given_condition(p), f"{starred_name(p)} is given") for p in others]
    if catch_all is not None:
        scope["_fib_known"] = frozenset(known)
        refusals.append((f"{catch_all} and not _fib_known.issuperset({catch_all})", "an unknown keyword is given"))
    return Binding(parameters, passed, given, tuple(refusals), scope)


def _others(parameters: Sequence[Parameter], known: set[str]) -> list[Parameter]:
    """Parameters that nobody reads; a method's object and keywords are looked at elsewhere."""
    found = [p for index, p in enumerate(parameters) if p.name not in known and not (index == 0 and p.name == "self")]
    return [p for p in found if p.kind is not Parameter.VAR_KEYWORD]


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
