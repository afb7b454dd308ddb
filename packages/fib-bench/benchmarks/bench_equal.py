"""Compares equal code on a CPU beside busy processes: how many intervals of speedups exclude 1, and by how much.

Each solution is a copy of its definition's reference, so every speedup is 1. The definitions call OpenMP, MKL and
neither. Prints, for each definition, a row in Markdown with the number of comparisons, of intervals that exclude 1, the
largest factor between 1 and an interval, the largest deviation of a number, and the median width of the intervals.

Exits with 1 if more than 5 % of the intervals exclude 1, or one does by more than 1.2x.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import attrs
from bench_busy import busy_processes
from fib_bench import Benchmark, BenchmarkConfig
from fib_bench.report.ratios import speedup_of
from fib_compile.registry import reference_solution
from fib_schema import AxisConst, AxisVar, Definition, RandomInput, TensorSpec, Trace, TraceSet, Workload

_REFERENCES = {
    "square_sum": "def run(x):\n    return (x * x).sum(-1)\n",
    "softmax": "import torch\n\n\ndef run(x):\n    return torch.softmax(x, -1)\n",
    "gram": "def run(x):\n    return x @ x.T\n",
}
_OUTPUT_AXES = {"square_sum": ("rows",), "softmax": ("rows", "width"), "gram": ("rows", "rows")}
_ROWS = (16, 300, 1000)
_MAX_SHARE, _MAX_FACTOR = 0.05, 1.2


def definition_of(kind: str) -> Definition:
    """A definition with one input of a variable number of rows."""
    return Definition(
        name=f"{kind}_w256",
        op_type="reduction",
        axes={"rows": AxisVar(), "width": AxisConst(256)},
        inputs={"x": TensorSpec(("rows", "width"), "float32")},
        outputs={"y": TensorSpec(_OUTPUT_AXES[kind], "float32")},
        reference=_REFERENCES[kind],
    )


def make_copies(root: Path, kinds: list[str], copies: int) -> TraceSet:
    """A data set with copies of each reference."""
    definitions = {definition.name: definition for definition in map(definition_of, kinds)}
    solutions, workloads = {}, {}
    for name, definition in definitions.items():
        reference = reference_solution(definition)
        solutions[name] = [
            attrs.evolve(reference, name=f"copy_{number}_{name}", author="equal") for number in range(copies)
        ]
        workloads[name] = [
            Trace(name, Workload({"rows": rows}, {"x": RandomInput()}, f"{name}-{rows}")) for rows in _ROWS
        ]
    return TraceSet(root=root, definitions=definitions, solutions=solutions, workloads=workloads)


def intervals_of(traces: list[Trace]) -> list[tuple[float, float, float]]:
    """The speedup of each trace and its interval."""
    found = []
    for trace in traces:
        assert trace.evaluation is not None
        performance = trace.evaluation.performance
        assert performance is not None, f"a copy of the reference failed: {trace.evaluation.log}"
        ratio = speedup_of(performance)
        assert ratio.point is not None
        assert ratio.interval is not None
        found.append((ratio.point, *ratio.interval))
    return found


def excluded_by(low: float, high: float) -> float:
    """The factor between 1 and the interval; 1 if that includes 1."""
    return max(low, 1 / high, 1.0)


def row_of(name: str, found: list[tuple[float, float, float]]) -> str:
    """A row of the table."""
    factors = [excluded_by(low, high) for _, low, high in found]
    deviation = max(max(point, 1 / point) for point, _, _ in found)
    width = statistics.median(high / low for _, low, high in found)
    excluding = sum(factor > 1 for factor in factors)
    return f"| {name} | {len(found)} | {excluding} | {max(factors):.3f}x | {deviation:.2f}x | {width:.2f}x |"


def main() -> int:
    """Make the comparisons, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=1000)
    parser.add_argument("--busy", type=int, default=1, metavar="N", help="processes that compute without end")
    parser.add_argument("--measure-seconds", type=float, default=0.05)
    parser.add_argument("--kinds", nargs="+", default=list(_REFERENCES), choices=list(_REFERENCES))
    options = parser.parse_args()
    copies = -(-options.comparisons // (len(options.kinds) * len(_ROWS)))
    begin, load = time.monotonic(), os.getloadavg()[0]
    with busy_processes(options.busy), tempfile.TemporaryDirectory() as folder:
        trace_set = make_copies(Path(folder), options.kinds, copies)
        config = BenchmarkConfig(measure_seconds=options.measure_seconds)
        with Benchmark(trace_set, config) as benchmark:
            traces = list(benchmark.run().traces)
    found = intervals_of(traces)
    print(f"{len(found)} comparisons of equal code beside {options.busy} busy processes on {os.cpu_count()} cores; ")
    print(f"load average before {load:.1f}, after {os.getloadavg()[0]:.1f}; {time.monotonic() - begin:.0f} s\n")
    print("| definition | comparisons | exclude 1 | by at most | largest deviation | median width |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in sorted({trace.definition for trace in traces}):
        print(row_of(name, [pair for pair, trace in zip(found, traces, strict=True) if trace.definition == name]))
    print(row_of("all", found))
    factors = [excluded_by(low, high) for _, low, high in found]
    return int(sum(factor > 1 for factor in factors) > _MAX_SHARE * len(factors) or max(factors) > _MAX_FACTOR)


if __name__ == "__main__":
    sys.exit(main())
