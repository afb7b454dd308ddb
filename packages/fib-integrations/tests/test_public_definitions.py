"""Definitions of the public data set: calls are converted to their names, inputs and constants."""

import pytest
import torch
from fib_apply import set_apply_hook
from fib_integrations import ConvertedCall, explain, install_flashinfer_integrations
from fib_integrations.adapter import epsilon_constant
from fib_integrations.adapters import BUILT_IN
from fib_integrations.adapters.elementwise import EPSILON
from fib_integrations.adapters.gqa_paged import PADDED
from fib_schema import AxisConst, Definition, load_json_file
from flashinfer_stand_ins.examples import workspace

OP_TYPES = {op_type for adapter in BUILT_IN for op_type in adapter.op_types}
FREE = {"M": 3, "batch_size": 3, "total_q": 5, "total_kv": 6, "num_pages": 8, "num_tokens": 4, "seq_len": 4}
FREE |= {"num_qo_heads": 4, "num_kv_heads": 2, "max_seq_len": 16, "len_indptr": 4, "num_kv_indices": 6}
INTS = torch.int32


@pytest.fixture
def fi(flashinfer):
    """The patched stand-ins, with a hook set, so that plans are recorded."""
    install_flashinfer_integrations(also=["torch_linear", "torch_mm"])
    set_apply_hook(lambda name, inputs: None)
    return flashinfer


def tensors(definition):
    """Inputs on the meta device, with the shapes of the definition."""
    sizes = {name: axis.value if isinstance(axis, AxisConst) else FREE[name] for name, axis in definition.axes.items()}
    found = {}
    for name, spec in definition.inputs.items():
        if spec.shape is not None:
            dtype = getattr(torch, str(spec.dtype))
            found[name] = torch.empty([sizes[axis] for axis in spec.shape], dtype=dtype, device="meta")
    return found


def of_rmsnorm(fi, d, t):
    eps = epsilon_constant(d.reference)
    if "residual" in t:
        return explain(fi.norm.fused_add_rmsnorm, t["hidden_states"], t["residual"], t["weight"], eps)
    return explain(fi.norm.rmsnorm, t["hidden_states"], t["weight"], eps=eps)


def of_gemm(fi, d, t):
    a, b = t["A"], t["B"]
    by_torch = explain(torch.nn.functional.linear, a, b)
    assert by_torch.definition == explain(torch.mm, a, b.t()).definition == d.name
    found = explain(fi.gemm.mm_bf16, a.bfloat16(), b.bfloat16().t())
    assert found.definition == d.name
    return by_torch


def of_rope(fi, d, t):
    q, k = t["q"].flatten(1), t["k"].flatten(1)
    size = t["q"].shape[-1]
    return explain(fi.rope.apply_rope_with_cos_sin_cache_inplace, t["positions"], q, k, size, t["cos_sin_cache"])


def of_sampling(fi, d, t):
    return explain(getattr(fi.sampling, d.name.rpartition("_v")[0]), *t.values())


OFFSETS = torch.tensor([0, 2, 3, 6], dtype=INTS)
QUERIES = torch.tensor([0, 2, 3, 5], dtype=INTS)
INDICES = torch.zeros(9, dtype=INTS)
"""Longer than the offsets, as in engines."""
BF16 = {"q_data_type": torch.bfloat16}


def of_gqa_paged(fi, d, t):
    _, page_size, kv_heads, size = t["k_cache"].shape
    sizes = t["q"].shape[1], kv_heads, size, page_size
    last = torch.ones(3, dtype=INTS)
    if "decode" in d.name:
        wrapper = fi.decode.BatchDecodeWithPagedKVCacheWrapper(workspace())
        wrapper.plan(OFFSETS, INDICES, last, *sizes, **BF16)
    else:
        wrapper = fi.prefill.BatchPrefillWithPagedKVCacheWrapper(workspace())
        wrapper.plan(QUERIES, OFFSETS, INDICES, last, *sizes, causal=True, **BF16)
    return explain(wrapper.run, t["q"], (t["k_cache"], t["v_cache"]))


