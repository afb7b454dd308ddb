"""Leases of submissions by devices, and the recording of results while a lease is held.

Users take turns by weighted fair queueing: each has a virtual time that advances by ``1 / weight`` with a turn, and
the user with the smallest one is next. The virtual time of an idle user is raised to that of the queue, so that idling
saves nothing. Within a user, the priority decides, then the deadline, then the order of arrival.

A trace is appended to its file inside the write transaction that checks the lease, and then indexed in the database: no
other worker can take the submission over in between, so no trace is written twice. A service that dies in between has
written a trace that the database lacks; `recover` and `reconcile` find it. The files are the truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
from fib_schema import Definition, InvalidRecord, Solution, Trace, TraceSet, append_jsonl_file, format_json, parse_json
from fib_schema.reader import save_json_file
from sqlalchemy import ColumnElement, Connection, and_, case, delete, func, insert, select, update

from .database import Database, new_id, now, queue_clock, results, submissions, users
from .errors import LeaseLost
from .submissions import State, Submission, add_event, end, select_submissions

_LOST = "its traces are no longer in the data set; submit it again with `force`"
MAX_ATTEMPTS = 3
"""Attempts without a new trace before a submission is not tried again: it may be what kills workers."""


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


def _is_held(lease: Lease) -> ColumnElement[bool]:
    return and_(
        submissions.c.id == lease.submission.id,
        submissions.c.state == State.RUNNING,
        submissions.c.lease == lease.token,
    )


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


SUBMISSION_KEY = "submission"
"""The key in ``evaluation.extra`` of a trace that names its submission."""


@attrs.frozen
class Place:
    """The folder of a data set in which results are kept."""

    root: Path
    is_hidden: bool

    def traces_file(self, definition: Definition, author: str) -> Path:
        """The file of an author's traces."""
        return self.root / "traces" / author / definition.op_type / f"{definition.name}.jsonl"

    def solution_file(self, definition: Definition, solution: Solution) -> Path:
        """The file of a solution."""
        folder = self.root / "solutions" / solution.author / definition.op_type / definition.name
        return folder / f"{solution.name}.json"


def keep_solution(place: Place, definition: Definition, solution: Solution) -> None:
    """Write a solution into the data set, so that its traces can be understood without the database."""
    path = place.solution_file(definition, solution)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        save_json_file(solution, path)


def record(database: Database, lease: Lease, place: Place, definition: Definition, trace: Trace) -> None:
    """Append a trace and index it; it is durable when this returns.

    Raises:
        LeaseLost: Another worker has the submission; nothing was written.
        OSError: The trace could not be written.
    """
    assert trace.evaluation is not None
    extra = {**dict(trace.evaluation.extra or ()), SUBMISSION_KEY: lease.submission.id}
    marked = attrs.evolve(trace, evaluation=attrs.evolve(trace.evaluation, extra=extra))
    path = place.traces_file(definition, lease.solution.author)
    with database.write() as connection:
        check_held(connection, lease)
        path.parent.mkdir(parents=True, exist_ok=True)
        append_jsonl_file([marked], path)
        add_result(connection, lease.submission.id, marked, is_hidden=place.is_hidden)
        if not place.is_hidden:  # times of hidden workloads would tell what a solution encodes in them
            progress = {"workload": trace.workload.uuid, "status": str(trace.evaluation.status)}
            add_event(connection, lease.submission.id, "progress", progress)
        if lease.submission.attempts > 1:  # this one has made progress: earlier ones do not count any more
            chosen = submissions.c.id == lease.submission.id
            connection.execute(update(submissions).where(chosen).values(attempts=1))


def recover(database: Database, lease: Lease, place: Place, definition: Definition) -> None:
    """Index the traces that an earlier worker has appended and not indexed.

    Raises:
        LeaseLost: Another worker has the submission.
    """
    found = list(traces_of(place.traces_file(definition, lease.solution.author), lease.submission.id))
    with database.write() as connection:
        check_held(connection, lease)
        known = indexed(connection, lease.submission.id, is_hidden=place.is_hidden)
        for trace in found:
            if trace.workload.uuid not in known:
                add_result(connection, lease.submission.id, trace, is_hidden=place.is_hidden)


def traces_of(path: Path, submission: str) -> Iterable[Trace]:
    """The traces of a submission in a file; a torn line is none."""
    if not path.exists():
        return
    mark = submission.encode()
    with path.open("rb") as file:
        for line in file:
            if mark not in line:
                continue
            try:
                trace = parse_json(line, Trace, source=str(path))
            except InvalidRecord:
                continue  # torn: it was never acknowledged
            if submission_of(trace) == submission:
                yield trace


def submission_of(trace: Trace) -> str | None:
    """The submission that a trace names."""
    if trace.evaluation is None or trace.evaluation.extra is None:
        return None
    found = trace.evaluation.extra.get(SUBMISSION_KEY)
    return found if isinstance(found, str) else None


def indexed(connection: Connection, submission: str, *, is_hidden: bool) -> frozenset[str]:
    """The workloads for which the database has a result."""
    query = select(results.c.workload).where(results.c.submission_id == submission, results.c.is_hidden.is_(is_hidden))
    return frozenset(connection.execute(query).scalars())


def add_result(connection: Connection, submission: str, trace: Trace, *, is_hidden: bool) -> None:
    """Index a trace; the text of a hidden one stays in its file."""
    assert trace.evaluation is not None
    connection.execute(
        insert(results).values(
            submission_id=submission,
            workload=trace.workload.uuid,
            is_hidden=is_hidden,
            status=str(trace.evaluation.status),
            trace=None if is_hidden else format_json(trace),
        )
    )


def complete(database: Database, lease: Lease, values: Mapping[str, Any]) -> None:
    """End a submission whose workloads are all evaluated.

    Args:
        database: The database.
        lease: Of the submission.
        values: Of the columns that the evaluation decides.

    Raises:
        LeaseLost: Another worker has the submission.
    """
    with database.write() as connection:
        check_held(connection, lease)
        connection.execute(
            update(submissions)
            .where(submissions.c.id == lease.submission.id)
            .values(state=State.COMPLETED, finished_at=now(), lease=None, lease_expires_at=None, **values)
        )
        add_event(connection, lease.submission.id, "state", {"state": State.COMPLETED, "verdict": values["verdict"]})


def give_up(database: Database, lease: Lease, state: State, error: str) -> bool:
    """End a submission that could not be evaluated; false if another worker has it."""
    with database.write() as connection:
        try:
            check_held(connection, lease)
        except LeaseLost:
            return False
        end(connection, lease.submission.id, state, error)
        return True


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
            for trace in (each for group in TraceSet.from_path(place.root).traces.values() for each in group):
                submission = submission_of(trace)
                if submission is None:
                    continue
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


def _fail_completed(connection: Connection, submission: str) -> None:
    failed = connection.execute(
        update(submissions)
        .where(submissions.c.id == submission, submissions.c.state == State.COMPLETED)
        .values(state=State.FAILED, error=_LOST, is_ranked=False, score=None, verdict=None, summary=None)
    )
    if failed.rowcount:
        add_event(connection, submission, "state", {"state": State.FAILED, "error": _LOST})
