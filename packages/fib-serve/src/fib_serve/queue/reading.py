"""Queries about submissions, results, events and devices.

Queries with a subquery or ``IN`` are constants with parameters. SQLAlchemy links the parts of such a query in cycles: a
query that is built for each request would leave up to 130 objects that only a full garbage collection frees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from fib_schema import Solution, parse_json
from sqlalchemy import Connection, Integer, Select, and_, bindparam, func, select

from ..database.tables import devices, events, results, submissions, users
from .submission import State, Submission, select_submissions

_MAX_RECORDS = 1000
_IS_RANKED = and_(
    submissions.c.definition == bindparam("definition"),
    submissions.c.is_ranked,
    submissions.c.hardware == bindparam("hardware"),
)
_COUNTS = (
    select(submissions.c.state, func.count())
    .where(submissions.c.state.in_((State.QUEUED, State.RUNNING)))
    .group_by(submissions.c.state)
)
_TOTALS = (
    select(
        submissions.c.definition,
        func.count(submissions.c.user_id.distinct()).label("users"),
        func.max(submissions.c.score).label("score"),
    )
    .where(submissions.c.is_ranked)
    .group_by(submissions.c.definition)
)
_NEXT_RECORD = (
    select_submissions()
    .where(_IS_RANKED, submissions.c.number > bindparam("after"), submissions.c.score > bindparam("best"))
    .order_by(submissions.c.number)
    .limit(1)
)


def _make_ranked() -> Select[Any]:
    best = (
        select(submissions.c.user_id, func.max(submissions.c.score).label("score"))
        .where(_IS_RANKED)
        .group_by(submissions.c.user_id)
        .subquery()
    )
    number = func.min(submissions.c.number)
    first = (
        select(number.label("number"), best.c.score)
        .join(best, and_(best.c.user_id == submissions.c.user_id, best.c.score == submissions.c.score))
        .where(_IS_RANKED)
        .group_by(submissions.c.user_id, best.c.score)
        .order_by(best.c.score.desc(), number)
        .offset(bindparam("offset", type_=Integer))
        .limit(bindparam("limit", type_=Integer))
        .subquery()
    )
    return (
        select_submissions()
        .join(first, first.c.number == submissions.c.number)
        .order_by(first.c.score.desc(), first.c.number)
    )


_RANKED = _make_ranked()


@attrs.frozen
class Filter:
    """Choice of submissions; None means all."""

    user: str | None = None
    definition: str | None = None
    state: str | None = None
    before: int | None = None
    """Only submissions with a smaller number: the last number of the previous page."""


@attrs.frozen
class Event:
    """One step of a submission."""

    id: int
    kind: str
    data: Mapping[str, Any]
    created_at: float


@attrs.frozen
class DeviceState:
    """A device with its worker, as it last reported."""

    name: str
    hardware: str
    harness: str
    isolation: int
    isolation_text: str
    submission_id: str | None
    seen_at: float
    problem: str | None
    """The reason why the device is not used, if it is not."""

    def is_healthy(self, oldest: float) -> bool:
        """Whether the device is used, and its worker has reported since a time."""
        return self.problem is None and self.seen_at > oldest


def get_submission(connection: Connection, identifier: str) -> Submission | None:
    """The submission with an id."""
    row = connection.execute(select_submissions().where(submissions.c.id == identifier)).mappings().first()
    return None if row is None else Submission.from_row(row)


def get_solution(connection: Connection, identifier: str) -> Solution | None:
    """The solution of a submission."""
    text = connection.execute(select(submissions.c.solution).where(submissions.c.id == identifier)).scalar()
    return None if text is None else parse_json(text, Solution, source=f"submission {identifier}")


def list_submissions(connection: Connection, chosen: Filter, limit: int) -> list[Submission]:
    """The newest submissions first."""
    query = select_submissions().order_by(submissions.c.number.desc()).limit(limit)
    if chosen.user is not None:
        user_id = select(users.c.id).where(users.c.name == chosen.user).scalar_subquery()
        query = query.where(submissions.c.user_id == user_id)
    if chosen.definition is not None:
        query = query.where(submissions.c.definition == chosen.definition)
    if chosen.state is not None:
        query = query.where(submissions.c.state == chosen.state)
    if chosen.before is not None:
        query = query.where(submissions.c.number < chosen.before)
    return [Submission.from_row(row) for row in connection.execute(query).mappings()]


def list_traces(connection: Connection, identifier: str, after: int, limit: int) -> list[tuple[int, str]]:
    """Traces of a submission on public workloads as JSON, with their numbers for paging, in order of evaluation."""
    query = (
        select(results.c.id, results.c.trace)
        .where(results.c.submission_id == identifier, results.c.is_hidden.is_(False), results.c.id > after)
        .order_by(results.c.id)
        .limit(limit)
    )
    return [(row.id, row.trace) for row in connection.execute(query)]


def list_events(connection: Connection, identifier: str, after: int, limit: int = 1000) -> list[Event]:
    """The events of a submission after the one with a number."""
    query = (
        select(events.c.id, events.c.kind, events.c.data, events.c.created_at)
        .where(events.c.submission_id == identifier, events.c.id > after)
        .order_by(events.c.id)
        .limit(limit)
    )
    return [Event(*row) for row in connection.execute(query)]


def list_devices(connection: Connection) -> list[DeviceState]:
    """The devices by name."""
    names = [devices.c[field.name] for field in attrs.fields(DeviceState)]
    return [DeviceState(*row) for row in connection.execute(select(*names).order_by(devices.c.name))]


def count_by_state(connection: Connection) -> dict[str, int]:
    """The number of submissions in each state that is not final."""
    counts = {str(State.QUEUED): 0, str(State.RUNNING): 0}
    return counts | {row[0]: row[1] for row in connection.execute(_COUNTS)}


def ranked(connection: Connection, definition: str, hardware: str, offset: int, limit: int) -> Sequence[Submission]:
    """The best ranked submission of each user, the best first; of equal ones the earlier."""
    values = {"definition": definition, "hardware": hardware, "offset": offset, "limit": limit}
    return [Submission.from_row(row) for row in connection.execute(_RANKED, values).mappings()]


def best_by_definition(connection: Connection) -> dict[str, tuple[int, Submission]]:
    """The number of ranked users of each definition, and its best submission; of equal ones the earliest."""
    found = {}
    for definition, count, score in connection.execute(_TOTALS).all():
        query = (
            select_submissions()
            .where(submissions.c.definition == definition, submissions.c.is_ranked, submissions.c.score == score)
            .order_by(submissions.c.number)
            .limit(1)
        )
        found[definition] = (count, Submission.from_row(connection.execute(query).mappings().one()))
    return found


def ranked_hardware(connection: Connection, definition: str) -> list[str]:
    """The devices on which a definition has ranked submissions."""
    query = (
        select(submissions.c.hardware)
        .where(submissions.c.definition == definition, submissions.c.is_ranked)
        .distinct()
        .order_by(submissions.c.hardware)
    )
    return [row[0] for row in connection.execute(query)]


def records_over_time(connection: Connection, definition: str, hardware: str) -> list[Submission]:
    """The ranked submissions that were the best of all when they were made, oldest first.

    Each query continues after the record before; together they read the index once. One query with ``IN`` would have
    another text for each number of records, and each connection of SQLite would keep the 20 KiB of its compiled form.
    """
    records: list[Submission] = []
    number, score = 0, -1.0
    while len(records) < _MAX_RECORDS:
        values = {"definition": definition, "hardware": hardware, "after": number, "best": score}
        row = connection.execute(_NEXT_RECORD, values).mappings().first()
        if row is None:
            break
        number, score = row["number"], row["score"]
        records.append(Submission.from_row(row))
    return records
