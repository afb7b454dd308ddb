import pytest
from fib_serve.database import Database
from fib_serve.errors import DatabaseUnusable


def test_a_file_that_is_no_database_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"nonsense" * 1000)
    with pytest.raises(DatabaseUnusable, match="it is damaged"):
        Database(path)


def test_commits_are_synced_and_readers_do_not_wait(database):
    with database.read() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    with database.write(), database.read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM users").scalar() == 0


def test_a_failed_transaction_leaves_nothing(database):
    def fail():
        with database.write() as connection:
            connection.exec_driver_sql("INSERT INTO audit VALUES (1, 0, '', '', '', '', '')")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with database.read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM audit").scalar() == 0


def test_a_damaged_database_or_one_of_another_version_is_named(database):
    Database(database.path).close()  # a second start
    with database.write() as connection:
        connection.exec_driver_sql("PRAGMA user_version = 9999")
    with pytest.raises(DatabaseUnusable, match="tables 9999"):
        Database(database.path)
    database.close()
    content = database.path.read_bytes()
    database.path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    with pytest.raises(DatabaseUnusable, match="it is damaged"):
        Database(database.path)
