"""Direct calls: ``apply(name, args=..., fallback=...)``, without a decorated function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import hook
from ..errors import NoKernel
from .call_sites import notify_listeners

if TYPE_CHECKING:
    from .dispatcher import Dispatcher


def serve_directly(
    dispatcher: Dispatcher | None,
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    fallback: Callable[..., Any] | None,
) -> Any:
    """Serve one call by a dispatcher, or by the fallback.

    Args:
        dispatcher: Of the definition; None if nothing routes its calls.
        name: The definition's name.
        args: Inputs by position, followed by outputs or nothing.
        kwargs: Inputs and outputs by name.
        fallback: Serves the call if no solution does; takes the same arguments.

    Raises:
        NoKernel: No solution serves the call, and there is no fallback.
        TypeError: The arguments are not those of the definition, and there is no fallback.
    """
    known = () if dispatcher is None else (*dispatcher.definition.inputs, *dispatcher.definition.outputs)
    if hook.has_listeners():
        notify_listeners(name, args, kwargs, known)

    if dispatcher is None:
        return call_fallback(name, "there is no such definition", args, kwargs, fallback)
    given = {key: value for key, value in kwargs.items() if value is not None or key in known}
    try:
        merged = dispatcher.definition.merge_kwargs_to_args(args, given)
    except TypeError:
        dispatcher.count_invalid_arguments()
        if fallback is None:
            raise
        return fallback(*args, **kwargs)
    return dispatcher.serve(
        merged, lambda: call_fallback(name, "no solution is chosen or ready", args, kwargs, fallback)
    )


def call_fallback(
    name: str, reason: str, args: Sequence[Any], kwargs: Mapping[str, Any], fallback: Callable[..., Any] | None
) -> Any:
    """Serve one call by the fallback.

    Raises:
        NoKernel: There is none; the error has the reason.
    """
    if fallback is None:
        raise NoKernel(name, reason)
    return fallback(*args, **kwargs)
