"""Data of the HTML page: a data set in columns.

Numbers keep four digits, which is more than their precision. Logs dominate the size: equal ones are stored
once, of long ones only the beginning and the end, and beyond a bound on all of them only their error line.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs
from fib_schema import Evaluation, EvaluationStatus, Trace, TraceSet, Workload

from .failures import group_failures
from .leaderboard import Entry, check_baseline, entries, rank_authors
from .page_sources import SourcePages
from .ratios import Outcome
from .results import DeviceResults, Options, error_line, group_results
from .trace_fields import (
    Timing,
    baseline_of,
    blocking_flags,
    host_latency_of,
    interval_of,
    isolation_of,
    labels_of,
    latency_of,
    light_of,
    method_of,
    reference_timing_of,
    shown_latency_of,
    timed_by,
)

STATUSES = tuple(map(str, EvaluationStatus))
_HEAD, _TAIL = 1_000, 3_000
_MAX_LOG_CHARACTERS = 3_000_000
_MIN_FRACTION = 0.05  # below, the rounding of the share in a trace moves the roof that follows from it


@attrs.frozen
class Section:
    """One definition on one device, in columns."""

    definition: str
    op_type: str
    description: str
    hardware: str
    entries: tuple[Entry, ...]
    columns: Mapping[str, Any]
    """The data embedded in the page; see `_columns`."""
    sources: Sequence[Mapping[str, Any]]
    """The source code of the reference and the solutions; see `SourcePages.of`."""


@attrs.frozen
class PageData:
    """A data set in columns."""

    name: str
    statuses: Mapping[str, int]
    counts: Mapping[str, int]
    sections: tuple[Section, ...]
    environments: tuple[Mapping[str, Any], ...]
    authors: tuple[tuple[str, float, int], ...]
    authors_note: str
    options: Options


def page_data(trace_set: TraceSet, options: Options, definitions: Collection[str] | None = None) -> PageData:
    """Collect everything that the page shows.

    Raises:
        UnknownName: A definition, or the baseline, is not in the set.
    """
    logs = _Logs(_MAX_LOG_CHARACTERS)
    environments = _Environments()
    pages = SourcePages(trace_set)
    sections = []
    statuses: Counter[str] = Counter()
    for results in group_results(trace_set, options, definitions):
        rows = entries(trace_set, results, options)
        op_type, description = _described(trace_set, results.definition)
        columns = _columns(results, rows, logs, environments)
        sources = pages.of(results.definition, columns["solutions"])
        sections.append(
            Section(results.definition, op_type, description, results.hardware, tuple(rows), columns, sources)
        )
        statuses.update(STATUSES[status] for status in columns["status"])
    check_baseline(trace_set, options, [row for section in sections for row in section.entries])
    authors, note = rank_authors(trace_set, options)
    counts = {
        "definitions": len({section.definition for section in sections}),
        "solutions": len({row.solution for section in sections for row in section.entries}),
        "workloads": sum(len(section.columns["workloads"]) for section in sections),
        "traces": sum(statuses.values()),
    }
    return PageData(
        name=trace_set.root.resolve().name if trace_set.root is not None else "data set",
        statuses=dict(statuses.most_common()),
        counts=counts,
        sections=tuple(sections),
        environments=tuple(environments.to_plain()),
        authors=tuple((author.author, author.speedup, author.workloads) for author in authors),
        authors_note=note,
        options=options,
    )


def _described(trace_set: TraceSet, name: str) -> tuple[str, str]:
    """A definition's op_type and description; empty if its file is missing or invalid."""
    try:
        definition = trace_set.get_definition(name)
    except (KeyError, ValueError):
        return "", ""
    return definition.op_type, definition.description or ""


# -- columns -----------------------------------------------------------------------------------


