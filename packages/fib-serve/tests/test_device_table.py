"""Tests of the table of devices: devices in use, excluded ones, and what the API shows of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fib_bench import IsolationReport
from fib_serve.database import Database
from fib_serve.database.tables import devices
from fib_serve.errors import InvalidSetting
from fib_serve.queue.leasing import claim
from fib_serve.queue.reading import list_devices
from fib_serve.queue.submission import State
from fib_serve.queue.submitting import NewSubmission, submit
from fib_serve.worker.device_table import exclude_device, forget_devices, register_device
from sqlalchemy import update

from .samples import bearer, make_solution

STRONG = IsolationReport(3, "all measures", ())
ONE, OTHER = "host/00000001/gpu:0", "host/00000002/gpu:0"


def problems(database: Database) -> dict[str, str | None]:
    with database.read() as connection:
        return {device.name: device.problem for device in list_devices(connection)}


def test_devices_in_use_have_the_same_hardware(database: Database) -> None:
    register_device(database, ONE, "h100", "1", STRONG)
    with pytest.raises(InvalidSetting, match=f"{OTHER} is 'h200' and {ONE} is 'h100'"):
        register_device(database, OTHER, "h200", "1", STRONG)
    exclude_device(database, ONE, "its node has left the cluster")
    register_device(database, OTHER, "h200", "1", STRONG)
    assert problems(database) == {ONE: "its node has left the cluster", OTHER: None}


def test_a_device_that_is_registered_again_is_used_again(database: Database) -> None:
    exclude_device(database, ONE, "it does not answer")
    register_device(database, ONE, "h100", "1", STRONG)
    assert problems(database) == {ONE: None}


def test_submissions_of_an_excluded_device_are_leased_by_another(
    database: Database, user_id: Callable[..., int]
) -> None:
    new = NewSubmission(user_id=user_id("alice"), solution=make_solution(), workloads=None, planned=2)
    made, _ = submit(database, new)
    register_device(database, ONE, "h100", "1", STRONG)
    first = claim(database, ONE, 60)
    assert first is not None
    assert claim(database, OTHER, 60) is None
    exclude_device(database, ONE, "its node has left the cluster")
    second = claim(database, OTHER, 60)
    assert second is not None
    assert (second.submission.id, second.submission.state) == (made.id, State.RUNNING)
    assert second.token != first.token


def test_excluded_devices_are_forgotten_a_day_after_they_have_left(database: Database) -> None:
    for name in (ONE, OTHER, "new"):
        exclude_device(database, name, "its sandbox reaches level 1, required is 3")
    with database.write() as connection:
        connection.execute(update(devices).where(devices.c.name != "new").values(seen_at=0.0))
    forget_devices(database, {OTHER})
    assert problems(database).keys() == {OTHER, "new"}


def test_the_api_and_the_pages_show_why_a_device_is_not_used(
    database: Database, client: Any, token: Callable[..., str]
) -> None:
    problem = "its sandbox reaches level <1>, required is 3"
    headers = bearer(token("alice"))
    exclude_device(database, ONE, problem)
    (device,) = client.get("/v1/devices", headers=headers).json()
    assert (device["name"], device["problem"], device["submission"]) == (ONE, problem, None)
    assert client.get("/ready").status_code == 503
    assert client.get("/health").json()["workers"] == [{"device": ONE, "healthy": False}]
    client.post("/login", data={"token": headers["Authorization"].split()[1]}, headers={"Accept": "text/html"})
    assert "excluded: its sandbox reaches level &lt;1&gt;, required is 3" in client.get("/queue").text
    register_device(database, OTHER, "cpu", "1", STRONG)
    assert client.get("/ready").status_code == 200
