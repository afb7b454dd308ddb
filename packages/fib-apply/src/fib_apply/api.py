"""Public API of serving engines: `apply`, `enable_apply`, `disable_apply`."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

from fib_schema import TraceSet

from . import hook
from .config import SettingsOrFile
from .events import logger
from .router import Readiness, Settled, observed_warm_up
from .routing.call_sites import CallSite, Name, call_fallback, definition_of, notify_listeners
from .runtime import ApplyRuntime, connect, get_runtime, initialize, set_runtime, wait_until_built

F = TypeVar("F", bound=Callable[..., Any])
_UNSET: Any = object()
_NO_FUNCTION = "@apply({!r}) needs a function, the fallback of its calls; got {}. Write @apply('name of a definition')"


@overload
def apply(def_name_or_resolver: Name) -> Callable[[F], F]: ...


@overload
def apply(
    def_name_or_resolver: Name,
    runtime_kwargs: Mapping[str, Any] = ...,
    fallback: Callable[..., Any] | None = ...,
    *,
    args: Sequence[Any] = ...,
    kwargs: Mapping[str, Any] = ...,
) -> Any: ...


def apply(
    def_name_or_resolver: Name,
    runtime_kwargs: Any = _UNSET,
    fallback: Any = _UNSET,
    *,
    args: Any = _UNSET,
    kwargs: Any = _UNSET,
) -> Any:
    """Route calls to the fastest verified solution of a definition.

    With the name alone, it is a decorator; the function is the fallback of its calls. With arguments, it is a call.
    Inputs alone: the call returns the outputs. Inputs and outputs: the call writes the outputs.

    Args:
        def_name_or_resolver: The definition's name, or a function that returns it for a call's arguments.
        runtime_kwargs: The call's arguments by name.
        fallback: Serves the call if no solution does; takes the same arguments.
        args: The call's arguments by position, in the definition's order.
        kwargs: The same as `runtime_kwargs`.

    Raises:
        NoKernel: No solution serves the call, and there is no fallback.
        TypeError: There is a fallback, but no call to serve; or the decorated object is not callable.

    Example:
        >>> @apply(lambda A, B: f"gemm_n{B.shape[0]}_k{B.shape[1]}")
        ... def gemm(A, B):
        ...     return A @ B.T
    """
    if runtime_kwargs is _UNSET and args is _UNSET and kwargs is _UNSET:
        if fallback is not _UNSET:
            raise TypeError(
                "apply() got a fallback, but no arguments: pass args=(...), kwargs={...} or runtime_kwargs={...}"
            )
        if not isinstance(def_name_or_resolver, str) and not callable(def_name_or_resolver):
            raise TypeError(f"apply() needs the name of a definition or a resolver; got {def_name_or_resolver!r:.100}")
        return lambda function: _decorate(def_name_or_resolver, function)
    name, found = def_name_or_resolver, get_runtime()
    positional = () if args is _UNSET or args is None else tuple(args)
    named = {**_given(kwargs), **_given(runtime_kwargs)}
    serves = None if fallback is _UNSET else fallback
    if found is not None:
        return found(name, args=positional, kwargs=named, fallback=serves)
    if hook.has_listeners() and (definition := definition_of(name, positional, named)) is not None:
        notify_listeners(definition, positional, named)
    return call_fallback(name if isinstance(name, str) else "?", "routing is not enabled", positional, named, serves)


def _given(value: Any) -> Mapping[str, Any]:
    return {} if value is _UNSET or value is None else value


def _decorate(name: Name, function: F) -> F:
    if isinstance(function, staticmethod | classmethod):
        return type(function)(_decorate(name, function.__func__))
    if not callable(function):
        raise TypeError(_NO_FUNCTION.format(name, repr(function)[:100]))
    return CallSite(name, function, connect).wrapper  # type: ignore[return-value] # it has the function's signature


def enable_apply(
    dataset_path: str | os.PathLike[str] | TraceSet | None = None,
    apply_config: SettingsOrFile = None,
    *,
    stats: bool | None = None,
) -> ApplyRuntime:
    """Route calls by a data set: from now on, or within a ``with`` block.

    The share of solutions that `ApplyConfig.aot_ratio` states is built before this returns.

    Args:
        dataset_path: The data set's folder; None means ``FIB_DATASET_PATH`` or the default.
        apply_config: Settings for all definitions, or by definition, or a YAML file with them; None means the file
            of ``FIB_APPLY_CONFIG``, or the defaults.
        stats: Whether calls are counted, see `ApplyRuntime.stats`; None means as the file says.

    Returns:
        The runtime: a context manager that restores the previously active runtime, and a function like `apply`.

    Raises:
        DataSetNotFound: There is no such folder.
        InvalidConfigFile: `apply_config` is a file that is not valid (a ValueError).
    """
    initialize()
    return ApplyRuntime(dataset_path, apply_config, stats=stats).start()


def disable_apply() -> None:
    """Deactivate all runtimes: functions serve their own calls again."""
    set_runtime(None)


def warm_up(timeout_seconds: float) -> Readiness:
    """Wait for builds and first runs before CUDA graphs are captured, but not longer than a deadline.

    An engine calls this after a call of each size that it will capture, and before the first capture. Captures that
    follow record only solutions that are ready when it returns, so that all graphs are of one state. Calls that are not
    captured also use solutions that become ready later, as do captures after the next `warm_up`.

    Args:
        timeout_seconds: The longest time to wait.

    Returns:
        For each recorded key what is ready, and what is not, with the reason. Errors are in `Readiness.problem`;
        nothing is raised.
    """
    began = time.monotonic()

    def settle() -> Settled | str:
        wait_until_built(max(0.0, timeout_seconds))
        runtime = get_runtime()
        if runtime is None or runtime.is_off:
            return "routing is off"
        return runtime.settle(timeout_seconds - (time.monotonic() - began))

    return observed_warm_up(settle)


@contextlib.contextmanager
def capture_phase(timeout_seconds: float) -> Iterator[None]:
    """Let calls wait for their solutions in a block in which an engine captures CUDA graphs.

    For engines that call each size once, uncaptured, right before they capture it. Within the block such a call waits
    until its solution is built and was run in a child process, so that the capture can record it; in all, calls wait
    until the deadline. What was run before with the same sizes, also by an earlier process, is not run again. A call
    that is being captured never waits. Captures after the block record only solutions that are ready at its end, as
    after `warm_up`.

    Args:
        timeout_seconds: The longest time that calls wait in all.
    """
    began = time.monotonic()
    found = None
    try:
        wait_until_built(max(0.0, timeout_seconds))
        found = get_runtime()
    except Exception as error:  # noqa: BLE001 an engine must start without routing
        logger.warning("calls do not wait for captures: %s: %s", type(error).__name__, error)
    if found is None or found.is_off:
        yield
        return
    found.prepare_captures(timeout_seconds - (time.monotonic() - began))
    try:
        yield
    finally:
        found.warm_up(0.0)
