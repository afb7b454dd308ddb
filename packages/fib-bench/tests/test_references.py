import attrs
import pytest
from fib_bench import BenchmarkConfig
from fib_bench.references import run_references
from fib_schema import Trace, TraceSet

from .samples import DOUBLE, make_workload


@pytest.mark.slow
def test_a_reference_that_raises_is_told_by_workload(make_data_set):
    broken = attrs.evolve(DOUBLE, name="broken", reference="def run(x):\n    raise RuntimeError('no luck')\n")
    trace_set = TraceSet.from_path(make_data_set(definitions=[broken]))
    trace_set.add_traces([Trace("broken", make_workload(broken, {"n": 3}, "n-3"))])
    config = BenchmarkConfig(quick=True, timeout_seconds=60)
    assert run_references(trace_set, config, ["double"]) == {"double": ()}
    ((name, (problem,)),) = run_references(trace_set, config, ["broken"]).items()
    assert (name, "no luck" in problem) == ("broken", True)
