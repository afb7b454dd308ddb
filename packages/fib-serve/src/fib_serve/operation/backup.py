"""Backup and restore. A backup is a consistent copy of the database; trace files are copied like any files.

The database can be restored to an earlier state without losing results: `queue.reconciliation` indexes the traces of
submissions that it knows when the service starts.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from fib_schema.files import copy_file, staged

from ..database.engine import Database
from ..database.migrate import migrate, problem_of_tables
from ..errors import DatabaseUnusable, InvalidSetting
from ..settings import Settings


def back_up(settings: Settings, target: Path) -> int:
    """Copy the database of a service, which may be running; returns the size in bytes.

    Raises:
        InvalidSetting: The target exists, there is no database, or it is not SQLite.
    """
    _check_sqlite(settings)
    if target.exists():
        raise InvalidSetting("BACKUP", f"{target} exists; name a new file")
    if not settings.database_path.exists():
        raise InvalidSetting("DATASET", f"no database at {settings.database_path}; start the service first")
    with staged(target) as copy:
        copy.touch(0o600)
        with (
            closing(sqlite3.connect(f"{settings.database_path.as_uri()}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(copy)) as destination,
        ):
            source.backup(destination)
        _check(copy, settings.database_path)
    return target.stat().st_size


def restore(settings: Settings, backup: Path) -> Path | None:
    """Replace the database by a backup; the caller holds the lock of the state folder.

    Returns:
        Where the replaced database is kept, or None if there was none.

    Raises:
        InvalidSetting: There is no such file, or the database is not SQLite.
        DatabaseUnusable: The backup is damaged, or a later version wrote it.
    """
    _check_sqlite(settings)
    if not backup.is_file():
        raise InvalidSetting("BACKUP", f"there is no file {backup}")
    path = settings.database_path
    with staged(path.with_name("restored.sqlite3")) as copy:
        copy_file(backup, copy, may_link=False)
        copy.chmod(0o600)
        _check(copy, backup)
        database = Database(copy)
        migrate(database)
        database.close()
    kept = None
    if path.exists():
        kept = _free_name(path)
        with closing(sqlite3.connect(path)) as connection:  # brings the log of the replaced database into its file
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        path.rename(kept)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    path.with_name("restored.sqlite3").rename(path)
    return kept


def _check_sqlite(settings: Settings) -> None:
    if settings.database is not None:
        raise InvalidSetting("--database", "PostgreSQL has commands of its own: pg_dump, and pg_restore")


def _check(path: Path, backup: Path) -> None:
    """Check a copy of a backup; errors name the backup."""
    try:
        with closing(sqlite3.connect(path)) as connection:
            found = connection.execute("PRAGMA integrity_check").fetchone()[0]
            problem = problem_of_tables(connection) if found == "ok" else ""
    except sqlite3.DatabaseError as error:
        raise DatabaseUnusable(str(backup), f"it is damaged: {error}; use another backup") from error
    if found != "ok":
        raise DatabaseUnusable(str(backup), f"it is damaged: {found}; use another backup")
    if problem:
        raise DatabaseUnusable(str(backup), f"{problem}; use another backup")


def _free_name(path: Path) -> Path:
    number = 1
    while (free := path.with_name(f"{path.name}.replaced-{number}")).exists():
        number += 1
    return free
