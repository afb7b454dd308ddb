"""Tests with a PostgreSQL server: migrations, the queue, recording, the API, and a service whose server is killed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from fib_serve.cli.main import main
from fib_serve.database import Database, migrate, open_database
from fib_serve.database.tables import metadata
from fib_serve.errors import DatabaseUnreachable, InvalidSetting
from fib_serve.queue.leasing import claim
from fib_serve.settings import DATABASE_VARIABLE, Settings
from sqlalchemy import select
from sqlalchemy.exc import InternalError, OperationalError

from . import running_service
from .postgresql_server import PostgreSql, missing
from .running_service import RunningService, create_token, traces_by_submission, wait
from .samples import GOOD, bearer, plain_solution

if missing():
    pytest.skip(missing(), allow_module_level=True)

# The tests of these modules run again, with the settings of this one.
from .test_queue import *  # noqa: F403
from .test_recording import (
    lease,  # noqa: F401
    test_a_result_whose_trace_has_gone_does_not_count,  # noqa: F401
    test_a_trace_is_in_its_file_with_the_submission_and_in_the_index,  # noqa: F401
    test_a_trace_that_a_dead_worker_did_not_index_is_found_and_a_torn_one_is_not,  # noqa: F401
    test_a_worker_that_lost_its_lease_writes_nothing,  # noqa: F401
    test_attempts_count_only_until_there_is_a_new_trace,  # noqa: F401
    test_reconciliation_indexes_traces_and_requeues_what_was_running,  # noqa: F401
)


@pytest.fixture
def settings(settings: Settings, url: str) -> Settings:
    return attrs.evolve(settings, database=url)


def test_the_migrations_make_the_tables_of_the_program(database: Database) -> None:
    with database.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == "0002"
    migrate(database)


def test_commits_are_synced_and_one_writer_waits_for_the_other(database: Database, settings: Settings) -> None:
    other = open_database(settings)
    entered = threading.Event()

    def write() -> None:
        with other.write():
            entered.set()

    with database.write() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
        thread = threading.Thread(target=write)
        thread.start()
        assert not entered.wait(0.3)
    thread.join(10)
    assert entered.is_set()
    other.close()


def test_a_reader_sees_one_state_and_cannot_write(database: Database) -> None:
    count = select(metadata.tables["queue_clock"].c.id)
    with database.read() as connection:
        assert connection.execute(count).all() == []
        with database.write() as writer:
            writer.exec_driver_sql("INSERT INTO queue_clock VALUES (1, 0)")
        assert connection.execute(count).all() == []
        with pytest.raises(InternalError, match="read-only"):
            connection.exec_driver_sql("INSERT INTO queue_clock VALUES (2, 0)")


def test_the_password_is_in_no_message_and_in_no_command_line(url: str, settings: Settings) -> None:
    password = url.split(":")[2].partition("@")[0]
    unreachable = url.replace("@127.0.0.1:", "@127.0.0.1:1")
    with pytest.raises(DatabaseUnreachable) as error:
        Database(unreachable.rpartition(":")[0] + ":1/postgres")
    assert password not in str(error.value)
    assert password not in settings.to_json()
    assert password not in repr(settings)


def test_another_kind_of_database_is_refused() -> None:
    for text in ("mysql://localhost/x", "postgresql", "sqlite:///x"):
        with pytest.raises(InvalidSetting, match="postgresql://"):
            Database(text)


def test_commands_use_the_database_of_the_option_or_of_the_environment(
    data_set: Path, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = data_set.with_name("data.fib-serve")
    words = ["--user", "alice", "--scope", "reader", "--database", url]
    assert main(["token", "create", str(data_set), *words]) == 0
    monkeypatch.setenv(DATABASE_VARIABLE, url)
    assert main(["user", "list", str(data_set)]) == 0
    assert "alice" in capsys.readouterr().out
    assert not (state / "serve.sqlite3").exists()
    assert main(["backup", str(data_set), str(data_set / "b")]) == 2
    assert "pg_dump" in capsys.readouterr().err


def test_values_that_the_server_cannot_store_are_refused(client: Any, token: Callable[..., str]) -> None:
    mine = bearer(token("alice"))
    strange = {**mine, "Idempotency-Key": "k" * 201}
    assert client.post("/v1/submissions", json={"solution": plain_solution()}, headers=strange).status_code == 422
    assert client.get("/v1/submissions?user=%00", headers=mine).status_code in (200, 422)
    source = plain_solution("def run(x):\n    return x * 2  # \0 \N{SNOWMAN}\n")
    made = client.post("/v1/submissions", json={"solution": source}, headers=mine)
    assert made.status_code == 201
    events = f"/v1/submissions/{made.json()['id']}/events"
    assert client.delete(events.removesuffix("/events"), headers=mine).status_code == 202
    statuses = {
        number: client.get(events, headers=mine | {"Last-Event-ID": str(number)}).status_code
        for number in (2**31 - 1, 2**31, -1)
    }
    assert statuses == {2**31 - 1: 200, 2**31: 422, -1: 422}


def test_a_writer_whose_server_has_gone_keeps_others_of_its_machine_out(
    server: PostgreSql, database: Database, settings: Settings
) -> None:
    other = open_database(settings)
    entered = threading.Event()

    def write() -> None:
        while not entered.is_set():
            try:
                with other.write():
                    entered.set()
            except OperationalError:  # of connections that the kill has ended
                time.sleep(0.05)

    thread = threading.Thread(target=write)

    def hold() -> None:
        with database.write() as connection:
            server.kill()
            server.start()
            thread.start()
            assert not entered.wait(1.0)
            connection.exec_driver_sql("SELECT 1")

    with pytest.raises(OperationalError):
        hold()
    thread.join(30)
    assert entered.is_set()
    other.close()
    assert claim(database, "cpu", 60) is None


def test_a_service_survives_the_kill_of_its_server(data_set: Path, server: PostgreSql, url: str) -> None:
    os.environ[DATABASE_VARIABLE] = url
    try:
        token = create_token(data_set, "alice")
    finally:
        del os.environ[DATABASE_VARIABLE]
    with RunningService(data_set, environment={DATABASE_VARIABLE: url}) as service, service.client(token) as client:
        identifiers = [running_service.submit(client, f"{GOOD}# {index}") for index in range(6)]
        while client.get(f"/v1/submissions/{identifiers[0]}").json()["state"] == "queued":
            time.sleep(0.05)
        with client.stream("GET", f"/v1/submissions/{identifiers[-1]}/events") as stream:
            lines = stream.iter_lines()
            next(lines)  # the stream is open
            server.kill()
            assert client.get("/v1/quota").status_code == 503
            for _ in lines:  # it ends, but not in the middle of an answer
                pass
        server.start()
        deadline = time.monotonic() + 120
        while client.get("/v1/quota").status_code == 503 and time.monotonic() < deadline:
            time.sleep(0.1)
        tasks = wait(client, identifiers)
    assert [task["status"] for task in tasks] == ["completed"] * 6
    assert traces_by_submission(data_set) == {
        (identifier, uuid): 1 for identifier in identifiers for uuid in ("double-4", "double-8")
    }
