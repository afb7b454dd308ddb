"""Connections to the database: a SQLite file, or PostgreSQL by URL.

One writer at a time: a write takes the write lock at once, so that no transaction fails half-way. Within a process
writers wait for a lock of the process, which is fair. Between processes SQLite has a lock of its own, which is polled;
with PostgreSQL they lock a file, because a lock inside the server would end with the connection while its holder still
appends a trace. There an advisory lock keeps commands of other machines out.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, OperationalError

from ..errors import DatabaseUnreachable, DatabaseUnusable, InvalidSetting

_BUSY_SECONDS = 30.0
_CONNECT_SECONDS = 5
_POOL: dict[str, Any] = {"pool_size": 16, "max_overflow": 48}
_PRAGMAS = (
    "journal_mode = WAL",  # readers do not wait for writers
    "synchronous = FULL",  # an acknowledged submission survives a loss of power
    "foreign_keys = ON",
    "mmap_size = 1073741824",  # pages are read where the system caches them
    "cache_size = -512",  # KiB, negative by convention: of each connection, for the pages of one write
)
_ADVISORY_LOCK = 0x66_69_62_73_65_72_76_65  # "fibserve"
_WITHOUT_DRIVER = "the driver is not installed: pip install 'fib-serve[postgresql]'"


class Database:
    """The database of one service.

    Args:
        place: A SQLite file, which is made if its folder exists, or the URL of a PostgreSQL database.
        lock: The file that writers of this machine lock; needed for PostgreSQL.

    Raises:
        DatabaseUnusable: It cannot be opened.
        DatabaseUnreachable: The server does not answer.
        InvalidSetting: The URL is none of PostgreSQL, or its driver is missing.
    """

    def __init__(self, place: Path | str, lock: Path | None = None) -> None:
        self.is_sqlite = isinstance(place, Path)
        self._write_lock = threading.Lock()
        self._lock_path = lock
        self._engine = _sqlite(place) if isinstance(place, Path) else _postgresql(place)
        self.name = str(place) if self.is_sqlite else self._engine.url.render_as_string(hide_password=True)
        try:
            with self.read():
                pass
        except OperationalError as error:
            kind = DatabaseUnusable if self.is_sqlite else DatabaseUnreachable
            raise kind(self.name, f"it cannot be opened: {error.orig}") from error
        except Exception as error:
            raise DatabaseUnusable(self.name, f"it cannot be opened: {error}") from error

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent view, which neither waits for writers nor delays them."""
        with self._engine.connect() as connection:
            if not self.is_sqlite:
                connection = connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            yield connection
            connection.rollback()

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that is alone among all writers; it is durable when the block ends, or undone by an error."""
        with self._write_lock, _locked(self._lock_path), self._engine.connect() as connection:
            connection = connection.execution_options(is_writing=True)
            with connection.begin():
                if not self.is_sqlite:
                    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
                yield connection

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


@contextmanager
def _locked(path: Path | None) -> Iterator[None]:
    if path is None:
        yield
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _sqlite(path: Path) -> Engine:
    options = {"timeout": _BUSY_SECONDS, "check_same_thread": False}
    engine = create_engine(URL.create("sqlite", database=str(path)), connect_args=options, **_POOL)
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


def _postgresql(text: str) -> Engine:
    try:
        url = make_url(text)
        if url.get_backend_name() != "postgresql":
            raise InvalidSetting("--database", "must be a URL such as postgresql://user@host/name")
        options = {
            "connect_timeout": _CONNECT_SECONDS,
            "application_name": "fib-serve",
            # an acknowledged submission survives a crash of the server, whatever its settings are
            "options": f"-c synchronous_commit=on -c lock_timeout={_BUSY_SECONDS:.0f}s",
        }
        # connections that a restart of the server has ended are replaced when they are next used
        return create_engine(
            url.set(drivername="postgresql+psycopg"), connect_args=options, pool_pre_ping=True, **_POOL
        )
    except (ArgumentError, NoSuchModuleError) as error:
        raise InvalidSetting("--database", "must be a URL such as postgresql://user@host/name") from error
    except ModuleNotFoundError as error:
        raise InvalidSetting("--database", _WITHOUT_DRIVER) from error


def _prepare(connection: Any, _: object) -> None:
    connection.isolation_level = None  # `_begin` opens transactions, not the driver
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    is_writing = connection.get_execution_options().get("is_writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writing else "BEGIN")
