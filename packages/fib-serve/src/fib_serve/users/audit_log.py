"""Audit log: who changed what, and from where. Entries are added in the transaction of the change."""

from __future__ import annotations

import attrs
from sqlalchemy import Connection, insert, select

from ..database.tables import audit
from ..identifiers import iso_time, now
from .roles import Principal


@attrs.frozen
class Entry:
    """One change."""

    id: int
    at: str | None
    user: str
    address: str
    action: str
    subject: str
    detail: str


def add_entry(connection: Connection, principal: Principal, action: str, subject: str, detail: str = "") -> None:
    """Add an entry."""
    connection.execute(
        insert(audit).values(
            at=now(),
            user=principal.name,
            address=principal.address[:100],
            action=action,
            subject=subject[:200],
            detail=detail[:2000],
        )
    )


def list_entries(connection: Connection, before: int | None, limit: int) -> list[Entry]:
    """The newest entries first.

    Args:
        connection: To the database.
        before: Only entries with a smaller number.
        limit: The largest number of entries.
    """
    query = select(audit).order_by(audit.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(audit.c.id < before)
    return [Entry(row.id, iso_time(row.at), *row[2:]) for row in connection.execute(query)]
