"""Retention: removes old events and audit entries. Submissions and traces are never removed."""

from __future__ import annotations

from sqlalchemy import delete, select

from ..database.engine import Database
from ..database.tables import audit, events, submissions
from ..identifiers import now
from ..queue.submission import State

_FINAL = (State.COMPLETED, State.FAILED, State.CANCELLED)
_AT_ONCE = 10_000
DAY_SECONDS = 86_400.0


def prune(database: Database, days: float) -> dict[str, int]:
    """Remove events of submissions that ended so long ago, and audit entries of that age; returns the numbers."""
    oldest = now() - days * DAY_SECONDS
    ended = select(submissions.c.id).where(submissions.c.state.in_(_FINAL), submissions.c.finished_at < oldest)
    chosen = {
        "events": (events, select(events.c.id).where(events.c.submission_id.in_(ended)).limit(_AT_ONCE)),
        "audit": (audit, select(audit.c.id).where(audit.c.at < oldest).limit(_AT_ONCE)),
    }
    removed = dict.fromkeys(chosen, 0)
    for name, (table, query) in chosen.items():
        count = _AT_ONCE
        while count == _AT_ONCE:  # in steps, so that the service is not blocked
            with database.write() as connection:
                count = connection.execute(delete(table).where(table.c.id.in_(query))).rowcount
            removed[name] += count
    return removed
