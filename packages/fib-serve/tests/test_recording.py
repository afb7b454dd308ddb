"""Tests of recording and reconciliation: every trace once, and the trace files are the truth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fib_schema import Trace, TraceSet
from fib_serve.database import Database, results
from fib_serve.errors import LeaseLost
from fib_serve.leases import (
    MAX_ATTEMPTS,
    Lease,
    Place,
    Reconciliation,
    claim,
    complete,
    give_up,
    keep_solution,
    reconcile,
    record,
    recover,
    traces_of,
)
from fib_serve.submissions import NewSubmission, State, get_submission, list_events, list_traces, submit
from sqlalchemy import delete

from .samples import make_definition, make_solution, make_trace, make_workloads

DEFINITION = make_definition()
MakeUser = Callable[..., int]


@pytest.fixture
def lease(database: Database, user_id: MakeUser) -> Lease:
    solution = make_solution().with_unique_name()
    submit(database, NewSubmission(user_id=user_id("alice"), solution=solution, workloads=None, planned=2))
    found = claim(database, "cpu", -1.0)
    assert found is not None
    return found


def traces(lease: Lease, **options: str) -> list[Trace]:
    return [make_trace(workload, lease.solution.name, **options) for workload in make_workloads()]


def indexed(database: Database, lease: Lease) -> list[str]:
    with database.read() as connection:
        return [text for _, text in list_traces(connection, lease.submission.id, 0, 100)]


def test_a_trace_is_in_its_file_with_the_submission_and_in_the_index(
    database: Database, data_set: Path, lease: Lease
) -> None:
    place = Place(data_set, is_hidden=False)
    keep_solution(place, DEFINITION, lease.solution)
    record(database, lease, place, DEFINITION, traces(lease)[0])
    trace_set = TraceSet.from_path(data_set)
    (found,) = trace_set.traces["double"]
    assert found.evaluation is not None
    assert found.evaluation.extra is not None
    assert found.evaluation.extra["submission"] == lease.submission.id
    assert trace_set.get_solution(lease.solution.name) == lease.solution
    assert len(indexed(database, lease)) == 1
    assert trace_set.all_problems() == ()


def test_a_worker_that_lost_its_lease_writes_nothing(database: Database, data_set: Path, lease: Lease) -> None:
    place = Place(data_set, is_hidden=False)
    other = claim(database, "cpu", 60)
    assert other is not None
    with pytest.raises(LeaseLost):
        record(database, lease, place, DEFINITION, traces(lease)[0])
    with pytest.raises(LeaseLost):
        complete(database, lease, {"verdict": "PASSED"})
    assert not place.traces_file(DEFINITION, "alice").exists()
    record(database, other, place, DEFINITION, traces(lease)[0])


def test_a_trace_that_a_dead_worker_did_not_index_is_found_and_a_torn_one_is_not(
    database: Database, data_set: Path, lease: Lease
) -> None:
    place = Place(data_set, is_hidden=False)
    for trace in traces(lease):
        record(database, lease, place, DEFINITION, trace)
    path = place.traces_file(DEFINITION, "alice")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:-20])
    with database.write() as connection:
        connection.execute(delete(results))
    recover(database, lease, place, DEFINITION)
    assert len(indexed(database, lease)) == 1
    record(database, lease, place, DEFINITION, traces(lease)[1])
    assert len(list(traces_of(path, lease.submission.id))) == 2


def test_attempts_count_only_until_there_is_a_new_trace(database: Database, data_set: Path, lease: Lease) -> None:
    place = Place(data_set, is_hidden=False)
    for trace in traces(lease):
        for _ in range(MAX_ATTEMPTS - 1):
            held = claim(database, "cpu", -1.0)
            assert held is not None
        record(database, held, place, DEFINITION, trace)
    assert claim(database, "cpu", 60) is not None


def test_hidden_traces_stay_in_their_file(database: Database, tmp_path: Path, lease: Lease) -> None:
    place = Place(tmp_path / "hidden", is_hidden=True)
    record(database, lease, place, DEFINITION, traces(lease, log="the inputs were 1 2 3")[0])
    assert indexed(database, lease) == []
    with database.read() as connection:
        events = list_events(connection, lease.submission.id, 0)
    assert [event.kind for event in events if event.kind == "progress"] == []
    assert b"1 2 3" in place.traces_file(DEFINITION, "alice").read_bytes()
    for path in database.path.parent.glob("serve.sqlite3*"):
        assert b"1 2 3" not in path.read_bytes()


def test_reconciliation_indexes_traces_and_requeues_what_was_running(
    database: Database, data_set: Path, lease: Lease
) -> None:
    place = Place(data_set, is_hidden=False)
    keep_solution(place, DEFINITION, lease.solution)
    for trace in traces(lease):
        record(database, lease, place, DEFINITION, trace)
    with database.write() as connection:
        connection.execute(delete(results))
    assert reconcile(database, (place,)) == Reconciliation(indexed=2, lost=0, foreign=0, requeued=1)
    assert len(indexed(database, lease)) == 2
    assert reconcile(database, (place,)) == Reconciliation(indexed=0, lost=0, foreign=0, requeued=0)


def test_a_result_whose_trace_has_gone_does_not_count(database: Database, data_set: Path, lease: Lease) -> None:
    place = Place(data_set, is_hidden=False)
    for trace in traces(lease):
        record(database, lease, place, DEFINITION, trace)
    complete(database, lease, {"verdict": "PASSED", "is_ranked": True, "score": 2.0})
    place.traces_file(DEFINITION, "alice").unlink()
    assert reconcile(database, (place,)) == Reconciliation(indexed=0, lost=2, foreign=0, requeued=0)
    with database.read() as connection:
        found = get_submission(connection, lease.submission.id)
    assert found is not None
    assert (found.state, found.is_ranked, found.score) == (State.FAILED, False, None)


def test_traces_of_others_and_of_unknown_submissions_are_left_alone(
    database: Database, data_set: Path, lease: Lease
) -> None:
    place = Place(data_set, is_hidden=False)
    keep_solution(place, DEFINITION, lease.solution)
    record(database, lease, place, DEFINITION, traces(lease)[0])
    path = place.traces_file(DEFINITION, "alice")
    text = path.read_text()
    path.write_text(text + text.replace(lease.submission.id, "f" * 32))
    TraceSet.from_path(data_set).add_traces([traces(lease)[1]])
    found = reconcile(database, (place,))
    assert (found.indexed, found.lost, found.foreign) == (0, 0, 1)


def test_an_error_that_quotes_a_long_text_is_shortened(database: Database, lease: Lease) -> None:
    assert give_up(database, lease, State.FAILED, "it is made for " + "x" * 3_000_000)
    with database.read() as connection:
        found = get_submission(connection, lease.submission.id)
        events = list_events(connection, lease.submission.id, 0)
    assert found is not None
    assert found.error is not None
    assert found.error.startswith("it is made for xxx")
    assert found.error.endswith("(3000015 characters)")
    assert len(found.error) + len(str(events[-1].data["error"])) < 5000
