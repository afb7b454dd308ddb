"""State of the API process, which every request reaches through `service_of`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import attrs
from starlette.requests import HTTPConnection

from ..bells import API, WORKERS, Bell, Ringer
from ..catalog import Catalog
from ..database.engine import Database
from ..settings import Settings
from ..users.roles import Principal
from .metrics import Metrics

_POLL_SECONDS = 1.0
"""The delay of an event whose ring was lost."""


class Changes:
    """Wakes requests that wait for submissions.

    Args:
        bell: Rung by workers.
    """

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._event = asyncio.Event()
        self.is_closed = False

    def start(self) -> None:
        """Listen, in the running event loop."""
        self._bell.socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._bell.socket.fileno(), self._on_ring)

    def current(self) -> asyncio.Event:
        """The event that the next change sets; take it before you read the state that may change."""
        return self._event

    async def wait(self, change: asyncio.Event, seconds: float) -> None:
        """Wait for a change, at most so long and at most until the next poll."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(change.wait(), max(min(seconds, _POLL_SECONDS), 0.0))

    def end_waiting(self) -> None:
        """Wake all requests for the last time: none waits any more."""
        self.is_closed = True
        self._event.set()

    def close(self) -> None:
        """Stop listening."""
        self.end_waiting()
        asyncio.get_running_loop().remove_reader(self._bell.socket.fileno())
        self._bell.close()

    def _on_ring(self) -> None:
        self._bell.drain()
        self.announce()

    def announce(self) -> None:
        """Wake all requests that wait."""
        self._event.set()
        self._event = asyncio.Event()


@attrs.define(eq=False)
class Service:
    """Objects that the routes of one process share."""

    settings: Settings
    database: Database
    catalog: Catalog
    local: Principal | None
    """The only user, of a service without tokens."""
    changes: Changes
    workers: Ringer
    metrics: Metrics
    stop: Callable[[], None]
    """Ends the whole service."""
    started_at: float = attrs.field(factory=time.monotonic)
    is_draining: bool = False
    streams: Counter[int] = attrs.field(factory=Counter)
    """The open streams of events, by user."""

    @classmethod
    def open(cls, settings: Settings, database: Database, local: Principal | None, stop: Callable[[], None]) -> Service:
        """Open the files of a service."""
        state = Path(settings.state)
        return cls(
            settings,
            database,
            Catalog.read(Path(settings.dataset)),
            local,
            Changes(Bell(state, API, "server")),
            Ringer(state, WORKERS),
            Metrics(database),
            stop,
        )

    def close(self) -> None:
        """Close the sockets."""
        self.changes.close()
        self.workers.close()


def service_of(connection: HTTPConnection) -> Service:
    """The service of a request."""
    service = connection.app.state.service
    assert isinstance(service, Service)
    return service
