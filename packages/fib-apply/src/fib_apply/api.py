"""What a serving engine calls: `apply`, `enable_apply`, `disable_apply`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, overload

from fib_schema import TraceSet

from . import hook, runtime
from .building.rounds import OnProgress
from .config import Settings
from .errors import NoKernel
from .routing import sites
from .runtime import ApplyRuntime

F = TypeVar("F", bound=Callable[..., Any])
_UNSET: Any = object()


@overload
def apply(def_name_or_resolver: sites.Name) -> Callable[[F], F]: ...


@overload
def apply(
    def_name_or_resolver: sites.Name,
    runtime_kwargs: Mapping[str, Any] = ...,
    fallback: Callable[..., Any] | None = ...,
    *,
    args: Sequence[Any] = ...,
    kwargs: Mapping[str, Any] = ...,
) -> Any: ...


def apply(
    def_name_or_resolver: sites.Name,
    runtime_kwargs: Any = _UNSET,
    fallback: Any = _UNSET,
    *,
    args: Any = _UNSET,
    kwargs: Any = _UNSET,
) -> Any:
    """Route calls to the fastest verified solution of a definition.

    With the name alone, it is a decorator: the function serves whatever no solution does. With arguments, it
    is a call. Inputs alone return the outputs; inputs with outputs behind them, or among the names,
    have these written.

    Args:
        def_name_or_resolver: The definition's name, or a function that makes it of the call's arguments.
        runtime_kwargs: The call's arguments by name.
        fallback: What serves the call if no solution does; takes the same arguments.
        args: The call's arguments by position, in the definition's order.
        kwargs: The same as `runtime_kwargs`.

    Raises:
        NoKernel: No solution serves the call, and there is no fallback.
        TypeError: There is a fallback, but no call to serve.

    Example:
        >>> @apply(lambda A, B: f"gemm_n{B.shape[0]}_k{B.shape[1]}")
        ... def gemm(A, B):
        ...     return A @ B.T
    """
    if runtime_kwargs is _UNSET and args is _UNSET and kwargs is _UNSET:
        if fallback is not _UNSET:
            raise TypeError(
                "apply() got a fallback, but no call: pass args=(...), kwargs={...} or runtime_kwargs={...}"
            )
        return lambda function: _decorate(def_name_or_resolver, function)
    positional = () if args is _UNSET or args is None else tuple(args)
    named = {**_given(kwargs), **_given(runtime_kwargs)}
    return _call(def_name_or_resolver, positional, named, None if fallback is _UNSET else fallback)


def _given(value: Any) -> Mapping[str, Any]:
    return {} if value is _UNSET or value is None else value


def _decorate(name: sites.Name, function: F) -> F:
    site = sites.Site(name, function)
    runtime.connect(site)
    return site.wrapper  # type: ignore[return-value] # it has the function's signature


def _call(name: sites.Name, args: Sequence[Any], kwargs: Mapping[str, Any], fallback: Callable[..., Any] | None) -> Any:
    found = runtime.get_runtime()
    if found is None and not hook.is_listened() and fallback is not None:
        return fallback(*args, **kwargs)
    if not isinstance(name, str):
        name = name(*args, **kwargs)
    if found is not None:
        return found.dispatch(name, args, kwargs, fallback)
    if hook.is_listened():
        sites.note_general(name, args, kwargs)
    if fallback is None:
        raise NoKernel(name, "routing is not enabled")
    return fallback(*args, **kwargs)


def enable_apply(
    dataset_path: str | os.PathLike[str] | TraceSet | None = None,
    apply_config: Settings = None,
    *,
    stats: bool = False,
    on_progress: OnProgress | None = None,
) -> ApplyRuntime:
    """Put a data set in force: from now on, or within a ``with`` block.

    Solutions are built before this returns, as far as `ApplyConfig.aot_ratio` says.

    Args:
        dataset_path: The data set's folder; None means ``FIB_DATASET_PATH`` or the default.
        apply_config: Settings for all definitions, or by definition.
        stats: Whether calls are counted; see `ApplyRuntime.stats`.
        on_progress: Told while solutions are built; by default, the log is.

    Returns:
        The runtime: a context manager that restores what was in force before, and a function like `apply`.

    Raises:
        DataSetNotFound: There is no such folder.
    """
    runtime.get_runtime()  # what the environment asks for lies below
    return ApplyRuntime(dataset_path, apply_config, stats=stats, on_progress=on_progress).start()


def disable_apply() -> None:
    """Take all runtimes out of force: functions serve their own calls again."""
    runtime.get_runtime()  # nothing starts later
    runtime.stop_all()
