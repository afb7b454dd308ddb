"""When there are enough samples of a function, by a definition's settings."""

from __future__ import annotations

import math

from ..config.model import ResolvedEvalConfig
from ..timing import StopRule


def stop_rule(config: ResolvedEvalConfig, *, busy_seconds: float = math.inf) -> StopRule:
    """The rule for a solution and what is timed in turns with it.

    Args:
        config: How to time.
        busy_seconds: The cap on the time that the device is busy, if that is known apart from the time that passes.
    """
    return StopRule(
        iterations=config.iterations,
        max_iterations=max(config.max_iterations, config.iterations),
        confidence=config.confidence,
        max_seconds=config.measure_seconds,
        busy_seconds=min(busy_seconds, config.measure_seconds),
    )
