"""Submissions: their states, acceptance, cancellation, rejection, and queries about them.

A submission is durable when `submit` returns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any

import attrs
from fib_schema import Solution, format_json, parse_json
from fib_schema.display import counted
from fib_schema.framing import framed
from sqlalchemy import Connection, RowMapping, Select, and_, func, insert, or_, select, tuple_, update

from .database import Database, new_id, now, results, submissions, users
from .errors import Refused

DAY_SECONDS = 86_400.0
_MAX_ERROR_CHARACTERS = 2000


class State(StrEnum):
    """The state of a submission."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    """Every workload was evaluated, whatever the verdict."""
    FAILED = "failed"
    """It could not be evaluated; `Submission.error` gives the reason."""
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether it does not change any more."""
        return self not in _PENDING


_PENDING = (State.QUEUED, State.RUNNING)


@attrs.frozen
class Submission:
    """One submission; times are seconds since 1970 (UTC)."""

    number: int
    id: str
    user_id: int
    user: str
    definition: str
    solution_name: str
    content_hash: str
    workloads: tuple[str, ...] | None
    """Uuids of the public workloads to run on; None means all."""
    state: State
    error: str | None
    attempts: int
    device: str | None
    hardware: str | None
    harness: str | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    planned: int
    evaluated: int
    """The number of public workloads with a result."""
    passed: int
    verdict: str | None
    summary: Mapping[str, Any] | None
    is_ranked: bool
    score: float | None
    rejection: str | None

    @classmethod
    def from_row(cls, row: RowMapping) -> Submission:
        """The value of a row of `select_submissions`."""
        fields = dict(row)
        fields["state"] = State(fields["state"])
        fields["workloads"] = None if fields["workloads"] is None else tuple(fields["workloads"])
        return cls(**fields)


_EVALUATED = (
    select(func.count())
    .where(results.c.submission_id == submissions.c.id, results.c.is_hidden.is_(False))
    .correlate(submissions)
    .scalar_subquery()
)
_COMPUTED = {"user": users.c.name.label("user"), "evaluated": _EVALUATED.label("evaluated")}
_COLUMNS = [
    _COMPUTED[name] if name in _COMPUTED else submissions.c[name]
    for name in (field.name for field in attrs.fields(Submission))
]


def select_submissions() -> Select[Any]:
    """The query for rows of `Submission.from_row`, without the sources, which may be large."""
    return select(*_COLUMNS).join(users, users.c.id == submissions.c.user_id)


@attrs.frozen(kw_only=True)
class NewSubmission:
    """A submission that is to be accepted."""

    user_id: int
    solution: Solution
    """With its final author and a name that is unique to its content."""
    workloads: tuple[str, ...] | None
    planned: int
    """The number of public workloads that it runs on."""
    is_forced: bool = False
    """Whether to evaluate it although an identical one has been evaluated."""

    @property
    def content_hash(self) -> str:
        """A hash of everything that decides the result, except the device and the harness."""
        chosen = ["all"] if self.workloads is None else sorted(self.workloads)
        return hashlib.sha256(framed([self.solution.hash(), *chosen])).hexdigest()


def submit(
    database: Database, new: NewSubmission, present: Collection[tuple[str, str]] = ()
) -> tuple[Submission, bool]:
    """Accept a submission, or find the one that answers it already.

    Args:
        database: The database.
        new: The submission.
        present: The hardware and the harness of the devices in use.

    Returns:
        The submission, and whether it is new. It is not if the user has an identical submission that is pending, or,
        unless the new one is forced, that was evaluated on the present devices by the present harness.

    Raises:
        Refused: Another solution has the same name; the user has too many submissions.
    """
    with database.write() as connection:
        number = _identical(connection, new, () if new.is_forced else present)
        is_new = number is None
        if number is None:
            _check_quotas(connection, new.user_id)
            _check_name(connection, new)
            number = _insert(connection, new)
        row = connection.execute(select_submissions().where(submissions.c.number == number)).mappings().one()
        return Submission.from_row(row), is_new


def _identical(connection: Connection, new: NewSubmission, present: Collection[tuple[str, str]]) -> int | None:
    """The number of a submission of the user that answers this one: pending, or evaluated by a present device."""
    is_current = tuple_(submissions.c.hardware, submissions.c.harness).in_(present)
    is_answer = or_(
        submissions.c.state.in_(_PENDING),
        and_(submissions.c.state == State.COMPLETED, submissions.c.rejection.is_(None), is_current),
    )
    query = select(submissions.c.number).where(
        submissions.c.user_id == new.user_id, submissions.c.content_hash == new.content_hash, is_answer
    )
    return connection.execute(query.order_by(submissions.c.number.desc()).limit(1)).scalar()


def _check_quotas(connection: Connection, user_id: int) -> None:
    user = connection.execute(select(users).where(users.c.id == user_id)).mappings().one()
    used = usage(connection, user_id)
    if used["queued"] >= user["max_queued"]:
        raise Refused(
            429, f"{used['queued']} of your submissions are queued, the limit; wait until some are evaluated", 10
        )
    if used["day"] >= user["max_per_day"]:
        raise Refused(
            429, f"you made {counted(used['day'], 'submission')} in the last 24 hours, the limit; try again later", 3600
        )


