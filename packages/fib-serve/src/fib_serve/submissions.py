"""Submissions: their states, acceptance, rejection, and queries about them.

A submission is durable when `submit` returns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import attrs
from fib_schema import Solution, format_json, parse_json
from fib_schema.display import counted
from fib_schema.solution import framed
from sqlalchemy import ColumnElement, Connection, Row, Select, and_, func, insert, or_, select, update

from .database import PENDING, Database, State, new_id, now, results, submissions, tokens, users
from .errors import Refused
from .settings import Settings
from .users import check_token

_DAY_SECONDS = 86_400.0
MAX_PAGE = 2 << 20
"""Characters of a page of traces."""
_MAX_ERROR_CHARACTERS = 2000
_MAX_RANKED = 500


Submission: TypeAlias = Row[Any]
"""A row of the table with the name of its `user`, and how many of its public workloads have a result (`evaluated`)."""
_EVALUATED = (
    select(func.count())
    .where(results.c.submission_id == submissions.c.id, results.c.is_hidden.is_(False))
    .correlate(submissions)
    .scalar_subquery()
)
_COLUMNS = [column for column in submissions.c if column.name != "solution"]  # the sources may be large


def select_submissions() -> Select[Any]:
    """The query for rows with the columns of `Submission`."""
    computed = (users.c.name.label("user"), _EVALUATED.label("evaluated"))
    return select(*_COLUMNS, *computed).join(users, users.c.id == submissions.c.user_id)


@attrs.frozen(kw_only=True)
class NewSubmission:
    """A submission that is to be accepted."""

    user_id: int
    token_id: int | None = None
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


def submit(database: Database, settings: Settings, new: NewSubmission) -> tuple[Submission, bool]:
    """Accept a submission, or find the one that answers it already; returns it, and whether it is new.

    It is not if the user has an identical one that is pending, or, unless the new one is forced, that has a result.
    """
    with database.write() as connection:
        check_token(connection, new.token_id)
        number = _identical(connection, new)
        is_new = number is None
        if number is None:
            _check_quota(connection, settings, new.user_id)
            number = _insert(connection, new)
        return connection.execute(select_submissions().where(submissions.c.number == number)).one(), is_new


def _identical(connection: Connection, new: NewSubmission) -> int | None:
    """The number of a submission of the user that answers this one."""
    answering = PENDING if new.is_forced else (*PENDING, State.COMPLETED)
    query = select(submissions.c.number).where(
        submissions.c.user_id == new.user_id,
        submissions.c.content_hash == new.content_hash,
        submissions.c.state.in_(answering),
        submissions.c.rejection.is_(None),
    )
    return connection.execute(query.order_by(submissions.c.number.desc()).limit(1)).scalar()


def _check_quota(connection: Connection, settings: Settings, user_id: int) -> None:
    is_recent = submissions.c.created_at > now() - _DAY_SECONDS
    recent = select(func.count()).where(submissions.c.user_id == user_id, is_recent)
    made = connection.execute(recent).scalar_one()
    if made >= settings.max_per_day:
        detail = f"you made {counted(made, 'submission')} in the last 24 hours, the limit; try again later"
        raise Refused(429, detail, 3600)


def _insert(connection: Connection, new: NewSubmission) -> int:
    made, workloads = new.solution, None if new.workloads is None else list(new.workloads)
    values: dict[str, Any] = {"definition": made.definition, "solution_name": made.name, "solution": format_json(made)}
    values |= {"content_hash": new.content_hash, "workloads": workloads, "planned": new.planned}
    values |= {"id": new_id(), "user_id": new.user_id, "state": State.QUEUED, "created_at": now()}
    return connection.execute(insert(submissions).values(values)).lastrowid


def find_submission(connection: Connection, identifier: str) -> Submission:
    """The submission with an id."""
    (found,) = find_submissions(connection, [identifier])
    return found


def find_submissions(connection: Connection, identifiers: Sequence[str]) -> list[Submission]:
    """The submissions with these ids, in the same order."""
    rows = connection.execute(select_submissions().where(submissions.c.id.in_(identifiers)))
    found = {row.id: row for row in rows}
    for identifier in identifiers:
        if identifier not in found:
            raise Refused(404, f"no submission has the id {identifier[:200]!r}")
    return [found[identifier] for identifier in identifiers]


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
) -> list[Submission]:
    """The newest submissions first, of all or one user or definition; `before` is the last number of a page."""
    query = select_submissions().order_by(submissions.c.number.desc()).limit(limit)
    if before is not None:
        query = query.where(submissions.c.number < before)
    if user is not None:
        user_id = select(users.c.id).where(users.c.name == user).scalar_subquery()
        query = query.where(submissions.c.user_id == user_id)
    if definition is not None:
        query = query.where(submissions.c.definition == definition)
    return list(connection.execute(query))


def list_traces(
    connection: Connection, identifier: str, after: int, limit: int, most: int = MAX_PAGE
) -> tuple[list[str], int | None]:
    """Traces of a submission on public workloads as JSON, in order of evaluation, and the cursor of the next page.

    The page behind the cursor `after` ends with the trace that makes it longer than `most` characters.
    """
    query = (
        select(results.c.id, results.c.trace)
        .where(results.c.submission_id == identifier, results.c.is_hidden.is_(False), results.c.id > after)
        .order_by(results.c.id)
        .limit(limit)
    )
    found: list[str] = []
    size = 0
    for number, text in connection.execute(query):
        found.append(text)
        size += len(text)
        if len(found) == limit or size > most:
            return found, int(number)
    return found, None


def count_by_state(connection: Connection) -> dict[str, int]:
    """The number of submissions in each state that is not final."""
    query = select(submissions.c.state, func.count()).where(submissions.c.state.in_(PENDING))
    found = {row[0]: row[1] for row in connection.execute(query.group_by(submissions.c.state))}
    return {str(state): found.get(state, 0) for state in PENDING}


def ranked(connection: Connection, definition: str, hardware: str, limit: int = _MAX_RANKED) -> Sequence[Submission]:
    """The best ranked submission of each user, the best first; of equal ones the earlier."""
    order = (submissions.c.score.desc(), submissions.c.number)
    place = func.row_number().over(partition_by=submissions.c.user_id, order_by=order)
    of_user = (
        select(submissions.c.number, place.label("place"))
        .where(submissions.c.definition == definition, submissions.c.is_ranked, submissions.c.hardware == hardware)
        .subquery()
    )
    query = select_submissions().join(of_user, of_user.c.number == submissions.c.number).where(of_user.c.place == 1)
    return list(connection.execute(query.order_by(*order).limit(limit)))


Record: TypeAlias = tuple[str, float, float]
"""A user, the time of a submission, and its score."""


def records(connection: Connection, definition: str, hardware: str, limit: int) -> Sequence[Record]:
    """The ranked submissions that were better than all before them: the last ones, the oldest first."""
    before = func.max(submissions.c.score).over(order_by=submissions.c.number, rows=(None, -1))
    chosen = and_(submissions.c.definition == definition, submissions.c.is_ranked, submissions.c.hardware == hardware)
    columns = (submissions.c.number, submissions.c.user_id, submissions.c.created_at, submissions.c.score)
    of_all = select(*columns, before.label("before")).where(chosen).subquery()
    query = select(users.c.name, of_all.c.created_at, of_all.c.score).join(users, users.c.id == of_all.c.user_id)
    is_record = or_(of_all.c.before.is_(None), of_all.c.score > of_all.c.before)
    found = connection.execute(query.where(is_record).order_by(of_all.c.number.desc()).limit(limit))
    return [(row.name, row.created_at, row.score) for row in found][::-1]


def ranked_hardware(connection: Connection, definition: str) -> list[str]:
    """The devices on which a definition has ranked submissions."""
    query = (
        select(submissions.c.hardware)
        .where(submissions.c.definition == definition, submissions.c.is_ranked)
        .distinct()
        .order_by(submissions.c.hardware)
    )
    return [row[0] for row in connection.execute(query)]


def reject(connection: Connection, identifier: str, reason: str) -> None:
    """Reject a result, which does not rank any more, or a pending submission, which fails."""
    find_submission(connection, identifier)
    _reject(connection, submissions.c.id == identifier, reason)


def unreject(connection: Connection, identifier: str) -> None:
    """Undo the rejection of a result, which ranks again by the rule of `device_worker.evaluate`."""
    found = find_submission(connection, identifier)
    if found.rejection is None or found.state is not State.COMPLETED:
        raise Refused(409, f"submission {identifier} has no rejected result; what has no result is submitted again")
    values = {"rejection": None, "is_ranked": found.score is not None and found.workloads is None}
    connection.execute(update(submissions).where(submissions.c.id == identifier).values(values))


def remove_user(connection: Connection, name: str, reason: str) -> None:
    """Revoke all tokens of a user, and reject all submissions that are not rejected yet."""
    user_id = connection.execute(select(users.c.id).where(users.c.name == name)).scalar()
    if user_id is None:
        raise Refused(404, f"no user has the name {name!r}")
    is_valid = (tokens.c.user_id == user_id) & tokens.c.revoked_at.is_(None)
    connection.execute(update(tokens).where(is_valid).values(revoked_at=now()))
    _reject(connection, (submissions.c.user_id == user_id) & submissions.c.rejection.is_(None), reason)


def _reject(connection: Connection, chosen: ColumnElement[bool], reason: str) -> None:
    fail(connection, chosen, f"rejected: {reason}")
    connection.execute(update(submissions).where(chosen).values(rejection=reason, is_ranked=False))


def fail(connection: Connection, chosen: ColumnElement[bool], error: str) -> None:
    """End pending submissions without a result."""
    values = {"state": State.FAILED, "error": _shortened(error), "finished_at": now()}
    connection.execute(update(submissions).where(chosen, submissions.c.state.in_(PENDING)).values(values))


def _shortened(text: str) -> str:
    """A text that lists of submissions can show: it may quote names that a submitter chose."""
    if len(text) <= _MAX_ERROR_CHARACTERS:
        return text
    return f"{text[:_MAX_ERROR_CHARACTERS]}... ({len(text)} characters)"
