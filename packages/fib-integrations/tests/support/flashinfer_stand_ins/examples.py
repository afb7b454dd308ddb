"""Examples: a small definition for each patched function, and a call of it."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import attrs
import torch
from fib_schema import (
    AxisConst,
    AxisVar,
    BuildSpec,
    Correctness,
    Definition,
    Environment,
    Evaluation,
    Performance,
    RandomInput,
    Solution,
    SourceFile,
    TensorSpec,
    Trace,
    TraceSet,
    Workload,
)

from . import computing

_COMPUTING = inspect.getsource(computing)
_SHORT = {
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "i32": "int32",
    "i64": "int64",
    "fp8": "float8_e4m3fn",
}
Call = Callable[[], tuple[torch.Tensor, ...]]
"""Makes the call; returns its results and the tensors that it wrote in place."""


def make_definition(name, op_type, axes, inputs, outputs, body):
    """A definition from short forms: ``"M N=8"``, ``{"x": "M N bf16"}``, ``"f32"`` alone being a scalar."""
    made = {n: AxisConst(int(v)) if v else AxisVar() for n, _, v in (axis.partition("=") for axis in axes.split())}
    reference = f"{_COMPUTING}\n\ndef run({', '.join(inputs)}):\n    return {body}\n"
    return Definition(name, op_type, made, _specs(inputs), _specs(outputs), reference)


def _specs(texts):
    found = {}
    for name, text in texts.items():
        *shape, dtype = text.split()
        found[name] = TensorSpec(shape or None, _SHORT[dtype])
    return found


@attrs.frozen
class Example:
    name: str
    definition: Definition
    prepare: Callable[[Any], Call]
    """Takes the package; creates the same arguments each time."""
    is_planned: bool = False


def random(*shape, dtype=torch.bfloat16):
    """Random values, reproducible by `torch.manual_seed`."""
    return torch.randn(*shape).to(dtype)


def _seeded(prepare):
    def seeded(fi):
        torch.manual_seed(7)
        return prepare(fi)

    return seeded


RMSNORM = make_definition(
    "rmsnorm_h8",
    "rmsnorm",
    "batch_size hidden_size=8",
    {"hidden_states": "batch_size hidden_size bf16", "weight": "hidden_size bf16"},
    {"output": "batch_size hidden_size bf16"},
    "normalised(hidden_states, weight, 1e-06)",
)
FUSED_ADD_RMSNORM = make_definition(
    "fused_add_rmsnorm_h8",
    "rmsnorm",
    "batch_size hidden_size=8",
    {
        "hidden_states": "batch_size hidden_size bf16",
        "residual": "batch_size hidden_size bf16",
        "weight": "hidden_size bf16",
    },
    {"output": "batch_size hidden_size bf16"},
    "normalised_sum(hidden_states, residual, weight, 1e-05)",
)
ROPE = make_definition(
    "rope_with_cos_sin_cache_neox_style_d8_rd4",
    "rope",
    "num_tokens num_qo_heads num_kv_heads head_size=8 rotary_dim=4 max_seq_len",
    {
        "q": "num_tokens num_qo_heads head_size bf16",
        "k": "num_tokens num_kv_heads head_size bf16",
        "cos_sin_cache": "max_seq_len rotary_dim f32",
        "positions": "num_tokens i64",
    },
    {"q_out": "num_tokens num_qo_heads head_size bf16", "k_out": "num_tokens num_kv_heads head_size bf16"},
    "rotated(q, cos_sin_cache, positions), rotated(k, cos_sin_cache, positions)",
)
GEMM = make_definition(
    "gemm_n8_k16", "gemm", "M N=8 K=16", {"A": "M K bf16", "B": "N K bf16"}, {"C": "M N bf16"}, "A @ B.T"
)


def _sampling(limits):
    kinds = {"top_k": "batch_size i32", "top_p": "batch_size f32"}
    inputs = {name: kinds[name] for name in limits.split()}
    arguments = ", ".join(f"{name}={name}" for name in inputs)
    return make_definition(
        f"{'_'.join(inputs)}_sampling_from_probs_v32",
        "sampling",
        "batch_size vocab_size=32",
        {"probs": "batch_size vocab_size f32", **inputs},
        {"samples": "batch_size i64"},
        f"limited(probs, {arguments})",
    )


TOP_K, TOP_P, TOP_K_TOP_P = _sampling("top_k"), _sampling("top_p"), _sampling("top_k top_p")


_HEADS = "num_qo_heads=4 num_kv_heads=2 head_dim=8"


def _gqa(stage, page_size):
    is_decode, last = stage == "decode", {"kv_last_page_len": "batch_size i32"} if page_size > 1 else {}
    rows, offsets = ("batch_size", {}) if is_decode else ("total_q", {"qo_indptr": "len_indptr i32"})
    axes = dict.fromkeys([rows, *(["batch_size"] if last else [])])
    queries = "torch.arange(len(kv_indptr))" if is_decode else "qo_indptr"
    cache = "num_pages page_size num_kv_heads head_dim bf16"
    return make_definition(
        f"gqa_paged_{stage}_h4_kv2_d8_ps{page_size}",
        "gqa_paged",
        f"{_HEADS} page_size={page_size} {' '.join(axes)} num_pages len_indptr num_kv_indices",
        {
            "q": f"{rows} num_qo_heads head_dim bf16",
            "k_cache": cache,
            "v_cache": cache,
            **offsets,
            "kv_indptr": "len_indptr i32",
            "kv_indices": "num_kv_indices i32",
            **last,
            "sm_scale": "f32",
        },
        {"output": f"{rows} num_qo_heads head_dim bf16", "lse": f"{rows} num_qo_heads f32"},
        f"attended_in_pages(q, k_cache, v_cache, {queries}, kv_indptr, kv_indices, "
        f"{'kv_last_page_len' if last else 'torch.ones(len(kv_indptr))'}, sm_scale, {not is_decode})",
    )


def _ragged(name, op_type, kv_heads, qk, vo):
    k, v = ("head_dim", "head_dim") if op_type == "gqa_ragged" else ("qk_dim", "vo_dim")
    sizes = f"{k}={qk}" if k == v else f"{k}={qk} {v}={vo}"
    return make_definition(
        name,
        op_type,
        f"num_qo_heads=4 num_kv_heads={kv_heads} {sizes} len_indptr total_q total_kv",
        {
            "q": f"total_q num_qo_heads {k} bf16",
            "k": f"total_kv num_kv_heads {k} bf16",
            "v": f"total_kv num_kv_heads {v} bf16",
            "qo_indptr": "len_indptr i32",
            "kv_indptr": "len_indptr i32",
            "sm_scale": "f32",
        },
        {"output": f"total_q num_qo_heads {v} bf16", "lse": "total_q num_qo_heads f32"},
        "attended_in_rows(q, k, v, qo_indptr, kv_indptr, sm_scale, True)",
    )


def _mla(stage, page_size):
    rows = "batch_size" if stage == "decode" else "total_q"
    offsets = {} if stage == "decode" else {"qo_indptr": "len_indptr i32"}
    last = {"kv_last_page_len": "batch_size i32"} if page_size > 1 else {}
    axes = dict.fromkeys([rows, *(["batch_size"] if last else [])])
    queries = "torch.arange(len(kv_indptr))" if stage == "decode" else "qo_indptr"
    return make_definition(
        f"mla_paged_{stage}_h4_ckv8_kpe4_ps{page_size}",
        "mla_paged",
        f"{' '.join(axes)} num_qo_heads=4 head_dim_ckv=8 head_dim_kpe=4 page_size={page_size} num_pages len_indptr "
        "num_kv_indices",
        {
            "q_nope": f"{rows} num_qo_heads head_dim_ckv bf16",
            "q_pe": f"{rows} num_qo_heads head_dim_kpe bf16",
            "ckv_cache": "num_pages page_size head_dim_ckv bf16",
            "kpe_cache": "num_pages page_size head_dim_kpe bf16",
            **offsets,
            "kv_indptr": "len_indptr i32",
            "kv_indices": "num_kv_indices i32",
            **last,
            "sm_scale": "f32",
        },
        {"output": f"{rows} num_qo_heads head_dim_ckv bf16", "lse": f"{rows} num_qo_heads f32"},
        f"attended_latently(q_nope, q_pe, ckv_cache, kpe_cache, {queries}, kv_indptr, kv_indices, "
        f"{'kv_last_page_len' if last else 'torch.ones(len(kv_indptr))'}, sm_scale, {stage != 'decode'})",
    )


_MOE_INPUTS = {
    "hidden_states": "seq_len hidden_size fp8",
    "hidden_states_scale": "num_hidden_blocks seq_len f32",
    "gemm1_weights": "num_local_experts gemm1_out_size hidden_size fp8",
    "gemm1_weights_scale": "num_local_experts num_gemm1_out_blocks num_hidden_blocks f32",
    "gemm2_weights": "num_local_experts hidden_size intermediate_size fp8",
    "gemm2_weights_scale": "num_local_experts num_hidden_blocks num_intermediate_blocks f32",
}
_MOE_AXES = (
    "seq_len hidden_size=16 intermediate_size=8 gemm1_out_size=16 num_hidden_blocks=2 num_intermediate_blocks=1 "
    "num_gemm1_out_blocks=2"
)
_MOE_WEIGHTS = ", ".join(_MOE_INPUTS)
MOE_DS = make_definition(
    "moe_fp8_block_scale_ds_routing_topk2_ng4_kg2_e4_h16_i8",
    "moe",
    f"{_MOE_AXES} num_experts=8 num_local_experts=4",
    {
        "routing_logits": "seq_len num_experts f32",
        "routing_bias": "num_experts bf16",
        **_MOE_INPUTS,
        "local_expert_offset": "i32",
        "routed_scaling_factor": "f32",
    },
    {"output": "seq_len hidden_size bf16"},
    "mixed(chosen_by_groups(routing_logits, routing_bias, 2, 4, 2, routed_scaling_factor), "
    f"{_MOE_WEIGHTS}, local_expert_offset)",
)
MOE_RENORM = make_definition(
    "moe_fp8_block_scale_renorm_topk2_e4_h16_i8",
    "moe",
    f"{_MOE_AXES} num_local_experts=4",
    {"routing_logits": "seq_len num_local_experts bf16", **_MOE_INPUTS},
    {"output": "seq_len hidden_size bf16"},
    f"mixed(chosen_by_softmax(routing_logits, 2), {_MOE_WEIGHTS})",
)


def _of(path, arguments, writes=None, **kwargs):
    """A call of a function, which returns its results or writes them to some of its arguments."""

    def prepare(fi):
        module, name = path.split(".")
        function, given = getattr(getattr(fi, module), name), arguments()

        def call():
            found = function(*given, **kwargs)
            assert writes is None or found is None
            return _as_tuple(found) if writes is None else given[writes]

        return call

    return prepare


def _with_buffer(path, arguments):
    """A call of a function that writes to a buffer of three rows and returns it."""

    def prepare(fi):
        out = torch.zeros(3, 8, dtype=torch.bfloat16)
        call = _of(path, arguments, out=out)(fi)

        def checked():
            (found,) = call()
            assert found is out
            return (found,)

        return checked

    return prepare


def _rope_arguments():
    angles = torch.rand(16, 2)
    return torch.tensor([0, 5, 9]), random(3, 16), random(3, 8), 8, torch.cat((angles.cos(), angles.sin()), 1)


def _factors():
    return random(3, 16), random(8, 16).t()


def _probs(*limits):
    """Probabilities of which one per row dominates, so that any correct sampler returns it; and limits."""
    probs = torch.full((3, 32), 1e-4)
    probs[torch.arange(3), torch.tensor([3, 9, 30])] = 1 - 31e-4
    return lambda: (probs, *limits)


def _moe_arguments(experts, logits):
    def fp8(*shape):
        return (torch.randn(*shape) * 4).to(torch.float8_e4m3fn)

    return {
        "routing_logits": random(3, experts, dtype=logits),
        "hidden_states": fp8(3, 16),
        "hidden_states_scale": torch.rand(2, 3),
        "gemm1_weights": fp8(4, 16, 16),
        "gemm1_weights_scale": torch.rand(4, 2, 2),
        "gemm2_weights": fp8(4, 16, 8),
        "gemm2_weights_scale": torch.rand(4, 2, 1),
        "top_k": 2,
        "intermediate_size": 8,
        "local_num_experts": 4,
    }


def moe_ds_arguments():
    return {
        **_moe_arguments(8, torch.float32),
        "routing_bias": random(8),
        "num_experts": 8,
        "n_group": 4,
        "topk_group": 2,
        "local_expert_offset": 4,
        "routed_scaling_factor": 2.5,
        "routing_method_type": 2,
    }


def _moe_renorm_arguments():
    return {
        **_moe_arguments(4, torch.bfloat16),
        "routing_bias": None,
        "num_experts": 4,
        "n_group": None,
        "topk_group": None,
        "local_expert_offset": 0,
        "routed_scaling_factor": None,
        "routing_method_type": 1,
    }


def _moe(make):
    def prepare(fi):
        arguments = make()
        return lambda: (fi.fused_moe.trtllm_fp8_block_scale_moe(**arguments),)

    return prepare


KV_INDPTR = torch.tensor([0, 2, 3, 6], dtype=torch.int32)
KV_INDICES = torch.tensor([4, 1, 7, 0, 3, 5], dtype=torch.int32)
QO_INDPTR = torch.tensor([0, 2, 3, 5], dtype=torch.int32)


def workspace():
    return torch.empty(16, dtype=torch.uint8)


def caches(page_size, form="NHD"):
    """Caches of keys and values: ``NHD`` or ``HND``; with ``+`` in one tensor."""
    k, v = random(8, page_size, 2, 8), random(8, page_size, 2, 8)
    if form.startswith("HND"):
        k, v = k.transpose(1, 2).contiguous(), v.transpose(1, 2).contiguous()
    return torch.stack((k, v), 1) if form.endswith("+") else (k, v)


def last_page_len(page_size):
    return torch.tensor([1, page_size, max(1, page_size - 1)], dtype=torch.int32)


def decode_wrapper(fi, page_size, layout="NHD", **plan):
    """A wrapper that is planned for the queries of the tests."""
    wrapper = fi.decode.BatchDecodeWithPagedKVCacheWrapper(workspace(), layout)
    wrapper.plan(
        KV_INDPTR, KV_INDICES, last_page_len(page_size), 4, 2, 8, page_size, **{"q_data_type": torch.bfloat16, **plan}
    )
    return wrapper


def _run(wrapper, arguments, method="run", **options):
    """A call of a method of a planned wrapper."""

    def prepare(fi):
        planned, given = wrapper(fi), arguments()
        return lambda: _as_tuple(getattr(planned, method)(*given, **options))

    return prepare


def _decode(page_size, form="NHD", **run):
    layout = form.removesuffix("+")
    return _run(
        lambda fi: decode_wrapper(fi, page_size, layout), lambda: (random(3, 4, 8), caches(page_size, form)), **run
    )


def _decode_out(page_size, *, with_lse):
    def prepare(fi):
        wrapper = decode_wrapper(fi, page_size, sm_scale=0.5)
        q, cache = random(3, 4, 8), caches(page_size)
        out, lse = torch.zeros(3, 4, 8, dtype=torch.bfloat16), torch.zeros(3, 4)

        def call():
            if not with_lse:
                assert wrapper.run(q, cache, out=out) is out
                return (out,)
            found = wrapper.run(q, cache, out=out, lse=lse, return_lse=True)
            assert found[0] is out
            assert found[1] is lse
            return out, lse

        return call

    return prepare


def prefill_wrapper(fi, page_size, layout="NHD", **plan):
    wrapper = fi.prefill.BatchPrefillWithPagedKVCacheWrapper(workspace(), layout)
    settings = {"causal": True, "q_data_type": torch.bfloat16, **plan}
    wrapper.plan(QO_INDPTR, KV_INDPTR, KV_INDICES, last_page_len(page_size), 4, 2, 8, page_size, **settings)
    return wrapper


def _prefill(page_size, form="NHD", planned_causal=True, **run):
    layout = form.removesuffix("+")
    return _run(
        lambda fi: prefill_wrapper(fi, page_size, layout, causal=planned_causal),
        lambda: (random(5, 4, 8), caches(page_size, form)),
        **run,
    )


def ragged_wrapper(fi, kv_heads, qk, vo, **plan):
    wrapper = fi.prefill.BatchPrefillWithRaggedKVCacheWrapper(workspace(), "NHD")
    settings = {"causal": True, "q_data_type": torch.bfloat16, **plan}
    wrapper.plan(QO_INDPTR, KV_INDPTR, 4, kv_heads, qk, vo, **settings)
    return wrapper


def _ragged_call(kv_heads, qk, vo, planned_causal=True, **run):
    return _run(
        lambda fi: ragged_wrapper(fi, kv_heads, qk, vo, causal=planned_causal),
        lambda: (random(5, 4, qk), random(6, kv_heads, qk), random(6, kv_heads, vo)),
        **run,
    )


def mla_wrapper(fi, page_size, queries, *, causal, **plan):
    wrapper = fi.mla.BatchMLAPagedAttentionWrapper(workspace())
    wrapper.plan(
        queries,
        KV_INDPTR,
        KV_INDICES,
        (KV_INDPTR.diff() - 1) * page_size + last_page_len(page_size),
        4,
        8,
        4,
        page_size,
        causal,
        plan.pop("sm_scale", 1 / math.sqrt(12)),
        torch.bfloat16,
        torch.bfloat16,
        **plan,
    )
    return wrapper


def _mla_call(stage, page_size, **run):
    queries = torch.arange(4, dtype=torch.int32) if stage == "decode" else QO_INDPTR
    rows = int(queries[-1])
    return _run(
        lambda fi: mla_wrapper(fi, page_size, queries, causal=stage != "decode"),
        lambda: (random(rows, 4, 8), random(rows, 4, 4), random(8, page_size, 8), random(8, page_size, 4)),
        **run,
    )


def _as_tuple(found):
    return found if isinstance(found, tuple) else (found,)


_GQA_RAGGED = _ragged("gqa_ragged_prefill_causal_h4_kv2_d8", "gqa_ragged", 2, 8, 8)
_MLA_RAGGED = _ragged("mla_ragged_prefill_causal_h4_qk12_vo8", "mla_ragged", 4, 12, 8)
_ONES, _HALVES = torch.ones(3, dtype=torch.int32), torch.full((3,), 0.5)
_FORWARD = {"method": "forward", "sm_scale": 0.3}
_FORWARD_LSE = {"method": "forward_return_lse", "sm_scale": 0.3}
_CAUSAL = {"planned_causal": False, "causal": True}
"""As SGLang calls it: ``forward`` says what ``plan`` left open."""
_PLAIN = (
    ("rmsnorm", RMSNORM, _of("norm.rmsnorm", lambda: (random(3, 8), random(8)))),
    ("rmsnorm, out", RMSNORM, _with_buffer("norm.rmsnorm", lambda: (random(3, 8), random(8), 1e-6))),
    (
        "fused_add_rmsnorm",
        FUSED_ADD_RMSNORM,
        _of("norm.fused_add_rmsnorm", lambda: (random(3, 8), random(3, 8), random(8)), slice(0, 2), eps=1e-5),
    ),
    ("rope", ROPE, _of("rope.apply_rope_with_cos_sin_cache", _rope_arguments)),
    ("rope in place", ROPE, _of("rope.apply_rope_with_cos_sin_cache_inplace", _rope_arguments, slice(1, 3))),
    ("mm_bf16", GEMM, _of("gemm.mm_bf16", _factors)),
    ("mm_bf16, out", GEMM, _with_buffer("gemm.mm_bf16", _factors)),
    ("top_k", TOP_K, _of("sampling.top_k_sampling_from_probs", _probs(_ONES))),
    ("top_k, a number", TOP_K, _of("sampling.top_k_sampling_from_probs", _probs(1), deterministic=False)),
    ("top_p", TOP_P, _of("sampling.top_p_sampling_from_probs", _probs(_HALVES))),
    ("top_k_top_p", TOP_K_TOP_P, _of("sampling.top_k_top_p_sampling_from_probs", _probs(_ONES, 0.5))),
    ("moe like DeepSeek's", MOE_DS, _moe(moe_ds_arguments)),
    ("moe, renormalised", MOE_RENORM, _moe(_moe_renorm_arguments)),
)
_PLANNED = (
    ("decode", _gqa("decode", 1), _decode(1)),
    ("decode, lse", _gqa("decode", 1), _decode(1, return_lse=True)),
    ("decode, pages", _gqa("decode", 4), _decode(4, return_lse=True)),
    ("decode, HND", _gqa("decode", 1), _decode(1, "HND")),
    ("decode, out", _gqa("decode", 1), _decode_out(1, with_lse=False)),
    ("decode, out and lse", _gqa("decode", 4), _decode_out(4, with_lse=True)),
    ("prefill", _gqa("prefill_causal", 1), _prefill(1)),
    ("prefill, pages", _gqa("prefill_causal", 4), _prefill(4, return_lse=True)),
    ("prefill, HND", _gqa("prefill_causal", 1), _prefill(1, "HND", return_lse=True)),
    ("decode, forward", _gqa("decode", 4), _decode(4, **_FORWARD, logits_soft_cap=0.0)),
    ("decode, forward_return_lse", _gqa("decode", 4), _decode(4, **_FORWARD_LSE, k_scale=1.0)),
    ("prefill, forward", _gqa("prefill_causal", 4), _prefill(4, **_FORWARD, **_CAUSAL)),
    ("prefill, forward_return_lse", _gqa("prefill_causal", 4), _prefill(4, **_FORWARD_LSE, **_CAUSAL)),
    ("ragged GQA, forward", _GQA_RAGGED, _ragged_call(2, 8, 8, **_FORWARD, **_CAUSAL)),
    ("ragged GQA, forward_return_lse", _GQA_RAGGED, _ragged_call(2, 8, 8, **_FORWARD_LSE, **_CAUSAL)),
    ("ragged GQA", _GQA_RAGGED, _ragged_call(2, 8, 8, return_lse=True)),
    ("ragged MLA", _MLA_RAGGED, _ragged_call(4, 12, 8)),
    ("MLA decode", _mla("decode", 1), _mla_call("decode", 1)),
    ("MLA decode, pages", _mla("decode", 4), _mla_call("decode", 4, return_lse=True)),
    ("MLA prefill", _mla("prefill_causal", 1), _mla_call("prefill_causal", 1, return_lse=True)),
    ("MLA prefill, pages", _mla("prefill_causal", 4), _mla_call("prefill_causal", 4)),
)
EXAMPLES = tuple(Example(name, definition, _seeded(prepare)) for name, definition, prepare in _PLAIN) + tuple(
    Example(name, definition, _seeded(prepare), is_planned=True) for name, definition, prepare in _PLANNED
)
BY_DEFINITION = {example.definition.name: example for example in EXAMPLES}
"""One example of each definition."""
STRIDED = (
    Example("decode, one tensor", _gqa("decode", 4), _seeded(_decode(4, "NHD+")), is_planned=True),
    Example("decode, HND pages", _gqa("decode", 4), _seeded(_decode(4, "HND", return_lse=True)), is_planned=True),
    Example("prefill, HND, one tensor", _gqa("prefill_causal", 4), _seeded(_prefill(4, "HND+")), is_planned=True),
)
"""Calls whose caches are not contiguous: solutions serve them that were verified with the same strides."""


def reference_solution(definition, *, kind="returning"):
    """The reference as a solution: value-``returning``, destination-``passing``, or with ``setup``."""
    inputs, outputs = list(definition.inputs), list(definition.outputs)
    source = definition.reference.replace("\ndef run(", "\ndef reference(")
    if kind == "passing":
        source += f"\n\ndef run({', '.join((*inputs, *outputs))}):\n    found = reference({', '.join(inputs)})\n"
        source += "    found = found if isinstance(found, tuple) else (found,)\n"
        source += f"    for buffer, value in zip(({', '.join(outputs)},), found):\n        buffer.copy_(value)\n"
    elif kind == "setup":
        source += f"\n\ndef setup({', '.join(inputs)}):\n    return {{'planned': True}}\n"
        source += f"\n\ndef run({', '.join(inputs)}, *, planned):\n    return reference({', '.join(inputs)})\n"
    else:
        source += f"\n\ndef run({', '.join(inputs)}):\n    return reference({', '.join(inputs)})\n"
    spec = BuildSpec("python", ["cpu", "cuda"], "main.py::run", destination_passing_style=kind == "passing")
    return Solution(f"{kind}_{definition.name}", definition.name, "tests", spec, [SourceFile("main.py", source)])


def passed(solution, definition, inputs, latency_ms=0.1, layout=None):
    """A trace by which a solution is chosen on this machine for inputs like these, with strides by name."""
    extra = {"layout": layout} if layout else None
    axes = definition.get_axes_values_from_inputs([inputs[name] for name in definition.inputs])
    workload = Workload(axes, {name: RandomInput() for name in definition.inputs}, f"w-{solution.name}", extra)
    evaluation = Evaluation(
        "PASSED",
        Environment("cpu"),
        "2026-01-01T00:00:00Z",
        correctness=Correctness(0.0, 0.0),
        performance=Performance(latency_ms, 1.0, 1 / latency_ms),
        extra=extra,
    )
    return Trace(definition.name, workload, solution.name, evaluation)


def data_set(definition, traces, solutions):
    return TraceSet(None, {definition.name: definition}, {definition.name: solutions}, {}, {definition.name: traces})


def marked(definition, inputs):
    """A data set with a solution whose results no other function has; it serves inputs like these."""
    solution = reference_solution(definition)
    source = solution.sources[0].content.replace("    return reference(", "    return 100 + reference(")
    solution = Solution("marked", definition.name, "tests", solution.spec, [SourceFile("main.py", source)])
    named = dict(zip(definition.inputs, inputs, strict=True))
    strided = [n for n, x in named.items() if isinstance(x, torch.Tensor) and not x.is_contiguous()]
    trace = passed(solution, definition, named, layout={n: list(named[n].stride()) for n in strided})
    return data_set(definition, (trace,), (solution,))


def is_routed(result):
    """Whether the marked solution has made it."""
    return bool((result.float() > 50).all())