def _columns(results: DeviceResults, rows: Sequence[Entry], logs: _Logs, environments: _Environments) -> dict[str, Any]:
    """The columns of one section: per workload, per solution, and per trace.

    A trace has one index in each of ``workload``, ``solution``, ``status`` (indices of entries), ``us``, ``speedup``
    (a number, or why there is none), ``low``, ``high`` (the interval), ``host`` (microseconds), ``fraction``, ``log``
    (the index of one of ``logs``), ``cause`` (the index of one of ``causes``, for failures), ``flagged`` (why it is
    not ranked) and ``by`` (the timing method, unless it is ``linked``). An empty column is left out. ``reference`` and
    ``baselines`` have the median latency of the reference and of each baseline for each workload, in microseconds.
    """
    solutions = [row.solution for row in rows]
    uuids = {uuid: index for index, uuid in enumerate(results.workloads)}
    traces = [(s, uuids[u], trace) for s, name in enumerate(solutions) for u, trace in results.traces[name].items()]
    found = [_reading(trace, results) for _, _, trace in traces]
    texts, causes = _Texts(), _Texts()
    per_trace: dict[str, list[Any]] = {
        "workload": [workload for _, workload, _ in traces],
        "solution": [solution for solution, _, _ in traces],
        **{field: [row[index] for row in found] for index, field in enumerate(_READ)},
        "cause": [causes.add(_cause(trace)) for _, _, trace in traces],
        "log": [texts.add(logs.kept(trace.evaluation)) for _, _, trace in traces if trace.evaluation],
    }
    for _, _, trace in traces:
        environments.add(trace.evaluation)
    curves = [[_short(share) for share in results.fast_curve(name)] for name in solutions]
    return {
        "workloads": list(uuids),
        "axes": _axes(results.workloads.values()),
        "solutions": solutions,
        **_work([trace for _, _, trace in traces], uuids),
        **{name: column for name, column in per_trace.items() if any(value is not None for value in column)},
        **_beside([trace for _, _, trace in traces], uuids),
        "logs": texts.all,
        "methods": sorted({m for _, _, t in traces if (m := _method(t)) is not None}),
        "fast": curves if any(map(any, curves)) else [],
        "area": [_short(row.fast_area) for row in rows],
    }


_READ = ("status", "us", "speedup", "low", "high", "host", "fraction", "flagged", "by")


def _reading(trace: Trace, results: DeviceResults) -> tuple[Any, ...]:
    evaluation = trace.evaluation
    assert evaluation is not None
    status = STATUSES.index(evaluation.status)
    performance = evaluation.performance
    if performance is None:
        return status, None, None, None, None, None, None, None, None
    latency = shown_latency_of(evaluation)
    is_measured = latency is not None
    low, high = (interval_of(performance) if is_measured else None) or (None, None)
    host = host_latency_of(performance) if is_measured else None
    numbers = map(_short, (_us(low), _us(high), _us(host), light_of(performance).fraction))
    flagged = dict.fromkeys((*labels_of(evaluation), *blocking_flags(evaluation, results.allow_flags)))
    words = ", ".join(flagged) or None, (timed_by(performance) or None) if is_measured else None
    return status, _short(_us(latency)), _speedup(results, trace), *numbers, *words


def _speedup(results: DeviceResults, trace: Trace) -> float | str | None:
    ratio = results.speedup(trace)
    if ratio.outcome is Outcome.UNKNOWN:
        return None
    return ratio.text if ratio.value is None else _short(ratio.value)


def _cause(trace: Trace) -> str | None:
    return next((failure.cause for failure in group_failures([trace])), None)


def _beside(traces: Iterable[Trace], uuids: Mapping[str, int]) -> dict[str, Any]:
    """The median latency of the reference and of the baselines by workload, over the traces timed beside them."""
    found: dict[str, list[list[float]]] = {}

    def add(name: str, uuid: str, timing: Timing | None) -> None:
        if timing is not None and timing.is_interleaved is not False:
            found.setdefault(name, [[] for _ in uuids])[uuids[uuid]].append(timing.latency_ms)

    for trace in traces:
        if trace.evaluation is None or (performance := trace.evaluation.performance) is None:
            continue
        add("", trace.workload.uuid, reference_timing_of(performance))
        if (baseline := baseline_of(performance)) is not None:
            add(baseline.solution, trace.workload.uuid, baseline.timing)
    medians = {
        name: [_short(_us(statistics.median(values))) if values else None for values in column]
        for name, column in found.items()
    }
    reference = medians.pop("", None)
    return ({"reference": reference} if reference else {}) | ({"baselines": medians} if medians else {})


