"""Rejection of results by maintainers: a rejected result does not rank and stays visible."""

from __future__ import annotations

from sqlalchemy import Connection, select, update

from ..database.tables import submissions
from ..errors import Conflict, NotFound
from .submission import State
from .submitting import add_event


def reject(connection: Connection, identifier: str, reason: str) -> None:
    """Reject a result.

    Raises:
        NotFound: There is no such submission.
        Conflict: It has no result.
    """
    _check_completed(connection, identifier)
    connection.execute(
        update(submissions).where(submissions.c.id == identifier).values(rejection=reason, is_ranked=False)
    )
    add_event(connection, identifier, "rejection", {"reason": reason})


def restore(connection: Connection, identifier: str) -> None:
    """Undo a rejection.

    Raises:
        NotFound: There is no such submission.
        Conflict: It has no result.
    """
    _check_completed(connection, identifier)
    is_ranked = submissions.c.score.is_not(None) & submissions.c.workloads.is_(None)
    connection.execute(
        update(submissions).where(submissions.c.id == identifier).values(rejection=None, is_ranked=is_ranked)
    )
    add_event(connection, identifier, "rejection", {"reason": None})


def _check_completed(connection: Connection, identifier: str) -> None:
    state = connection.execute(select(submissions.c.state).where(submissions.c.id == identifier)).scalar()
    if state is None:
        raise NotFound(f"no submission has the id {identifier[:200]!r}")
    if state != State.COMPLETED:
        raise Conflict(f"the submission is {state} and has no result that could be rejected")
