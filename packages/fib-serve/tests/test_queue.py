import threading
from collections import Counter

import attrs
import pytest
from fib_serve.database import State, submissions
from fib_serve.errors import Refused
from fib_serve.queue import MAX_ATTEMPTS, claim, complete, release
from fib_serve.submissions import reject, submit
from sqlalchemy import update

from .samples import WRONG, new_submission, read


def distinct(user_id, count, prefix="a", **options):
    return [new_submission(user_id, f"{WRONG}# {prefix}{index}\n", **options) for index in range(count)]


def set_columns(database, identifier, **values):
    with database.write() as connection:
        connection.execute(update(submissions).where(submissions.c.id == identifier).values(**values))


def test_an_identical_submission_is_answered_from_the_record_of_the_same_user(database, settings, user_id):
    alice = user_id("alice")
    first, _ = submit(database, settings, new_submission(alice))
    assert submit(database, settings, new_submission(alice))[0].id == first.id
    assert submit(database, settings, new_submission(alice, is_forced=True))[0].id == first.id  # it is pending
    assert submit(database, settings, new_submission(user_id("bob"), name="his"))[1]


@pytest.mark.parametrize(
    ("columns", "options", "is_new"),
    [({}, {}, False), ({"rejection": "copied"}, {}, True), ({}, {"is_forced": True}, True)],
)
def test_a_result_answers_a_submission_of_the_same_sources(database, settings, user_id, columns, options, is_new):
    alice = user_id("alice")
    first, _ = submit(database, settings, new_submission(alice))
    set_columns(database, first.id, state=State.COMPLETED, **columns)
    assert submit(database, settings, new_submission(alice, **options))[1] is is_new


def test_a_quota_bounds_what_a_user_submits_in_a_day(database, settings, user_id):
    alice, settings = user_id("alice"), attrs.evolve(settings, max_per_day=2)
    items = distinct(alice, 3)
    for item in items[:2]:
        submit(database, settings, item)
    with pytest.raises(Refused, match="2 submissions in the last 24 hours"):
        submit(database, settings, items[2])
    submit(database, settings, new_submission(user_id("bob")))


def test_users_take_turns_however_much_and_early_one_submits(database, settings, user_id):
    for item in distinct(user_id("busy"), 20, "b"):
        submit(database, settings, item)
    for _ in range(5):
        claim(database, "cpu", 100)
    for item in distinct(user_id("late"), 10, "l", name="other"):
        submit(database, settings, item)
    turns = [claimed.submission.user for _ in range(8) if (claimed := claim(database, "cpu", 100))]
    assert Counter(turns) == {"busy": 4, "late": 4}


def test_the_number_of_running_submissions_of_a_user_is_bounded(database, settings, user_id):
    for item in distinct(user_id("alice"), 2):
        submit(database, settings, item)
    assert claim(database, "cpu", 1) is not None
    assert claim(database, "cpu", 1) is None


def test_a_submission_that_failed_through_no_fault_of_its_own_is_tried_again_but_not_for_ever(
    database, settings, user_id
):
    accepted, _ = submit(database, settings, new_submission(user_id("alice")))
    for attempt in range(1, MAX_ATTEMPTS + 1):
        claimed = claim(database, "cpu", 2)
        assert claimed.submission.attempts == attempt
        release(database, claimed, "its judge died")
    assert claim(database, "cpu", 2) is None
    found = read(database, accepted.id)
    assert (found.state, found.error) == (State.FAILED, "3 attempts failed, the last one because its judge died")


def test_a_submission_that_is_returned_because_the_worker_stops_loses_no_attempt(database, settings, user_id):
    submit(database, settings, new_submission(user_id("alice")))
    for _ in range(2 * MAX_ATTEMPTS):
        claimed = claim(database, "cpu", 2)
        assert claimed.submission.attempts == 1
        release(database, claimed)


def test_workers_never_take_the_same_submission(database, settings, user_id):
    for item in distinct(user_id("alice"), 40):
        submit(database, settings, item)
    found = []

    def work():
        while (claimed := claim(database, "cpu", 1000)) is not None:
            found.append(claimed.submission.id)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(set(found)) == 40


def test_rejecting_ends_a_submission_and_what_its_device_reports_later_changes_nothing(database, settings, user_id):
    alice = user_id("alice")
    running, queued = (submit(database, settings, item)[0] for item in distinct(alice, 2))
    claimed = claim(database, "cpu", 2)
    assert claimed is not None
    with database.write() as connection:
        for each in (running, queued):
            reject(connection, each.id, "copied")
    complete(database, claimed, {})
    release(database, claimed, "its judge died")
    found = [read(database, each.id) for each in (running, queued)]
    assert [(each.state, each.error, each.rejection) for each in found] == [
        (State.FAILED, "rejected: copied", "copied")
    ] * 2
