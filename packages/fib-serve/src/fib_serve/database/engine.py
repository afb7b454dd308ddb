"""Connections to the database. A write takes the write lock at once, so that no transaction fails half-way.

Within a process writers wait for a lock of the process, which is fair; SQLite's own lock, which is polled, then has
one waiter for each process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine import URL

from ..errors import DatabaseUnusable

_BUSY_SECONDS = 30.0
_PRAGMAS = (
    "journal_mode = WAL",  # readers do not wait for writers
    "synchronous = FULL",  # an acknowledged submission survives a loss of power
    "foreign_keys = ON",
    "cache_size = -65536",  # KiB, negative by convention
    "mmap_size = 268435456",
)


class Database:
    """The database of one service.

    Args:
        path: A SQLite file, which is made if its folder exists.

    Raises:
        DatabaseUnusable: It cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._write_lock = threading.Lock()
        self._engine = create_engine(
            URL.create("sqlite", database=str(path)),
            connect_args={"timeout": _BUSY_SECONDS, "check_same_thread": False},
            pool_size=16,
            max_overflow=48,
        )
        event.listen(self._engine, "connect", _prepare)
        event.listen(self._engine, "begin", _begin)
        try:
            with self.read():
                pass
        except Exception as error:
            raise DatabaseUnusable(str(path), f"it cannot be opened: {error}") from error

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent view, which neither waits for writers nor delays them."""
        with self._engine.connect() as connection:
            yield connection
            connection.rollback()

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that is alone among all writers; it is durable when the block ends, or undone by an error."""
        with self._write_lock, self._engine.connect() as connection:
            connection = connection.execution_options(is_writing=True)
            with connection.begin():
                yield connection

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


def _prepare(connection: Any, _: object) -> None:
    connection.isolation_level = None  # `_begin` opens transactions, not the driver
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    is_writing = connection.get_execution_options().get("is_writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writing else "BEGIN")
