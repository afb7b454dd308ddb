"""The HTML page of a report: one file that needs no network, with the leaderboard and a section for each definition.

Numbers keep four digits, which is more than their precision. Logs dominate the size: of long ones only the beginning
and the end are kept, and equal ones of a definition once.

Text of solutions is data and never markup: it is stored in JSON blocks without ``<``, and the script inserts it as
text nodes, logs under a heading that marks them as untrusted. A content security policy allows only the page's own
scripts, and no loading.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import importlib
import json
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import Any

import attrs
from fib_schema import Evaluation, EvaluationStatus, FibError, Trace, TraceSet
from fib_schema.display import escape_line, escape_values, finite_values
from fib_schema.package_init import installed_version
from fib_schema.trace_facts import (
    baseline_of,
    disqualifying_flags,
    extra_group,
    reference_timing_of,
    shown_latency_of,
    timing_of,
)

from .leaderboard import DeviceResults, LeaderboardRow, group_failures, group_results, ranked_rows
from .ratios import Ratio, call_of, labels_of, light_of, timed_by

VEGA_LITE = "6.4"
_STATUSES = tuple(map(str, EvaluationStatus))
_LOG_ENDS = 500, 1_500
"""Characters that are kept of the beginning and the end."""
_OTHERS = "other solutions"
_PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f5fc7", "#8c6d31")
"""Source: Okabe and Ito's colours, which most people with a colour vision deficiency tell apart; two added."""
_GREY = "#9a9a9a"


@attrs.frozen
class ChartsUnavailable(FibError, ImportError):
    """Charts were requested, and vl-convert is not installed."""

    def __str__(self) -> str:
        return "the page needs vl-convert-python; install it with: pip install 'fib-bench[report]'"


def page_of(trace_set: TraceSet, allow_flags: Collection[str] = (), *, note: str = "") -> str:
    """The page of a data set, with a note below the title; `ChartsUnavailable` if vl-convert is not installed."""
    groups = list(group_results(trace_set, allow_flags))
    rows = [ranked_rows(trace_set, results) for results in groups]
    columns = [_columns(results, group) for results, group in zip(groups, rows, strict=True)]
    name = trace_set.root.resolve().name if trace_set.root is not None else "data set"
    overview = _overview(trace_set, groups, rows, columns) | {"name": name, "note": note}
    blocks = {"digest": overview, **{f"section-{index}": section for index, section in enumerate(columns)}}
    return _fill(name, blocks)


def _overview(
    trace_set: TraceSet,
    groups: Sequence[DeviceResults],
    rows: Sequence[Sequence[LeaderboardRow]],
    columns: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    statuses = Counter(_STATUSES[status] for section in columns for status in section["status"])
    everything = [row for group in rows for row in group]
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "counts": {
            "definitions": len({results.definition for results in groups}),
            "solutions": len({row.solution for row in everything}),
            "workloads": sum(len(results.workloads) for results in groups),
            "traces": sum(statuses.values()),
        },
        "statuses": dict(statuses.most_common()),
        "environments": _environments(groups),
        "sections": [
            [results.definition, *_described(trace_set, results.definition), results.hardware, len(results.workloads)]
            for results in groups
        ],
        "leaders": [_leader(index, row) for index, group in enumerate(rows) for row in group],
        "baselines": sorted({row.baseline for row in everything if row.baseline is not None}),
        "statusNames": _STATUSES,
        "specs": {"latency": _LATENCY_CHART},
        "harness": installed_version("fib-bench"),
        "palette": _PALETTE,
        "grey": _GREY,
        "others": _OTHERS,
    }


def _described(trace_set: TraceSet, name: str) -> tuple[str, str]:
    try:
        definition = trace_set.get_definition(name)
    except FibError:
        return "", ""
    return definition.op_type, definition.description or ""


def _leader(section: int, row: LeaderboardRow) -> dict[str, Any]:
    (low, high), calls = row.latency_ms or (None, None), row.call_ms or (None, None)
    return {
        "section": section,
        **{name: getattr(row, name) for name in ("solution", "author", "language", "passed", "total", "labels")},
        "speedup": _short(row.speedup.point),
        "said": row.speedup.text,
        "baseline": _number_or_text(row.baseline_speedup),
        "fast": _short(row.fast_1) if row.is_ranked else None,
        "fraction": _short(row.attainable_fraction),
        "low": _short(low),
        "high": _short(high),
        "call": _short(calls[0]),
        "longest_call": _short(calls[1]),
        "problem": row.problem[:400],
        "ranked": row.is_ranked,
        "by": ", ".join(row.timed_by),
    }


def _number_or_text(ratio: Ratio) -> float | str | None:
    """A ratio for the page: the number, or with a mark its text; None if it is unknown."""
    return ratio.text if ratio.mark else _short(ratio.point)


