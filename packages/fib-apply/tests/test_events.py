"""Events: one log line per definition at start and per change of state, none per call."""

import logging

import pytest
import torch
from apply_samples import THREE, data_set, new_solution, new_trace, scale
from fib_apply import ApplyConfig, EventKind, add_event_listener, enable_apply, remove_event_listener
from fib_apply.events import CallMetrics, emit, quarantined
from fib_schema import DataSetNotFound


@pytest.fixture(name="found")
def found_fixture():
    """Two keys with a solution, one whose solution does not build, and one without an eligible solution."""
    solutions = (new_solution("fast", content=THREE), new_solution("broken", content="raise ImportError('no')"))
    traces = (
        new_trace("fast", m=2),
        new_trace("fast", m=3),
        new_trace("broken", m=4),
        new_trace("fast", m=5, status="RUNTIME_ERROR"),
    )
    return data_set(*traces, solutions=solutions)


@pytest.fixture(name="seen")
def seen_fixture():
    seen = []
    add_event_listener(seen.append)
    yield seen
    remove_event_listener(seen.append)


def of(kind, seen):
    return [event for event in seen if event.kind is kind]


def test_the_start_is_one_line_for_each_definition(found, caplog):
    caplog.set_level(logging.INFO)
    with enable_apply(found):
        pass
    lines = [record.getMessage() for record in caplog.records if " routed " in record.getMessage()]
    assert lines == [
        "scale: routed 2 of 4 keys to fast (2), 2 left to the fallback because nothing built (1), nothing chosen (1)"
    ]


def test_calls_add_no_lines(found, caplog):
    caplog.set_level(logging.DEBUG, "fib_apply")
    with enable_apply(found, stats=True):
        for rows in (2, 3, 5, 9):
            scale(torch.ones(rows, 4))  # all that is new about a shape
        caplog.clear()
        for rows in (2, 3, 4, 5, 9) * 20:
            scale(torch.ones(rows, 4))
    assert [record.getMessage() for record in caplog.records] == []


def test_builds_are_events_with_durations(found, seen, tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path))
    with enable_apply(found):
        pass
    built = {event.solution: event for event in of(EventKind.BUILT, seen)}
    assert built["fast"].problem is None
    assert "ImportError: no" in str(built["broken"].problem)
    assert all(event.seconds > 0 for event in built.values())


def test_reloads_and_quarantines_are_events(found, seen, tmp_path):
    with enable_apply(found, ApplyConfig(on_error="fallback")) as runtime:
        seen.clear()
        runtime.reload()
        assert [event.details for event in of(EventKind.RELOADED, seen)] == [{"is_changed": False}]
        assert len(of(EventKind.ROUTED, seen)) == 1
        seen.clear()
        with pytest.raises(DataSetNotFound):
            runtime.rebuild(tmp_path / "missing")
        assert ["no data set" in str(event.problem) for event in of(EventKind.RELOADED, seen)] == [True]
        runtime.dispatcher("scale").quarantine("fast", "it is wrong")
        assert of(EventKind.QUARANTINED, seen) == [quarantined("scale", "fast", "it is wrong")]
        seen.clear()
        runtime.reload()
        assert [event.details["keys_by_reason"]["quarantined"] for event in of(EventKind.ROUTED, seen)] == [2]


def test_a_listener_that_raises_is_logged_once(caplog):
    def broken(event):
        raise ValueError(str(event))

    add_event_listener(broken)
    try:
        for _ in range(3):
            emit(quarantined("scale", "fast", "it is wrong"))
    finally:
        remove_event_listener(broken)
    assert [r.getMessage() for r in caplog.records if "listener" in r.getMessage()] == [
        "a listener of events raised ValueError: scale: solution 'fast' is quarantined: it is wrong"
    ]


def test_hits_of_many_keys_are_counted_together():
    metrics = CallMetrics()
    for index in range(5000):
        metrics.hit(f"M={index}").increment()
    metrics.hit("M=0").increment()
    found = metrics.snapshot()
    assert len(found.hits) == 4097
    assert found.hits["M=0"] == 2
    assert found.hits["other keys"] == 5000 - 4096
    assert found.calls == 5001
