"""Leases of submissions: one worker at a time, fairly between users.

Users take turns by weighted fair queueing: each has a virtual time that advances by ``1 / weight`` with a turn, and
the user with the smallest one is next. The virtual time of an idle user is raised to that of the queue, so that idling
saves nothing. Within a user, the priority decides, then the deadline, then the order of arrival.
"""

from __future__ import annotations

from typing import Any

import attrs
from fib_schema import Solution, parse_json
from sqlalchemy import ColumnElement, Connection, and_, case, func, insert, select, update

from ..database.engine import Database
from ..database.tables import queue_clock, submissions, users
from ..errors import LeaseLost
from ..identifiers import new_id, now
from .submission import State, Submission, select_submissions
from .submitting import add_event

MAX_ATTEMPTS = 3
"""Workers that may die during a submission, one after another and without a new trace, before it is not tried again: it
may be what kills them."""


_MAX_ERROR_CHARACTERS = 2000


@attrs.frozen
class Lease:
    """The right of one worker to evaluate a submission."""

    submission: Submission
    solution: Solution
    token: str


def claim(database: Database, device: str, lease_seconds: float) -> Lease | None:
    """Lease the next submission; None if none may run now."""
    with database.read() as connection:  # most calls end here, without the write lock
        is_waiting = select(submissions.c.number).where(submissions.c.state.in_((State.QUEUED, State.RUNNING))).limit(1)
        if connection.execute(is_waiting).first() is None:
            return None
    with database.write() as connection:
        _expire(connection)
        user = _next_user(connection)
        if user is None:
            return None
        number = connection.execute(
            select(submissions.c.number)
            .where(submissions.c.state == State.QUEUED, submissions.c.user_id == user.id)
            .order_by(
                submissions.c.priority.desc(),
                func.coalesce(submissions.c.deadline, 1e18),
                submissions.c.number,
            )
            .limit(1)
        ).scalar_one()
        return _lease(connection, number, device, lease_seconds)


def heartbeat(database: Database, lease: Lease, lease_seconds: float) -> bool:
    """Renew a lease; false if another worker has the submission."""
    with database.write() as connection:
        renewed = connection.execute(
            update(submissions).where(_is_held(lease)).values(lease_expires_at=now() + lease_seconds)
        )
        return bool(renewed.rowcount)


def check_held(connection: Connection, lease: Lease) -> None:
    """Reject a worker whose lease was given to another one; holds until the transaction ends.

    Raises:
        LeaseLost: It was.
    """
    if connection.execute(select(submissions.c.number).where(_is_held(lease))).first() is None:
        raise LeaseLost(lease.submission.id)


def release(database: Database, lease: Lease, failure: str | None = None) -> None:
    """Return a submission to the queue.

    Args:
        database: The database.
        lease: Of the submission.
        failure: The reason if its evaluation has failed through no fault of its own; without one, because the worker
            stops, this does not count as an attempt.
    """
    with database.write() as connection:
        attempts = connection.execute(select(submissions.c.attempts).where(_is_held(lease))).scalar()
        if attempts is None:
            return
        identifier = lease.submission.id
        if failure is not None and attempts >= MAX_ATTEMPTS:
            end(connection, identifier, State.FAILED, f"{attempts} attempts failed, the last one because {failure}")
            return
        requeue(connection, identifier)
        if failure is None:
            connection.execute(update(submissions).where(submissions.c.id == identifier).values(attempts=attempts - 1))


def cancel(database: Database, identifier: str) -> State:
    """Cancel a submission: at once if it is queued, else when its worker next renews the lease.

    Returns:
        The state before.
    """
    with database.write() as connection:
        query = select(submissions.c.state).where(submissions.c.id == identifier)
        state = State(connection.execute(query).scalar_one())
        if state is State.QUEUED:
            end(connection, identifier, State.CANCELLED, "cancelled before it was evaluated")
        elif state is State.RUNNING:
            connection.execute(update(submissions).where(submissions.c.id == identifier).values(is_cancelling=True))
        return state


def end(connection: Connection, identifier: str, state: State, error: str | None) -> None:
    """End a submission that has no result of its own."""
    if error is not None:
        error = _shortened(error).replace("\0", "\\0")  # PostgreSQL stores no null characters
    connection.execute(
        update(submissions)
        .where(submissions.c.id == identifier)
        .values(state=state, error=error, finished_at=now(), lease=None, lease_expires_at=None)
    )
    add_event(connection, identifier, "state", {"state": state, "error": error})


