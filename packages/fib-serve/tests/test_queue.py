"""Tests of submitting and leasing."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from fib_serve.database import Database, now, submissions
from fib_serve.errors import Conflict, TooMany, Unprocessable
from fib_serve.leases import MAX_ATTEMPTS, claim, heartbeat, release
from fib_serve.submissions import NewSubmission, State, Submission, cancel, get_submission, list_events, submit
from sqlalchemy import update

from .samples import WRONG, make_solution

MakeUser = Callable[..., int]


def new(user_id: int, source: str = WRONG, name: str = "mine", **options: Any) -> NewSubmission:
    solution = make_solution(source, name).with_unique_name()
    return NewSubmission(user_id=user_id, solution=solution, workloads=None, planned=2, **options)


def distinct(user_id: int, count: int, prefix: str = "a", **options: Any) -> list[NewSubmission]:
    return [new(user_id, f"{WRONG}# {prefix}{index}\n", **options) for index in range(count)]


def read(database: Database, identifier: str) -> Submission:
    with database.read() as connection:
        found = get_submission(connection, identifier)
    assert found is not None
    return found


def set_columns(database: Database, identifier: str, **values: Any) -> None:
    with database.write() as connection:
        connection.execute(update(submissions).where(submissions.c.id == identifier).values(**values))


def test_a_repeated_request_with_the_same_key_is_answered_with_the_first_submission(
    database: Database, user_id: MakeUser
) -> None:
    alice = user_id("alice")
    first, is_new = submit(database, new(alice, idempotency_key="k", is_forced=True))
    again, is_new_again = submit(database, new(alice, idempotency_key="k", is_forced=True))
    assert (is_new, is_new_again) == (True, False)
    assert again.id == first.id
    with pytest.raises(Unprocessable, match="another request"):
        submit(database, new(alice, f"{WRONG}#", idempotency_key="k", is_forced=True))
    other, is_new_other = submit(database, new(user_id("bob"), name="his", idempotency_key="k"))
    assert is_new_other
    assert other.id != first.id


def test_an_identical_submission_is_answered_from_the_record_of_the_same_user(
    database: Database, user_id: MakeUser
) -> None:
    alice = user_id("alice")
    first, _ = submit(database, new(alice))
    assert submit(database, new(alice))[0].id == first.id
    assert submit(database, new(alice, is_forced=True))[1]
    assert submit(database, new(user_id("bob"), name="his"))[1]


def test_a_result_of_another_device_or_harness_is_no_answer(database: Database, user_id: MakeUser) -> None:
    alice = user_id("alice")
    first, _ = submit(database, new(alice))
    set_columns(database, first.id, state=State.COMPLETED, hardware="cpu", harness="1")
    assert submit(database, new(alice), {("cpu", "1")})[0].id == first.id
    assert submit(database, new(alice), {("cpu", "2")})[1]


def test_a_rejected_result_is_no_answer(database: Database, user_id: MakeUser) -> None:
    alice = user_id("alice")
    first, _ = submit(database, new(alice))
    set_columns(database, first.id, state=State.COMPLETED, hardware="cpu", harness="1", rejection="copied")
    assert submit(database, new(alice), {("cpu", "1")})[1]


def test_another_solution_cannot_take_a_name_over(database: Database, user_id: MakeUser) -> None:
    submit(database, new(user_id("alice")))
    forged = make_solution(f"{WRONG}# other", name=new(0).solution.name)
    for user in ("alice", "bob"):
        with pytest.raises(Conflict, match="choose another name"):
            submit(database, NewSubmission(user_id=user_id(user), solution=forged, workloads=None, planned=2))


def test_quotas_bound_what_a_user_queues_and_submits_in_a_day(database: Database, user_id: MakeUser) -> None:
    alice = user_id("alice", max_queued=2, max_per_day=3)
    items = distinct(alice, 5)
    submit(database, items[0])
    submit(database, items[1])
    with pytest.raises(TooMany, match="2 of your submissions are queued"):
        submit(database, items[2])
    for _ in range(2):
        lease = claim(database, "cpu", 60)
        assert lease is not None
        set_columns(database, lease.submission.id, state=State.COMPLETED)
    submit(database, items[2])
    with pytest.raises(TooMany, match="in the last 24 hours"):
        submit(database, items[3])


def test_users_take_turns_by_weight_however_much_one_submits(database: Database, user_id: MakeUser) -> None:
    heavy, light = user_id("heavy", max_running=100), user_id("light", max_running=100, weight=2.0)
    for item in [*distinct(heavy, 30, "h"), *distinct(light, 30, "l", name="other")]:
        submit(database, item)
    turns = []
    for _ in range(15):
        lease = claim(database, "cpu", 60)
        assert lease is not None
        turns.append(lease.submission.user)
    assert Counter(turns) == {"heavy": 5, "light": 10}


def test_an_idle_user_saves_no_turns(database: Database, user_id: MakeUser) -> None:
    busy = user_id("busy", max_running=100)
    for item in distinct(busy, 20, "b"):
        submit(database, item)
    for _ in range(10):
        claim(database, "cpu", 60)
    for item in distinct(user_id("late", max_running=100), 10, "l", name="other"):
        submit(database, item)
    turns = [lease.submission.user for _ in range(8) if (lease := claim(database, "cpu", 60))]
    assert Counter(turns) == {"busy": 4, "late": 4}


def test_the_number_of_running_submissions_of_a_user_is_bounded(database: Database, user_id: MakeUser) -> None:
    for item in distinct(user_id("alice", max_running=1), 2):
        submit(database, item)
    assert claim(database, "cpu", 60) is not None
    assert claim(database, "cpu", 60) is None


def test_priority_decides_within_a_user_then_the_deadline_then_the_order(database: Database, user_id: MakeUser) -> None:
    alice = user_id("alice", max_running=10)
    low, normal, soon, high = distinct(alice, 4)
    for item in (
        attrs.evolve(low, priority=-1),
        normal,
        attrs.evolve(soon, deadline=now() + 100),
        attrs.evolve(high, priority=1),
    ):
        submit(database, item)
    order = [lease.solution for _ in range(4) if (lease := claim(database, "cpu", 60))]
    assert order == [high.solution, soon.solution, normal.solution, low.solution]


def test_a_submission_whose_deadline_has_passed_fails(database: Database, user_id: MakeUser) -> None:
    late, _ = submit(database, new(user_id("alice"), deadline=now() - 1))
    assert claim(database, "cpu", 60) is None
    found = read(database, late.id)
    assert found.state is State.FAILED
    assert "deadline" in str(found.error)


def test_what_a_dead_worker_left_is_tried_again_but_not_for_ever(database: Database, user_id: MakeUser) -> None:
    accepted, _ = submit(database, new(user_id("alice")))
    for attempt in range(1, MAX_ATTEMPTS + 1):
        lease = claim(database, "cpu", -1.0)
        assert lease is not None
        assert lease.submission.attempts == attempt
    assert claim(database, "cpu", 60) is None
    found = read(database, accepted.id)
    assert found.state is State.FAILED
    assert f"{MAX_ATTEMPTS} workers died" in str(found.error)


def test_a_worker_that_lost_its_lease_cannot_renew_or_return_it(database: Database, user_id: MakeUser) -> None:
    accepted, _ = submit(database, new(user_id("alice")))
    lost = claim(database, "cpu", -1.0)
    held = claim(database, "cpu", 60)
    assert lost is not None
    assert held is not None
    assert not heartbeat(database, lost, 60)
    release(database, lost)
    assert read(database, accepted.id).state is State.RUNNING
    assert heartbeat(database, held, 60)


def test_a_submission_that_is_returned_because_the_worker_stops_loses_no_attempt(
    database: Database, user_id: MakeUser
) -> None:
    submit(database, new(user_id("alice")))
    for _ in range(2 * MAX_ATTEMPTS):
        lease = claim(database, "cpu", 60)
        assert lease is not None
        assert lease.submission.attempts == 1
        release(database, lease)


def test_workers_never_lease_the_same_submission(database: Database, user_id: MakeUser) -> None:
    for item in distinct(user_id("alice", max_running=1000), 40):
        submit(database, item)
    found: list[str] = []

    def work() -> None:
        while (lease := claim(database, "cpu", 60)) is not None:
            found.append(lease.submission.id)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(set(found)) == 40


def test_cancelling_ends_a_queued_submission_and_marks_a_running_one(database: Database, user_id: MakeUser) -> None:
    alice = user_id("alice")
    running, queued = (submit(database, item)[0] for item in distinct(alice, 2))
    assert claim(database, "cpu", 60) is not None
    assert cancel(database, queued.id) is State.QUEUED
    assert cancel(database, running.id) is State.RUNNING
    assert read(database, queued.id).state is State.CANCELLED
    assert read(database, running.id).is_cancelling
    with database.read() as connection:
        assert [event.data["state"] for event in list_events(connection, queued.id, 0)] == ["queued", "cancelled"]
