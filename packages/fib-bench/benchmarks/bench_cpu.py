"""Measures fib-bench on the CPU: a function against itself, how soon a worker is ready, what an evaluation costs."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fib_bench import Benchmark, BenchmarkConfig
from fib_bench.transport.messages import Build, Built
from fib_bench.worker.client import ForkServerClient
from fib_schema import (
    AxisConst,
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
    format_json,
)

_ELEMENTWISE = "import torch\n\ndef run(x):\n    return torch.nn.functional.silu(x)\n"
_RMSNORM = """
import torch

def run(x, weight):
    values = x.float()
    return (values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + 1e-6) * weight).to(x.dtype)
"""
_GEMM = "def run(A, B):\n    return A @ B.T\n"
_SOFTMAX = "import torch\n\ndef run(x):\n    return torch.softmax(x, -1)\n"
_MATRIX = TensorSpec(("n", "h"), "float32")
_WEIGHT = TensorSpec(("o", "h"), "float32")
_SIZES = (32, 128, 512)


def _definition(name: str, inputs: dict[str, TensorSpec], outputs: dict[str, TensorSpec], code: str) -> Definition:
    used = {axis for spec in (*inputs.values(), *outputs.values()) for axis in spec.shape or ()}
    axes = {axis: AxisVar() if axis == "n" else AxisConst(1024) for axis in sorted(used)}
    return Definition(name, name, axes, inputs, outputs, code)


DEFINITIONS = (
    _definition("silu", {"x": _MATRIX}, {"y": _MATRIX}, _ELEMENTWISE),
    _definition("softmax", {"x": _MATRIX}, {"y": _MATRIX}, _SOFTMAX),
    _definition("rmsnorm", {"x": _MATRIX, "weight": TensorSpec(("h",), "float32")}, {"y": _MATRIX}, _RMSNORM),
    _definition("gemm", {"A": _MATRIX, "B": _WEIGHT}, {"C": TensorSpec(("n", "o"), "float32")}, _GEMM),
)


def against_itself() -> list[tuple[str, int, float, float]]:
    """Name, rows, microseconds, and the ratio of the reference to a solution of the same code."""
    with tempfile.TemporaryDirectory() as folder:
        trace_set = TraceSet.from_path(Path(folder))
        trace_set.add_definitions(DEFINITIONS)
        for definition in DEFINITIONS:
            spec = BuildSpec("python", ("cpu",), "reference.py::run", destination_passing_style=False)
            source = SourceFile("reference.py", definition.reference)
            trace_set.add_solutions([Solution(f"{definition.name}_again", definition.name, "fib", spec, (source,))])
            random = {name: RandomInput() for name in definition.inputs}
            workloads = [Workload({"n": n}, random, f"{definition.name}-{n}") for n in _SIZES]
            trace_set.add_traces([Trace(definition.name, workload) for workload in workloads])
        with Benchmark(trace_set, BenchmarkConfig()) as benchmark:
            traces = benchmark.run(dump_traces=False).traces
    rows = []
    for trace in traces:
        assert trace.evaluation is not None
        performance = trace.evaluation.performance
        if performance is None:
            sys.exit(f"{trace.solution}: {trace.evaluation.status}\n{trace.evaluation.log}")
        rows.append(
            (trace.definition, trace.workload.axes["n"], performance.latency_ms * 1e3, performance.speedup_factor)
        )
    return rows


def ready_ms() -> float:
    """From asking for a worker until it has answered, on a server that runs already."""
    definition = format_json(DEFINITIONS[0])
    request = Build("cpu", definition, None)  # a reference of one line
    taken = []
    with ForkServerClient("cpu") as server:
        server.start()
        for _ in range(10):
            begin = time.perf_counter()
            with server.spawn() as worker:
                worker.request(request, Built, seconds=60)
                taken.append(time.perf_counter() - begin)
    return statistics.median(taken) * 1e3


def import_ms(module: str) -> float:
    """Time that importing a module adds to the start of Python."""
    code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    runs = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(5)]
    return min(runs) * 1e3


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="of each function against itself")
    runs = parser.parse_args().runs
    print("A solution identical to the reference (CPU)\n")
    print("| function | rows | us | ratios |\n| --- | --- | --- | --- |")
    begin = time.perf_counter()
    results = [against_itself() for _ in range(runs)]
    seconds = time.perf_counter() - begin
    for rows in zip(*results, strict=True):
        name, size, latency, _ = rows[0]
        print(f"| {name} | {size} | {latency:.1f} | {', '.join(f'{row[3]:.3f}' for row in rows)} |")
    long = [row[3] for rows in results for row in rows if row[2] > 50]
    inside = sum(0.95 <= ratio <= 1.05 for ratio in long)
    print(f"\nabove 50 us: {inside} of {len(long)} within 0.95 to 1.05 ({min(long):.3f} to {max(long):.3f})")
    print(f"one evaluation with its share of the preparation: {seconds / sum(map(len, results)):.2f} s")
    print(f"a worker is ready after {ready_ms():.0f} ms; `import fib_bench` takes {import_ms('fib_bench'):.0f} ms")


if __name__ == "__main__":
    main()
