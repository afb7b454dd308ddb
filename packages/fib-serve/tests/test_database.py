"""Tests of the database: versions and durability settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from fib_serve.database import Database, check_file, make_tables
from fib_serve.errors import DatabaseUnusable


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"nonsense" * 1000)
    with pytest.raises(DatabaseUnusable, match="cannot be opened"):
        Database(path)


def test_commits_are_synced_and_readers_do_not_wait(database: Database) -> None:
    with database.read() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    with database.write(), database.read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM users").scalar() == 0


def test_a_failed_transaction_leaves_nothing(database: Database) -> None:
    def fail() -> None:
        with database.write() as connection:
            connection.exec_driver_sql("INSERT INTO audit VALUES (1, 0, '', '', '', '', '')")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with database.read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM audit").scalar() == 0


def test_a_damaged_database_or_one_of_another_version_is_named(database: Database) -> None:
    make_tables(database)  # a second start
    check_file(database.path)
    with database.write() as connection:
        connection.exec_driver_sql("PRAGMA user_version = 9999")
    with pytest.raises(DatabaseUnusable, match="another version of fib-serve wrote it"):
        make_tables(database)
    database.close()
    with pytest.raises(DatabaseUnusable, match="tables 9999"):
        check_file(database.path)
    content = database.path.read_bytes()
    database.path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    with pytest.raises(DatabaseUnusable, match="it is damaged"):
        check_file(database.path)
