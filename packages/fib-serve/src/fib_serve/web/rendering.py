"""Rendering of pages: templates with escaping, highlighted sources, and the chart of records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import jinja2
from fib_bench.report.ratios import bounds_of, latency_range, latency_with_bounds, speedup_of
from fib_schema import Trace
from fib_schema.display import escape_controls
from fib_schema.trace_facts import shown_latency_of
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound

from ..queue.submission import Submission

_MAX_SOURCE = 60_000
_MAX_LOG = 20_000
_WIDTH, _HEIGHT, _LEFT, _MARGIN = 720, 240, 96, 16


def make_environment() -> jinja2.Environment:
    """The templates; whatever they insert is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        finalize=_visible,
    )
    environment.filters["time"] = _format_time
    environment.filters["latency"] = _format_latency
    environment.filters["code"] = _with_code
    environment.filters["breakable"] = _with_breaks
    return environment


def highlighted(path: str, text: str) -> Markup:
    """A source file with highlighting; a long one is cut."""
    kept = escape_controls(text[:_MAX_SOURCE])
    try:
        lexer = get_lexer_for_filename(path, stripnl=False)
    except ClassNotFound:
        lexer = TextLexer(stripnl=False)
    html = highlight(kept, lexer, HtmlFormatter(nowrap=True))  # escapes the text
    return Markup('<pre tabindex="0">{}{}</pre>').format(Markup(html), _rest_of(text, _MAX_SOURCE))


def _rest_of(text: str, shown: int) -> str:
    """A line that says how much of a text is not shown; empty if all of it is."""
    return f"\n[{len(text) - shown} more characters]" if len(text) > shown else ""


@attrs.frozen
class WorkloadRow:
    """A line of the table of workloads."""

    axes: str
    status: str
    latency: str
    speedup: str
    log: str


def workload_row(trace: Trace) -> WorkloadRow:
    """The line for a trace."""
    evaluation = trace.evaluation
    assert evaluation is not None
    performance, latency = evaluation.performance, shown_latency_of(evaluation)
    sizes = ", ".join(f"{axis}={size}" for axis, size in trace.workload.axes.items())
    is_timed = performance is not None and latency is not None
    return WorkloadRow(
        axes=sizes or trace.workload.uuid,
        status=str(evaluation.status),
        latency=latency_with_bounds(latency, bounds_of(performance)) if is_timed else "-",  # type: ignore[arg-type]
        speedup=speedup_of(performance).text if performance is not None else "-",
        log=evaluation.log[:_MAX_LOG] + _rest_of(evaluation.log, _MAX_LOG),
    )


@attrs.frozen
class Chart:
    """Coordinates of the chart of records."""

    points: str
    dots: tuple[tuple[float, float], ...]
    lines: tuple[tuple[float, str], ...]
    """Heights with their labels."""
    width: int = _WIDTH
    height: int = _HEIGHT


def chart_of(records: Sequence[Submission]) -> Chart | None:
    """A step line of the best score over time; None without two records."""
    scores = [each.score for each in records if each.score is not None]
    if len(scores) < 2:
        return None
    low, high = min(scores), max(scores)
    begin, end = records[0].created_at, records[-1].created_at

    def x_of(time: float) -> float:
        share = (time - begin) / (end - begin) if end > begin else 0.5
        return round(_LEFT + share * (_WIDTH - _LEFT - _MARGIN), 1)

    def y_of(score: float) -> float:
        share = (score - low) / (high - low) if high > low else 0.5
        return round(_HEIGHT - _MARGIN - share * (_HEIGHT - 2 * _MARGIN), 1)

    dots = tuple((x_of(each.created_at), y_of(score)) for each, score in zip(records, scores, strict=True))
    steps = [dots[0]]
    for before, dot in pairwise(dots):
        steps += [(dot[0], before[1]), dot]
    lines = tuple((y_of(score), f"{score:.2f}x") for score in (low, (low + high) / 2, high))
    return Chart(" ".join(f"{x},{y}" for x, y in steps), dots, lines)


def _visible(value: object) -> object:
    """A value for a template, its control characters escaped."""
    return escape_controls(value) if type(value) is str else value


def _format_time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _with_breaks(name: str) -> Markup:
    """A name that may continue on the next line behind each underscore."""
    return Markup("_<wbr>").join(escape_controls(name).split("_"))


def _with_code(text: str) -> Markup:
    """A sentence of a docstring, with the names between backticks as code."""
    parts = re.split("`+", text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if index % 2 else part for index, part in enumerate(parts)
    )


def _format_latency(submission: Submission) -> str:
    part: dict[str, Any] = (submission.summary or {}).get("public") or {}
    bounds = part.get("latency_ms")
    return latency_range(tuple(bounds)) if bounds else "-"
