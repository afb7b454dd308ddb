"""Tests of the roofline: the least work of a call, and the latencies that it rules out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fib_bench.timing import roofline
from fib_bench.timing.roofline import Peaks, SpeedOfLight
from fib_bench.timing.work import Work, work_of
from fib_schema import Definition
from hypothesis import given
from hypothesis import strategies as st

Make = Callable[..., Definition]
PEAKS = Peaks(bytes_per_second=1e12, half_operations_per_second=1e15, l2_bytes=1_000_000)
LIGHT = SpeedOfLight(PEAKS, Peaks(0.5e12, 0.5e15, 1_000_000))


@pytest.fixture
def gemm(make_definition: Make) -> Definition:
    return make_definition(
        {"A": "float16[M,K]", "B": "float16[N,K]"},
        {"C": "float16[M,N]"},
        "def run(A, B):\n    return A @ B.T\n",
        op_type="gemm",
    )


def test_what_a_product_must_do_follows_from_its_axes(gemm: Definition) -> None:
    assert work_of(gemm, {"M": 2, "N": 3, "K": 5}) == Work(2 * (2 * 5 + 3 * 5), 2 * 2 * 3, 2 * 2 * 3 * 5, 2.0)


def test_an_op_type_without_a_declaration_has_no_floor(make_definition: Make) -> None:
    made = make_definition({"x": "float32[n]"}, {"y": "float32[n]"}, "def run(x):\n    return x\n", op_type="gqa_paged")
    assert work_of(made, {"n": 4}) is None
    assert LIGHT.objection(None, 1e-9) == ""
    assert LIGHT.to_extra(None, 1.0) == {}


def test_optional_inputs_are_not_counted(make_definition: Make) -> None:
    made = make_definition(
        {"x": "float32[n]", "b": "float32[n]?"},
        {"y": "float32[n]"},
        "def run(x, b):\n    return x\n",
        op_type="rmsnorm",
    )
    work = work_of(made, {"n": 10})
    assert work is not None
    assert work.read_bytes == 40


def test_operations_need_axes_of_the_declared_names(make_definition: Make) -> None:
    made = make_definition(
        {"A": "float16[m,k]", "B": "float16[n,k]"}, {"C": "float16[m,n]"}, "def run(A, B):\n    pass\n", op_type="gemm"
    )
    work = work_of(made, {"m": 2, "n": 3, "k": 5})
    assert work is not None
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
def test_the_slower_of_moving_and_doing_decides(work: Work, least_ms: float) -> None:
    assert PEAKS.least_ms(work) == pytest.approx(least_ms)


def test_an_impossible_latency_is_refused_with_the_numbers() -> None:
    work = Work(10**9, 0, 0, 2.0)
    assert LIGHT.objection(work, 1.0) == ""
    assert LIGHT.objection(work, 0.98) == ""
    assert "reading 1000000000 bytes" in LIGHT.objection(work, 0.9)


def test_judges_that_start_together_measure_a_device_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Peaks that several judges measure at the same time would be too low, and the last one stays in the cache."""
    turn, measured, both = threading.Lock(), [], threading.Barrier(2, timeout=60)
    load = roofline._load

    def load_when_both_are_there(name: str) -> dict[str, float] | None:
        if not turn.locked():
            both.wait()
        return load(name)

    def measure(_: torch.device) -> dict[str, float]:
        measured.append(turn.locked())
        return {"bytes_per_second": 3e12, "half_operations_per_second": 8e14}

    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    monkeypatch.setattr(roofline, "theoretical_peaks", lambda _: Peaks(4e12, 1e15, 50 << 20))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="a"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(roofline, "_load", load_when_both_are_there)
    monkeypatch.setattr(roofline, "_measure", measure)
    device = torch.device("cuda:0")
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: roofline.speed_of_light_of(device, lambda: turn), range(2)))
    assert measured == [True]
    assert [light.measured for light in found] == [Peaks(3e12, 8e14, 50 << 20)] * 2


def test_a_device_of_unknown_peaks_refuses_nothing() -> None:
    assert SpeedOfLight(None, None).objection(Work(10**9, 0, 0, 2.0), 1e-9) == ""


@given(st.integers(0, 2_000_000), st.floats(1e-6, 1.0))
def test_short_calls_are_refused_only_beyond_the_grain_of_the_clock(read_bytes: int, latency_ms: float) -> None:
    work = Work(read_bytes, 0, 0, 2.0)
    if latency_ms >= PEAKS.least_ms(work):
        assert LIGHT.objection(work, latency_ms) == ""


def test_a_trace_says_what_was_achieved() -> None:
    extra = LIGHT.to_extra(Work(10**9, 0, 10**12, 2.0), 4.0)
    assert extra == {
        "bytes": 10**9,
        "achieved_gb_per_s": 250.0,
        "operations": 10**12,
        "achieved_tflop_per_s": 250.0,
        "attainable_fraction": 0.5,
    }
