"""Evaluators on the public data set: the reference of each kind of op passes as a solution, on the CPU.

All solutions are evaluated in one benchmark run, because starting the processes of a run takes several seconds.
"""

import pytest
import torch
from fib_bench import Benchmark, BenchmarkConfig, ResolvedEvalConfig
from fib_bench.evaluators import evaluator_for
from fib_bench.timing.work import work_of
from fib_schema import BuildSpec, RandomInput, ScalarInput, Solution, SourceFile, Trace, TraceSet
from public_data_set import narrowed, needs_data_set, public_set, small_workload

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
"""One of each kind whose reference runs here; the smallest of ``moe`` needs gigabytes."""
ARGMAX = "def run(probs, *_):\n    return probs.argmax(dim=-1)\n"
SAMPLER = "top_p_sampling_from_probs_v129280"
pytestmark = needs_data_set


def _definition(name):
    """A definition of the data set; samplers have a sixteenth of its vocabulary."""
    definition = public_set().definitions[name]
    return narrowed(definition) if definition.op_type == "sampling" else definition


def _trace(definition):
    """A small workload without optional inputs: the reference of ``gdn_mtp`` writes to one of them."""
    inputs = {
        name: ScalarInput(1.0) if name == "scale" else RandomInput()
        for name, spec in definition.inputs.items()
        if not spec.optional
    }
    return Trace(definition.name, small_workload(definition, inputs))


def _solution(name, definition, source):
    spec = BuildSpec("python", ("cpu",), "k.py::run", destination_passing_style=False)
    return Solution(name, definition, "t", spec, (SourceFile("k.py", source),))


@pytest.fixture(scope="module")
def evaluations(tmp_path_factory):
    """The evaluations of all references, by definition, and of ``argmax``."""
    definitions = [_definition(name) for name in DEFINITIONS]
    trace_set = TraceSet(tmp_path_factory.mktemp("data_set"))
    trace_set.add_definitions(definitions)
    trace_set.add_solutions([_solution(d.name, d.name, d.reference) for d in definitions])
    trace_set.add_solutions([_solution("argmax", SAMPLER, ARGMAX)])
    trace_set.add_traces([_trace(definition) for definition in definitions])
    few = {"sampling_validation_trials": 30, "sampling_validation_samples": 90}
    config = BenchmarkConfig(
        num_trials=2, iterations=3, measure_seconds=0.02, cpu_processes=1, profile_baseline=False, extra=few
    )
    with Benchmark(trace_set, config) as benchmark:
        result = benchmark.run()
    assert result.failures == ()
    return {str(trace.solution): trace.evaluation for trace in result.traces if trace.evaluation is not None}


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFINITIONS)
def test_reference_passes_as_a_solution(evaluations, name):
    evaluation = evaluations[name]
    assert evaluation.status == "PASSED", evaluation.log
    assert evaluation.extra["evaluator"] == EVALUATORS.get(public_set().definitions[name].op_type, "default")


@pytest.mark.slow
def test_sampler_that_always_returns_the_most_likely_token_is_incorrect(evaluations):
    evaluation = evaluations["argmax"]
    assert evaluation.status == "INCORRECT_NUMERICAL"
    assert "likely tokens are drawn too often" in evaluation.log


def test_every_definition_has_the_evaluator_of_its_op_type():
    for definition in public_set().definitions.values():
        name = evaluator_for(definition, ResolvedEvalConfig()).name
        assert name == EVALUATORS.get(definition.op_type, "default"), definition.name


def test_the_work_of_every_definition_is_known():
    """Integers are zero: the names of inputs and axes decide."""
    unknown = []
    for name, definition in public_set().definitions.items():
        axes = {axis: 2 for axis in definition.axes if axis not in definition.const_axes}
        values = {}
        for (key, spec), shape in zip(definition.inputs.items(), definition.get_input_shapes(axes), strict=True):
            if shape is None:
                values[key] = 0
            elif "int" in spec.dtype or key.startswith("routing"):
                values[key] = torch.zeros(shape, dtype=torch.int32)
        unknown += [] if work_of(definition, axes, values) else [name]
    assert unknown == []
