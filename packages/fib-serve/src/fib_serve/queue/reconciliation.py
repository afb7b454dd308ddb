"""Reconciliation of the database with the trace files, when the service starts. The files are the truth."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
from fib_schema import Trace, TraceSet
from sqlalchemy import Connection, delete, select, update

from ..database.engine import Database
from ..database.tables import results, submissions
from .leasing import requeue
from .recording import Place, add_result, submission_of
from .submission import State
from .submitting import add_event

_LOST = "its traces are no longer in the data set; submit it again with `force`"


@attrs.frozen
class Reconciliation:
    """The differences that were found and removed."""

    indexed: int
    """Traces that the database lacked."""
    lost: int
    """Results of the database without a trace."""
    foreign: int
    """Traces of submissions that the database does not know."""
    requeued: int
    """Submissions that were running when the service ended."""


def reconcile(database: Database, places: tuple[Place, ...]) -> Reconciliation:
    """Make the database agree with the trace files. No worker may run meanwhile."""
    indexed = foreign = lost = 0
    with database.write() as connection:
        known = set(connection.execute(select(submissions.c.id)).scalars())
        rows = connection.execute(select(results.c.submission_id, results.c.workload, results.c.is_hidden))
        missing = {(row[0], row[1], bool(row[2])) for row in rows}
        seen: set[tuple[str, str, bool]] = set()
        for place in places:
            for submission, trace in _marked_traces(place):
                key = (submission, trace.workload.uuid, place.is_hidden)
                if submission not in known:
                    foreign += 1
                elif key in missing:
                    missing.discard(key)
                    seen.add(key)
                elif key not in seen:
                    add_result(connection, submission, trace, is_hidden=place.is_hidden)
                    seen.add(key)
                    indexed += 1
        for submission, workload, is_hidden in missing:
            connection.execute(
                delete(results).where(
                    results.c.submission_id == submission,
                    results.c.workload == workload,
                    results.c.is_hidden.is_(is_hidden),
                )
            )
            lost += 1
        for submission in {submission for submission, *_ in missing}:
            _fail_completed(connection, submission)
        running = connection.execute(select(submissions.c.id).where(submissions.c.state == State.RUNNING)).scalars()
        requeued = running.all()
        for identifier in requeued:
            requeue(connection, identifier)
    return Reconciliation(indexed, lost, foreign, len(requeued))


def _marked_traces(place: Place) -> Iterator[tuple[str, Trace]]:
    for group in TraceSet.from_path(place.root).traces.values():
        for trace in group:
            submission = submission_of(trace)
            if submission is not None:
                yield submission, trace


def _fail_completed(connection: Connection, submission: str) -> None:
    failed = connection.execute(
        update(submissions)
        .where(submissions.c.id == submission, submissions.c.state == State.COMPLETED)
        .values(state=State.FAILED, error=_LOST, is_ranked=False, score=None, verdict=None, summary=None)
    )
    if failed.rowcount:
        add_event(connection, submission, "state", {"state": State.FAILED, "error": _LOST})
