"""A real Ray cluster of several nodes on this machine, one of which is killed."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fib_bench import Benchmark, BenchmarkConfig
from fib_bench.events import DeviceOut, Evaluated, Event
from fib_schema import Solution, TraceSet

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # read at the import: nodes at 127.0.0.1 only
ray = pytest.importorskip("ray", reason="needs the extra `ray`")

MakeDataSet = Callable[..., Path]
MakeSolution = Callable[..., Solution]
SLEEPS = "import time\n\ndef run(x):\n    time.sleep(0.01)\n    return x * 2\n"
QUICK: dict[str, Any] = {"measure_seconds": 0.05, "iterations": 3, "warmup_runs": 1, "num_trials": 1}


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head without processors, and two nodes with one each, at 127.0.0.1 only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        yield cluster
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_node_that_is_killed_costs_no_evaluation(
    cluster: Any, make_data_set: MakeDataSet, make_solution: MakeSolution
) -> None:
    solutions = [make_solution(SLEEPS, name=f"s{index}") for index in range(2)]
    root = make_data_set(*solutions, sizes=tuple(range(2, 7)))
    events: list[Event] = []

    def observe(event: Event) -> None:
        events.append(event)
        if sum(isinstance(e, Evaluated) for e in events) == 3 and isinstance(event, Evaluated):
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

    config = BenchmarkConfig(executor="ray", address=cluster.address, **QUICK)
    result = Benchmark(TraceSet.from_path(root), config).run(observe=observe)
    recorded = TraceSet.from_path(root).traces["double"]
    found = Counter((trace.solution, trace.workload.uuid) for trace in recorded if trace.solution)
    assert found == Counter((s.name, f"n-{n}") for s in solutions for n in range(2, 7))
    assert result.failures == ()
    assert {str(trace.evaluation.status) for trace in recorded if trace.evaluation} == {"PASSED"}
    assert any(isinstance(event, DeviceOut) for event in events)
