"""Migrations. `migrate` creates the tables or brings those of an earlier version up to date."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection

from ..errors import DatabaseUnusable
from .engine import Database

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
            raise DatabaseUnusable(str(database.path), problem) from error


def current_version(connection: Connection) -> str:
    """The version of the tables, such as ``0001``; empty where there are none."""
    from alembic.runtime.migration import MigrationContext

    return MigrationContext.configure(connection).get_current_revision() or ""
