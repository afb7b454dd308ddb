"""Database of the service: submissions, their queue, users, events and devices.

Trace files are the truth for results. What the database holds of them is an index that `queue.reconciliation` rebuilds.
"""

from __future__ import annotations

from pathlib import Path

from ..settings import Settings
from .engine import Database
from .migrate import migrate

__all__ = ["Database", "migrate", "open_database"]


def open_database(settings: Settings) -> Database:
    """The database of a service.

    Raises:
        DatabaseUnusable: It cannot be opened.
        InvalidSetting: Its URL is not usable.
    """
    if settings.database is None:
        return Database(settings.database_path)
    return Database(settings.database, Path(settings.state) / "write.lock")