def _shortened(text: str) -> str:
    """A text that lists of submissions can show: it may quote names that a submitter chose."""
    if len(text) <= _MAX_ERROR_CHARACTERS:
        return text
    return f"{text[:_MAX_ERROR_CHARACTERS]}... ({len(text)} characters)"


def _is_held(lease: Lease) -> ColumnElement[bool]:
    return and_(
        submissions.c.id == lease.submission.id,
        submissions.c.state == State.RUNNING,
        submissions.c.lease == lease.token,
    )


def expire_of(connection: Connection, device: str) -> None:
    """End the leases of a device, whose earlier worker has died: the new one need not wait until they expire."""
    is_left = (submissions.c.state == State.RUNNING) & (submissions.c.device == device)
    connection.execute(update(submissions).where(is_left).values(lease=None, lease_expires_at=0.0))


def _expire(connection: Connection) -> None:
    """End what has missed its deadline, and requeue what a dead worker has left."""
    time = now()
    late = select(submissions.c.id).where(submissions.c.state == State.QUEUED, submissions.c.deadline < time)
    for (identifier,) in connection.execute(late).all():
        end(connection, identifier, State.FAILED, "its deadline passed before a device was free")
    lost = select(submissions.c.id, submissions.c.attempts, submissions.c.is_cancelling).where(
        submissions.c.state == State.RUNNING, submissions.c.lease_expires_at < time
    )
    for identifier, attempts, is_cancelling in connection.execute(lost).all():
        if is_cancelling:
            end(connection, identifier, State.CANCELLED, "cancelled while it was evaluated")
        elif attempts >= MAX_ATTEMPTS:
            end(connection, identifier, State.FAILED, f"{attempts} workers died while they evaluated it")
        else:
            requeue(connection, identifier)


def requeue(connection: Connection, identifier: str) -> None:
    """Put a submission back into the queue; its lease is void from now on."""
    connection.execute(
        update(submissions)
        .where(submissions.c.id == identifier)
        .values(state=State.QUEUED, lease=None, lease_expires_at=None)
    )
    add_event(connection, identifier, "state", {"state": State.QUEUED})


def _next_user(connection: Connection) -> Any:
    """The user whose turn it is, its virtual time advanced; None if no user may run another submission."""
    waiting = select(submissions.c.user_id).where(submissions.c.state == State.QUEUED).distinct().subquery()
    running = (
        select(submissions.c.user_id, func.count().label("count"))
        .where(submissions.c.state == State.RUNNING)
        .group_by(submissions.c.user_id)
        .subquery()
    )
    clock = connection.execute(select(queue_clock.c.virtual_time)).scalar()
    if clock is None:
        connection.execute(insert(queue_clock).values(id=1, virtual_time=0.0))
        clock = 0.0
    start = case((users.c.virtual_time > clock, users.c.virtual_time), else_=clock)
    query = (
        select(users.c.id, users.c.weight, start.label("start"))
        .join(waiting, waiting.c.user_id == users.c.id)
        .outerjoin(running, running.c.user_id == users.c.id)
        .where(func.coalesce(running.c.count, 0) < users.c.max_running)
        .order_by(start, users.c.id)
        .limit(1)
    )
    user = connection.execute(query).first()
    if user is not None:
        connection.execute(update(queue_clock).values(virtual_time=user.start))
        finish = user.start + 1.0 / user.weight
        connection.execute(update(users).where(users.c.id == user.id).values(virtual_time=finish))
    return user


def _lease(connection: Connection, number: int, device: str, lease_seconds: float) -> Lease:
    token, time = new_id(), now()
    connection.execute(
        update(submissions)
        .where(submissions.c.number == number)
        .values(
            state=State.RUNNING,
            lease=token,
            lease_expires_at=time + lease_seconds,
            attempts=submissions.c.attempts + 1,
            device=device,
            started_at=func.coalesce(submissions.c.started_at, time),
        )
    )
    row = connection.execute(select_submissions().where(submissions.c.number == number)).mappings().one()
    text = connection.execute(select(submissions.c.solution).where(submissions.c.number == number)).scalar_one()
    found = Submission.from_row(row)
    add_event(connection, found.id, "state", {"state": State.RUNNING, "device": device})
    return Lease(found, parse_json(text, Solution, source=f"submission {found.id}"), token)
