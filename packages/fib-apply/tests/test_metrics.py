"""Metrics: counts of calls, in bounded memory."""

from __future__ import annotations

from fib_apply.events import CallMetrics


def test_hits_of_many_keys_are_counted_together() -> None:
    metrics = CallMetrics()
    for index in range(5000):
        metrics.hit(f"M={index}").increment()
    metrics.hit("M=0").increment()
    found = metrics.snapshot(is_caught=False)
    assert len(found.hits) == 4097
    assert found.hits["M=0"] == 2
    assert found.hits["other keys"] == 5000 - 4096
    assert found.calls == 5001
