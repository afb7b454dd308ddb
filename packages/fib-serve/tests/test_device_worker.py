"""Tests of the reports of a device worker. `test_service` tests its work."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import attrs
import pytest
from fib_serve.database import Database
from fib_serve.database.tables import devices
from fib_serve.processes import freeze_objects
from fib_serve.queue.reading import list_devices
from fib_serve.queue.submitting import NewSubmission, submit
from fib_serve.settings import Settings
from fib_serve.worker import device_worker
from fib_serve.worker.device_worker import local_worker
from sqlalchemy import insert, update

from .samples import GOOD, make_solution


def seen_at(database: Database) -> float:
    with database.read() as connection:
        return list_devices(connection)[0].seen_at


def test_a_worker_reports_before_each_submission_but_not_more_often_than_needed(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"hardware": "cpu", "harness": "1", "isolation": 3, "isolation_text": "", "seen_at": 0.0}
    with database.write() as connection:
        connection.execute(insert(devices).values(name="cpu", **columns))
    worker = local_worker(settings, "cpu", "cpu", database)
    worker.report_when_due()
    assert seen_at(database) > 0
    with database.write() as connection:
        connection.execute(update(devices).values(seen_at=0.0))
    worker.report_when_due()
    assert seen_at(database) == 0
    monkeypatch.setattr(device_worker, "_REPORT_SECONDS", 0.0)
    worker.report_when_due()
    assert seen_at(database) > 0
    worker.close()


class Cycle:
    """An object that only garbage collection frees."""

    def __init__(self) -> None:
        self.itself = self


def test_garbage_of_a_submission_is_freed_after_it(
    database: Database, settings: Settings, user_id: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it stays until thousands of submissions have left as much as the worker had at its start."""
    for index in range(2):
        solution = make_solution(f"{GOOD}# {index}").with_unique_name()
        submit(database, NewSubmission(user_id=user_id("alice"), solution=solution, workloads=None, planned=2))
    settings = attrs.evolve(settings, required_isolation=0)
    worker = local_worker(settings, "cpu", "cpu", database)
    left: list[weakref.ref[Cycle]] = []
    alive: list[int] = []

    def evaluate(*_: object) -> None:
        gc.collect(1)
        alive.append(sum(reference() is not None for reference in left))
        cycle = Cycle()
        left.append(weakref.ref(cycle))
        gc.collect(0)
        gc.collect(1)  # it has survived younger collections, and only a full one frees it
        if len(left) == 2:
            worker.drain()

    monkeypatch.setattr(device_worker, "evaluate", evaluate)
    try:
        worker.run()
    finally:
        gc.unfreeze()
    assert alive == [0, 0]


def test_objects_that_are_frozen_are_not_collected_again() -> None:
    count = len(gc.get_objects())
    freeze_objects()
    try:
        assert len(gc.get_objects()) < count / 10
        assert gc.get_freeze_count() > count / 2
    finally:
        gc.unfreeze()
