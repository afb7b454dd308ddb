"""Resolvers: functions that return the name of a call's definition. The engine must go on if one fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..log import warn_once
from ..signal_errors import raise_if_from_signal_handler


def definition_of(
    name_or_resolver: str | Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str | None:
    """The name of a call's definition; None, with one warning for each resolver and kind of error, if there is none."""
    if isinstance(name_or_resolver, str):
        return name_or_resolver
    try:
        name = name_or_resolver(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - a signal handler's is raised again
        raise_if_from_signal_handler(error)
        reason, problem = type(error), f"raised {type(error).__name__}: {error}"
    else:
        if isinstance(name, str):
            return name
        reason, problem = type(name), f"returned {name!r:.80} instead of the name of a definition"
    place = place_of(name_or_resolver)
    warn_once((place, reason), f"the resolver {place} {problem}; the fallback serves such calls")
    return None


def place_of(function: Callable[..., Any]) -> str:
    """A function's module and name, and the file and line of its code if it has any; for messages."""
    kind = type(function)
    owner = function if hasattr(function, "__qualname__") else kind
    call = getattr(kind, "__call__", None)  # noqa: B004 - of an object with this method, its code is named
    code = getattr(function, "__code__", None) or getattr(call, "__code__", None)
    name = f"{getattr(owner, '__module__', '?')}.{getattr(owner, '__qualname__', '?')}"
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"
