"""Tests of recording and reconciliation: every trace once, and the trace files are the truth."""

import pytest
from fib_bench.report import leaderboard
from fib_schema import TraceSet
from fib_serve.contest import Catalog
from fib_serve.database import State, results
from fib_serve.queue import (
    MAX_ATTEMPTS,
    claim,
    complete,
    give_up,
    keep_solution,
    reconcile,
    record,
    recorded,
    release,
    traces_of,
    withdraw,
)
from fib_serve.service import prepare
from fib_serve.submissions import list_traces, submit
from sqlalchemy import delete

from .samples import make_definition, make_trace, make_workloads, new_submission, read, write_data_set

DEFINITION = make_definition()


@pytest.fixture
def public(data_set):
    return Catalog.read(data_set)


@pytest.fixture
def claimed(database, settings, user_id):
    submit(database, settings, new_submission(user_id("alice")))
    found = claim(database, "cpu", 2)
    assert found is not None
    return found


def traces(claimed, **options):
    return [make_trace(workload, claimed.solution.name, **options) for workload in make_workloads()]


def indexed(database, claimed):
    with database.read() as connection:
        return list_traces(connection, claimed.submission.id, 0, 100)[0]


def test_a_trace_is_in_its_file_with_the_submission_and_in_the_index(database, public, claimed):
    keep_solution(public, DEFINITION, claimed.solution)
    record(database, claimed, public, DEFINITION, traces(claimed)[0])
    trace_set = TraceSet.from_path(public.root)
    (found,) = trace_set.traces["double"]
    assert found.evaluation.extra["submission"] == claimed.submission.id
    assert trace_set.get_solution(claimed.solution.name) == claimed.solution
    assert len(indexed(database, claimed)) == 1
    assert trace_set.all_problems() == ()


def test_a_trace_that_a_dead_worker_did_not_index_is_found_and_a_torn_one_is_not(database, public, claimed):
    for trace in traces(claimed):
        record(database, claimed, public, DEFINITION, trace)
    path = public.traces_file(DEFINITION, "alice")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:-20])
    with database.write() as connection:
        connection.execute(delete(results))
    assert recorded(database, claimed, public, DEFINITION) == {"double-4"}
    assert len(indexed(database, claimed)) == 1
    record(database, claimed, public, DEFINITION, traces(claimed)[1])
    assert len(list(traces_of(public, DEFINITION, claimed))) == 2


def test_attempts_count_only_until_there_is_a_new_trace(database, public, claimed):
    for trace in traces(claimed):
        for _ in range(MAX_ATTEMPTS - 1):
            release(database, claimed, "its judge died")
            assert claim(database, "cpu", 2) is not None
        record(database, claimed, public, DEFINITION, trace)
    release(database, claimed, "its judge died")
    assert claim(database, "cpu", 2) is not None


@pytest.mark.parametrize("verdict", ["RUNTIME_ERROR", "INCORRECT_NUMERICAL"])
def test_a_submission_that_fails_on_hidden_workloads_has_no_passing_results_in_the_data_set(
    database, public, claimed, verdict
):
    """Reports and routing read the public data set alone."""
    keep_solution(public, DEFINITION, claimed.solution)
    for trace in traces(claimed):
        record(database, claimed, public, DEFINITION, trace)
    withdraw(claimed, public, DEFINITION, list(traces_of(public, DEFINITION, claimed)), verdict)
    trace_set = TraceSet.from_path(public.root)
    (row,) = leaderboard(trace_set, ("unranked: cpu timing",))
    assert (row.passed, row.statuses) == (0, {verdict: 2})
    assert (
        row.problem == f"{verdict}, untrusted output: withdrawn by the service: it failed on workloads that are hidden"
    )
    assert trace_set.all_problems() == ()
    assert len(indexed(database, claimed)) == len(list(traces_of(public, DEFINITION, claimed))) == 2


def test_hidden_traces_stay_in_their_file(database, tmp_path, claimed):
    hidden = Catalog.read(write_data_set(tmp_path / "hidden"), is_hidden=True)
    record(database, claimed, hidden, DEFINITION, traces(claimed, log="the inputs were 1 2 3")[0])
    assert indexed(database, claimed) == []
    found = read(database, claimed.submission.id)
    assert found.evaluated == 0
    assert b"1 2 3" in hidden.traces_file(DEFINITION, "alice").read_bytes()
    for path in database.path.parent.glob("serve.sqlite3*"):
        assert b"1 2 3" not in path.read_bytes()


def test_reconciliation_indexes_traces_and_requeues_what_was_running(database, public, claimed):
    keep_solution(public, DEFINITION, claimed.solution)
    for trace in traces(claimed):
        record(database, claimed, public, DEFINITION, trace)
    with database.write() as connection:
        connection.execute(delete(results))
    assert reconcile(database, (public,)) == 0
    assert read(database, claimed.submission.id).state is State.QUEUED
    assert len(indexed(database, claimed)) == 2
    assert reconcile(database, (public,)) == 0
    assert len(indexed(database, claimed)) == 2


def test_a_result_whose_trace_has_gone_does_not_count_and_is_an_error(database, public, claimed, settings, caplog):
    for trace in traces(claimed):
        record(database, claimed, public, DEFINITION, trace)
    complete(database, claimed, {"verdict": "PASSED", "is_ranked": True, "score": 2.0})
    public.traces_file(DEFINITION, "alice").unlink()
    prepare(settings, database)
    assert [each.getMessage() for each in caplog.records if each.levelname == "ERROR"] == [
        "2 results have no trace in the data set any more: restore its files"
    ]
    found = read(database, claimed.submission.id)
    assert (found.state, found.is_ranked, found.score) == (State.FAILED, False, None)


def test_traces_of_others_and_of_unknown_submissions_are_left_alone(database, public, claimed):
    keep_solution(public, DEFINITION, claimed.solution)
    record(database, claimed, public, DEFINITION, traces(claimed)[0])
    path = public.traces_file(DEFINITION, "alice")
    text = path.read_text()
    path.write_text(text + text.replace(claimed.submission.id, "f" * 32))
    TraceSet.from_path(public.root).add_traces([traces(claimed)[1]])
    assert reconcile(database, (public,)) == 0
    assert len(indexed(database, claimed)) == 1


def test_an_error_that_quotes_a_long_text_is_shortened(database, claimed):
    give_up(database, claimed.submission.id, "it is made for " + "x" * 3_000_000)
    found = read(database, claimed.submission.id)
    assert found.error.startswith("it is made for xxx")
    assert found.error.endswith("(3000015 characters)")
    assert len(found.error) < 2500
