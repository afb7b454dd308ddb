"""Numbers of reports as text: ratios and latencies, with the half width of their interval where it is known."""

from __future__ import annotations

import math

from fib_schema.display import format_latency, latency_unit

__all__ = [
    "format_latency",
    "format_ratio",
    "latency_range",
    "latency_with_bounds",
    "ratio_with_interval",
]

_MAX_DIGITS = 4
"""Limit of the significant digits of a value, however narrow its interval."""
_MORE_DECIMALS = 2
_WIDE = 0.3
"""A wider interval, as a share of the value, is shown by its bounds: its sides may differ by far."""


def latency_with_bounds(milliseconds: float, bounds_ms: tuple[float, float] | None) -> str:
    """A latency with the half width of its interval, such as ``12.3 us ± 0.2``, or a wide interval with both bounds."""
    half_width = _half_width(milliseconds, bounds_ms)
    if bounds_ms is None or not half_width:
        return format_latency(milliseconds)
    factor, unit = latency_unit(milliseconds)
    if half_width > _WIDE * milliseconds:
        return f"{format_latency(milliseconds)} ({latency_range(bounds_ms)})"
    value, error = _rounded(milliseconds * factor, half_width * factor)
    return f"{value} {unit} ± {error}"


def latency_range(latencies_ms: tuple[float, float] | None) -> str:
    """The shortest and the longest of several latencies; a dash if there is none."""
    if latencies_ms is None:
        return "-"
    low, high = map(format_latency, latencies_ms)
    if low == high:
        return low
    number, unit = low.split()
    return f"{number if high.endswith(f' {unit}') else low} .. {high}"


def format_ratio(ratio: float) -> str:
    """A factor with two decimals, or with two digits where two decimals would be zeros."""
    return f"{ratio:.2f}x" if ratio >= 0.1 else f"{ratio:.2g}x"


def ratio_with_interval(ratio: float, interval: tuple[float, float] | None) -> str:
    """A factor with the half width of its interval, such as ``6.9x ± 0.4``.

    If the interval excludes 1, so do the numbers that are shown.
    """
    half_width = _half_width(ratio, interval)
    if interval is None or not half_width:
        return format_ratio(ratio)
    choices = [_rounded(ratio, half_width, more) for more in range(_MORE_DECIMALS + 1)]
    if interval[0] <= 1.0 <= interval[1]:
        choices = choices[:1]
    apart = (pair for pair in choices if abs(float(pair[0]) - 1.0) - float(pair[1]) > 1e-9)
    value, error = next(apart, choices[-1])
    return f"{value}x ± {error}"


def _half_width(value: float, interval: tuple[float, float] | None) -> float:
    """The larger distance from the value to a bound; 0 where it is unknown."""
    return 0.0 if interval is None else max(value - interval[0], interval[1] - value, 0.0)


def _rounded(value: float, half_width: float, more_decimals: int = 0) -> tuple[str, str]:
    """A value and its half width, rounded up to one significant digit, with as many decimals."""
    if not math.isfinite(half_width) or value <= 0:
        return f"{value:.3g}", f"{half_width:.1g}"
    natural = -math.floor(math.log10(half_width))
    natural -= math.ceil(half_width * 10.0**natural - 1e-9) == 10
    decimals = min(natural, _MAX_DIGITS - 1 - math.floor(math.log10(value)))
    decimals += more_decimals
    error = math.ceil(half_width * 10.0**decimals - 1e-9) / 10.0**decimals
    return f"{round(value, decimals):.{max(decimals, 0)}f}", f"{error:.{max(decimals, 0)}f}"
