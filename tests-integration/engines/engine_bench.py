"""A program in place of ``fib-bench run DATASET`` where there is no GPU: all solutions pass, at made-up latencies.

The engine's own kernels take 1 ms, those that do their work twice 2 ms, and all others half a millisecond.
"""

import sys
from pathlib import Path

from fib_schema import Correctness, Environment, Evaluation, EvaluationStatus, Performance, Trace, TraceSet

_LATENCIES_MS = {"engine": 1.0, "flashinfer": 1.0, "slow": 2.0}
_SAFE = {"timing": {"graph_safe": True, "padded_indices": True}}


def main(folder):
    data_set = TraceSet.from_path(folder)
    for name, solutions in data_set.solutions.items():
        known = {(trace.solution, trace.workload.uuid) for trace in data_set.traces.get(name, [])}
        for workload in (trace.workload for trace in data_set.workloads[name]):
            data_set.add_traces(
                [
                    Trace(name, workload, one.name, evaluation(one.name, workload))
                    for one in solutions
                    if (one.name, workload.uuid) not in known
                ]
            )


def evaluation(solution, workload):
    """A made-up evaluation, in the layout of the workload."""
    kind = solution.partition("_")[0]
    latency = _LATENCIES_MS.get(kind, 0.5)
    performance = Performance(latency, 3.0, 3.0 / latency, extra=None if kind in _LATENCIES_MS else _SAFE)
    passed, host = EvaluationStatus.PASSED, Environment("cpu")
    return Evaluation(passed, host, "2026-01-01T00:00:00", "", Correctness(0.0, 0.0), performance, extra=workload.extra)


if __name__ == "__main__":
    main(next(argument for argument in sys.argv[1:] if Path(argument).is_dir()))