def _short(number: float | None) -> float | int | None:
    """Four digits; None if JSON cannot express the number."""
    if number is None or not 0 <= number < float("inf"):
        return None
    short = float(f"{number:.4g}")
    return int(short) if short.is_integer() else short


def _us(milliseconds: float | None) -> float | int | None:
    return None if milliseconds is None else _short(milliseconds * 1e3)


def _environments(groups: Iterable[DeviceResults]) -> list[dict[str, Any]]:
    found: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
    for evaluation in (t.evaluation for group in groups for traces in group.traces.values() for t in traces.values()):
        if evaluation is not None:
            level = extra_group(evaluation.extra, "isolation").get("level")
            facts = {**evaluation.environment.libs, "isolation": "" if level is None else str(level)}
            found[evaluation.environment.hardware, tuple(sorted(facts.items()))] += 1
    return [{"hardware": name, "libs": dict(facts), "traces": n} for (name, facts), n in found.most_common()]


def _log_of(evaluation: Evaluation | None) -> str:
    if evaluation is None or evaluation.status is EvaluationStatus.PASSED:
        return ""
    text, (head, tail) = evaluation.log, _LOG_ENDS
    cut = len(text) - head - tail
    return text if cut <= 0 else f"{text[:head]}\n[... {cut} characters are left out ...]\n{text[-tail:]}"


def _columns(results: DeviceResults, rows: Sequence[LeaderboardRow]) -> dict[str, Any]:
    """The columns of one section: per workload, per solution, and per trace.

    A trace has one index in each of ``workload``, ``solution``, ``log`` (one of ``logs``), ``cause`` (equal for
    failures of one cause), and the fields of `_reading`. An empty column is left out. ``reference`` and ``baselines``
    have the median latency of the reference and of each baseline for each workload, in microseconds.
    """
    solutions = [row.solution for row in rows]
    uuids = {uuid: index for index, uuid in enumerate(results.workloads)}
    traces = [(s, uuids[u], trace) for s, name in enumerate(solutions) for u, trace in results.traces[name].items()]
    texts: dict[str, int] = {}
    causes: dict[str, int] = {}
    readings = []
    for solution, workload, trace in traces:
        reading = {"workload": workload, "solution": solution, **_reading(trace, results)}
        for failure in group_failures([trace]):
            reading["cause"] = causes.setdefault(failure.cause, len(causes))
        if log := _log_of(trace.evaluation):
            reading["log"] = texts.setdefault(log, len(texts))
        readings.append(reading)
    known = [workload.axes for workload in results.workloads.values()]
    axes = dict.fromkeys(name for sizes in known for name in sizes)
    names = dict.fromkeys(name for reading in readings for name, value in reading.items() if value is not None)
    return {
        "workloads": list(uuids),
        "axes": {axis: [sizes.get(axis) for sizes in known] for axis in axes},
        "solutions": solutions,
        **{name: [reading.get(name) for reading in readings] for name in names},
        **_beside([trace for _, _, trace in traces], uuids),
        "logs": list(texts),
    }


def _reading(trace: Trace, results: DeviceResults) -> dict[str, Any]:
    """The fields of a trace: microseconds with their interval and of the call, why it is not ranked, and so on."""
    evaluation = trace.evaluation
    assert evaluation is not None
    status = {"status": _STATUSES.index(evaluation.status)}
    if (performance := evaluation.performance) is None:
        return status
    latency = shown_latency_of(evaluation)
    timing = None if latency is None else timing_of(performance)
    low, high = (None if timing is None else timing.interval_ms) or (None, None)
    flagged = dict.fromkeys((*labels_of(evaluation), *disqualifying_flags(evaluation, results.allow_flags)))
    return {
        **status,
        "us": _us(latency),
        "speedup": _number_or_text(results.speedup(trace)),
        "low": _us(low),
        "high": _us(high),
        "call": None if timing is None else _us(call_of(performance)),
        "fraction": _short(light_of(performance)),
        "flagged": ", ".join(flagged) or None,
        "by": None if timing is None else timed_by(performance) or None,
    }


def _beside(traces: Iterable[Trace], uuids: Mapping[str, int]) -> dict[str, Any]:
    found: dict[str, list[list[float]]] = {}
    for trace in traces:
        if trace.evaluation is None or (performance := trace.evaluation.performance) is None:
            continue
        baseline = baseline_of(performance)
        timings = {"": reference_timing_of(performance)}
        timings |= {} if baseline is None else {baseline.solution: baseline.timing}
        for name, timing in timings.items():
            if timing is not None:
                column = found.setdefault(name, [[] for _ in uuids])
                column[uuids[trace.workload.uuid]].append(timing.latency_ms)
    medians = {
        name: [_us(statistics.median(values)) if values else None for values in column]
        for name, column in found.items()
    }
    reference = medians.pop("", None)
    return ({"reference": reference} if reference else {}) | ({"baselines": medians} if medians else {})


