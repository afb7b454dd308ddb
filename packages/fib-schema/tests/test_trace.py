import math

import pytest
from fib_schema import (
    Correctness,
    Environment,
    Evaluation,
    InvalidField,
    Performance,
    RandomInput,
    SafetensorsInput,
    ScalarInput,
    Trace,
    Workload,
)

WORKLOAD = Workload({"M": 1}, {"A": RandomInput()}, "w")


def evaluation(status, **fields):
    return Evaluation(status, Environment("cpu"), "2026-01-01T00:00:00", **fields)


@pytest.mark.parametrize(
    ("status", "fields", "message"),
    [
        ("PASSED", {}, "correctness: must be given when status is PASSED"),
        ("PASSED", {"correctness": Correctness()}, "performance: must be given"),
        ("INCORRECT_NUMERICAL", {}, "correctness: must be given"),
        (
            "INCORRECT_NUMERICAL",
            {"correctness": Correctness(), "performance": Performance()},
            "performance: must be absent",
        ),
        ("TIMEOUT", {"performance": Performance()}, "performance: must be absent"),
        ("SOLVED", {}, "'SOLVED' is unknown"),
    ],
)
def test_a_status_says_what_must_be_there(status, fields, message):
    with pytest.raises(InvalidField, match=message):
        evaluation(status, **fields)


def test_errors_may_be_nan_and_infinite_but_not_negative():
    assert math.isnan(Correctness(max_absolute_error=math.nan).max_absolute_error)
    assert Correctness(max_relative_error=math.inf).max_relative_error == math.inf
    assert Correctness(1, 2).max_relative_error == 1.0
    with pytest.raises(InvalidField, match="must not be negative"):
        Performance(latency_ms=-1)
    with pytest.raises(InvalidField, match="expected a number, got boolean True"):
        Performance(latency_ms=True)


def test_solution_and_evaluation_come_together():
    assert Trace("d", WORKLOAD).is_workload_trace()
    with pytest.raises(InvalidField, match="given together"):
        Trace("d", WORKLOAD, solution="s")


@pytest.mark.parametrize("size", [-1, 1.0, True, "1"])
def test_axis_sizes_are_real_integers(size):
    with pytest.raises(InvalidField, match=r"expected an integer, got|must be at least 0, got"):
        Workload({"M": size}, {}, "w")


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "./../x", "a\\x"])
def test_blob_paths_stay_below_the_root(path):
    with pytest.raises(InvalidField, match="blobs stay below"):
        SafetensorsInput(path, "k")


def test_a_scalar_is_a_number():
    with pytest.raises(InvalidField, match="expected a scalar, got string '1'"):
        ScalarInput("1")


@pytest.mark.parametrize(
    ("extra", "flags", "is_ranked"),
    [
        (None, (), True),
        ({}, (), True),
        ({"flags": ["fixed_inputs"]}, ("fixed_inputs",), True),
        ({"flags": ["fixed_inputs", "low_precision"]}, ("fixed_inputs", "low_precision"), False),
        ({"flags": "low_precision"}, (), True),  # no list: somebody else's
    ],
)
def test_flags_tell_what_is_ranked(extra, flags, is_ranked):
    made = evaluation("TIMEOUT", extra=extra)
    assert made.flags == flags
    assert made.is_ranked() is is_ranked
