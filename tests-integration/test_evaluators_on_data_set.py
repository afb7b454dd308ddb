"""Every kind of op of the public data set is judged, with its reference as the solution, on the CPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fib_bench import Benchmark, BenchmarkConfig, ResolvedEvalConfig
from fib_bench.evaluators import evaluator_for
from fib_schema import (
    BuildSpec,
    Definition,
    Evaluation,
    RandomInput,
    ScalarInput,
    Solution,
    SourceFile,
    Trace,
    TraceSet,
    Workload,
)

SIZES = {
    "M": 3,
    "batch_size": 3,
    "len_cu_seqlens": 4,
    "len_indptr": 4,
    "max_seq_len": 64,
    "num_kv_heads": 2,
    "num_kv_indices": 20,
    "num_pages": 24,
    "num_qo_heads": 4,
    "num_seqs": 3,
    "num_tokens": 5,
    "pool_size": 8,
    "seq_len": 3,
    "state_cache_size": 8,
    "total_kv": 20,
    "total_q": 12,
    "total_seq_len": 12,
}
"""Small values for every variable axis of the data set; together they satisfy its constraints."""
EVALUATORS = {
    "dsa_paged": "sparse_attention",
    "gdn": "state_space",
    "mamba_ssu": "state_space",
    "moe": "moe",
    "sampling": "sampling",
}
"""By op_type; ``default`` for all others."""
DEFINITIONS = (
    "dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps1",
    "dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps64",
    "gdn_decode_qk4_v8_d128_k_last",
    "gdn_mtp_qk8_v16_d128_k_last",
    "gdn_prefill_qk8_v16_d128_k_last",
    "gemm_n128_k2048",
    "gqa_paged_decode_h32_kv8_d128_ps64",
    "gqa_ragged_prefill_causal_h32_kv8_d128",
    "mamba_ssu_decode_h64_d64_s128_ng4",
    "mla_paged_decode_h16_ckv512_kpe64_ps64",
    "mla_ragged_prefill_causal_h8_qk192_vo128",
    "rmsnorm_h512",
    "rope_with_cos_sin_cache_neox_style_d128_rd64",
    "top_k_sampling_from_probs_v128256",
    "top_k_top_p_sampling_from_probs_v129280",
    "top_p_sampling_from_probs_v129280",
)
"""One of each kind whose reference runs here; of ``moe``, the smallest needs gigabytes."""
ARGMAX = "def run(probs, *_):\n    return probs.argmax(dim=-1)\n"


def _data_set() -> Path:
    given = os.environ.get("FIB_TEST_DATASET")
    return Path(given) if given else Path(__file__).parent.parent.parent / "shared" / "flashinfer-trace"


pytestmark = pytest.mark.skipif(
    not (_data_set() / "definitions").is_dir(),
    reason="the public flashinfer-trace data set is not here; set FIB_TEST_DATASET to its folder",
)


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path_factory.getbasetemp() / "cache"))


def _workload(definition: Definition) -> Workload:
    """A small one, without inputs that may be absent: the reference of ``gdn_mtp`` writes to one of them."""
    inputs = {
        name: ScalarInput(1.0) if name == "scale" else RandomInput()
        for name, spec in definition.inputs.items()
        if not spec.optional
    }
    return Workload({axis: SIZES[axis] for axis in definition.var_axes}, inputs, "small")


def _evaluate(root: Path, definition: Definition, *codes: str) -> list[Evaluation]:
    trace_set = TraceSet(root)
    trace_set.add_definitions([definition])
    spec = BuildSpec("python", ("cpu",), "k.py::run", destination_passing_style=False)
    solutions = [Solution(f"s{i}", definition.name, "t", spec, (SourceFile("k.py", c),)) for i, c in enumerate(codes)]
    trace_set.add_solutions(solutions)
    trace_set.add_traces([Trace(definition.name, _workload(definition))])
    few = {"sampling_validation_trials": 30, "sampling_validation_samples": 90}
    config = BenchmarkConfig(num_trials=2, iterations=3, measure_seconds=0.1, extra=few)
    with Benchmark(trace_set, config) as benchmark:
        result = benchmark.run()
    assert result.failures == ()
    found = {trace.solution: trace.evaluation for trace in result.traces}
    return [evaluation for i in range(len(codes)) if (evaluation := found[f"s{i}"]) is not None]


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_reference_is_a_right_solution(tmp_path: Path, name: str) -> None:
    definition = TraceSet.from_path(_data_set()).definitions[name]
    (evaluation,) = _evaluate(tmp_path, definition, definition.reference)
    assert evaluation.status == "PASSED", evaluation.log
    assert evaluation.extra is not None
    assert evaluation.extra["evaluator"] == EVALUATORS.get(definition.op_type, "default")


def test_a_sampler_that_always_takes_the_most_likely_token_is_wrong(tmp_path: Path) -> None:
    definition = TraceSet.from_path(_data_set()).definitions["top_p_sampling_from_probs_v129280"]
    (evaluation,) = _evaluate(tmp_path, definition, ARGMAX)
    assert evaluation.status == "INCORRECT_NUMERICAL"
    assert "likely tokens are drawn too often" in evaluation.log


def test_every_definition_has_the_evaluator_of_its_kind() -> None:
    for definition in TraceSet.from_path(_data_set()).definitions.values():
        name = evaluator_for(definition, ResolvedEvalConfig()).name
        assert name == EVALUATORS.get(definition.op_type, "default"), definition.name
