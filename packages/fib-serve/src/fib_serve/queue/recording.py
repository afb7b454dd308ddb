"""Recording of results. A trace is appended to its file while the lease is held, and then indexed in the database.

The write transaction spans both: no other worker can take the submission over in between, so no trace is written twice.
A worker that dies in between has written a trace that the database lacks; the next worker finds it with `recover`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
from fib_schema import Definition, InvalidRecord, Solution, Trace, append_jsonl_file, format_json, parse_json
from fib_schema.reader import save_json_file
from sqlalchemy import Connection, insert, select, update

from ..database.engine import Database
from ..database.tables import results, submissions
from ..errors import LeaseLost
from ..identifiers import now
from .leasing import Lease, check_held, end
from .submission import State
from .submitting import add_event

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
    marked = _marked(trace, lease.submission.id)
    path = place.traces_file(definition, lease.solution.author)
    with database.write() as connection:
        check_held(connection, lease)
        path.parent.mkdir(parents=True, exist_ok=True)
        append_jsonl_file([marked], path)
        add_result(connection, lease.submission.id, marked, is_hidden=place.is_hidden)
        if not place.is_hidden:  # times of hidden workloads would tell what a solution encodes in them
            add_event(connection, lease.submission.id, "progress", _progress(marked))
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
        add_event(
            connection,
            lease.submission.id,
            "state",
            {"state": State.COMPLETED, "verdict": values["verdict"]},
        )


def give_up(database: Database, lease: Lease, state: State, error: str) -> bool:
    """End a submission that could not be evaluated; false if another worker has it."""
    with database.write() as connection:
        try:
            check_held(connection, lease)
        except LeaseLost:
            return False
        end(connection, lease.submission.id, state, error)
        return True


def _marked(trace: Trace, submission: str) -> Trace:
    evaluation = trace.evaluation
    assert evaluation is not None
    extra = {**({} if evaluation.extra is None else evaluation.extra), SUBMISSION_KEY: submission}
    return attrs.evolve(trace, evaluation=attrs.evolve(evaluation, extra=extra))


def _progress(trace: Trace) -> dict[str, Any]:
    """The event of an evaluation."""
    assert trace.evaluation is not None
    return {"workload": trace.workload.uuid, "status": str(trace.evaluation.status)}
