"""Problems of a data set that the tracer reports: files that cannot be used, and the listing of the set."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from fib_schema import FibError, Problem, Severity, TraceSet


def errors_of(problems: Iterable[Problem]) -> list[Problem]:
    """The problems that are not warnings."""
    return [problem for problem in problems if problem.severity is Severity.ERROR]


def definition_errors(trace_set: TraceSet) -> list[Problem]:
    """The errors of the listing and of all definitions, which are read; nothing else is."""
    for name in trace_set.definition_names():
        with suppress(FibError):
            trace_set.get_definition(name)
    return errors_of(trace_set.problems)
