"""Runs a benchmark with settings from a YAML file, and adds a solution of its own to the set."""

import logging
import sys
from pathlib import Path

from flashinfer_bench import Benchmark, BenchmarkConfig, BuildSpec, EvaluationStatus, Solution, SourceFile, TraceSet

logging.basicConfig(level=logging.WARNING)
settings = Path(sys.argv[2])
settings.write_text(
    """
warmup_runs: 1
iterations: 3
num_trials: 1
timeout_seconds: 60
profile_baseline: true
op_type_config:
  rmsnorm:
    rtol: 1.0e-3
    atol: 1.0e-3
  moe:
    required_matched_ratio: 0.95
definition_config:
  rmsnorm_h64:
    iterations: 5
  gemm_n128_k2048:
    rtol: 0.1
"""
)
trace_set = TraceSet.from_path(sys.argv[1])
source = "import torch\n\ndef run(x, weight, y):\n    y.copy_(torch.nn.functional.rms_norm(x, (64,), weight, 1e-6))\n"
spec = BuildSpec(language="python", target_hardware=["cpu"], entry_point="kernel.py::run")
mine = Solution(
    name="mine",
    definition="rmsnorm_h64",
    author="me",
    spec=spec,
    sources=[SourceFile(path="kernel.py", content=source)],
)
trace_set.solutions.setdefault("rmsnorm_h64", []).append(mine)
config = BenchmarkConfig.from_yaml(settings, solutions=["mine"])
assert config.resolve_eval_config(trace_set.definitions["rmsnorm_h64"]).atol == 1e-3
benchmark = Benchmark(trace_set, config)
results = benchmark.run_all(dump_traces=False)
benchmark.close()
for definition, traces in results.traces.items():
    for trace in traces:
        assert trace.evaluation.status == EvaluationStatus.PASSED, trace.evaluation.log
        assert trace.evaluation.performance.speedup_factor > 0
        print(definition, trace.solution, trace.workload.axes["batch"])
assert len(results.workloads["rmsnorm_h64"]) == 2
