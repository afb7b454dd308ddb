"""FlashInfer calls as engines make them, one per public definition; used by `flashinfer_adapters`."""

import math
from collections.abc import Callable
from typing import Any

import attrs
import torch

Call = Callable[[], tuple[torch.Tensor, ...]]
"""Makes the call; returns its results and the tensors that it wrote in place."""
_WORKSPACE_BYTES = 256 * 1024 * 1024
_BF16 = torch.bfloat16
_ROWS, _PAGES = 16, 16
"""Rows, or requests, and the pages of each."""


@attrs.frozen
class Case:
    name: str
    definition: str
    prepare: Callable[[Any], Call]
    """Takes the package; creates the same arguments each time."""
    also: tuple[str, ...] = ()
    """Further adapters, which are not installed by default."""


def _random(*shape, dtype=_BF16):
    return torch.randn(*shape, device="cuda").to(dtype)


def _ints(values):
    return torch.as_tensor(values, dtype=torch.int32, device="cuda")


def _rmsnorm(fi):
    x, w = _random(_ROWS, 4096), _random(4096)
    return lambda: (fi.norm.rmsnorm(x, w, eps=1e-5),)


def _fused_add_rmsnorm(fi):
    x, r, w = _random(_ROWS, 4096), _random(_ROWS, 4096), _random(4096)

    def call():
        fi.norm.fused_add_rmsnorm(x, r, w, eps=1e-5)
        return x, r

    return call


def _rope(fi):
    angles = torch.rand(64, 32, device="cuda")
    cache = torch.cat((angles.cos(), angles.sin()), 1)
    positions = torch.arange(_ROWS, device="cuda")
    q, k = _random(_ROWS, 8 * 128), _random(_ROWS, 2 * 128)

    def call():
        fi.rope.apply_rope_with_cos_sin_cache_inplace(positions, q, k, 128, cache, True)
        return q, k

    return call


def _probs(rows, vocabulary):
    """One token per row dominates, so that any correct sampler returns it."""
    probs = torch.full((rows, vocabulary), 0.1 / vocabulary, device="cuda")
    probs[torch.arange(rows), torch.arange(rows) * 7] = 0.9
    return probs / probs.sum(1, keepdim=True)


def _top_k(fi):
    probs, k = _probs(_ROWS, 128256), _ints([1] * _ROWS)
    return lambda: (fi.sampling.top_k_sampling_from_probs(probs, k),)


def _top_p(fi):
    probs, p = _probs(_ROWS, 129280), torch.full((_ROWS,), 0.5, device="cuda")
    return lambda: (fi.sampling.top_p_sampling_from_probs(probs, p),)


def _top_k_top_p(fi):
    probs, k = _probs(_ROWS, 129280), _ints([1] * _ROWS)
    p = torch.full((_ROWS,), 0.5, device="cuda")
    return lambda: (fi.sampling.top_k_top_p_sampling_from_probs(probs, k, p),)


def _linear(fi):
    del fi
    x, w = _random(_ROWS, 4096, dtype=torch.float16), _random(4096, 4096, dtype=torch.float16)
    return lambda: (torch.nn.functional.linear(x, w),)


def _workspace():
    return torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")


def _pages(pages=_PAGES):
    """Offsets and shuffled page indices."""
    count = _ROWS * pages
    return _ints(range(0, count + 1, pages)), torch.randperm(count, device="cuda").to(torch.int32)


def _decode(fi):
    indptr, indices = _pages()
    wrapper = fi.decode.BatchDecodeWithPagedKVCacheWrapper(_workspace(), "NHD")
    last = _ints([64] * (_ROWS - 1) + [7])
    wrapper.plan(indptr, indices, last, 32, 8, 128, 64, q_data_type=_BF16, kv_data_type=_BF16)
    q, cache = _random(_ROWS, 32, 128), tuple(_random(len(indices), 64, 8, 128) for _ in range(2))
    return lambda: wrapper.run(q, cache, return_lse=True)


def _paged_prefill(fi):
    indptr, indices = _pages(2 * _PAGES)
    queries = _ints(range(0, 2 * _ROWS + 1, 2))
    wrapper = fi.prefill.BatchPrefillWithPagedKVCacheWrapper(_workspace(), "NHD")
    last = _ints([1] * _ROWS)
    wrapper.plan(queries, indptr, indices, last, 32, 8, 128, 1, causal=True, q_data_type=_BF16, kv_data_type=_BF16)
    q, cache = _random(2 * _ROWS, 32, 128), tuple(_random(len(indices), 1, 8, 128) for _ in range(2))
    return lambda: wrapper.run(q, cache, return_lse=True)


