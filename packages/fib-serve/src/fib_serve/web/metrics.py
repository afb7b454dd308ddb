"""Metrics in the format of Prometheus. Those of the queue are read from the database when they are asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select

from ..database.engine import Database
from ..database.tables import submissions
from ..identifiers import now
from ..queue.reading import count_by_state, list_devices
from ..queue.submission import State


class Metrics:
    """The metrics of one process.

    Args:
        database: The database.
    """

    def __init__(self, database: Database) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "fib_serve_requests", "Answers by route and status", ["method", "route", "status"], registry=self._registry
        )
        self.seconds = Histogram(
            "fib_serve_request_seconds", "Time to the first byte of an answer", ["route"], registry=self._registry
        )
        self.submitted = Counter("fib_serve_submitted", "Accepted submissions", registry=self._registry)
        self._registry.register(_Queue(database))

    def text(self) -> bytes:
        """All metrics."""
        return generate_latest(self._registry)


class _Queue(Collector):
    """Metrics of the queue and the devices."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def describe(self) -> Iterator[Metric]:
        """Nothing: the database is not read at registration."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """The current values."""
        waiting = GaugeMetricFamily("fib_serve_submissions", "Submissions that are not final", labels=["state"])
        alive = GaugeMetricFamily("fib_serve_device_seen_seconds", "Time since a worker reported", labels=["device"])
        with self._database.read() as connection:
            for state, count in count_by_state(connection).items():
                waiting.add_metric([state], count)
            for device in list_devices(connection):
                alive.add_metric([device.name], now() - device.seen_at)
            oldest = connection.execute(
                select(func.min(submissions.c.created_at)).where(submissions.c.state == State.QUEUED)
            ).scalar()
        yield waiting
        yield alive
        age = 0.0 if oldest is None else time.time() - oldest
        yield GaugeMetricFamily("fib_serve_oldest_queued_seconds", "Age of the oldest queued submission", value=age)
