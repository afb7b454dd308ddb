"""Tests of submitting and of the queue."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from fib_serve.database import Database, submissions
from fib_serve.errors import Refused
from fib_serve.queue import MAX_ATTEMPTS, claim, complete, release
from fib_serve.submissions import NewSubmission, State, cancel, submit
from sqlalchemy import update

from .samples import WRONG, make_solution, read

MakeUser = Callable[..., int]


def new(user_id: int, source: str = WRONG, name: str = "mine", **options: Any) -> NewSubmission:
    solution = make_solution(source, name).with_unique_name()
    return NewSubmission(user_id=user_id, solution=solution, workloads=None, planned=2, **options)


def distinct(user_id: int, count: int, prefix: str = "a", **options: Any) -> list[NewSubmission]:
    return [new(user_id, f"{WRONG}# {prefix}{index}\n", **options) for index in range(count)]


def set_columns(database: Database, identifier: str, **values: Any) -> None:
    with database.write() as connection:
        connection.execute(update(submissions).where(submissions.c.id == identifier).values(**values))


def test_an_identical_submission_is_answered_from_the_record_of_the_same_user(
    database: Database, user_id: MakeUser
) -> None:
    alice = user_id("alice")
    first, _ = submit(database, new(alice))
    assert submit(database, new(alice))[0].id == first.id
    assert submit(database, new(alice, is_forced=True))[0].id == first.id  # it is pending
    assert submit(database, new(user_id("bob"), name="his"))[1]


@pytest.mark.parametrize(
    ("columns", "options", "is_new"),
    [
        ({}, {}, False),
        ({"harness": "0"}, {}, True),
        ({"hardware": "other"}, {}, True),
        ({"rejection": "copied"}, {}, True),
        ({}, {"is_forced": True}, True),
    ],
)
def test_a_result_answers_a_submission_of_the_same_sources_device_and_harness(
    database: Database, user_id: MakeUser, columns: dict[str, str], options: dict[str, bool], is_new: bool
) -> None:
    alice = user_id("alice")
    first, _ = submit(database, new(alice))
    set_columns(database, first.id, **{"state": State.COMPLETED, "hardware": "cpu", "harness": "1"} | columns)
    assert submit(database, new(alice, **options), {("cpu", "1")})[1] is is_new


def test_another_solution_cannot_take_a_name_over(database: Database, user_id: MakeUser) -> None:
    submit(database, new(user_id("alice")))
    forged = make_solution(f"{WRONG}# other", name=new(0).solution.name)
    for user in ("alice", "bob"):
        with pytest.raises(Refused, match="choose another name"):
            submit(database, NewSubmission(user_id=user_id(user), solution=forged, workloads=None, planned=2))


def test_quotas_bound_what_a_user_queues_and_submits_in_a_day(database: Database, user_id: MakeUser) -> None:
    alice = user_id("alice", max_queued=2, max_per_day=3)
    items = distinct(alice, 5)
    submit(database, items[0])
    submit(database, items[1])
    with pytest.raises(Refused, match="2 of your submissions are queued"):
        submit(database, items[2])
    for _ in range(2):
        claimed = claim(database, "cpu")
        assert claimed is not None
        set_columns(database, claimed.submission.id, state=State.COMPLETED)
    submit(database, items[2])
    with pytest.raises(Refused, match="in the last 24 hours"):
        submit(database, items[3])


def test_users_take_turns_however_much_and_early_one_submits(database: Database, user_id: MakeUser) -> None:
    for item in distinct(user_id("busy", max_running=100), 20, "b"):
        submit(database, item)
    for _ in range(5):
        claim(database, "cpu")
    for item in distinct(user_id("late", max_running=100), 10, "l", name="other"):
        submit(database, item)
    turns = [claimed.submission.user for _ in range(8) if (claimed := claim(database, "cpu"))]
    assert Counter(turns) == {"busy": 4, "late": 4}


def test_the_number_of_running_submissions_of_a_user_is_bounded(database: Database, user_id: MakeUser) -> None:
    for item in distinct(user_id("alice", max_running=1), 2):
        submit(database, item)
    assert claim(database, "cpu") is not None
    assert claim(database, "cpu") is None


def test_a_submission_that_failed_through_no_fault_of_its_own_is_tried_again_but_not_for_ever(
    database: Database, user_id: MakeUser
) -> None:
    accepted, _ = submit(database, new(user_id("alice")))
    for attempt in range(1, MAX_ATTEMPTS + 1):
        claimed = claim(database, "cpu")
        assert claimed is not None
        assert claimed.submission.attempts == attempt
        release(database, claimed, "its judge died")
    assert claim(database, "cpu") is None
    found = read(database, accepted.id)
    assert (found.state, found.error) == (State.FAILED, "3 attempts failed, the last one because its judge died")


def test_a_submission_that_is_returned_because_the_worker_stops_loses_no_attempt(
    database: Database, user_id: MakeUser
) -> None:
    submit(database, new(user_id("alice")))
    for _ in range(2 * MAX_ATTEMPTS):
        claimed = claim(database, "cpu")
        assert claimed is not None
        assert claimed.submission.attempts == 1
        release(database, claimed)


def test_workers_never_take_the_same_submission(database: Database, user_id: MakeUser) -> None:
    for item in distinct(user_id("alice", max_running=1000), 40):
        submit(database, item)
    found: list[str] = []

    def work() -> None:
        while (claimed := claim(database, "cpu")) is not None:
            found.append(claimed.submission.id)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(set(found)) == 40


def test_cancelling_ends_a_submission_and_what_its_device_reports_later_changes_nothing(
    database: Database, user_id: MakeUser
) -> None:
    alice = user_id("alice")
    running, queued = (submit(database, item)[0] for item in distinct(alice, 2))
    claimed = claim(database, "cpu")
    assert claimed is not None
    assert cancel(database, queued.id) is State.QUEUED
    assert cancel(database, running.id) is State.RUNNING
    complete(database, claimed, {})
    release(database, claimed, "its judge died")
    found = [read(database, each.id) for each in (running, queued)]
    assert [each.state for each in found] == [State.CANCELLED] * 2
    assert [each.error for each in found] == [f"cancelled {when} it was evaluated" for when in ("while", "before")]