def _fill(title: str, blocks: Mapping[str, Mapping[str, Any]]) -> str:
    script = f"(() => {{\n{_asset('page.js')}\n}})();"  # Vega's script has globals of its own
    scripts = [_closed(_vega()), _closed(script)]
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    parts = {
        "policy": f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'",
        "title": html.escape(escape_line(title)),
        "style": _asset("page.css"),
        "blocks": "\n".join(_json_block(key, value) for key, value in blocks.items()),
        "vega": scripts[0],
        "script": scripts[1],
    }
    pieces = _asset("page.html").split("%%")  # one pass: inserted text is not searched for markers
    return "".join(parts[piece] if index % 2 else piece for index, piece in enumerate(pieces))


def _json_block(name: str, value: Mapping[str, Any]) -> str:
    """Data as an element that a script reads; no character of it is markup."""
    # in ASCII, so no separator of lines is in it
    text = json.dumps(finite_values(escape_values(value)), separators=(",", ":"), allow_nan=False)
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return f'<script type="application/json" id="{name}">{text}</script>'


def _closed(script: str) -> str:
    """A script that cannot close its own element."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


@functools.cache
def _vega() -> str:
    try:
        vl_convert: Any = importlib.import_module("vl_convert")
    except ImportError as error:
        raise ChartsUnavailable from error
    script: str = vl_convert.javascript_bundle(vl_version=VEGA_LITE)
    return script


def _log_scale(field: str, title: str | None, *, base: int = 10, **axis: object) -> dict[str, Any]:
    scale = {"type": "log", "base": base, "nice": False, "padding": 12}
    return {"field": field, "type": "quantitative", "scale": scale, "title": title, "axis": axis}


def _layer(mark: Mapping[str, Any], encoding: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"mark": mark, "encoding": encoding, **more}


def _tooltip(*fields: str) -> list[dict[str, str]]:
    return [{"field": field, "type": "nominal"} for field in fields]


_MANTISSA = "round(datum.value / pow(10, floor(log(datum.value) / LN10 + 1e-9)))"
_LABELS = (  # a logarithmic axis has a tick for every digit
    f"indexof([1, 2, 5], {_MANTISSA}) < 0 ? '' : datum.value >= 1e6 ? format(datum.value / 1e6, '~g') + ' s' : "
    "datum.value >= 1e3 ? format(datum.value / 1e3, '~g') + ' ms' : format(datum.value, '~g') + ' µs'"
)
_SOLUTION = {"field": "solution", "type": "nominal"}
_MEDIAN = {"field": "us", "type": "quantitative", "aggregate": "median"}
_LATENCY_CHART: Mapping[str, Any] = {
    "data": {"name": "points"},
    "height": 300,
    "encoding": {
        "x": _log_scale("x", None, base=2, format=",~r", grid=False),
        "color": {"field": "k", "type": "nominal", "scale": {"domain": [], "range": []}, "legend": None},
        "opacity": {"condition": {"test": f"datum.k === '{_OTHERS}'", "value": 0.35}, "value": 0.9},
    },
    "layer": [
        _layer(
            {"type": "line", "strokeWidth": 1.75},
            {"y": {**_log_scale("us", "latency", labelExpr=_LABELS), "aggregate": "median"}, "detail": _SOLUTION},
        ),
        _layer(
            {"type": "rule", "strokeWidth": 1.5},
            {"y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}},
            name="intervals",
            transform=[{"filter": "isValid(datum.low)"}],
        ),
        _layer(
            {"type": "point", "filled": True, "size": 34},
            {
                "y": {"field": "us", "type": "quantitative"},
                "tooltip": _tooltip("solution", "latency", "interval", "speedup", "axes", "workload"),
            },
        ),
        _layer(
            {"type": "line", "strokeWidth": 1.5, "point": {"size": 24, "color": _GREY}},
            {
                "y": _MEDIAN,
                "detail": _SOLUTION,
                "color": {"value": _GREY},
                "opacity": {"value": 1},
                "strokeDash": {
                    "condition": {"test": "datum.solution === 'reference'", "value": [6, 3]},
                    "value": [2, 3],
                },
                "tooltip": _tooltip("solution"),
            },
            data={"name": "references"},
        ),
    ],
}
"""Latency against an axis, as a Vega-Lite specification. The page patches width, colours, titles and the scale of x,
and adds the points: x (the axis), us, low, high, solution, words for the tooltip, and k, which is the solution's name
if it has a colour, else `_OTHERS`."""
