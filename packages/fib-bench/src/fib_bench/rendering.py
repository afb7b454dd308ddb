"""Results of a run as text and as HTML: a table of evaluations, logs of failures, and skipped work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from fib_schema import Trace
from fib_schema.display import escape_controls, escape_line
from fib_schema.html_parts import paragraph
from fib_schema.notebook import trace_cells, traces_html

from .plan import Skip
from .report.ratios import bounds_of, latency_with_bounds, speedup_of

_COLUMNS = ("definition", "workload", "sizes", "solution", "status", "latency", "speedup", "flags")
_MAX_LOG_LINES = 20


def result_text(traces: Sequence[Trace], skipped: Sequence[Skip]) -> str:
    """The table, then each log of a failure once, then the skipped work."""
    return "\n".join([*_table(traces), *_failures(traces), *(f"skipped {escape_line(str(skip))}" for skip in skipped)])


def result_html(traces: Sequence[Trace], skipped: Sequence[Skip]) -> str:
    """The results of a run as HTML for a notebook."""
    return traces_html(traces, _cells) + "".join(paragraph(f"skipped {skip}") for skip in skipped)


def result_summary(traces: Sequence[Trace], skipped: Sequence[Skip]) -> str:
    """The number of traces by status, and of skipped work, in one line."""
    counts = Counter(str(trace.evaluation.status) for trace in traces if trace.evaluation is not None)
    shown = ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "no traces"
    return f"{shown}; {len(skipped)} skipped"


def _cells(trace: Trace) -> tuple[str, ...]:
    """The cells of `trace_cells`, with intervals, and `noise` or `imprecise` in place of unclear speedups."""
    *head, latency, speedup, flags = trace_cells(trace)
    performance = trace.evaluation.performance if trace.evaluation is not None else None
    if performance is not None:
        latency = latency_with_bounds(performance.latency_ms, bounds_of(performance))
        speedup = speedup_of(performance).text
    return (*head, latency, speedup, flags)


def _table(traces: Sequence[Trace]) -> Iterator[str]:
    """Lines with columns of equal width; columns without values are left out."""
    rows = [[escape_line(cell) for cell in _cells(trace)] for trace in traces]
    used = [index for index in range(len(_COLUMNS)) if any(row[index] for row in rows)]
    lines = [[_COLUMNS[index] for index in used], *([row[index] for index in used] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(used))]
    for line in lines if rows else []:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _failures(traces: Sequence[Trace]) -> Iterator[str]:
    seen = set()
    for trace in traces:
        evaluation = trace.evaluation
        if evaluation is None or evaluation.performance is not None or (trace.solution, evaluation.log) in seen:
            continue
        seen.add((trace.solution, evaluation.log))
        lines = escape_controls(evaluation.log).splitlines()
        yield ""
        yield escape_line(f"{trace.solution} on {trace.workload.uuid}: {evaluation.status}; log (untrusted output):")
        yield from (f"  {line}" for line in lines[:_MAX_LOG_LINES])
        if len(lines) > _MAX_LOG_LINES:
            yield f"  ... {len(lines) - _MAX_LOG_LINES} more lines in evaluation.log"
