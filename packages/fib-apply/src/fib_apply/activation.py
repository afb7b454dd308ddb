"""Active runtimes of the process: a stack whose top serves all call sites.

On first use, the environment variables are read. The runtime that they ask for is made in a background thread and
becomes the bottom of the stack, so that no call, decoration or import waits for it. In a forked child the stack is
empty, and the first use there reads the variables again.

No lock is held while other code runs, such as listeners and key builders. Each change of the stack or of the
listeners starts a new *epoch*. The binding of a call site is made without a lock, and takes effect only if no other
epoch has started meanwhile; else it is made again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from fib_schema import FibError
from fib_schema.entry_points import find_entry_points, load_entry_point

from . import hook
from .build_service.executor import BackgroundExecutor
from .config import ENABLE_VARIABLE, enabled_by_environment
from .events import logger
from .routing import call_sites
from .routing.native.module import forget_request, request_native

T = TypeVar("T")

LISTENERS = "fib_apply.listeners"
"""Entry points of functions that start a listener; ``tracing`` is called if ``FIB_ENABLE_TRACING`` is set."""
ENABLE_PREFIX = "FIB_ENABLE_"


class ActiveRuntime(call_sites.Runtime, Protocol):
    """A runtime that can be active."""

    is_off: bool
    """Whether it routes no calls."""

    def wait_until_built(self, timeout_seconds: float) -> bool:
        """Wait for background work; returns whether it is finished."""
        ...


class _Default:
    """The runtime that the environment asks for, and its start in the background."""

    def __init__(self) -> None:
        self.start: Callable[[], ActiveRuntime] | None = None
        self.executor = BackgroundExecutor()
        self.is_initialized = self.is_starting = False


_lock = threading.RLock()
_stack: tuple[ActiveRuntime, ...] = ()
_epoch = 0
_default = _Default()


def set_default_runtime(make: Callable[[], ActiveRuntime]) -> None:
    """Set what makes the runtime of the environment, in a background thread; `runtime` does this when imported."""
    _default.start = make


def initialize() -> None:
    """Start what the environment variables ask for, once per process; does not wait for the runtime."""
    if _default.is_initialized or _default.start is None:
        return
    with _lock:
        is_first, _default.is_initialized = not _default.is_initialized, True
    if is_first:
        if _log_errors(enabled_by_environment):
            _start_default()
        start_listeners()


def _log_errors(call: Callable[[], T]) -> T | None:
    """Call a function that enables routing; returns None after an error, which is logged: the engine must go on."""
    try:
        return call()
    except FibError as error:
        logger.error("%s is set, but routing cannot start: %s", ENABLE_VARIABLE, error)
        return None


def start_listeners() -> None:
    """Start the listeners of other packages whose variables are set; each reads its own variable."""
    others = {name for name in os.environ if name.startswith(ENABLE_PREFIX)} - {ENABLE_VARIABLE}
    for point in find_entry_points(LISTENERS) if others else ():  # reading entry points takes milliseconds
        variable = ENABLE_PREFIX + point.name.upper()
        if variable not in others:
            continue
        try:
            load_entry_point(point)()
        except Exception as error:  # noqa: BLE001 of another package
            logger.error("%s is set, but %s cannot start: %s: %s", variable, point.value, type(error).__name__, error)


def _start_default() -> None:
    _default.is_starting = True
    _default.executor.submit(_push_default, "starting routing", on_drop=cancel_default)


def _push_default() -> None:
    """Make the default runtime and put it below all others, unless it was cancelled meanwhile."""
    make = _default.start
    made = _log_errors(make) if make is not None else None
    with _lock:
        is_wanted, _default.is_starting = _default.is_starting and made is not None, False
        if made is not None and is_wanted:
            _set((made, *(runtime for runtime in _stack if runtime is not made)))
    if is_wanted:
        rebind_call_sites()


def cancel_default() -> None:
    """Do not activate a default runtime that is still being made."""
    _default.is_starting = False


def wait_until_built(timeout_seconds: float) -> bool:
    """Wait for the runtime that the environment asks for, and for the background work of the active one.

    Returns:
        Whether all is finished.
    """
    initialize()
    deadline = time.monotonic() + timeout_seconds
    if not _default.executor.wait(timeout_seconds):
        return False
    found = active_runtime()
    return found is None or found.wait_until_built(max(0.0, deadline - time.monotonic()))


def active_runtime() -> ActiveRuntime | None:
    """The runtime that serves calls; on first use, the environment may start one in the background."""
    initialize()
    return _stack[-1] if _stack else None


def connect(site: call_sites.Rebindable) -> None:
    """Bind a call site to the active runtime, and rebind it whenever that changes, for as long as the site lives."""
    initialize()
    call_sites.add_site(site)  # first: a runtime that starts from now on binds it
    _bind(site)


def push(runtime: ActiveRuntime) -> tuple[ActiveRuntime, ...]:
    """Put a runtime on top of the stack; returns the runtimes below."""
    initialize()
    with _lock:
        below = tuple(other for other in _stack if other is not runtime)
        _set((*below, runtime))
    rebind_call_sites()
    return below


def remove(runtime: ActiveRuntime, below: tuple[ActiveRuntime, ...] | None = None) -> None:
    """Remove a runtime from the stack."""
    with _lock:
        if runtime in _stack:
            _set(tuple(other for other in _stack if other is not runtime))
        elif below is not None:
            _set(below)
    rebind_call_sites()


def is_active(runtime: ActiveRuntime) -> bool:
    """Whether a runtime is in the stack."""
    return runtime in _stack


def request_native_guards(runtime: ActiveRuntime) -> None:
    """Load or build native guards in the background for a runtime that is in the stack; routes then are made again."""
    if is_active(runtime) and not runtime.is_off:
        request_native(rebind_call_sites)


def replace_all(*runtimes: ActiveRuntime) -> tuple[ActiveRuntime, ...]:
    """Replace the stack; returns the earlier one."""
    initialize()
    with _lock:
        cancel_default()
        earlier = _stack
        _set(runtimes)
    rebind_call_sites()
    return earlier


def rebind_call_sites() -> None:
    """Rebind all call sites to the active runtime, e.g. after it has changed."""
    with _lock:
        _start_epoch()
    for site in call_sites.all_sites():
        _bind(site)


def _bind(site: call_sites.Rebindable) -> None:
    """Bind a call site to the active runtime of the current epoch."""
    while True:
        with _lock:
            epoch, runtime = _epoch, _serving()
        bind = site.make_binding(runtime)
        with _lock:
            if epoch == _epoch:
                bind()
        if epoch == _epoch:  # a signal handler may have started another one during `bind`
            return


def _set(stack: tuple[ActiveRuntime, ...]) -> None:
    global _stack  # noqa: PLW0603 one stack per process
    _stack = stack
    _start_epoch()


def _start_epoch() -> None:
    global _epoch  # noqa: PLW0603 one counter per process
    _epoch += 1


def _serving() -> ActiveRuntime | None:
    return _stack[-1] if _stack and not _stack[-1].is_off else None


def _switch_off_in_child() -> None:
    """Let all functions serve their own calls in a forked child, until it enables routing itself.

    The threads that build and load solutions are gone there, and locks of runtimes may be held by such threads.
    """
    global _lock  # noqa: PLW0603 one lock per process
    _lock = threading.RLock()
    call_sites.renew_lock()
    hook.renew_lock()
    for runtime in _stack:
        runtime.is_off = True
    _default.executor = BackgroundExecutor()
    _default.is_initialized = _default.is_starting = False
    forget_request()
    _set(())
    for site in call_sites.all_sites():
        site.make_binding(None)()


hook.on_change(rebind_call_sites)
os.register_at_fork(after_in_child=_switch_off_in_child)
