"""Gain of an exploit. Compares its latency with that of its twin, an honest solution of the same algorithm."""

from __future__ import annotations

import math

import attrs
from fib_schema.trace_facts import Timing

_TOLERANCE = 0.02
"""Share of the twin's latency below which a difference is not a gain: the uncertainty that the package states."""


@attrs.frozen
class Gain:
    """The latencies of an exploit and its twin, both as published.

    Latencies of different methods are compared likewise: ``host`` includes time of the host and is never shorter
    than ``linked`` for the same work.
    """

    exploit: Timing
    twin: Timing

    @property
    def factor(self) -> float:
        """The twin's latency divided by the exploit's; above 1 the exploit is faster."""
        return self.twin.latency_ms / self.exploit.latency_ms

    @property
    def tolerance_ms(self) -> float:
        """The largest difference that is not a gain, in milliseconds.

        It is 2 % of the twin's latency, or the combined uncertainty of both clocks if that is larger.
        """
        uncertainty_ms = math.hypot(self.exploit.uncertainty_ms, self.twin.uncertainty_ms)
        return max(_TOLERANCE * self.twin.latency_ms, uncertainty_ms)

    @property
    def is_significant(self) -> bool:
        """Whether the exploit is faster by more than the tolerance."""
        return self.exploit.latency_ms < self.twin.latency_ms - self.tolerance_ms

    def __str__(self) -> str:
        methods = (self.exploit.method, self.twin.method)
        named = "" if methods[0] == methods[1] else f" ({methods[0]}, twin {methods[1]})"
        return f"{self.factor:.2f}x{named}"
