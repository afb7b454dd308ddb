"""The HTML page of a report: one file that needs no network, with the leaderboard and a section for each definition.

Numbers keep four digits, which is more than their precision. Logs dominate the size: equal ones are stored
once, of long ones only the beginning and the end, and beyond a bound on all of them only their error line.

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

from .leaderboard import (
    DeviceResults,
    LeaderboardRow,
    Options,
    check_baseline,
    error_line,
    group_failures,
    group_results,
    rank_authors,
    ranked_rows,
)
from .ratios import Outcome, Ratio, labels_of, light_of, timed_by

VEGA_LITE = "6.4"
_STATUSES = tuple(map(str, EvaluationStatus))
_HEAD, _TAIL = 1_000, 3_000
_MAX_LOG_CHARACTERS = 3_000_000
_MAX_SOURCE_CHARACTERS = 2_000_000
_MAX_FILE_CHARACTERS = 60_000
_OTHERS = "other solutions"
_PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f5fc7", "#8c6d31")
"""Source: Okabe and Ito's colours, which most people with a colour vision deficiency tell apart; two added."""
_GREY = "#9a9a9a"
_TRACE_FIELDS = ("status", "us", "speedup", "low", "high", "host", "fraction", "flagged", "by")


@attrs.frozen
class ChartsUnavailable(FibError, ImportError):
    """Charts were requested, and vl-convert is not installed."""

    def __str__(self) -> str:
        return "the page needs vl-convert-python; install it with: pip install 'fib-bench[report]'"


@attrs.frozen
class Page:
    """A page and the number of traces that it shows."""

    html: str
    traces: int


def page_of(
    trace_set: TraceSet, options: Options | None = None, definitions: Collection[str] | None = None, *, note: str = ""
) -> Page:
    """Make the page of a data set.

    Args:
        trace_set: The data set.
        options: What is ranked, and against what.
        definitions: Only these.
        note: Text below the title, such as where the inputs come from.

    Raises:
        UnknownName: A definition, or the baseline, is not in the set.
        ChartsUnavailable: vl-convert is not installed.
    """
    options = options or Options()
    logs, sources = _Logs(), _Sources(trace_set)
    groups = list(group_results(trace_set, options, definitions))
    rows = [ranked_rows(trace_set, results, options) for results in groups]
    check_baseline(trace_set, options, [row for group in rows for row in group])
    columns = [_columns(results, group, logs) for results, group in zip(groups, rows, strict=True)]
    name = trace_set.root.resolve().name if trace_set.root is not None else "data set"
    overview = _overview(trace_set, options, groups, rows, columns) | {"name": name, "note": note}
    blocks: dict[str, Mapping[str, Any]] = {"digest": overview}
    blocks |= {f"section-{index}": section for index, section in enumerate(columns)}
    blocks |= {
        f"sources-{index}": {"all": sources.of(results.definition, columns[index]["solutions"])}
        for index, results in enumerate(groups)
    }
    return Page(_fill(name, blocks), overview["counts"]["traces"])


