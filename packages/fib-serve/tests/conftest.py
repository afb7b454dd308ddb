"""Fixtures that the tests of fib-serve share: a data set, a database, and the API in this process."""

import socket
import threading
import warnings

import attrs
import pytest
import uvicorn
from fib_serve.contest import Contest, read_catalogs
from fib_serve.database import Database
from fib_serve.settings import Settings, default_state, make_state
from fib_serve.users import Role, create_token, get_or_add_user
from fib_serve.web.app import make_app

from .samples import write_data_set

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that newer versions of Starlette prefer another client
    from starlette.testclient import TestClient


@pytest.fixture
def data_set(tmp_path):
    return write_data_set(tmp_path / "data")


@pytest.fixture
def settings(data_set):
    state = default_state(data_set)
    make_state(state)
    fields = {"dataset": str(data_set), "state": str(state), "rules": "One long word: " + "w" * 300}
    return Settings(**fields, allow_unranked=True)


@pytest.fixture
def database(settings):
    database = Database(settings.database_path)
    yield database
    database.close()


@pytest.fixture
def user_id(database):
    """Makes users and returns their numbers."""

    def make(name):
        with database.write() as connection:
            return get_or_add_user(connection, name)

    return make


@pytest.fixture
def token(database):
    """Makes tokens, and the users they are for."""

    def make(name, scope=Role.SUBMITTER):
        with database.write() as connection:
            return create_token(connection, name, scope)[1]

    return make


def make_contest(settings, database):
    return Contest(settings, database, read_catalogs(settings))


@pytest.fixture
def make_client(database, settings):
    """Starts the API in this process, with changed settings."""
    clients = []

    def make(**changes):
        contest = make_contest(attrs.evolve(settings, **changes), database)
        client = TestClient(make_app(contest), raise_server_exceptions=False)
        client.app.state.gate.rate = 1000.0
        client.__enter__()
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.__exit__(None, None, None)


@pytest.fixture
def client(make_client):
    return make_client()


@pytest.fixture
def address(client):
    """The address of the pages, served by a thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(client.app, lifespan="off", log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()
    listener.close()
