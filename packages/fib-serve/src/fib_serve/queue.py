"""Queue of submissions, and the recording of their results.

Users take turns: next is the user whom a device served least recently. Of a user's submissions the oldest is next.

A trace is appended to its file inside the transaction that indexes it. A service that dies in between has written a
trace that the database lacks; `reconcile` finds it at the next start. The files are the truth. Only the threads of one
process take submissions, so nothing takes over what another one evaluates.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import attrs
from fib_schema import (
    Definition,
    EvaluationStatus,
    InvalidRecord,
    Solution,
    Trace,
    TraceSet,
    append_jsonl_file,
    format_json,
    parse_json,
)
from fib_schema.data_files import save_json_file
from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, update

from .contest import Catalog
from .database import Database, State, now, results, submissions, users
from .submissions import Submission, fail, select_submissions

_LOST = "its traces are no longer in the data set; submit it again with `force`"
MAX_ATTEMPTS = 3
"""Attempts without a new trace before a submission is not tried again: it may be what kills judges."""
WITHDRAWN = "withdrawn by the service: it failed on workloads that are hidden"
_LOG = logging.getLogger(__name__)
SUBMISSION_KEY = "submission"
"""The key in ``evaluation.extra`` of a trace that names its submission."""


@attrs.frozen
class Claim:
    """A submission that a device evaluates."""

    submission: Submission
    solution: Solution


def claim(database: Database, device: str, max_running: int) -> Claim | None:
    """Take the next submission; None if no user with fewer than `max_running` in evaluation has one."""
    is_queued = submissions.c.state == State.QUEUED
    with database.read() as connection:  # most calls end here, without the write lock
        if connection.execute(select(submissions.c.number).where(is_queued).limit(1)).first() is None:
            return None
    with database.write() as connection:
        user = _next_user(connection, max_running)
        if user is None:
            return None
        oldest = select(func.min(submissions.c.number)).where(is_queued, submissions.c.user_id == user)
        number = connection.execute(oldest).scalar_one()
        chosen = submissions.c.number == number
        connection.execute(update(users).where(users.c.id == user).values(turn_at=now()))
        values = {"state": State.RUNNING, "device": device, "attempts": submissions.c.attempts + 1}
        connection.execute(update(submissions).where(chosen).values(values))
        found = connection.execute(select_submissions().where(chosen)).one()
        text = connection.execute(select(submissions.c.solution).where(chosen)).scalar_one()
        return Claim(found, parse_json(text, Solution, source=f"submission {found.id}"))


def _next_user(connection: Connection, max_running: int) -> int | None:
    """The user whose turn it is; None if no user may run another submission."""
    waiting = select(submissions.c.user_id).where(submissions.c.state == State.QUEUED)
    running = (
        select(func.count())
        .where(submissions.c.user_id == users.c.id, submissions.c.state == State.RUNNING)
        .scalar_subquery()
    )
    query = select(users.c.id).where(users.c.id.in_(waiting), running < max_running)
    return connection.execute(query.order_by(users.c.turn_at, users.c.id).limit(1)).scalar()


def release(database: Database, claimed: Claim, failure: str | None = None) -> None:
    """Return a submission to the queue, because of a failure, or without one, which is no attempt, at a stop."""
    chosen = _running(claimed.submission.id)
    with database.write() as connection:
        attempts = connection.execute(select(submissions.c.attempts).where(chosen)).scalar()
        if attempts is None:
            return  # it has ended meanwhile
        if failure is not None and attempts >= MAX_ATTEMPTS:
            fail(connection, chosen, f"{attempts} attempts failed, the last one because {failure}")
            return
        values = {"state": State.QUEUED, "attempts": attempts - (failure is None)}
        connection.execute(update(submissions).where(chosen).values(**values))


def _running(submission: str) -> ColumnElement[bool]:
    return (submissions.c.id == submission) & (submissions.c.state == State.RUNNING)


def is_running(database: Database, submission: str) -> bool:
    """Whether a submission has not ended, as by the bound on its time or a rejection."""
    with database.read() as connection:
        return connection.execute(select(submissions.c.id).where(_running(submission))).first() is not None


def requeue_running(connection: Connection, device: str | None = None) -> None:
    """Return what was running, of one device or all, to the queue: nothing evaluates it any more."""
    chosen = submissions.c.state == State.RUNNING
    if device is not None:
        chosen &= submissions.c.device == device
    connection.execute(update(submissions).where(chosen).values(state=State.QUEUED))


# -- results -----------------------------------------------------------------------------------------


def keep_solution(catalog: Catalog, definition: Definition, solution: Solution) -> None:
    """Write a solution into the data set, so that its traces can be understood without the database."""
    path = catalog.solution_file(definition, solution)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        save_json_file(solution, path)


def record(database: Database, claimed: Claim, catalog: Catalog, definition: Definition, trace: Trace) -> None:
    """Append a trace and index it; it is durable when this returns.

    Raises:
        OSError: The trace could not be written.
    """
    assert trace.evaluation is not None
    extra = {**dict(trace.evaluation.extra or ()), SUBMISSION_KEY: claimed.submission.id}
    marked = attrs.evolve(trace, evaluation=attrs.evolve(trace.evaluation, extra=extra))
    path = catalog.traces_file(definition, claimed.solution.author)
    with database.write() as connection:
        path.parent.mkdir(parents=True, exist_ok=True)
        append_jsonl_file([marked], path)
        _add_result(connection, claimed.submission.id, marked, is_hidden=catalog.is_hidden)
        chosen = submissions.c.id == claimed.submission.id  # it has made progress: earlier attempts do not count
        connection.execute(update(submissions).where(chosen).values(attempts=1))


def withdraw(claimed: Claim, catalog: Catalog, definition: Definition, public: Iterable[Trace], verdict: str) -> None:
    """Append a failure for each passing trace of a submission that is wrong on hidden workloads.

    Reports and routing take the latest trace of a workload, and know no hidden ones. The failures name no submission:
    they are no results of its evaluation.
    """
    failures = []
    for trace in public:
        if (evaluation := trace.evaluation) is not None and evaluation.status is EvaluationStatus.PASSED:
            extra = {key: old for key, old in (evaluation.extra or {}).items() if key not in (SUBMISSION_KEY, "flags")}
            failed = attrs.evolve(
                evaluation,
                status=verdict,
                timestamp=datetime.now(UTC).isoformat(timespec="milliseconds"),
                log=WITHDRAWN,
                correctness=evaluation.correctness if verdict == EvaluationStatus.INCORRECT_NUMERICAL else None,
                performance=None,
                extra=extra,
            )
            failures.append(attrs.evolve(trace, evaluation=failed))
    append_jsonl_file(failures, catalog.traces_file(definition, claimed.solution.author))


def recorded(database: Database, claimed: Claim, catalog: Catalog, definition: Definition) -> frozenset[str]:
    """The workloads that have a trace; those that a failed attempt has appended, and not indexed, are indexed."""
    identifier = claimed.submission.id
    found = {trace.workload.uuid: trace for trace in traces_of(catalog, definition, claimed)}
    with database.write() as connection:
        query = select(results.c.workload).where(results.c.submission_id == identifier)
        known = set(connection.execute(query.where(results.c.is_hidden.is_(catalog.is_hidden))).scalars())
        for uuid in found.keys() - known:
            _add_result(connection, identifier, found[uuid], is_hidden=catalog.is_hidden)
    return frozenset(found)


def traces_of(catalog: Catalog, definition: Definition, claimed: Claim) -> Iterable[Trace]:
    """The traces of a submission in their file; a torn line is none."""
    path, mark = catalog.traces_file(definition, claimed.solution.author), claimed.submission.id.encode()
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if mark not in line:
                continue
            try:
                trace = parse_json(line, Trace, source=str(path))
            except InvalidRecord:
                continue  # torn: it was never acknowledged
            if submission_of(trace) == claimed.submission.id:
                yield trace


def submission_of(trace: Trace) -> str | None:
    """The submission that a trace names."""
    if trace.evaluation is None or trace.evaluation.extra is None:
        return None
    found = trace.evaluation.extra.get(SUBMISSION_KEY)
    return found if isinstance(found, str) else None


def _add_result(connection: Connection, submission: str, trace: Trace, *, is_hidden: bool) -> None:
    """Index a trace; the text of a hidden one stays in its file."""
    values = {"submission_id": submission, "workload": trace.workload.uuid, "is_hidden": is_hidden}
    connection.execute(insert(results).values(**values, trace=None if is_hidden else format_json(trace)))


def complete(database: Database, claimed: Claim, values: Mapping[str, Any]) -> None:
    """End a submission whose workloads are all evaluated, with values of the columns that the evaluation decides."""
    chosen = _running(claimed.submission.id)
    with database.write() as connection:
        connection.execute(update(submissions).where(chosen).values(state=State.COMPLETED, finished_at=now(), **values))


def give_up(database: Database, submission: str, error: str) -> None:
    """End a submission that could not be evaluated."""
    _LOG.info("submission %s: %s", submission, error)
    with database.write() as connection:
        fail(connection, submissions.c.id == submission, error)


# -- the start ---------------------------------------------------------------------------------------


def reconcile(database: Database, catalogs: tuple[Catalog, ...]) -> int:
    """Make the database agree with the trace files; returns the number of results without a trace.

    No worker may run meanwhile. Traces of unknown submissions are left alone.
    """
    with database.write() as connection:
        requeue_running(connection)
        known = set(connection.execute(select(submissions.c.id)).scalars())
        rows = connection.execute(select(results.c.submission_id, results.c.workload, results.c.is_hidden))
        indexed = {(row[0], row[1], bool(row[2])) for row in rows}
        lost = set(indexed)
        for catalog, submission, trace in _recorded(catalogs):
            key = (submission, trace.workload.uuid, catalog.is_hidden)
            lost.discard(key)
            if submission in known and key not in indexed:
                _add_result(connection, submission, trace, is_hidden=catalog.is_hidden)
                indexed.add(key)
        for key in lost:
            _remove_result(connection, *key)
        return len(lost)


def _recorded(catalogs: tuple[Catalog, ...]) -> Iterable[tuple[Catalog, str, Trace]]:
    """The traces of submissions in all files."""
    for catalog in catalogs:
        for group in TraceSet.from_path(catalog.root).traces.values():
            for trace in group:
                if (submission := submission_of(trace)) is not None:
                    yield catalog, submission, trace


def _remove_result(connection: Connection, submission: str, workload: str, is_hidden: bool) -> None:
    """Remove a result whose trace has gone; a submission that was completed with it has failed."""
    of_submission = results.c.submission_id == submission
    of_workload = (results.c.workload == workload) & results.c.is_hidden.is_(is_hidden)
    connection.execute(delete(results).where(of_submission, of_workload))
    connection.execute(
        update(submissions)
        .where(submissions.c.id == submission, submissions.c.state == State.COMPLETED)
        .values(state=State.FAILED, error=_LOST, is_ranked=False, score=None, verdict=None, summary=None)
    )
