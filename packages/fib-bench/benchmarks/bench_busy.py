"""Checks the speedups of the demo beside busy processes, with a copy of each reference as a further solution.

It runs the demo several times beside `--busy` processes that compute without end, and prints in a table in Markdown,
for each solution, the speedup that the leaderboard shows and what contradicts it:

- its own traces: on each workload the range of the reference, over all traces of that run, divided by the range of the
  solution. The geometric means of the lowest and of the highest quotients must exclude 1 and include what is shown.
- what is known: a copy of the reference is as fast as the reference.

Exits with 1 if a speedup is contradicted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
from fib_bench import Benchmark, BenchmarkConfig
from fib_bench.demo import write_demo
from fib_bench.report import LeaderboardRow, summarise
from fib_compile.registry import reference_solution
from fib_schema import Performance, Trace, TraceSet
from fib_schema.trace_facts import Timing, reference_timing_of, timing_of

COPY = "copy_of_reference"
_BUSY = "while True:\n    sum(range(1000))\n"


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run so many processes that compute without end."""
    processes = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run_demo(root: Path) -> tuple[list[LeaderboardRow], list[Trace]]:
    """The leaderboard and the passing traces of one run of the demo with copies of the references."""
    root.mkdir()
    write_demo(root)
    trace_set = TraceSet.from_path(root)
    for definition in list(trace_set.definitions.values()):
        copy = attrs.evolve(reference_solution(definition), name=f"{COPY}_{definition.name}", author="fib-demo")
        trace_set.add_solutions([copy])
    names = tuple(name for name in trace_set.solution_names() if "triton" not in name)  # interpreted: not timed
    config = BenchmarkConfig(timeout_seconds=60, measure_seconds=0.25, solutions=names)  # as `fib-bench demo`
    with Benchmark(trace_set, config) as benchmark:
        traces = [trace for trace in benchmark.run().traces if trace.is_successful()]
    return list(summarise(trace_set, ("unranked: cpu timing",)).leaderboard), traces


def contradiction(entry: LeaderboardRow, traces: Sequence[Trace]) -> str:
    """The contradiction of a solution's speedup; an empty string if there is none, or no number is shown."""
    if entry.speedup.point is None or entry.speedup.mark:
        return ""
    low, high = speedup_range(entry.solution, traces)
    if low <= 1 <= high:
        return f"its ranges allow {low:.3g} to {high:.3g}"
    if not low <= entry.speedup.point <= high:
        return f"its ranges say {low:.3g} to {high:.3g}"
    return "it is a copy of the reference" if entry.solution.startswith(COPY) else ""


def speedup_range(solution: str, traces: Sequence[Trace]) -> tuple[float, float]:
    """The range of a solution's mean speedup by the ranges of all latencies."""
    lowest, highest = [], []
    for trace in traces:
        if trace.solution == solution:
            beside = [other for other in traces if other.workload.uuid == trace.workload.uuid]
            references = [_bounds(reference_timing_of(_performance(other))) for other in beside]
            shortest, longest = _bounds(timing_of(_performance(trace)))
            lowest.append(min(low for low, _ in references) / longest)
            highest.append(max(high for _, high in references) / max(shortest, 1e-9))
    return statistics.geometric_mean(lowest), statistics.geometric_mean(highest)


def _performance(trace: Trace) -> Performance:
    assert trace.evaluation is not None
    assert trace.evaluation.performance is not None
    return trace.evaluation.performance


def _bounds(timing: Timing | None) -> tuple[float, float]:
    assert timing is not None
    return timing.bounds_ms or (timing.latency_ms, timing.latency_ms)


def main() -> int:
    """Run the demo, and print a row for each solution and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--busy", type=int, default=2, metavar="N", help="processes that compute without end")
    options = parser.parse_args()
    print(f"{options.runs} runs beside {options.busy} busy processes on {os.cpu_count()} cores", end="; ")
    print(f"load average before: {os.getloadavg()[0]:.1f}\n")
    print("| run | solution | passed | speedup | contradiction |\n| --- | --- | --- | --- | --- |")
    shown, wrong = 0, 0
    with busy_processes(options.busy), tempfile.TemporaryDirectory() as folder:
        for run in range(1, options.runs + 1):
            entries, traces = run_demo(Path(folder, f"run-{run}"))
            for entry in entries:
                problem = contradiction(entry, traces)
                shown, wrong = (
                    shown + (entry.speedup.point is not None and not entry.speedup.mark),
                    wrong + bool(problem),
                )
                cells = (run, entry.solution, f"{entry.passed}/{entry.total}", entry.speedup.text, problem or "none")
                print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    print(f"\n{shown} speedups are numbers, {wrong} of them contradicted.")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