def of_ragged(fi, d, t):
    wrapper = fi.prefill.BatchPrefillWithRaggedKVCacheWrapper(workspace())
    sizes = t["q"].shape[1], t["k"].shape[1], t["q"].shape[2], t["v"].shape[2]
    wrapper.plan(QUERIES, OFFSETS, *sizes, causal=True, **BF16)
    return explain(wrapper.run, t["q"], t["k"], t["v"])


def of_mla_paged(fi, d, t):
    wrapper = fi.mla.BatchMLAPagedAttentionWrapper(workspace())
    is_decode = "decode" in d.name
    _, page_size, ckv = t["ckv_cache"].shape
    wrapper.plan(
        torch.arange(4, dtype=INTS) if is_decode else QUERIES,
        OFFSETS,
        INDICES,
        OFFSETS.diff() * page_size,
        t["q_nope"].shape[1],
        ckv,
        t["q_pe"].shape[2],
        page_size,
        not is_decode,
        0.1,
        torch.bfloat16,
        torch.bfloat16,
    )
    return explain(wrapper.run, t["q_nope"], t["q_pe"], t["ckv_cache"], t["kpe_cache"])


def of_moe(fi, d, t):
    numbers = dict(_numbered(word) for word in d.name.split("_") if word[-1].isdigit() and word != "fp8")
    local, is_deepseek = t["gemm1_weights"].shape[0], "_ds_routing_" in d.name
    return explain(
        fi.fused_moe.trtllm_fp8_block_scale_moe,
        **{"routing_bias": None, **t},
        num_experts=t["routing_logits"].shape[1],
        top_k=numbers["topk"],
        n_group=numbers.get("ng"),
        topk_group=numbers.get("kg"),
        intermediate_size=t["gemm2_weights"].shape[2],
        local_expert_offset=0,
        local_num_experts=local,
        routed_scaling_factor=2.5 if is_deepseek else None,
        routing_method_type=2 if is_deepseek else 1,
    )


def _numbered(word):
    letters = word.rstrip("0123456789")
    return letters, int(word[len(letters) :])


CALLS = {
    "rmsnorm": of_rmsnorm,
    "gemm": of_gemm,
    "rope": of_rope,
    "sampling": of_sampling,
    "gqa_paged": of_gqa_paged,
    "gqa_ragged": of_ragged,
    "mla_ragged": of_ragged,
    "mla_paged": of_mla_paged,
    "moe": of_moe,
}


def covered(place):
    found = [load_json_file(Definition, path) for path in sorted(place.rglob("*.json"))]
    others = ("trtllm_fp4_", "trtllm_fp8_per_tensor_")  # experts of other number formats
    return [d for d in found if d.op_type in OP_TYPES and not d.name.startswith(others)]


def test_each_op_type_has_an_example_call():
    assert set(CALLS) == OP_TYPES


def test_calls_are_converted_to_the_public_definitions(public_definitions, fi):
    definitions = covered(public_definitions)
    assert len(definitions) >= 90
    for definition in definitions:
        found = CALLS[definition.op_type](fi, definition, tensors(definition))
        assert isinstance(found, ConvertedCall), f"{definition.name}: {found}"
        assert (found.definition, list(found.inputs)) == (definition.name, list(definition.inputs))
        definition.get_axes_values_from_inputs(list(found.inputs.values()))  # raises where shapes disagree
        for name, spec in definition.inputs.items():
            value = found.inputs[name]
            is_scalar = spec.shape is None
            assert isinstance(value, (int, float)) if is_scalar else str(value.dtype) == f"torch.{spec.dtype}"


def test_declared_epsilons_match_the_references(public_definitions):
    references = {d.name: d.reference for d in covered(public_definitions) if d.op_type == "rmsnorm"}
    assert {name: epsilon_constant(reference) for name, reference in references.items()} == EPSILON


def test_definitions_with_padded_last_page_lengths_are_declared(public_definitions):
    found = {
        d.name
        for d in covered(public_definitions)
        if "prefill" in d.name
        and "kv_last_page_len" in d.inputs
        and d.inputs["kv_last_page_len"].shape == d.inputs["kv_indptr"].shape
    }
    assert found == PADDED
