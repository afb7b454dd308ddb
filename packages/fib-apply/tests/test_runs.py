"""Runs: what may be called, requested and captured in each state, and how events change the state."""

import itertools
import math
from collections.abc import Callable

import attrs
import pytest
import torch
from apply_samples import SCALE
from fib_apply.build_service.probe import ProbeResult
from fib_apply.key import ApplyKey
from fib_apply.routing.slow_path import EARLIER_STATES, Run, RunState, RunTracker

ARGS = (torch.zeros(2, 4),)
AHEAD = Run("s", ApplyKey({"m": 2}), "cpu")
JIT = Run("s", ApplyKey({"m": 2}), "cpu", ())


@attrs.define
class Service:
    """A build service whose first runs end when a test says so."""

    capture_gate: float = math.inf
    prepares_captures: bool = False
    accepts: bool = True
    is_known: bool = False
    requests: list[Callable[[ProbeResult | None], None]] = attrs.field(factory=list)

    def loaded_at(self, solution):
        del solution
        return 1.0

    def was_run(self, solution, inputs):
        del solution, inputs
        return self.is_known

    def wait_for_captures(self):
        return False

    def run_first(self, definition, solution, inputs, on_done):
        del definition, solution, inputs
        if self.accepts:
            self.requests.append(on_done)
        return self.accepts


@attrs.define
class Runs:
    """A tracker, its service and what it has quarantined."""

    tracker: RunTracker
    service: Service
    quarantined: list[str]

    def refusal(self, run=JIT):
        return self.tracker.refusal(run, ARGS, may_capture=True)

    def finish(self, verdict):
        self.service.requests.pop()(verdict)


@pytest.fixture(name="runs")
def runs_fixture():
    return make_runs(SCALE)


def make_runs(definition):
    service, quarantined = Service(), list[str]()
    made = service
    return Runs(RunTracker(definition, made, lambda name, why: quarantined.append(why)), service, quarantined)


def test_what_compiles_ahead_of_time_may_be_called_at_once(runs):
    assert runs.refusal(AHEAD) is None
    assert runs.tracker.state(AHEAD) is RunState.COMPILED
    runs.tracker.mark_called(AHEAD)
    assert runs.tracker.state(AHEAD) is RunState.CALLED
    assert runs.service.requests == []


def test_what_compiles_when_it_is_called_is_first_run_in_a_child_process_once(runs):
    assert [runs.refusal() for _ in range(3)] == ["being compiled"] * 3
    assert len(runs.service.requests) == 1
    runs.finish(ProbeResult(None))
    assert runs.refusal() is None
    runs.tracker.mark_called(JIT)
    assert runs.tracker.state(JIT) is RunState.CALLED


def test_a_dropped_first_run_is_requested_again(runs):
    assert runs.refusal() == "being compiled"
    runs.finish(None)
    assert runs.tracker.state(JIT) is RunState.NEW
    assert runs.refusal() == "being compiled"
    assert len(runs.service.requests) == 1


def test_a_first_run_that_fails_each_time_quarantines_the_solution(runs):
    runs.refusal()
    runs.finish(ProbeResult("it is wrong", is_reproducible=True))
    assert runs.quarantined == ["its first run failed: it is wrong"]


@pytest.mark.parametrize("is_too_large", [False, True])
def test_a_first_run_that_cannot_be_made_leaves_the_call_to_the_fallback(runs, is_too_large):
    runs.service.accepts = not is_too_large
    assert runs.refusal() == ("not compiled" if is_too_large else "being compiled")
    if not is_too_large:
        runs.finish(ProbeResult("no memory", is_reproducible=False))
    assert [runs.refusal() for _ in range(2)] == ["not compiled"] * 2
    assert (runs.quarantined, runs.service.requests) == ([], [])
    assert runs.tracker.problem("s", lambda run: run == JIT) == "not compiled"


def test_what_an_earlier_process_has_made_is_only_asked_for_where_captures_are_prepared(runs):
    runs.service.is_known = True
    assert runs.refusal() == "being compiled"
    runs.service.prepares_captures = True
    assert runs.refusal() is None


def test_captures_record_only_what_was_called_and_was_ready_at_the_last_warm_up(runs, capturing):
    capturing[0] = True
    assert runs.refusal(AHEAD) == "capturing"
    runs.tracker.mark_called(AHEAD)
    assert runs.refusal(AHEAD) is None
    assert runs.tracker.refusal(AHEAD, ARGS, may_capture=False) == "capturing"
    runs.service.capture_gate = 0.5  # it was loaded later
    assert runs.refusal(AHEAD) == "capturing"


def test_a_run_that_was_called_stays_so():
    assert RunState.CALLED not in itertools.chain(*EARLIER_STATES.values())
    assert set(EARLIER_STATES) == set(RunState)


def test_the_oldest_of_too_many_runs_are_forgotten(runs):
    for m in range(8_193):
        runs.tracker.mark_called(AHEAD._replace(key=ApplyKey({"m": m})))
    assert runs.tracker.state(AHEAD) is RunState.COMPILED
    assert runs.tracker.state(AHEAD._replace(key=ApplyKey({"m": 8_192}))) is RunState.CALLED
