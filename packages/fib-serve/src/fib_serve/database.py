"""Database of the service: a SQLite file with submissions, their results, and users.

Trace files are the truth for results. What the database holds of them is an index that `queue.reconcile` rebuilds.
Times are seconds since 1970 (UTC). One writer at a time: a write takes the write lock at once, so that no transaction
fails half-way. The threads of the service wait for a lock of the process, which is fair; commands of other processes
wait for the lock of SQLite.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL

from .errors import DatabaseUnusable

_BUSY_SECONDS = 30.0
_POOL: dict[str, Any] = {"pool_size": 16, "max_overflow": 48}
_PRAGMAS = (
    "journal_mode = WAL",  # readers do not wait for writers
    "synchronous = FULL",  # an acknowledged submission survives a loss of power
    "foreign_keys = ON",
    "mmap_size = 1073741824",  # pages are read where the system caches them
    "cache_size = -512",  # KiB, negative by convention: of each connection, for the pages of one write
)
VERSION = 5
"""Version of the tables, kept as ``user_version``."""
LARGEST_ID = 2**31 - 1
"""Bound on ids in requests."""


class State(StrEnum):
    """The state of a submission."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    """Every workload was evaluated, whatever the verdict."""
    FAILED = "failed"
    """It could not be evaluated; `Submission.error` gives the reason."""

    @property
    def is_final(self) -> bool:
        """Whether it does not change any more."""
        return self not in PENDING


PENDING = (State.QUEUED, State.RUNNING)
metadata = sa.MetaData()

users = sa.Table(
    "users",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.String(40), nullable=False, unique=True),
    sa.Column("turn_at", sa.Float, nullable=False, default=0.0),  # when a device last took a submission of the user
)

tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("user_id", sa.ForeignKey("users.id"), nullable=False, index=True),
    sa.Column("scope", sa.String(20), nullable=False),
    sa.Column("hash", sa.String(64), nullable=False, unique=True),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("revoked_at", sa.Float),
)

submissions = sa.Table(
    "submissions",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("id", sa.String(32), nullable=False, unique=True),
    sa.Column("user_id", sa.ForeignKey("users.id"), nullable=False),
    sa.Column("definition", sa.String(200), nullable=False),
    sa.Column("solution_name", sa.String(200), nullable=False),
    sa.Column("solution", sa.Text, nullable=False),
    sa.Column("content_hash", sa.String(64), nullable=False),
    sa.Column("workloads", sa.JSON(none_as_null=True)),  # uuids; null means all
    sa.Column("state", sa.Enum(State, native_enum=False, values_callable=list, length=10), nullable=False),
    sa.Column("error", sa.Text),
    sa.Column("attempts", sa.Integer, nullable=False, default=0),
    sa.Column("device", sa.String(100)),
    sa.Column("hardware", sa.String(200)),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("finished_at", sa.Float),
    sa.Column("planned", sa.Integer, nullable=False, default=0),  # public workloads that it runs on
    sa.Column("passed", sa.Integer, nullable=False, default=0),
    sa.Column("verdict", sa.String(40)),
    sa.Column("summary", sa.JSON(none_as_null=True)),  # shown by leaderboards, see `device_worker`
    sa.Column("is_ranked", sa.Boolean, nullable=False, default=False),
    sa.Column("score", sa.Float),
    sa.Column("rejection", sa.Text),  # the reason of a maintainer
    sa.Index("submissions_queue", "state", "user_id"),
    sa.Index("submissions_content", "user_id", "content_hash"),
    sa.Index("submissions_user_number", "user_id", "number"),
    sa.Index("submissions_user_time", "user_id", "created_at"),
    sa.Index("submissions_definition_number", "definition", "number"),
    sa.Index("submissions_rank", "definition", "is_ranked", "hardware", "user_id", "score"),
)

results = sa.Table(
    "results",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("submission_id", sa.ForeignKey("submissions.id"), nullable=False),
    sa.Column("workload", sa.String(200), nullable=False),
    sa.Column("is_hidden", sa.Boolean, nullable=False),
    sa.Column("trace", sa.Text),  # null for hidden workloads, whose traces are only in their files
    sa.UniqueConstraint("submission_id", "workload", "is_hidden"),
)

audit = sa.Table(
    "audit",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("user", sa.String(40), nullable=False),
    sa.Column("address", sa.String(100), nullable=False),
    sa.Column("action", sa.String(40), nullable=False),
    sa.Column("subject", sa.String(200), nullable=False),
    sa.Column("detail", sa.Text, nullable=False),
)


def new_id() -> str:
    """A random id of 32 hexadecimal digits, which nobody can guess."""
    return secrets.token_hex(16)


def now() -> float:
    """The time in seconds since 1970 (UTC)."""
    return time.time()


def iso_time(seconds: float | None) -> str | None:
    """A time in ISO 8601 (UTC), in milliseconds."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Database:
    """The database of one service, which is made if there is none.

    Raises:
        DatabaseUnusable: It is damaged, or another version of this program has written it.
    """

    def __init__(self, path: Path) -> None:
        if path.exists():
            _check_file(path)
        self.path = path
        self._write_lock = threading.Lock()
        options = {"timeout": _BUSY_SECONDS, "check_same_thread": False}
        self._engine = sa.create_engine(URL.create("sqlite", database=str(path)), connect_args=options, **_POOL)
        sa.event.listen(self._engine, "connect", _prepare)
        sa.event.listen(self._engine, "begin", _begin)
        with self.write() as connection:
            metadata.create_all(connection)
            connection.exec_driver_sql(f"PRAGMA user_version = {VERSION}")

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A consistent view, which neither waits for writers nor delays them."""
        with self._engine.connect() as connection:
            yield connection
            connection.rollback()

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction that is alone among all writers; it is durable when the block ends, or undone by an error."""
        with self._write_lock, self._engine.connect() as connection:
            connection = connection.execution_options(is_writing=True)
            with connection.begin():
                yield connection

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


def _check_file(path: Path) -> None:
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        try:
            found = str(connection.execute("PRAGMA quick_check").fetchone()[0])
            version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        except sqlite3.DatabaseError as error:
            found, version = str(error), VERSION
    if found != "ok":
        raise DatabaseUnusable(str(path), f"it is damaged: {found}; restore a backup")
    if version not in (0, VERSION):
        problem = f"another version of fib-serve wrote it (tables {version}, this one has {VERSION}): use that version"
        raise DatabaseUnusable(str(path), problem)


def _prepare(connection: Any, _: object) -> None:
    connection.isolation_level = None  # `_begin` opens transactions, not the driver
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: sa.Connection) -> None:
    is_writing = connection.get_execution_options().get("is_writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writing else "BEGIN")