def usage(connection: Connection, user_id: int) -> dict[str, int]:
    """The numbers that quotas bound: submissions that are queued, running, and made in the last 24 hours."""
    by_state = count_by_state(connection, user_id)
    recent = select(func.count()).where(
        submissions.c.user_id == user_id, submissions.c.created_at > now() - DAY_SECONDS
    )
    return {
        "queued": by_state[State.QUEUED],
        "running": by_state[State.RUNNING],
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
        raise Refused(409, f"name: another submission is named {name!r}; choose another name")


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
            workloads=None if new.workloads is None else list(new.workloads),
            planned=new.planned,
            state=State.QUEUED,
            created_at=created_at,
        )
    ).inserted_primary_key
    assert number is not None
    return int(number[0])


def find_submission(connection: Connection, identifier: str) -> Submission:
    """The submission with an id.

    Raises:
        Refused: There is none.
    """
    row = connection.execute(select_submissions().where(submissions.c.id == identifier)).mappings().first()
    if row is None:
        raise Refused(404, f"no submission has the id {identifier[:200]!r}")
    return Submission.from_row(row)


def get_solution(connection: Connection, identifier: str) -> Solution:
    """The solution of a submission."""
    text = connection.execute(select(submissions.c.solution).where(submissions.c.id == identifier)).scalar_one()
    return parse_json(text, Solution, source=f"submission {identifier}")


def list_submissions(
    connection: Connection,
    limit: int,
    *,
    before: int | None = None,
    user: str | None = None,
    definition: str | None = None,
    state: State | None = None,
) -> list[Submission]:
    """The newest submissions first.

    Args:
        connection: The database.
        limit: The number of submissions at most.
        before: Only submissions with a smaller number: the last number of the previous page.
        user: Only submissions of this user.
        definition: Only submissions for this definition.
        state: Only submissions in this state.
    """
    query = select_submissions().order_by(submissions.c.number.desc()).limit(limit)
    if before is not None:
        query = query.where(submissions.c.number < before)
    if user is not None:
        user_id = select(users.c.id).where(users.c.name == user).scalar_subquery()
        query = query.where(submissions.c.user_id == user_id)
    if definition is not None:
        query = query.where(submissions.c.definition == definition)
    if state is not None:
        query = query.where(submissions.c.state == state)
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


def count_by_state(connection: Connection, user_id: int | None = None) -> dict[str, int]:
    """The number of submissions in each state that is not final, of all users or one."""
    query = select(submissions.c.state, func.count()).where(submissions.c.state.in_(_PENDING))
    if user_id is not None:
        query = query.where(submissions.c.user_id == user_id)
    found = {row[0]: row[1] for row in connection.execute(query.group_by(submissions.c.state))}
    return {str(state): found.get(state, 0) for state in _PENDING}


def ranked(connection: Connection, definition: str, hardware: str, offset: int, limit: int) -> Sequence[Submission]:
    """The best ranked submission of each user, the best first; of equal ones the earlier."""
    order = (submissions.c.score.desc(), submissions.c.number)
    place = func.row_number().over(partition_by=submissions.c.user_id, order_by=order)
    of_user = (
        select(submissions.c.number, place.label("place"))
        .where(submissions.c.definition == definition, submissions.c.is_ranked, submissions.c.hardware == hardware)
        .subquery()
    )
    query = select_submissions().join(of_user, of_user.c.number == submissions.c.number).where(of_user.c.place == 1)
    rows = connection.execute(query.order_by(*order).offset(offset).limit(limit)).mappings()
    return [Submission.from_row(row) for row in rows]


def ranked_hardware(connection: Connection, definition: str) -> list[str]:
    """The devices on which a definition has ranked submissions."""
    query = (
        select(submissions.c.hardware)
        .where(submissions.c.definition == definition, submissions.c.is_ranked)
        .distinct()
        .order_by(submissions.c.hardware)
    )
    return [row[0] for row in connection.execute(query)]


def reject(connection: Connection, identifier: str, reason: str | None) -> None:
    """Reject a result; without a reason, undo that.

    Raises:
        Refused: There is no such submission; it has no result.
    """
    found = find_submission(connection, identifier)
    if found.state is not State.COMPLETED:
        raise Refused(409, f"the submission is {found.state} and has no result that could be rejected")
    is_ranked = reason is None and found.score is not None and found.workloads is None
    chosen = submissions.c.id == identifier
    connection.execute(update(submissions).where(chosen).values(rejection=reason, is_ranked=is_ranked))


def cancel(database: Database, identifier: str) -> State:
    """Cancel a submission that is queued or running; returns the state before."""
    with database.write() as connection:
        query = select(submissions.c.state).where(submissions.c.id == identifier)
        state = State(connection.execute(query).scalar_one())
        when = "while" if state is State.RUNNING else "before"
        end(connection, identifier, State.CANCELLED, f"cancelled {when} it was evaluated")
        return state


def end(connection: Connection, identifier: str, state: State, error: str) -> None:
    """End a pending submission without a result."""
    chosen = (submissions.c.id == identifier) & submissions.c.state.in_(_PENDING)
    values = {"state": state, "error": _shortened(error), "finished_at": now()}
    connection.execute(update(submissions).where(chosen).values(values))


def _shortened(text: str) -> str:
    """A text that lists of submissions can show: it may quote names that a submitter chose."""
    if len(text) <= _MAX_ERROR_CHARACTERS:
        return text
    return f"{text[:_MAX_ERROR_CHARACTERS]}... ({len(text)} characters)"
