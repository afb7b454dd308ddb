"""Acceptance of submissions. A submission is durable when `submit` returns.

Queries with a subquery or ``IN`` are constants, see `reading`.
"""

from __future__ import annotations

from typing import Any

import attrs
from fib_schema import Solution, format_json, parse_json
from fib_schema.display import counted
from sqlalchemy import Connection, Select, and_, bindparam, func, insert, or_, select

from ..database.engine import Database
from ..database.tables import devices, events, submissions, users
from ..errors import Conflict, TooMany, Unprocessable
from ..identifiers import digest, new_id, now
from .submission import State, Submission, select_submissions

DAY_SECONDS = 86_400.0
_PENDING = (State.QUEUED, State.RUNNING)
_COUNTS = (
    select(submissions.c.state, func.count())
    .where(submissions.c.state.in_(_PENDING), submissions.c.user_id == bindparam("user_id"))
    .group_by(submissions.c.state)
)


def _make_identical() -> Select[Any]:
    present = select(devices.c.hardware, devices.c.harness).where(devices.c.problem.is_(None)).distinct().subquery()
    is_current = (
        select(present.c.hardware)
        .where(present.c.hardware == submissions.c.hardware, present.c.harness == submissions.c.harness)
        .exists()
    )
    is_answer = or_(
        and_(submissions.c.state.in_(_PENDING), submissions.c.is_cancelling.is_(False)),
        and_(submissions.c.state == State.COMPLETED, submissions.c.rejection.is_(None), is_current),
    )
    is_same = and_(
        submissions.c.user_id == bindparam("user_id"), submissions.c.content_hash == bindparam("content_hash")
    )
    return select(submissions.c.number).where(is_same, is_answer).order_by(submissions.c.number.desc()).limit(1)


_IDENTICAL = _make_identical()


@attrs.frozen(kw_only=True)
class NewSubmission:
    """A submission that is to be accepted."""

    user_id: int
    solution: Solution
    """With its final author and a name that is unique to its content."""
    workloads: tuple[str, ...] | None
    planned: int
    """The number of public workloads that it runs on."""
    priority: int = 0
    deadline: float | None = None
    idempotency_key: str | None = None
    is_forced: bool = False
    """Whether to evaluate it although an identical one has been evaluated."""

    @property
    def content_hash(self) -> str:
        """A hash of everything that decides the result, except the device and the harness."""
        return digest(self.solution.hash(), *("all",) if self.workloads is None else sorted(self.workloads))

    @property
    def request_hash(self) -> str:
        """A hash of the whole request, to recognise a repeated one."""
        options = (str(self.priority), str(self.deadline), str(self.is_forced))
        return digest(format_json(self.solution), *options, *("all",) if self.workloads is None else self.workloads)


def submit(database: Database, new: NewSubmission) -> tuple[Submission, bool]:
    """Accept a submission, or find the one that answers it already.

    Returns:
        The submission, and whether it is new. It is not new if the idempotency key was used before, or if the user has
        an identical submission that is pending, or that was evaluated on the present devices by the present harness.

    Raises:
        Unprocessable: The idempotency key was used for another request.
        Conflict: Another solution has the same name.
        TooMany: The user has too many submissions.
    """
    with database.write() as connection:
        number = _by_key(connection, new)
        if number is None and not new.is_forced:
            number = _identical(connection, new)
        is_new = number is None
        if number is None:
            _check_quotas(connection, new.user_id)
            _check_name(connection, new)
            number = _insert(connection, new)
        row = connection.execute(select_submissions().where(submissions.c.number == number)).mappings().one()
        return Submission.from_row(row), is_new


def _by_key(connection: Connection, new: NewSubmission) -> int | None:
    if new.idempotency_key is None:
        return None
    query = select(submissions.c.number, submissions.c.request_hash).where(
        submissions.c.user_id == new.user_id, submissions.c.idempotency_key == new.idempotency_key
    )
    found = connection.execute(query).first()
    if found is None:
        return None
    if found.request_hash != new.request_hash:
        raise Unprocessable("Idempotency-Key: it was used for another request; use a new key for each request")
    return int(found.number)


def _identical(connection: Connection, new: NewSubmission) -> int | None:
    values = {"user_id": new.user_id, "content_hash": new.content_hash}
    return connection.execute(_IDENTICAL, values).scalar()


def _check_quotas(connection: Connection, user_id: int) -> None:
    user = connection.execute(select(users).where(users.c.id == user_id)).mappings().one()
    used = usage(connection, user_id)
    if used["queued"] >= user["max_queued"]:
        raise TooMany(f"{used['queued']} of your submissions are queued, the limit; wait until some are evaluated", 10)
    if used["day"] >= user["max_per_day"]:
        raise TooMany(
            f"you made {counted(used['day'], 'submission')} in the last 24 hours, the limit; try again later", 3600
        )


def usage(connection: Connection, user_id: int) -> dict[str, int]:
    """The numbers that quotas bound: submissions that are queued, running, and made in the last 24 hours."""
    counts = connection.execute(_COUNTS, {"user_id": user_id})
    by_state: dict[str, int] = {row[0]: row[1] for row in counts}
    recent = select(func.count()).where(
        submissions.c.user_id == user_id, submissions.c.created_at > now() - DAY_SECONDS
    )
    return {
        "queued": by_state.get(State.QUEUED, 0),
        "running": by_state.get(State.RUNNING, 0),
        "day": connection.execute(recent).scalar_one(),
    }


def _check_name(connection: Connection, new: NewSubmission) -> None:
    """Reject a name that stands for other sources: the hash in it is short enough to be forged."""
    name = new.solution.name
    query = select(submissions.c.user_id, submissions.c.solution).where(submissions.c.solution_name == name).limit(1)
    found = connection.execute(query).first()
    if found is None:
        return
    is_same = found.user_id == new.user_id
    if not is_same or parse_json(found.solution, Solution).hash() != new.solution.hash():
        raise Conflict(f"name: another submission is named {name!r}; choose another name")


def _insert(connection: Connection, new: NewSubmission) -> int:
    identifier, created_at = new_id(), now()
    number = connection.execute(
        insert(submissions).values(
            id=identifier,
            user_id=new.user_id,
            definition=new.solution.definition,
            solution_name=new.solution.name,
            solution=format_json(new.solution),
            content_hash=new.content_hash,
            request_hash=new.request_hash,
            workloads=None if new.workloads is None else list(new.workloads),
            planned=new.planned,
            priority=new.priority,
            deadline=new.deadline,
            idempotency_key=new.idempotency_key,
            state=State.QUEUED,
            created_at=created_at,
        )
    ).inserted_primary_key
    assert number is not None
    add_event(connection, identifier, "state", {"state": State.QUEUED})
    return int(number[0])


def add_event(connection: Connection, submission: str, kind: str, data: dict[str, Any]) -> None:
    """Add an event, which clients that stream progress receive."""
    connection.execute(insert(events).values(submission_id=submission, kind=kind, data=data, created_at=now()))
