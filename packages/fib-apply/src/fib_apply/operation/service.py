"""Operation of one runtime: what runs beside its calls, as its settings ask."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from ..events import OperationFailed, emit
from .reload import Reloadable, ReloadTrigger
from .settings import Operation


class Operated(Reloadable, Protocol):
    """A runtime whose reloads and metrics are operated."""

    is_off: bool

    def stats(self) -> Any:
        """The current counts by definition."""
        ...

    def left_out(self) -> dict[str, str]:
        """The solutions that are not called, each with the reason."""
        ...


class OperationService:
    """Reloads a runtime and publishes its metrics, from `start` to `close`; references it weakly."""

    def __init__(self, runtime: Operated) -> None:
        self._runtime = weakref.ref(runtime)
        self._settings: Operation | None = None
        self._parts: list[Any] = []

    def start(self, settings: Operation) -> None:
        """Start what settings ask for; ends what runs with other settings."""
        runtime = self._runtime()
        if runtime is None or settings == self._settings:
            return
        self.close()
        self._settings = settings
        if settings.reload.signal is not None or settings.reload.watch_seconds is not None:
            trigger = ReloadTrigger(runtime, settings.reload)
            trigger.start()
            self._parts.append(trigger)
        if settings.is_published:
            self._parts += _publish(runtime, settings)

    def close(self) -> None:
        """End all of it."""
        self._settings = None
        while self._parts:
            self._parts.pop().close()


def _publish(runtime: Operated, settings: Operation) -> list[Any]:
    try:
        from .prometheus import publish
    except ImportError as error:
        emit(OperationFailed(f"metrics are not published: {error}; pip install 'fib-apply[metrics]'"))
        return []
    return publish(weakref.ref(runtime), settings.metrics)
