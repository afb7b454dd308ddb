"""Tests of numbers with their uncertainty, as reports show them."""

from __future__ import annotations

import pytest
from fib_bench.report.quantities import format_latency, format_ratio, latency_with_bounds, ratio_with_interval


@pytest.mark.parametrize(
    ("ratio", "interval", "text"),
    [
        (6.93, (6.6, 7.3), "6.9x ± 0.4"),
        (2.0, (1.95, 2.05), "2.00x ± 0.05"),
        (0.514, (0.5, 0.53), "0.51x ± 0.02"),
        (0.301, (0.292, 0.3109), "0.30x ± 0.01"),
        (95.2, (91.0, 99.0), "95x ± 5"),
        (950.0, (921.0, 989.0), "950x ± 40"),
        (2.0, (1.9999999, 2.0000001), "2.000x ± 0.001"),
        (2.0, (2.0, 2.0), "2.00x"),
        (2.0, None, "2.00x"),
        (1.016, (1.0005, 1.0315), "1.0160x ± 0.0155"),
    ],
)
def test_a_ratio_has_the_digits_that_its_interval_allows(
    ratio: float, interval: tuple[float, float] | None, text: str
) -> None:
    assert ratio_with_interval(ratio, interval) == text


@pytest.mark.parametrize(
    ("latency_ms", "bounds_ms", "text"),
    [
        (0.0123, (0.0121, 0.0125), "12.3 us ± 0.2"),
        (0.0123, None, "12.3 us"),
        (1.5, (1.4, 1.6), "1.5 ms ± 0.1"),
        (2500.0, (2499.0, 2502.0), "2.500 s ± 0.002"),
        (0.022, (0.021, 2.0), "22 us (21 us .. 2 ms)"),
    ],
)
def test_a_latency_has_its_interval_in_the_same_unit(
    latency_ms: float, bounds_ms: tuple[float, float] | None, text: str
) -> None:
    assert latency_with_bounds(latency_ms, bounds_ms) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0.0, "0 us"), (0.0071, "7.1 us"), (0.9, "900 us"), (1.0, "1 ms"), (12.345, "12.3 ms"), (2500.0, "2.5 s")],
)
def test_latencies_have_three_digits_and_a_fitting_unit(milliseconds: float, text: str) -> None:
    assert format_latency(milliseconds) == text


@pytest.mark.parametrize(("ratio", "text"), [(2.0, "2.00x"), (0.1, "0.10x"), (0.0123, "0.012x"), (0.0, "0x")])
def test_small_speedups_keep_two_digits(ratio: float, text: str) -> None:
    assert format_ratio(ratio) == text
