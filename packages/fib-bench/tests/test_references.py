"""Tests of references that run as solutions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from fib_bench import BenchmarkConfig
from fib_bench.references import run_references
from fib_schema import Definition, Trace, TraceSet, Workload


@pytest.mark.slow
def test_a_reference_that_raises_is_told_by_workload(
    definition: Definition, make_data_set: Callable[..., Path], make_workload: Callable[..., Workload]
) -> None:
    broken = attrs.evolve(definition, name="broken", reference="def run(x):\n    raise RuntimeError('no luck')\n")
    trace_set = TraceSet.from_path(make_data_set(definitions=[broken]))
    trace_set.add_traces([Trace("broken", make_workload(broken, {"n": 3}, "n-3"))])
    config = BenchmarkConfig(quick=True, timeout_seconds=60)
    assert run_references(trace_set, config, ["double"]) == {"double": ()}
    ((name, (problem,)),) = run_references(trace_set, config, ["broken"]).items()
    assert (name, "no luck" in problem) == ("broken", True)
