"""Layouts that were measured: which evaluations count for a workload.

Tools that do not know ``extra["layout"]`` measure contiguous inputs, state no layout in the evaluation, and may leave
that of the workload out of the trace. Such a trace says nothing about the workload with its strides. An evaluation
counts for a workload only if it states the workload's layout; rankings, reports and resumed runs leave others out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from .definition import Definition
from .errors import AxisError, InvalidField
from .strides import LAYOUT, measured_strides, stated_strides, workload_strides
from .trace import Evaluation, Trace
from .workload import Workload


class Records(Protocol):
    """The records of a data set, such as a `TraceSet`."""

    @property
    def definitions(self) -> Mapping[str, Definition]:
        """The definitions by name."""

    @property
    def workloads(self) -> Mapping[str, list[Trace]]:
        """The workload traces by the name of their definition."""

    @property
    def traces(self) -> Mapping[str, list[Trace]]:
        """The traces by the name of their definition."""


def has_workload_layout(definition: Definition | None, workload: Workload, evaluation: Evaluation) -> bool:
    """Whether an evaluation states the layout of a workload, and therefore counts for it.

    Args:
        definition: Of the workload; None, where it cannot be read, compares layouts as they are written.
        workload: The workload of the data set, which is more reliable than the copy in a trace.
        evaluation: Of a solution on that workload.
    """
    try:
        if definition is None:
            return stated_strides(evaluation.extra) == stated_strides(workload.extra)
        measured = measured_strides(definition, workload, evaluation.extra)
        return measured == workload_strides(definition, workload)
    except (AxisError, InvalidField):
        return False


def counting_traces(records: Records, definition: str) -> list[Trace]:
    """The traces of a definition that measured the layout of their workload, in the order of the files.

    The workload of the data set with the uuid of a trace decides; the trace's own copy, where there is none.
    """
    stated: dict[str, Workload] = {}
    for trace in records.workloads.get(definition, []):
        stated.setdefault(trace.workload.uuid, trace.workload)
    found: dict[tuple[str, str, str], bool] = {}

    def counts(trace: Trace) -> bool:
        workload, evaluation = stated.get(trace.workload.uuid, trace.workload), trace.evaluation
        if evaluation is None:
            return True
        key = workload.uuid, _layout_text(workload.extra), _layout_text(evaluation.extra)
        if not key[1] and not key[2]:
            return True
        if key not in found:  # many solutions run on one workload
            found[key] = has_workload_layout(records.definitions.get(definition), workload, evaluation)
        return found[key]

    return [trace for trace in records.traces.get(definition, []) if counts(trace)]


def _layout_text(extra: Mapping[str, Any] | None) -> str:
    """The stated layout as text; empty without one."""
    return "" if extra is None or LAYOUT not in extra else repr(extra[LAYOUT])
