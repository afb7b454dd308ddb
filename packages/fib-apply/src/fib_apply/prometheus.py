"""Metrics for Prometheus: a collector that an engine registers at its own endpoint. Needs the extra ``metrics``.

Nothing here runs in a routed call: calls are counted as `ApplyRuntime.stats` counts them, and read when they are
collected.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from .events import DefinitionStats, Event, add_event_listener, remove_event_listener

if TYPE_CHECKING:
    from .runtime import ApplyRuntime

_PREFIX = "fib_apply"


class ApplyCollector(Collector):
    """Collects the metrics of a runtime, and of the events since the collector was made.

    Calls are counted if the runtime was enabled with ``stats``.

    Args:
        find_runtime: Returns the runtime, or None; `fib_apply.get_runtime` is the active one.
    """

    def __init__(self, find_runtime: Callable[[], ApplyRuntime | None]) -> None:
        self._find_runtime = find_runtime
        self._lock = threading.Lock()
        self._events: dict[tuple[str, str], tuple[int, float]] = {}
        """The number and the durations of events, by kind and result."""
        add_event_listener(self._observe)

    def close(self) -> None:
        """Observe no more events."""
        remove_event_listener(self._observe)

    def collect(self) -> Iterable[Metric]:
        """The metrics now."""
        runtime = self._find_runtime()
        with self._lock:
            events = dict(self._events)
        family = SummaryMetricFamily(f"{_PREFIX}_event_seconds", "Durations of events.", labels=["kind", "result"])
        for labels, (count, seconds) in events.items():
            family.add_metric(labels, count_value=count, sum_value=seconds)
        yield family
        yield _gauge("up", "Whether calls are routed.", float(runtime is not None and not runtime.is_off))
        if runtime is not None:
            yield _gauge("left_out_solutions", "Solutions not called.", len(runtime.left_out()))
            yield from _of_calls(runtime.stats())

    def _observe(self, event: Event) -> None:
        place = str(event.kind), "done" if event.problem is None else "failed"
        with self._lock:
            count, total = self._events.get(place, (0, 0.0))
            self._events[place] = count + 1, total + event.seconds


def _of_calls(stats: Mapping[str, DefinitionStats]) -> Iterator[Metric]:
    """Counts of calls; hits are summed over keys, of which there may be thousands."""
    hits = {(name,): sum(found.hits.values()) for name, found in stats.items()}
    misses = {(name, why): count for name, found in stats.items() for why, count in found.misses.items()}
    errors = {(name, solution): count for name, found in stats.items() for solution, count in found.errors.items()}
    yield _counter("hits", "Calls that a selected solution served.", ("definition",), hits)
    yield _counter("misses", "Calls that the fallback served.", ("definition", "reason"), misses)
    yield _counter("errors", "Calls whose solution raised.", ("definition", "solution"), errors)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", text, value=value)


def _counter(name: str, text: str, labels: tuple[str, ...], counts: dict[Any, int]) -> Metric:
    family = CounterMetricFamily(f"{_PREFIX}_{name}", text, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family
