"""Active runtimes of the process: a stack whose top serves all call sites.

On first use, the environment variables are read, and the runtime that they ask for becomes the bottom of the stack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fib_compile.forking import ForkSafeLock

from . import environment, hook
from .routing import call_sites


class ActiveRuntime(call_sites.Runtime, Protocol):
    """A runtime that can be active."""

    is_off: bool
    """Whether it routes no calls."""


_lock = ForkSafeLock()
_stack: tuple[ActiveRuntime, ...] = ()
_is_initialized = False
_start_default: Callable[[], object] | None = None


def set_default_runtime(start: Callable[[], object]) -> None:
    """Set what starts the runtime that the environment asks for; `runtime` does this when it is imported."""
    global _start_default  # noqa: PLW0603 one per process
    _start_default = start


def initialize() -> None:
    """Start what the environment variables ask for, once per process."""
    if not _is_initialized and _start_default is not None:
        with _lock:
            _initialize(_start_default)


def _initialize(start_default: Callable[[], object]) -> None:
    global _is_initialized  # noqa: PLW0603 once per process
    if not _is_initialized:  # another thread may have been faster
        _is_initialized = True
        environment.start_requested(start_default)


def active_runtime() -> ActiveRuntime | None:
    """The runtime that serves calls; on first use, the environment may start one."""
    initialize()
    return _stack[-1] if _stack else None


def connect(site: call_sites.Rebindable) -> None:
    """Bind a call site to the active runtime, and rebind it whenever that changes."""
    initialize()
    with _lock:  # a runtime that starts meanwhile might miss the site
        call_sites.add_site(site, _serving())


def push(runtime: ActiveRuntime) -> tuple[ActiveRuntime, ...]:
    """Put a runtime on top of the stack; returns the runtimes below."""
    initialize()
    with _lock:
        below = tuple(other for other in _stack if other is not runtime)
        _set((*below, runtime))
    return below


def remove(runtime: ActiveRuntime, below: tuple[ActiveRuntime, ...] | None = None) -> None:
    """Remove a runtime from the stack.

    Args:
        runtime: The runtime.
        below: The stack to restore if the runtime was replaced meanwhile; None leaves the stack.
    """
    with _lock:
        if runtime in _stack:
            _set(tuple(other for other in _stack if other is not runtime))
        elif below is not None:
            _set(below)


def is_active(runtime: ActiveRuntime) -> bool:
    """Whether a runtime is in the stack."""
    return runtime in _stack


def replace_all(*runtimes: ActiveRuntime) -> None:
    """Replace the stack."""
    initialize()
    with _lock:
        _set(runtimes)


def rebind_call_sites() -> None:
    """Rebind all call sites to the active runtime, e.g. after it has changed."""
    with _lock:  # a runtime that stops meanwhile might be bound last
        call_sites.rebind_all(_serving())


def _set(stack: tuple[ActiveRuntime, ...]) -> None:
    global _stack  # noqa: PLW0603 one stack per process
    _stack = stack
    rebind_call_sites()


def _serving() -> ActiveRuntime | None:
    return _stack[-1] if _stack and not _stack[-1].is_off else None


hook.on_change(rebind_call_sites)
