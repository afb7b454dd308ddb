"""Tests of the roofline: the least work of a call, and the latencies that it rules out."""

import pytest
import torch
from fib_bench.timing.work import Peaks, Work, speed_fields, theoretical_peaks, work_of
from hypothesis import given
from hypothesis import strategies as st

from .samples import make_definition

PEAKS = Peaks(bytes_per_second=1e12, half_operations_per_second=1e15, l2_bytes=1_000_000)


@pytest.fixture
def gemm():
    return make_definition(
        {"A": "float16[M,K]", "B": "float16[N,K]"},
        {"C": "float16[M,N]"},
        "def run(A, B):\n    return A @ B.T\n",
        op_type="gemm",
    )


def test_what_a_product_must_do_follows_from_its_axes(gemm):
    assert work_of(gemm, {"M": 2, "N": 3, "K": 5}) == Work(2 * (2 * 5 + 3 * 5), 2 * 2 * 3, 2 * 2 * 3 * 5, 2.0)


def test_an_op_type_without_a_declaration_has_no_floor():
    made = make_definition({"x": "float32[n]"}, {"y": "float32[n]"}, "def run(x):\n    return x\n", op_type="gqa_paged")
    assert work_of(made, {"n": 4}) is None
    assert speed_fields(PEAKS, None, 1.0) == {}


def test_optional_inputs_are_not_counted():
    made = make_definition(
        {"x": "float32[n]", "b": "float32[n]?"},
        {"y": "float32[n]"},
        "def run(x, b):\n    return x\n",
        op_type="rmsnorm",
    )
    work = work_of(made, {"n": 10})
    assert work.read_bytes == 40


def test_operations_need_axes_of_the_declared_names():
    made = make_definition(
        {"A": "float16[m,k]", "B": "float16[n,k]"}, {"C": "float16[m,n]"}, "def run(A, B):\n    pass\n", op_type="gemm"
    )
    work = work_of(made, {"m": 2, "n": 3, "k": 5})
    assert work.operations == 0


@pytest.mark.parametrize(
    ("work", "least_ms"),
    [
        (Work(10**9, 0, 0, 2.0), 1.0),
        (Work(0, 10**9, 0, 2.0), 0.999),  # the last of it may be in the cache still
        (Work(0, 0, 10**12, 2.0), 1.0),
        (Work(0, 0, 10**12, 1.0), 0.5),
        (Work(0, 0, 10**12, 4.0), 2.0),
        (Work(10**9, 0, 10**13, 2.0), 10.0),
    ],
)
def test_the_slower_of_moving_and_doing_decides(work, least_ms):
    assert PEAKS.least_ms(work) == pytest.approx(least_ms)


def test_an_impossible_latency_is_refused_with_the_numbers():
    work = Work(10**9, 0, 0, 2.0)
    assert PEAKS.objection(work, 1.0) == ""
    assert PEAKS.objection(work, 0.98) == ""
    assert "reading 1000000000 bytes" in PEAKS.objection(work, 0.9)


@given(st.integers(0, 2_000_000), st.floats(1e-6, 1.0))
def test_short_calls_are_refused_only_beyond_the_grain_of_the_clock(read_bytes, latency_ms):
    work = Work(read_bytes, 0, 0, 2.0)
    if latency_ms >= PEAKS.least_ms(work):
        assert PEAKS.objection(work, latency_ms) == ""


def test_a_trace_says_what_was_achieved():
    work = Work(10**9, 0, 10**12, 2.0)
    achieved = {"bytes": 10**9, "achieved_gb_per_s": 250.0, "operations": 10**12, "achieved_tflop_per_s": 250.0}
    assert speed_fields(PEAKS, work, 4.0) == {**achieved, "attainable_fraction": 0.25}
    assert speed_fields(theoretical_peaks(torch.device("cpu")), work, 4.0) == achieved
