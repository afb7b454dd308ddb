"""Monitor of a running evaluation: a thread that renews the lease and ends the evaluation when it must end."""

from __future__ import annotations

import logging
import threading
import time
from types import TracebackType
from typing import Self

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from ..database.engine import Database
from ..database.tables import submissions
from ..queue.leasing import Lease, heartbeat
from ..queue.submission import State
from ..settings import Settings
from .device_table import report_device
from .judges import DeviceJudges

_POLL_SECONDS = 0.5
_RENEWALS_PER_LEASE = 6
_LOG = logging.getLogger(__name__)


class Monitor:
    """Watches one evaluation.

    Args:
        database: The database.
        lease: Of the submission that is evaluated.
        judges: Interrupted when the evaluation must end.
        settings: The bounds.
        stop: Set when the worker must stop at once.
    """

    def __init__(
        self, database: Database, lease: Lease, judges: DeviceJudges, settings: Settings, stop: threading.Event
    ) -> None:
        self.outcome: tuple[State, str] | None = None
        """The final state and its reason, if the monitor has ended the evaluation."""
        self.is_lost = False
        """Whether the lease was lost, or has to be returned."""
        self._database, self._lease, self._judges, self._settings, self._stop = database, lease, judges, settings, stop
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="monitor", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def has_interrupted(self) -> bool:
        """Whether it has ended the evaluation."""
        return self.is_lost or self.outcome is not None

    def _watch(self) -> None:
        begin = renewed = time.monotonic()
        while not self._ended.wait(_POLL_SECONDS):
            if self._stop.is_set():
                self.is_lost = True
            elif time.monotonic() - begin > self._settings.submission_seconds:
                limit = f"{self._settings.submission_seconds:g} s"
                self.outcome = State.FAILED, f"its evaluation took more than {limit}, the limit of this service"
            else:
                try:
                    if self._is_cancelling():
                        self.outcome = State.CANCELLED, "cancelled while it was evaluated"
                    elif time.monotonic() - renewed > self._settings.lease_seconds / _RENEWALS_PER_LEASE:
                        self._renew()
                        renewed = time.monotonic()
                except SQLAlchemyError as error:
                    _LOG.warning("the lease of %s could not be renewed: %s", self._lease.submission.id, error)
                    self.is_lost = time.monotonic() - renewed > self._settings.lease_seconds
            if self.has_interrupted:
                self._judges.interrupt()
                return

    def _renew(self) -> None:
        found = heartbeat(self._database, self._lease, self._settings.lease_seconds)
        report_device(self._database, str(self._lease.submission.device), self._lease.submission.id)
        self.is_lost = not found

    def _is_cancelling(self) -> bool:
        with self._database.read() as connection:
            query = select(submissions.c.is_cancelling).where(submissions.c.id == self._lease.submission.id)
            return bool(connection.execute(query).scalar_one())