def _us(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds * 1e3


def _short(number: float | None) -> float | int | None:
    """Four digits."""
    if number is None:
        return None
    short = float(f"{number:.4g}")
    return int(short) if short.is_integer() else short


def _method(trace: Trace) -> str | None:
    performance = trace.evaluation.performance if trace.evaluation else None
    return method_of(performance) if performance else None


def _axes(workloads: Iterable[Workload]) -> dict[str, list[int | None]]:
    known = [workload.axes for workload in workloads]
    return {axis: [axes.get(axis) for axes in known] for axis in dict.fromkeys(name for axes in known for name in axes)}


def _work(traces: Sequence[Trace], uuids: Mapping[str, int]) -> dict[str, Any]:
    """The bytes and operations of each workload and the roof of the device, derived from any solution's trace."""
    moved: list[float | None] = [None] * len(uuids)
    done: list[float | None] = [None] * len(uuids)
    bandwidth = rate = 0.0
    for trace in traces:
        latency, performance = latency_of(trace), trace.evaluation.performance if trace.evaluation else None
        if latency is None or performance is None:
            continue
        light, index = light_of(performance), uuids[trace.workload.uuid]
        moved[index], done[index] = light.bytes or moved[index], light.operations or done[index]
        if light.fraction is not None and light.fraction >= _MIN_FRACTION:
            attainable_s = light.fraction * latency / 1e3
            bandwidth = max(bandwidth, (light.bytes or 0.0) / attainable_s)
            rate = max(rate, (light.operations or 0.0) / attainable_s)
    if not any(moved):
        return {}
    work: dict[str, Any] = {"bytes": list(map(_short, moved)), "bandwidth": _short(bandwidth), "rate": _short(rate)}
    return work | ({"operations": list(map(_short, done))} if any(done) else {})


class _Texts:
    """Texts of one section, each kept once."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._places: dict[str, int] = {}

    def add(self, text: str | None) -> int | None:
        if not text:
            return None
        place = self._places.setdefault(text, len(self.all))
        if place == len(self.all):
            self.all.append(text)
        return place


class _Logs:
    """Shortens logs to a bound on their total size."""

    def __init__(self, characters: int) -> None:
        self._left = characters
        self._seen: set[int] = set()

    def kept(self, evaluation: Evaluation | None) -> str | None:
        """The shortened log of an evaluation that failed."""
        if evaluation is None or evaluation.status is EvaluationStatus.PASSED or not evaluation.log:
            return None
        log = evaluation.log
        if len(log) > _HEAD + _TAIL:
            log = f"{log[:_HEAD]}\n[... {len(log) - _HEAD - _TAIL} characters are left out ...]\n{log[-_TAIL:]}"
        if hash(log) in self._seen:
            return log
        if self._left < len(log):
            return f"{error_line(evaluation)[:200]}\n[the rest is in the trace: this page holds no more logs]"
        self._left -= len(log)
        self._seen.add(hash(log))
        return log


class _Environments:
    """The environments of traces, with the number of traces in each."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._of_record: dict[int, tuple[Any, tuple[Any, ...]]] = {}

    def add(self, evaluation: Evaluation | None) -> None:
        assert evaluation is not None
        environment, isolation, stamp = evaluation.environment, isolation_of(evaluation), evaluation.timestamp
        known = self._of_record.get(id(environment))  # lines of a file share their environments
        if known is None:
            known = environment, (environment.hardware, *sorted(environment.libs.items()))
            self._of_record[id(environment)] = known
        entry = self._found.get((known[1], isolation))
        if entry is None:
            libs = dict(environment.libs)
            entry = {"hardware": environment.hardware, "libs": libs, "isolation": isolation, "traces": 0}
            entry |= {"first": stamp, "last": stamp}
            self._found[known[1], isolation] = entry
        entry["traces"] += 1
        entry["first"], entry["last"] = min(entry["first"], stamp), max(entry["last"], stamp)

    def to_plain(self) -> list[dict[str, Any]]:
        return sorted(self._found.values(), key=lambda entry: -entry["traces"])
