"""Measures trusted runs: many solutions on many workloads of trivial work, in this process.

Prints evaluations per second, the driver's peak memory, and whether all traces are on the disk.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

from fib_bench import Benchmark, BenchmarkConfig
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--solutions", type=int, default=2000)
    parser.add_argument("--workloads", type=int, default=50)
    options = parser.parse_args()
    tensor = TensorSpec(("n",), "float32")
    code = "def run(x):\n    return x * 2\n"
    definition = Definition("double", "test", {"n": AxisVar()}, {"x": tensor}, {"y": tensor}, code)
    spec = BuildSpec("python", ("cpu",), "m.py::run", destination_passing_style=False)
    with tempfile.TemporaryDirectory() as folder:
        trace_set = TraceSet.from_path(Path(folder))
        trace_set.add_definitions([definition])
        sources = [(SourceFile("m.py", f"{code}# {index}\n"),) for index in range(options.solutions)]
        trace_set.add_solutions(
            [Solution(f"s{index}", "double", "fib", spec, source) for index, source in enumerate(sources)]
        )
        sizes = range(1, options.workloads + 1)
        trace_set.add_traces([Trace("double", Workload({"n": n}, {"x": RandomInput()}, f"n-{n}")) for n in sizes])
        config = BenchmarkConfig(in_process_trusted=True, warmup_runs=1, iterations=20, measure_seconds=0.002)
        begin = time.perf_counter()
        with Benchmark(trace_set, config) as benchmark:
            made = len(benchmark.run().traces)
        seconds = time.perf_counter() - begin
        lines = sum(1 for file in Path(folder, "traces").rglob("*.jsonl") for _ in file.open())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{made} evaluations in {seconds:.0f} s: {made / seconds:.0f} a second; {lines} traces on the disk")
    print(f"peak memory of this process: {peak:.0f} MiB")


if __name__ == "__main__":
    main()