def _overview(
    trace_set: TraceSet,
    options: Options,
    groups: Sequence[DeviceResults],
    rows: Sequence[Sequence[LeaderboardRow]],
    columns: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The part of the page that is visible before a section is opened."""
    statuses = Counter(_STATUSES[status] for section in columns for status in section["status"])
    authors, authors_note = rank_authors(trace_set, options)
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
        "authors": [(author.author, author.speedup, author.workloads) for author in authors],
        "authorsNote": authors_note,
        "baselineAuthor": options.baseline_author,
        "sections": [
            [results.definition, *_described(trace_set, results.definition), results.hardware, len(results.workloads)]
            for results in groups
        ],
        "leaders": [_leader(index, row) for index, group in enumerate(rows) for row in group],
        "baselines": sorted({row.baseline for row in everything if row.baseline is not None}),
        "statusNames": _STATUSES,
        "specs": {"latency": _LATENCY_CHART},
        "harness": installed_version("fib-bench"),
        "methods": sorted({method for section in columns for method in section["methods"]}),
        "palette": _PALETTE,
        "grey": _GREY,
        "others": _OTHERS,
    }


def _described(trace_set: TraceSet, name: str) -> tuple[str, str]:
    """A definition's op_type and description; empty if its file is missing or invalid."""
    try:
        definition = trace_set.get_definition(name)
    except (KeyError, ValueError):
        return "", ""
    return definition.op_type, definition.description or ""


def _leader(section: int, row: LeaderboardRow) -> dict[str, Any]:
    low, high = row.latency_ms or (None, None)
    return {
        "section": section,
        **{name: getattr(row, name) for name in ("solution", "author", "language", "passed", "total", "labels")},
        "speedup": _number_or_text(row.speedup),
        "said": row.speedup.text,
        "baseline": _number_or_text(row.baseline_speedup),
        "fast": _short(row.fast_1) if row.is_ranked else None,
        "fraction": _short(row.attainable_fraction),
        "low": _short(low),
        "high": _short(high),
        "problem": row.problem[:400],
        "ranked": row.is_ranked,
        "by": ", ".join(row.timed_by),
    }


def _number_or_text(ratio: Ratio) -> float | str | None:
    """A ratio for the page: the number, or why there is none; None if it is unknown."""
    if ratio.outcome is Outcome.UNKNOWN:
        return None
    return ratio.text if ratio.value is None else _short(ratio.value)


def _short(number: float | None) -> float | int | None:
    """Four digits; None if JSON cannot express the number."""
    if number is None or not 0 <= number < float("inf"):
        return None
    short = float(f"{number:.4g}")
    return int(short) if short.is_integer() else short


def _us(milliseconds: float | None) -> float | int | None:
    return None if milliseconds is None else _short(milliseconds * 1e3)


def _environments(groups: Iterable[DeviceResults]) -> list[dict[str, Any]]:
    """The environments of traces, with the number of traces in each."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    traces = (trace for results in groups for group in results.traces.values() for trace in group.values())
    for evaluation in (trace.evaluation for trace in traces if trace.evaluation):
        hardware, libs, stamp = evaluation.environment.hardware, evaluation.environment.libs, evaluation.timestamp
        level = extra_group(evaluation.extra, "isolation").get("level")
        isolation = None if level is None else str(level)
        entry = found.setdefault(
            (hardware, isolation, *sorted(libs.items())),
            {
                "hardware": hardware,
                "libs": dict(libs),
                "isolation": isolation,
                "traces": 0,
                "first": stamp,
                "last": stamp,
            },
        )
        entry["traces"] += 1
        entry["first"], entry["last"] = min(entry["first"], stamp), max(entry["last"], stamp)
    return sorted(found.values(), key=lambda entry: -entry["traces"])


# -- sections ----------------------------------------------------------------------------------


def _columns(results: DeviceResults, rows: Sequence[LeaderboardRow], logs: _Logs) -> dict[str, Any]:
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
        **{field: [row[index] for row in found] for index, field in enumerate(_TRACE_FIELDS)},
        "cause": [causes.add(next((f.cause for f in group_failures([trace])), None)) for _, _, trace in traces],
        "log": [texts.add(logs.kept(trace.evaluation)) for _, _, trace in traces if trace.evaluation],
    }
    known = [workload.axes for workload in results.workloads.values()]
    axes = dict.fromkeys(name for sizes in known for name in sizes)
    return {
        "workloads": list(uuids),
        "axes": {axis: [sizes.get(axis) for sizes in known] for axis in axes},
        "solutions": solutions,
        **{name: column for name, column in per_trace.items() if any(value is not None for value in column)},
        **_beside([trace for _, _, trace in traces], uuids),
        "logs": texts.all,
        "methods": sorted({method for _, _, trace in traces if (method := _method(trace)) is not None}),
    }


def _reading(trace: Trace, results: DeviceResults) -> tuple[Any, ...]:
    """The fields of `_TRACE_FIELDS`."""
    evaluation = trace.evaluation
    assert evaluation is not None
    status, performance = _STATUSES.index(evaluation.status), evaluation.performance
    if performance is None:
        return status, *[None] * (len(_TRACE_FIELDS) - 1)
    latency = shown_latency_of(evaluation)
    timing = None if latency is None else timing_of(performance)
    low, high = (None if timing is None else timing.interval_ms) or (None, None)
    host = None if timing is None else timing.host_latency_ms
    speedup = _number_or_text(results.speedup(trace))
    flagged = dict.fromkeys((*labels_of(evaluation), *disqualifying_flags(evaluation, results.allow_flags)))
    words = ", ".join(flagged) or None, (timed_by(performance) or None) if timing is not None else None
    return status, _us(latency), speedup, _us(low), _us(high), _us(host), _short(light_of(performance)), *words


def _beside(traces: Iterable[Trace], uuids: Mapping[str, int]) -> dict[str, Any]:
    """The median latency of the reference and of the baselines by workload, over the traces timed beside them."""
    found: dict[str, list[list[float]]] = {}
    for trace in traces:
        if trace.evaluation is None or (performance := trace.evaluation.performance) is None:
            continue
        baseline = baseline_of(performance)
        timings = {"": reference_timing_of(performance)}
        timings |= {} if baseline is None else {baseline.solution: baseline.timing}
        for name, timing in timings.items():
            if timing is not None and timing.is_interleaved is not False:
                column = found.setdefault(name, [[] for _ in uuids])
                column[uuids[trace.workload.uuid]].append(timing.latency_ms)
    medians = {
        name: [_us(statistics.median(values)) if values else None for values in column]
        for name, column in found.items()
    }
    reference = medians.pop("", None)
    return ({"reference": reference} if reference else {}) | ({"baselines": medians} if medians else {})


def _method(trace: Trace) -> str | None:
    performance = trace.evaluation.performance if trace.evaluation else None
    timing = timing_of(performance) if performance else None
    return None if timing is None else timing.method


class _Texts:
    """Texts of one section, each kept once."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._places: dict[str, int] = {}

    def add(self, text: str | None) -> int | None:
        """Keep a text; returns its index."""
        if not text:
            return None
        place = self._places.setdefault(text, len(self.all))
        if place == len(self.all):
            self.all.append(text)
        return place


class _Logs:
    """Shortens logs to a bound on their total size."""

    def __init__(self) -> None:
        self._left = _MAX_LOG_CHARACTERS
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


# -- source code -------------------------------------------------------------------------------


class _Sources:
    """Source code of a data set, up to a total size."""

    def __init__(self, trace_set: TraceSet) -> None:
        self._trace_set = trace_set
        self._left = _MAX_SOURCE_CHARACTERS

    def of(self, definition: str, solutions: Iterable[str]) -> list[dict[str, Any]]:
        """The reference of a definition and the files of its solutions: a name, the language, paths with texts.

        Records that are missing or invalid are left out.
        """
        return list(filter(None, [self._reference(definition), *map(self._solution, solutions)]))

    def _reference(self, name: str) -> dict[str, Any] | None:
        try:
            definition = self._trace_set.get_definition(name)
        except (KeyError, FibError):
            return None
        files = [["reference.py", self._kept(definition.reference)]]
        return {"name": "reference", "language": "python", "files": files}

    def _solution(self, name: str) -> dict[str, Any] | None:
        try:
            solution = self._trace_set.get_solution(name)
        except FibError:
            return None
        if solution is None:
            return None
        files = [[file.path, self._kept(file.content)] for file in solution.sources]
        return {"name": name, "language": str(solution.spec.language), "files": files}

    def _kept(self, text: str) -> str:
        kept = text[:_MAX_FILE_CHARACTERS]
        if self._left < len(kept):
            return "[left out: this page holds no more source code]"
        self._left -= len(kept)
        return kept if kept == text else f"{kept}\n[... {len(text) - len(kept)} characters are left out]"


# -- the file ----------------------------------------------------------------------------------


def _fill(title: str, blocks: Mapping[str, Mapping[str, Any]]) -> str:
    """Fill the template with data and scripts."""
    script = f"(() => {{\n{_asset('page.js')}\n}})();"  # Vega's script has globals of its own
    scripts = [_closed(_vega()), _closed(script)]
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
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


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


@functools.cache
def _vega() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script that needs no network."""
    try:
        vl_convert: Any = importlib.import_module("vl_convert")
    except ImportError as error:
        raise ChartsUnavailable from error
    script: str = vl_convert.javascript_bundle(vl_version=VEGA_LITE)
    return script


# -- the chart ---------------------------------------------------------------------------------


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
