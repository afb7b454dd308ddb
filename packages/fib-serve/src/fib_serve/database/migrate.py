"""Migrations. `migrate` creates the tables or brings those of an earlier version up to date."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError

from ..errors import DatabaseUnusable
from .engine import Database
from .tables import metadata

_FOLDER = Path(__file__).parent / "migrations"


def migrate(database: Database) -> None:
    """Create or update all tables.

    Raises:
        DatabaseUnusable: A later version of this program has written the database.
    """
    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    with database.write() as connection:
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            newest = ScriptDirectory.from_config(config).get_current_head()
            problem = f"it was written by another version ({error}); this one knows up to {newest}: update fib-serve"
            raise DatabaseUnusable(database.name, problem) from error


def problem_of_tables(connection: sqlite3.Connection) -> str:
    """The reason why a SQLite database is not one of this service; empty if it is.

    A database of an older version may lack tables; it has its version and the table of submissions.
    """
    query = "SELECT name FROM sqlite_master WHERE type = 'table'"
    found = {name for (name,) in connection.execute(query)}
    if not {"alembic_version", "submissions"} <= found:
        return "it is not a database of fib-serve: it has no submissions"
    versions = [version for (version,) in connection.execute("SELECT version_num FROM alembic_version")]
    script = ScriptDirectory(str(_FOLDER))
    known = {revision.revision for revision in script.walk_revisions()}
    if len(versions) != 1 or versions[0] not in known:
        return f"it was written by another version ({', '.join(versions) or 'none is stated'}): update fib-serve"
    lacking = sorted(metadata.tables.keys() - found) if versions[0] == script.get_current_head() else []
    return f"it lacks the tables {', '.join(lacking)}" if lacking else ""
