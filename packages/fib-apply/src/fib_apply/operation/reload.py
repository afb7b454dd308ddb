"""Reloads: their events, and what requests them: a signal, or files that have changed."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Iterator
from typing import Protocol

import attrs
from fib_schema import FibError

from ..build_service.executor import BackgroundExecutor
from ..events import Reloaded, ReloadFailed, emit
from ..selection.table import ApplyTable
from ..signal_errors import is_from_signal_handler
from . import reload_signal
from .periodic import PeriodicThread
from .settings import ReloadSettings

_MAX_PENDING = 2
"""A reload that runs, and one that has not begun and will load what all later requests want."""
_MAX_CHANGING = 10
"""Intervals in which files may change before they are loaded nevertheless."""


@attrs.define
class ReloadOutcome:
    """The outcome of one reload."""

    is_changed: bool | None = None
    """Whether the tables differ; None if a later reload was faster."""


@contextlib.contextmanager
def observed_reload(cause: str) -> Iterator[ReloadOutcome]:
    """Emit an event when the block ends.

    Args:
        cause: What requested the reload.
    """
    outcome, began = ReloadOutcome(), time.monotonic()
    try:
        yield outcome
    except Exception as error:
        if not is_from_signal_handler(error):
            emit(ReloadFailed(cause, time.monotonic() - began, f"{type(error).__name__}: {error}"))
        raise
    if outcome.is_changed is not None:
        emit(Reloaded(cause, time.monotonic() - began, outcome.is_changed))


class ConfigurationState(Protocol):
    """The state of configuration files."""

    @property
    def state(self) -> tuple[object, ...]:
        """The state when they were read."""
        ...

    def current_state(self) -> tuple[object, ...]:
        """The state now."""
        ...


class Reloadable(Protocol):
    """A runtime that can be reloaded."""

    @property
    def configuration(self) -> ConfigurationState:
        """The settings."""
        ...

    @property
    def table(self) -> ApplyTable:
        """The table that is used now."""
        ...

    def rebuild(self, *, cause: str) -> None:
        """Load the data set and the configuration file again; emits an event and raises if that fails."""
        ...


class ReloadTrigger:
    """Reloads a runtime when a signal requests it, or when its files have changed.

    Changed files are loaded when they have been the same for one interval, or after ten intervals: a benchmark may be
    writing them. What cannot be loaded is tried again when it changes.

    Args:
        runtime: Referenced weakly.
        settings: The signal and the interval.
    """

    def __init__(self, runtime: Reloadable, settings: ReloadSettings) -> None:
        self._runtime = weakref.ref(runtime)
        self._settings = settings
        self._executor = BackgroundExecutor()  # a reload waits for builds, which have another one
        self._thread = PeriodicThread("fib-apply reload", self._check, settings.watch_seconds)
        self._is_requested = False
        self._polled: object = None
        self._failed: object = None
        self._changing = 0

    def start(self) -> None:
        """Begin to wait for requests and changes; in the main thread, this installs the handler of the signal."""
        if self._settings.signal is not None:
            reload_signal.add_request(self._settings.signal, self.request)
        self._thread.start()

    def close(self) -> None:
        """Request no more reloads; one that is under way is finished."""
        if self._settings.signal is not None:
            reload_signal.remove_request(self._settings.signal, self.request)
        self._thread.close()

    def request(self) -> None:
        """Reload soon; safe in a signal handler. Requests during a reload become one more reload."""
        self._is_requested = True
        self._thread.wake()

    def _check(self) -> None:
        runtime = self._runtime()
        if runtime is None:
            self._thread.close()
        elif self._is_requested:
            self._is_requested = False
            if self._executor.pending < _MAX_PENDING:
                self._submit("signal", None)
        elif self._settings.watch_seconds is not None and not self._executor.pending:
            state = _state(runtime)
            is_due = state not in (_loaded_state(runtime), self._failed) and self._is_stable(state)
            if is_due:
                self._submit("watch", state)

    def _is_stable(self, state: object) -> bool:
        """Whether files are no longer being written, or have been for long."""
        is_same, self._polled = state == self._polled, state
        self._changing = 0 if is_same else self._changing + 1
        return is_same or self._changing > _MAX_CHANGING

    def _submit(self, cause: str, state: object) -> None:
        self._executor.submit(lambda: self._reload(cause, state), "the reload")

    def _reload(self, cause: str, state: object) -> None:
        runtime = self._runtime()
        if runtime is None:
            return
        try:
            runtime.rebuild(cause=cause)
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            self._failed = state  # reported by an event


def _state(runtime: Reloadable) -> tuple[object, ...]:
    """The state of the files now."""
    try:
        digest: object = runtime.table.current_digest()
    except (FibError, OSError) as error:
        digest = str(error)
    return digest, runtime.configuration.current_state()


def _loaded_state(runtime: Reloadable) -> tuple[object, ...]:
    """The state of the files when they were loaded."""
    return runtime.table.digest, runtime.configuration.state
