"""Failures of evaluations, grouped by cause: a status and an error line that differ in numbers at most."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import attrs
from fib_schema import EvaluationStatus, Trace

from .results import failure_text

_NUMBER = re.compile(r"[-+]?(?:0x[0-9a-f]+|\d+(?:\.\d+)?(?:e[-+]?\d+)?|\bnan\b|\binf\b)", re.IGNORECASE)
_PLURAL = re.compile(r"(?<=\w)s\b")


@attrs.frozen
class Failure:
    """The failures of one solution that have the same cause."""

    status: str
    text: str
    """The status and the error line of the first one; the line is output of the solution."""
    workloads: tuple[str, ...]
    """The axes of each workload, with its uuid where several have the same."""

    @property
    def cause(self) -> str:
        """The text before its details, without numbers and plurals, which is equal for failures of one cause."""
        return _PLURAL.sub("", _NUMBER.sub("#", self.text.partition(";")[0]))


def group_failures(traces: Iterable[Trace]) -> tuple[Failure, ...]:
    """The failures among the traces of one solution, in order of the first of each cause."""
    traces = list(traces)
    names = Counter(map(_axes_of, traces))
    groups: dict[str, Failure] = {}
    for trace in traces:
        evaluation = trace.evaluation
        if evaluation is None or evaluation.status is EvaluationStatus.PASSED:
            continue
        axes, uuid = _axes_of(trace), trace.workload.uuid
        workload = axes if axes and names[axes] == 1 else f"{axes} ({uuid[:8]})" if axes else uuid
        one = Failure(str(evaluation.status), failure_text(evaluation), (workload,))
        known = groups.get(one.cause)
        groups[one.cause] = one if known is None else attrs.evolve(known, workloads=(*known.workloads, workload))
    return tuple(groups.values())


def _axes_of(trace: Trace) -> str:
    return ", ".join(f"{axis}={size}" for axis, size in trace.workload.axes.items())
