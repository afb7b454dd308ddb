"""Stop rules. When there are enough samples of a function, by a definition's settings."""

from __future__ import annotations

import math

import attrs

from ..config.model import ResolvedEvalConfig
from ..timing import StopRule

_BUSY_SECONDS = {"cuda": 0.016}
_REFERENCE_SHARE = 0.5
_INTERLEAVED_SHARE = 2.0  # of `measure_seconds`, for all functions together


def stop_rule(config: ResolvedEvalConfig, *, device: str = "cpu") -> StopRule:
    """The rule for a solution and a baseline.

    Args:
        config: How to time.
        device: The kind of device: on CUDA the time that it is busy is capped as well.
    """
    return StopRule(
        iterations=config.iterations,
        max_iterations=max(config.max_iterations, config.iterations),
        confidence=config.confidence,
        max_seconds=config.measure_seconds,
        busy_seconds=min(_BUSY_SECONDS.get(device, math.inf), config.measure_seconds),
    )


def reference_rule(rule: StopRule) -> StopRule:
    """The rule for the reference, which may be far slower than the solution: it has a time budget of its own."""
    return attrs.evolve(rule, max_seconds=_REFERENCE_SHARE * rule.max_seconds)


def closing_rule(rule: StopRule, elapsed_seconds: float) -> StopRule:
    """The rule for baselines of a solution that has enough samples: they end when all together took too long.

    Each of their passes has one of the solution beside it, so a slow solution would be timed for as long as a fast
    reference lacks samples: 16 s for a kernel of 10 ms in Triton's interpreter.

    Args:
        rule: When a baseline stops by itself.
        elapsed_seconds: The time since the first pass.
    """
    is_late = elapsed_seconds >= _INTERLEAVED_SHARE * rule.max_seconds
    return attrs.evolve(rule, max_seconds=0.0) if is_late else rule
