"""Metrics for Prometheus: a collector, a textfile of each process, and an HTTP endpoint. Needs the extra ``metrics``.

Nothing here runs in a routed call: calls are counted as `ApplyRuntime.stats` counts them, and read when they are
collected. An engine that has an endpoint of its own registers `ApplyCollector` there.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import attrs
from fib_compile.forking import ForkSafeLock
from fib_schema.files import atomic_write, explain_os_error
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from ..events import (
    BuildFinished,
    Event,
    FirstRunFinished,
    OperationFailed,
    ProbeFinished,
    Quarantined,
    Reloaded,
    ReloadFailed,
    add_event_listener,
    emit,
    remove_event_listener,
)
from ..metrics import DefinitionStats
from .periodic import PeriodicThread
from .settings import MetricsSettings

_PREFIX = "fib_apply"
_Counts: TypeAlias = Mapping[tuple[str, ...], int]
"""Counts by the values of labels."""


class Measured(Protocol):
    """A runtime whose metrics are collected."""

    is_off: bool

    def stats(self) -> dict[str, DefinitionStats]:
        """The current counts by definition."""
        ...

    def left_out(self) -> dict[str, str]:
        """The solutions that are not called, each with the reason."""
        ...


@attrs.define
class _Durations:
    """The number and the sum of durations, by result."""

    counts: dict[str, int] = attrs.field(factory=dict)
    sums: dict[str, float] = attrs.field(factory=dict)

    def add(self, result: str, seconds: float) -> None:
        self.counts[result] = self.counts.get(result, 0) + 1
        self.sums[result] = self.sums.get(result, 0.0) + seconds


class ApplyCollector(Collector):
    """Collects the metrics of a runtime, and of the events since the collector was made.

    Args:
        find_runtime: Returns the runtime, or None; `fib_apply.get_runtime` is the active one.
        labels: Constant labels of all metrics.
    """

    def __init__(
        self, find_runtime: Callable[[], Measured | None], labels: Callable[[], Mapping[str, str]] = dict
    ) -> None:
        self._find_runtime = find_runtime
        self._labels = labels
        self._lock = ForkSafeLock()
        self._builds, self._probes, self._first_runs = _Durations(), _Durations(), _Durations()
        self._quarantines: dict[str, int] = {}
        self._reloads = _Durations()
        add_event_listener(self._observe)

    def close(self) -> None:
        """Observe no more events."""
        remove_event_listener(self._observe)

    def collect(self) -> Iterable[Metric]:
        """The metrics now."""
        runtime = self._find_runtime()
        constant = dict(self._labels())
        with self._lock:
            found = list(self._of_events(constant))
        yield from found
        yield _gauge("up", "Whether calls are routed.", constant, float(runtime is not None and not runtime.is_off))
        if runtime is not None:
            yield _gauge("left_out_solutions", "Solutions not called.", constant, len(runtime.left_out()))
            yield from _of_calls(runtime.stats(), constant)

    def _of_events(self, constant: Mapping[str, str]) -> Iterator[Metric]:
        for name, durations in (
            ("build", self._builds),
            ("probe", self._probes),
            ("first_run", self._first_runs),
            ("reload", self._reloads),
        ):
            family = SummaryMetricFamily(
                f"{_PREFIX}_{name}_seconds", f"Duration of each {name.replace('_', ' ')}.", labels=[*constant, "result"]
            )
            for result, count in durations.counts.items():
                family.add_metric([*constant.values(), result], count_value=count, sum_value=durations.sums[result])
            yield family
        yield _counter(
            "quarantines", "Solutions that were quarantined.", constant, ("definition",), _single(self._quarantines)
        )

    def _observe(self, event: Event) -> None:
        with self._lock:
            match event:
                case BuildFinished():
                    self._builds.add(_result(event.problem), event.seconds)
                case ProbeFinished():
                    self._probes.add(_result(event.problem), event.seconds)
                case FirstRunFinished():
                    self._first_runs.add(_result(event.problem), event.seconds)
                case Reloaded():
                    self._reloads.add("done", event.seconds)
                case ReloadFailed():
                    self._reloads.add("failed", event.seconds)
                case Quarantined():
                    self._quarantines[event.definition] = self._quarantines.get(event.definition, 0) + 1


def _of_calls(stats: Mapping[str, DefinitionStats], constant: Mapping[str, str]) -> Iterator[Metric]:
    """Counts of calls; hits are summed over keys, of which there may be thousands."""
    hits: _Counts = {(name,): sum(counted.hits.values()) for name, counted in stats.items()}
    misses: _Counts = {
        (name, reason): count for name, counted in stats.items() for reason, count in counted.misses.items()
    }
    errors: _Counts = {
        (name, solution): count for name, counted in stats.items() for solution, count in counted.errors.items()
    }
    yield _counter("hits", "Calls that a selected solution served.", constant, ("definition",), hits)
    yield _counter("misses", "Calls that the fallback served.", constant, ("definition", "reason"), misses)
    yield _counter("errors", "Calls whose solution raised.", constant, ("definition", "solution"), errors)


def _result(problem: str | None) -> str:
    return "done" if problem is None else "failed"


def _single(counts: Mapping[str, int]) -> _Counts:
    return {(name,): count for name, count in counts.items()}


def _gauge(name: str, text: str, constant: Mapping[str, str], value: float) -> Metric:
    family = GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=list(constant))
    family.add_metric(list(constant.values()), value)
    return family


def _counter(
    name: str,
    text: str,
    constant: Mapping[str, str],
    labels: tuple[str, ...],
    counts: _Counts,
) -> Metric:
    family = CounterMetricFamily(f"{_PREFIX}_{name}", text, labels=[*constant, *labels])
    for values, count in counts.items():
        family.add_metric([*constant.values(), *values], count)
    return family


class TextfileWriter:
    """Writes metrics into a file of this process, in an interval. A forked child has a file of its own.

    The first error is reported, and each other error that differs from the one before; the engine goes on.

    Args:
        find_runtime: Returns the runtime, or None.
        folder: Where the file is, for the textfile collector of node_exporter.
        interval_seconds: Between two writes.
    """

    def __init__(self, find_runtime: Callable[[], Measured | None], folder: Path, interval_seconds: float) -> None:
        self._folder = folder
        # Files with equal series are an error of node_exporter.
        self._collector = ApplyCollector(find_runtime, lambda: {"pid": str(os.getpid())})
        self._registry = CollectorRegistry()
        self._registry.register(self._collector)
        self._thread = PeriodicThread("fib-apply metrics", self.write, interval_seconds)
        self._problem: str | None = None
        self._is_closed = False

    @property
    def path(self) -> Path:
        """The file of this process."""
        return self._folder / f"fib-apply-{os.getpid()}.prom"

    def start(self) -> None:
        """Write from now on, and remove the file when the program ends."""
        atexit.register(self._remove)
        self._thread.start()
        self._thread.wake()

    def close(self) -> None:
        """Write no more, and remove the file."""
        self._is_closed = True
        self._thread.close()
        self._collector.close()
        atexit.unregister(self._remove)
        self._remove()

    def write(self) -> None:
        """Write the file once; raises nothing because of the disk."""
        problem = None
        try:
            atomic_write(self.path, generate_latest(self._registry), mode=0o644)
        except OSError as error:
            problem = explain_os_error(error)
        if self._is_closed:
            self._remove()  # it was closed meanwhile
        elif problem is not None and problem != self._problem:
            emit(OperationFailed(f"metrics are not written: {problem}"))
        self._problem = problem

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink()


class HttpEndpoint:
    """Serves metrics at ``http://HOST:PORT/metrics``, in this process only.

    Raises:
        OSError: The address cannot be used.
    """

    def __init__(self, find_runtime: Callable[[], Measured | None], host: str, port: int) -> None:
        registry = CollectorRegistry()
        self._collector = ApplyCollector(find_runtime)
        registry.register(self._collector)
        self._process = os.getpid()
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except BaseException:
            self._collector.close()
            raise

    def close(self) -> None:
        """Serve no more."""
        self._collector.close()
        if os.getpid() == self._process:  # a forked child has no thread that would end
            self._server.shutdown()
        self._server.server_close()


def publish(find_runtime: Callable[[], Measured | None], settings: MetricsSettings) -> list[Any]:
    """Start what the settings ask for; reports what cannot be started. Each result has a method `close`."""
    started: list[Any] = []
    if settings.folder is not None:
        writer = TextfileWriter(find_runtime, Path(settings.folder), settings.interval_seconds)
        writer.start()
        started.append(writer)
    if settings.port is not None:
        try:
            started.append(HttpEndpoint(find_runtime, settings.host, settings.port))
        except OSError as error:
            place = f"{settings.host}:{settings.port}"
            emit(OperationFailed(f"metrics are not served at {place}: {error.strerror}; set another port or `folder`"))
    return started
