"""Measures what handing out work costs, on items that sleep: local threads and a Ray cluster of this machine."""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from fib_bench.events import Evaluated, Event
from fib_bench.execution.scheduler import Scheduler
from fib_bench.plan import DefinitionPlan
from fib_schema import (
    AxisVar,
    BuildSpec,
    Definition,
    Environment,
    Evaluation,
    EvaluationStatus,
    RandomInput,
    Solution,
    SourceFile,
    TensorSpec,
    Trace,
    Workload,
)

HERE = Environment("cpu", {})


@attrs.define
class Sleeper:
    """A worker whose evaluations take a fixed time."""

    seconds: float

    @property
    def environment(self) -> Environment:
        return HERE

    def execute(self, part: DefinitionPlan) -> Iterator[Event]:
        made = Evaluation(EvaluationStatus.RUNTIME_ERROR, HERE, "2026-01-01T00:00:00", "")
        for workload in part.workloads:
            for solution in part.pending[workload.uuid]:
                time.sleep(self.seconds)
                yield Evaluated(Trace(part.definition.name, workload, solution.name, made))

    def close(self) -> None:
        """Nothing was started."""


def work(definitions: int, workloads: int) -> list[DefinitionPlan]:
    tensor = TensorSpec(("n",), "float32")
    parts = []
    for index in range(definitions):
        definition = Definition(
            f"d{index}", "test", {"n": AxisVar()}, {"x": tensor}, {"y": tensor}, "def run(x): return x"
        )
        spec = BuildSpec("python", ("cpu",), "m.py::run")
        solution = Solution(f"s{index}", definition.name, "fib", spec, (SourceFile("m.py", "def run(x): pass"),))
        some = tuple(Workload({"n": n + 1}, {"x": RandomInput()}, f"{index}-{n}") for n in range(workloads))
        parts.append(DefinitionPlan(definition, some, {w.uuid: (solution,) for w in some}))
    return parts


def seconds_for(scheduler: Scheduler, parts: Sequence[DefinitionPlan]) -> float:
    begin = time.perf_counter()
    made = sum(isinstance(event, Evaluated) for event in scheduler.execute(parts))
    assert made == sum(part.count for part in parts)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.02, help="that an item sleeps")
    options = parser.parse_args()
    parts = work(8, 25)
    count = sum(part.count for part in parts)
    print("| executor | workers | items | seconds | overhead per item, ms | against one |")
    print("| --- | --- | --- | --- | --- | --- |")
    for executor, factories in (("local", local), ("ray", on_ray)):
        alone = 0.0
        for workers in (1, 2):
            opened = [(name, factory()) for name, factory in factories(workers, options.seconds)]  # which is not timed
            with Scheduler((name, partial(lambda one: one, worker)) for name, worker in opened) as scheduler:
                taken = seconds_for(scheduler, parts)
            alone = alone or taken
            overhead = (taken * workers - count * options.seconds) / count * 1e3
            print(f"| {executor} | {workers} | {count} | {taken:.2f} | {overhead:.2f} | {alone / taken:.2f} |")


def local(workers: int, seconds: float) -> list[tuple[str, Any]]:
    return [(str(index), partial(Sleeper, seconds)) for index in range(workers)]


def on_ray(workers: int, seconds: float) -> list[tuple[str, Any]]:
    from fib_bench.execution.ray_scheduler import RayDeviceWorker, device_slots, ray

    if not ray.is_initialized():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from ray.cluster_utils import Cluster

            cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
            for _ in range(2):
                cluster.add_node(num_cpus=1)
            here = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}}  # where actors find Sleeper
            ray.init(address=cluster.address, log_to_driver=False, configure_logging=False, runtime_env=here)
    slots = device_slots(ray.nodes(), "CPU")[:workers]
    import bench_scheduler

    factory = partial(bench_scheduler.Sleeper, seconds)
    return [(slot.name, partial(RayDeviceWorker, slot.node, factory, is_cuda=False)) for slot in slots]


if __name__ == "__main__":
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # nodes at 127.0.0.1 only
    main()
