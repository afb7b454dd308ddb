"""Fixtures that the tests of fib-serve share: a data set, a database, and the API in this process."""

from __future__ import annotations

import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import uvicorn
from fib_serve.contest import Contest, read_catalogs
from fib_serve.database import Database, make_tables, users
from fib_serve.settings import Settings, default_state, make_state
from fib_serve.users import Role, create_token, create_user, find_user
from fib_serve.web.app import make_app
from sqlalchemy import update

from .samples import write_data_set

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that newer versions of Starlette prefer another client
    from starlette.testclient import TestClient


@pytest.fixture
def data_set(tmp_path: Path) -> Path:
    return write_data_set(tmp_path / "data")


@pytest.fixture
def settings(data_set: Path) -> Settings:
    state = default_state(data_set)
    make_state(state)
    return Settings(dataset=str(data_set), state=str(state), allow_unranked=True, requests_per_second=1000)


@pytest.fixture
def database(settings: Settings) -> Iterator[Database]:
    database = Database(settings.database_path)
    make_tables(database)
    yield database
    database.close()


@pytest.fixture
def user_id(database: Database, settings: Settings) -> Callable[..., int]:
    """Makes users and returns their numbers."""

    def make(name: str, role: Role = Role.SUBMITTER, **columns: Any) -> int:
        with database.write() as connection:
            user = find_user(connection, name) or create_user(connection, name, role, settings)
            if columns:
                connection.execute(update(users).where(users.c.id == user.id).values(**columns))
        return user.id

    return make


@pytest.fixture
def token(database: Database, settings: Settings) -> Callable[..., str]:
    """Makes tokens, and the users they are for."""

    def make(name: str, scope: Role = Role.SUBMITTER, **options: Any) -> str:
        with database.write() as connection:
            user = find_user(connection, name) or create_user(connection, name, scope, settings)
            return create_token(connection, user, scope, "", **options)[1]

    return make


def make_contest(settings: Settings, database: Database) -> Contest:
    return Contest(settings, database, read_catalogs(settings))


@pytest.fixture
def make_client(database: Database, settings: Settings) -> Iterator[Callable[..., TestClient]]:
    """Starts the API in this process, with changed settings."""
    clients: list[TestClient] = []

    def make(**changes: Any) -> TestClient:
        contest = make_contest(attrs.evolve(settings, **changes), database)
        client = TestClient(make_app(contest), raise_server_exceptions=False)
        client.__enter__()
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.__exit__(None, None, None)


@pytest.fixture
def client(make_client: Callable[..., TestClient]) -> TestClient:
    return make_client()


@pytest.fixture
def address(client: Any) -> Iterator[str]:
    """The address of the pages, served by a thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(client.app, lifespan="off", log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()
    listener.close()