def _ragged(heads, kv_heads, qk, vo):
    def prepare(fi):
        queries, keys = (_ints(range(0, n * _ROWS + 1, n)) for n in (_PAGES, 2 * _PAGES))
        wrapper = fi.prefill.BatchPrefillWithRaggedKVCacheWrapper(_workspace(), "NHD")
        wrapper.plan(queries, keys, heads, kv_heads, qk, vo, causal=True, q_data_type=_BF16, kv_data_type=_BF16)
        q = _random(int(queries[-1]), heads, qk)
        k, v = _random(int(keys[-1]), kv_heads, qk), _random(int(keys[-1]), kv_heads, vo)
        return lambda: wrapper.run(q, k, v, return_lse=True)

    return prepare


def _mla(heads, page_size, per_request):
    def prepare(fi):
        indptr, indices = _pages(_PAGES if page_size > 1 else 4 * _PAGES)
        queries = _ints(range(0, per_request * _ROWS + 1, per_request))
        lengths = indptr.diff() * page_size - int(page_size > 1)
        wrapper = fi.mla.BatchMLAPagedAttentionWrapper(_workspace())
        scale = 1 / math.sqrt(192)
        planned = (queries, indptr, indices, lengths, heads, 512, 64, page_size, per_request > 1, scale, _BF16, _BF16)
        names = (
            "qo_indptr kv_indptr kv_indices kv_len_arr num_heads head_dim_ckv head_dim_kpe page_size causal sm_scale"
        )
        wrapper.plan(**dict(zip([*names.split(), "q_data_type", "kv_data_type"], planned, strict=True)))
        rows = per_request * _ROWS
        q, pe = _random(rows, heads, 512), _random(rows, heads, 64)
        ckv, kpe = _random(len(indices), page_size, 512), _random(len(indices), page_size, 64)
        given = {"q_nope": q, "q_pe": pe, "ckv_cache": ckv, "kpe_cache": kpe}
        return lambda: wrapper.run(**given, return_lse=True)

    return prepare


def _moe(fi):
    experts, hidden, middle, block, rows = 128, 2048, 768, 128, _ROWS

    def quantized(*shape):
        return _random(*shape, dtype=torch.float8_e4m3fn)

    def scales(*shape):
        return torch.full(shape, 0.02, device="cuda")

    given = {
        "routing_logits": _random(rows, experts),
        "routing_bias": None,
        "hidden_states": quantized(rows, hidden),
        "hidden_states_scale": scales(hidden // block, rows),
        "gemm1_weights": quantized(experts, 2 * middle, hidden),
        "gemm1_weights_scale": scales(experts, 2 * middle // block, hidden // block),
        "gemm2_weights": quantized(experts, hidden, middle),
        "gemm2_weights_scale": scales(experts, hidden // block, middle // block),
        "num_experts": experts,
        "top_k": 8,
        "n_group": None,
        "topk_group": None,
        "intermediate_size": middle,
        "local_expert_offset": 0,
        "local_num_experts": experts,
        "routed_scaling_factor": None,
        "routing_method_type": 1,
    }
    return lambda: (fi.fused_moe.trtllm_fp8_block_scale_moe(**given),)


def _seeded(prepare):
    def seeded(fi):
        torch.manual_seed(7)
        return prepare(fi)

    return seeded


_CASES = (
    ("rmsnorm", "rmsnorm_h4096", _rmsnorm),
    ("fused_add_rmsnorm", "fused_add_rmsnorm_h4096", _fused_add_rmsnorm),
    ("rope in place", "rope_with_cos_sin_cache_neox_style_d128_rd64", _rope),
    ("top-k", "top_k_sampling_from_probs_v128256", _top_k),
    ("top-p", "top_p_sampling_from_probs_v129280", _top_p),
    ("top-k and top-p", "top_k_top_p_sampling_from_probs_v129280", _top_k_top_p),
    ("paged decode", "gqa_paged_decode_h32_kv8_d128_ps64", _decode),
    ("paged prefill", "gqa_paged_prefill_causal_h32_kv8_d128_ps1", _paged_prefill),
    ("ragged GQA", "gqa_ragged_prefill_causal_h32_kv8_d128", _ragged(32, 8, 128, 128)),
    ("ragged MLA", "mla_ragged_prefill_causal_h16_qk192_vo128", _ragged(16, 16, 192, 128)),
    ("MLA decode", "mla_paged_decode_h16_ckv512_kpe64_ps64", _mla(16, 64, 1)),
    ("MLA prefill", "mla_paged_prefill_causal_h16_ckv512_kpe64_ps64", _mla(16, 64, 2)),
    ("MoE", "moe_fp8_block_scale_renorm_topk8_e128_h2048_i768", _moe),
)
CASES = (
    *(Case(name, definition, _seeded(prepare)) for name, definition, prepare in _CASES),
    Case("linear", "gemm_n4096_k4096", _seeded(_linear), ("torch_linear",)),
)
