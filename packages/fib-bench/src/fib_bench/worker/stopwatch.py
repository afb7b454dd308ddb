"""Times calls with a host clock: short calls in batches, long ones singly, under a cap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

_MIN_SAMPLE_NS = 50_000  # a batch this long drowns the clock's own cost, some 50 ns
_MAX_BATCH = 10_000
MIN_SAMPLES = 3


def time_calls(
    calls: Sequence[Callable[[], Any]],
    *,
    warmup_runs: int,
    samples: int,
    max_seconds: float,
    clock_ns: Callable[[], int],
) -> tuple[list[float], int, list[Any]]:
    """Time calls that rotate among `calls`.

    The caller owns the counts: a slow warm-up does not lower them below `MIN_SAMPLES`.

    Args:
        calls: The same function on different inputs.
        warmup_runs: Calls to make before timing, fewer if a quarter of the cap is used up.
        samples: How many samples to take, fewer if the cap is hit.
        max_seconds: The cap on the whole measurement.
        clock_ns: A monotonic clock in nanoseconds.

    Returns:
        Nanoseconds per call, one per sample; calls per sample; the last result of each call.
    """
    start = clock_ns()
    cap_ns = int(max_seconds * 1e9)
    results = [call() for call in calls]
    warm, before = len(calls), clock_ns()
    per_call_ns = (before - start) / warm
    while warm < warmup_runs and clock_ns() - start < cap_ns // 4:
        before = clock_ns()
        calls[warm % len(calls)]()
        per_call_ns = clock_ns() - before
        warm += 1
    batch = max(1, min(_MAX_BATCH, round(_MIN_SAMPLE_NS / max(per_call_ns, 1))))
    taken: list[float] = []
    while len(taken) < samples and (len(taken) < MIN_SAMPLES or clock_ns() - start < cap_ns):
        index = len(taken) % len(calls)
        call = calls[index]
        before = clock_ns()
        for _ in range(batch - 1):
            call()
        results[index] = call()
        taken.append((clock_ns() - before) / batch)
    return taken, batch, results
