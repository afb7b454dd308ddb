"""Measures the time per pair in a large run of trivial work: the first tenth of the pairs against the last tenth.

Each shape is (workloads x solutions). The run is a real one: a data set on disk, a judge process, a fresh worker for
each solution, and a synced trace for each pair. Solutions copy a few elements, so the time is that of the harness.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from fib_bench import Benchmark, BenchmarkConfig
from fib_bench.events import Evaluated, Event
from fib_schema import (
    AxisVar,
    BuildSpec,
    Definition,
    RandomInput,
    Solution,
    SourceFile,
    TensorSpec,
    Trace,
    TraceSet,
    Workload,
)

_PER_DEFINITION = 500  # workloads of one definition; published definitions have up to about 100
_SETTINGS = {"quick": True, "measure_seconds": 0.001, "iterations": 1, "warmup_runs": 0, "profile_baseline": False}


def make_set(root: Path, workloads: int, solutions: int) -> TraceSet:
    """Write definitions with trivial solutions."""
    tensor = TensorSpec(("n",), "float32")
    definitions, implementations, given = {}, {}, {}
    for start in range(0, workloads, _PER_DEFINITION):
        name = f"copy_{start}"
        definitions[name] = Definition(
            name, "copy", {"n": AxisVar()}, {"x": tensor}, {"y": tensor}, "def run(x):\n    return x.clone()\n"
        )
        spec = BuildSpec("python", ("cpu",), "m.py::run", destination_passing_style=False)
        implementations[name] = [
            Solution(
                f"{name}_{i}", name, "me", spec, (SourceFile("m.py", f"def run(x):\n    return x.clone()  # {i}\n"),)
            )
            for i in range(solutions)
        ]
        given[name] = [
            Trace(name, Workload({"n": n + 1}, {"x": RandomInput()}, f"{start}-{n}"))
            for n in range(min(_PER_DEFINITION, workloads - start))
        ]
    return TraceSet(root=root, definitions=definitions, solutions=implementations, workloads=given)


def run(workloads: int, solutions: int) -> None:
    """Run one shape and print its row."""
    with tempfile.TemporaryDirectory() as folder:
        trace_set = make_set(Path(folder), workloads, solutions)
        ends: list[float] = []

        def observe(event: Event) -> None:
            if isinstance(event, Evaluated):
                ends.append(time.perf_counter())

        begin = time.perf_counter()
        with Benchmark(trace_set, BenchmarkConfig(**_SETTINGS)) as benchmark:
            result = benchmark.run(observe=observe)
        wall = time.perf_counter() - begin
        assert len(result.traces) == workloads * solutions, result.skipped[:3]
    tenth = max(len(ends) // 10, 2)
    first, last = ((part[-1] - part[0]) / (len(part) - 1) * 1e3 for part in (ends[:tenth], ends[-tenth:]))
    median = statistics.median(later - earlier for earlier, later in pairwise(ends)) * 1e3
    print(
        f"| {workloads} x {solutions} | {wall:.1f} | {median:.2f} | {first:.2f} | {last:.2f} | {last / first:.3f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--shapes", nargs="+", default=["10000x1", "100x100"], metavar="WxS", help="workloads x solutions"
    )
    arguments = parser.parse_args()
    print("| workloads x solutions | wall s | median ms per pair | first tenth | last tenth | last / first |")
    print("| --- | --- | --- | --- | --- | --- |")
    for shape in arguments.shapes:
        workloads, solutions = map(int, shape.split("x"))
        run(workloads, solutions)


if __name__ == "__main__":
    main()
