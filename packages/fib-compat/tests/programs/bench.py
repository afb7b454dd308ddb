"""Benchmarks a data set, and ranks what was measured."""

import sys

from flashinfer_bench import Benchmark, BenchmarkConfig, EvaluationStatus, TraceSet
from flashinfer_bench.bench import EvalConfig

trace_set = TraceSet.from_path(sys.argv[1])
config = BenchmarkConfig(
    warmup_runs=1,
    iterations=5,
    num_trials=2,
    use_isolated_runner=True,
    definitions=["rmsnorm_h64"],
    solutions=["plain"],
    timeout_seconds=60,
    op_type_config={"rmsnorm": EvalConfig(atol=1e-3, rtol=1e-3)},
)
resolved = config.resolve_eval_config(trace_set.definitions["rmsnorm_h64"])
assert (resolved.atol, resolved.iterations) == (1e-3, 5)
benchmark = Benchmark(trace_set, config)
results = benchmark.run_all(dump_traces=True, resume=False)
benchmark.close()

traces = results.traces["rmsnorm_h64"]
assert len(traces) == 2
for trace in traces:
    assert trace.is_successful() and trace.evaluation.status == EvaluationStatus.PASSED, trace.evaluation.log
    assert trace.evaluation.performance.latency_ms > 0
    assert trace.evaluation.environment.hardware == "cpu"
best = TraceSet.from_path(sys.argv[1]).get_best_trace("rmsnorm_h64", axes={"batch": 8}, max_abs_error=1e-2)
summary = results.summary(baseline_author="ada")
print(best.solution, summary.passed, "of", summary.total)
