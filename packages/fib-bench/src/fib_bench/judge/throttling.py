"""Throttling filter. Discards samples that were taken while the device ran below its usual clock."""

from __future__ import annotations

import statistics

from ..timing.device import ClockWatch

_MAX_DISCARDED = 20  # a device that is throttled for longer is as slow as it is


class ThrottlingFilter:
    """Decides which passes count.

    Args:
        watch: The clock monitor; None accepts every pass.
    """

    def __init__(self, watch: ClockWatch | None) -> None:
        self._watch = watch
        self._clocks: list[int] = []
        self._discarded = 0

    def accepts(self, begin: float) -> bool:
        """Whether a pass that began then, in seconds of the monotonic clock, and has just ended, counts."""
        if self._watch is None:
            return True
        self._clocks.append(self._watch.clock_mhz(begin))
        if not self._watch.was_throttled(begin) or self._discarded >= _MAX_DISCARDED:
            return True
        self._discarded += 1
        return False

    def to_extra(self) -> dict[str, object]:
        """The fields of a trace."""
        extra: dict[str, object] = {}
        if self._clocks:
            extra["sm_clock_mhz"] = int(statistics.median(self._clocks))
        if self._discarded:
            extra["throttled_passes"] = self._discarded
        return extra
