"""Tables of traces for notebooks, as HTML or as a frame of pandas.

All text is escaped, because solutions write names and logs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from .definition import Definition
from .display import MAX_LOG, counted, details, format_latency, table, title
from .errors import FibError
from .trace import Evaluation, Trace
from .trace_facts import extra_group

if TYPE_CHECKING:
    import pandas

_MAX_ROWS = 100
"""Rows of a table in a notebook; `traces_frame` has all."""
_COLUMNS = ("definition", "workload", "sizes", "solution", "status", "latency", "speedup", "flags")


@attrs.frozen
class PandasMissing(FibError, ImportError):
    """A frame was asked for, and pandas is not installed."""

    def __str__(self) -> str:
        return "to_frame needs pandas: pip install 'fib-schema[pandas]'"


def traces_html(traces: Sequence[Trace], cells: Callable[[Trace], Sequence[str]] | None = None) -> str:
    """HTML of a table of traces, and the logs of those that did not pass.

    Args:
        traces: One in a row.
        cells: The texts of a row; `trace_cells` by default.
    """
    shown = traces[:_MAX_ROWS]
    more = f"<p>{len(traces) - _MAX_ROWS} more; to_frame() has all</p>" if len(traces) > _MAX_ROWS else ""
    return table(_COLUMNS, map(cells or trace_cells, shown)) + more + "".join(map(_log, shown))


def trace_cells(trace: Trace) -> tuple[str, ...]:
    """The cells of a trace in a table: definition, workload, sizes, solution, status, latency, speedup, flags."""
    sizes = ", ".join(f"{axis}={size}" for axis, size in trace.workload.axes.items())
    head = (trace.definition, trace.workload.uuid, sizes, trace.solution or "")
    evaluation = trace.evaluation
    if evaluation is None:
        return (*head, "", "", "", "")
    numbers = ("", "")
    if (performance := evaluation.performance) is not None:
        numbers = (format_latency(performance.latency_ms), f"{performance.speedup_factor:.2f}x")
    return (*head, str(evaluation.status), *numbers, ", ".join(evaluation.flags))


def data_set_html(name: str, definitions: Mapping[str, Definition], solutions: Mapping[str, int]) -> str:
    """HTML of a table of a data set's definitions.

    Args:
        name: The title.
        definitions: The definitions by name; only those that are shown are read.
        solutions: The number of solutions by name of the definition.
    """
    shown = ((each, definitions.get(each)) for each in [*solutions][:_MAX_ROWS])
    rows = [(each, definition.op_type, solutions[each]) for each, definition in shown if definition is not None]
    more = f"<p>{counted(len(solutions) - _MAX_ROWS, 'more definition')}</p>" if len(solutions) > _MAX_ROWS else ""
    return title(name) + table(("definition", "op_type", "solutions"), rows) + more


def traces_frame(traces: Iterable[Trace]) -> pandas.DataFrame:
    """A frame with a row for each trace; sizes are columns ``axes.NAME``.

    Raises:
        PandasMissing: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise PandasMissing from error
    return pandas.DataFrame([_row(trace) for trace in traces])


def _log(trace: Trace) -> str:
    evaluation = trace.evaluation
    if evaluation is None or evaluation.performance is not None or not evaluation.log:
        return ""
    text = f"{trace.solution} on {trace.workload.uuid}: log (untrusted output of the solution)"
    return details(text, evaluation.log[:MAX_LOG], is_open=True)


def _row(trace: Trace) -> dict[str, object]:
    row: dict[str, object] = {
        "definition": trace.definition,
        "workload": trace.workload.uuid,
        "solution": trace.solution,
        **dict.fromkeys(("status", "latency_ms", "interval_low_ms", "interval_high_ms", "reference_latency_ms")),
        **dict.fromkeys(("speedup", "max_absolute_error", "max_relative_error", "hardware", "timestamp", "flags")),
    }
    if (evaluation := trace.evaluation) is not None:
        row |= {"status": str(evaluation.status), "hardware": evaluation.environment.hardware}
        row |= {"timestamp": evaluation.timestamp, "flags": ", ".join(evaluation.flags)}
        row |= _numbers(evaluation)
    return row | {f"axes.{axis}": size for axis, size in trace.workload.axes.items()}


def _numbers(evaluation: Evaluation) -> dict[str, object]:
    found: dict[str, object] = {}
    if (correctness := evaluation.correctness) is not None:
        found["max_absolute_error"] = correctness.max_absolute_error
        found["max_relative_error"] = correctness.max_relative_error
    if (performance := evaluation.performance) is not None:
        found["latency_ms"] = performance.latency_ms
        found["reference_latency_ms"] = performance.reference_latency_ms
        found["speedup"] = performance.speedup_factor
        found["interval_low_ms"], found["interval_high_ms"] = _interval(performance.extra)
    return found


def _interval(extra: Mapping[str, Any] | None) -> tuple[object, object]:
    """The interval of the latency; other tools may write anything there."""
    interval = extra_group(extra, "timing").get("interval_ms")
    if isinstance(interval, list | tuple) and len(interval) == 2:
        low, high = interval
        if isinstance(low, int | float) and isinstance(high, int | float):
            return low, high
    return None, None
