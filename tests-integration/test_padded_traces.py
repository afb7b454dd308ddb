"""Traces of our decode solutions: the benchmark finds that they are right with page numbers in longer buffers."""

from importlib.util import find_spec

import pytest
from fib_bench import Benchmark, BenchmarkConfig, EvalConfig
from fib_schema import Trace, TraceSet
from fib_schema.padded_indices import PADDED_INDICES, padded_indices_of
from public_data_set import definition_names, needs_data_set, public_set, small_workload
from solution_table import entry_of

pytestmark = needs_data_set
DECODE = [
    ("gqa_paged_decode_triton.py", "gqa_paged_decode_h5_kv1_d128_ps1"),
    ("gqa_paged_decode_triton.py", "gqa_paged_decode_h6_kv1_d128_ps64"),
    ("gqa_paged_decode_torch.py", "gqa_paged_decode_h6_kv1_d128_ps64"),
    ("mla_paged_decode_triton.py", "mla_paged_decode_h8_ckv512_kpe64_ps1"),
]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="needs the extra 'triton'")
@pytest.mark.parametrize(("file", "name"), DECODE)
def test_the_benchmark_finds_it(file, name):
    definition = public_set().definitions[name]
    solution = entry_of(file).solution(definition, "cpu")
    workload = small_workload(definition)
    trace_set = TraceSet(None, {name: definition}, {name: [solution]}, {name: [Trace(name, workload)]}, {})
    config = BenchmarkConfig(
        device="cpu", defaults=EvalConfig(num_trials=1, cpu_processes=1, iterations=2, measure_seconds=0.01)
    )
    with Benchmark(trace_set, config) as run:
        run.run_all()
    (trace,) = trace_set.traces[name]
    assert trace.evaluation.performance is not None, trace.evaluation.log
    timing = trace.evaluation.performance.extra["timing"]
    assert timing.get(PADDED_INDICES) is True, timing.get(f"{PADDED_INDICES}_problem")


def test_all_decode_definitions_have_padded_indices_and_no_prefill_has():
    found = {name for name in definition_names() if padded_indices_of(public_set().definitions[name]) is not None}
    assert found == {name for name in definition_names() if "paged_decode" in name}
