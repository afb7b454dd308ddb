"""FlashInfer calls as engines make them, one per public definition; used by `flashinfer_adapters`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import attrs
import torch

Call: TypeAlias = Callable[[], tuple[torch.Tensor, ...]]
"""Makes the call; returns its results and the tensors that it wrote in place."""
_WORKSPACE_BYTES = 256 * 1024 * 1024
_BF16 = torch.bfloat16


@attrs.frozen
class Sizes:
    """The sizes of the calls."""

    rows: int
    pages: int
    """Per request."""

    @classmethod
    def small(cls) -> Sizes:
        """For dumps that are committed."""
        return cls(2, 2)

    @classmethod
    def usual(cls) -> Sizes:
        """For timing."""
        return cls(16, 16)


@attrs.frozen
class Case:
    """A call and its definition."""

    name: str
    definition: str
    prepare: Callable[[Any, Sizes], Call]
    """Takes the package; creates the same arguments each time."""
    also: tuple[str, ...] = ()
    """Further adapters, which are not installed by default."""


def _random(*shape: int, dtype: torch.dtype = _BF16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def _ints(values: Any) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.int32, device="cuda")


def _rmsnorm(fi: Any, sizes: Sizes) -> Call:
    x, w = _random(sizes.rows, 4096), _random(4096)
    return lambda: (fi.norm.rmsnorm(x, w, eps=1e-5),)


def _fused_add_rmsnorm(fi: Any, sizes: Sizes) -> Call:
    x, r, w = _random(sizes.rows, 4096), _random(sizes.rows, 4096), _random(4096)

    def call() -> tuple[torch.Tensor, ...]:
        fi.norm.fused_add_rmsnorm(x, r, w, eps=1e-5)
        return x, r

    return call


def _rope(fi: Any, sizes: Sizes) -> Call:
    angles = torch.rand(64, 32, device="cuda")
    cache = torch.cat((angles.cos(), angles.sin()), 1)
    positions = torch.arange(sizes.rows, device="cuda")
    q, k = _random(sizes.rows, 8 * 128), _random(sizes.rows, 2 * 128)

    def call() -> tuple[torch.Tensor, ...]:
        fi.rope.apply_rope_with_cos_sin_cache_inplace(positions, q, k, 128, cache, True)
        return q, k

    return call


def _probs(rows: int, vocabulary: int) -> torch.Tensor:
    """One token per row dominates, so that any correct sampler returns it."""
    probs = torch.full((rows, vocabulary), 0.1 / vocabulary, device="cuda")
    probs[torch.arange(rows), torch.arange(rows) * 7] = 0.9
    return probs / probs.sum(1, keepdim=True)


def _top_k(fi: Any, sizes: Sizes) -> Call:
    probs, k = _probs(sizes.rows, 128256), _ints([1] * sizes.rows)
    return lambda: (fi.sampling.top_k_sampling_from_probs(probs, k),)


def _top_p(fi: Any, sizes: Sizes) -> Call:
    probs, p = _probs(sizes.rows, 129280), torch.full((sizes.rows,), 0.5, device="cuda")
    return lambda: (fi.sampling.top_p_sampling_from_probs(probs, p),)


def _top_k_top_p(fi: Any, sizes: Sizes) -> Call:
    probs, k = _probs(sizes.rows, 129280), _ints([1] * sizes.rows)
    p = torch.full((sizes.rows,), 0.5, device="cuda")
    return lambda: (fi.sampling.top_k_top_p_sampling_from_probs(probs, k, p),)


def _linear(fi: Any, sizes: Sizes) -> Call:
    del fi
    x, w = _random(sizes.rows, 4096, dtype=torch.float16), _random(4096, 4096, dtype=torch.float16)
    return lambda: (torch.nn.functional.linear(x, w),)


def _workspace() -> torch.Tensor:
    return torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")


def _pages(sizes: Sizes) -> tuple[torch.Tensor, torch.Tensor]:
    """Offsets and shuffled page indices."""
    count = sizes.rows * sizes.pages
    return _ints(range(0, count + 1, sizes.pages)), torch.randperm(count, device="cuda").to(torch.int32)


def _decode(fi: Any, sizes: Sizes) -> Call:
    indptr, indices = _pages(sizes)
    wrapper = fi.decode.BatchDecodeWithPagedKVCacheWrapper(_workspace(), "NHD")
    last = _ints([64] * (sizes.rows - 1) + [7])
    wrapper.plan(indptr, indices, last, 32, 8, 128, 64, q_data_type=_BF16, kv_data_type=_BF16)
    q, cache = _random(sizes.rows, 32, 128), tuple(_random(len(indices), 64, 8, 128) for _ in range(2))
    return lambda: wrapper.run(q, cache, return_lse=True)


def _paged_prefill(fi: Any, sizes: Sizes) -> Call:
    indptr, indices = _pages(Sizes(sizes.rows, sizes.pages * 2))
    queries = _ints(range(0, 2 * sizes.rows + 1, 2))
    wrapper = fi.prefill.BatchPrefillWithPagedKVCacheWrapper(_workspace(), "NHD")
    last = _ints([1] * sizes.rows)
    wrapper.plan(queries, indptr, indices, last, 32, 8, 128, 1, causal=True, q_data_type=_BF16, kv_data_type=_BF16)
    q, cache = _random(2 * sizes.rows, 32, 128), tuple(_random(len(indices), 1, 8, 128) for _ in range(2))
    return lambda: wrapper.run(q, cache, return_lse=True)


def _ragged(heads: int, kv_heads: int, qk: int, vo: int) -> Callable[[Any, Sizes], Call]:
    def prepare(fi: Any, sizes: Sizes) -> Call:
        queries, keys = (_ints(range(0, n * sizes.rows + 1, n)) for n in (sizes.pages, 2 * sizes.pages))
        wrapper = fi.prefill.BatchPrefillWithRaggedKVCacheWrapper(_workspace(), "NHD")
        wrapper.plan(queries, keys, heads, kv_heads, qk, vo, causal=True, q_data_type=_BF16, kv_data_type=_BF16)
        q = _random(int(queries[-1]), heads, qk)
        k, v = _random(int(keys[-1]), kv_heads, qk), _random(int(keys[-1]), kv_heads, vo)
        return lambda: wrapper.run(q, k, v, return_lse=True)

    return prepare


def _mla(heads: int, page_size: int, per_request: int) -> Callable[[Any, Sizes], Call]:
    def prepare(fi: Any, sizes: Sizes) -> Call:
        indptr, indices = _pages(sizes if page_size > 1 else Sizes(sizes.rows, 4 * sizes.pages))
        queries = _ints(range(0, per_request * sizes.rows + 1, per_request))
        lengths = indptr.diff() * page_size - int(page_size > 1)
        wrapper = fi.mla.BatchMLAPagedAttentionWrapper(_workspace())
        scale = 1 / math.sqrt(192)
        planned = (queries, indptr, indices, lengths, heads, 512, 64, page_size, per_request > 1, scale, _BF16, _BF16)
        names = (
            "qo_indptr kv_indptr kv_indices kv_len_arr num_heads head_dim_ckv head_dim_kpe page_size causal sm_scale"
        )
        wrapper.plan(**dict(zip([*names.split(), "q_data_type", "kv_data_type"], planned, strict=True)))
        rows = per_request * sizes.rows
        q, pe = _random(rows, heads, 512), _random(rows, heads, 64)
        ckv, kpe = _random(len(indices), page_size, 512), _random(len(indices), page_size, 64)
        given = {"q_nope": q, "q_pe": pe, "ckv_cache": ckv, "kpe_cache": kpe}
        return lambda: wrapper.run(**given, return_lse=True)

    return prepare


def _moe(fi: Any, sizes: Sizes) -> Call:
    experts, hidden, middle, block, rows = 128, 2048, 768, 128, sizes.rows

    def quantized(*shape: int) -> torch.Tensor:
        return _random(*shape, dtype=torch.float8_e4m3fn)

    def scales(*shape: int) -> torch.Tensor:
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


def _seeded(prepare: Callable[[Any, Sizes], Call]) -> Callable[[Any, Sizes], Call]:
    def seeded(fi: Any, sizes: Sizes) -> Call:
        torch.manual_seed(7)
        return prepare(fi, sizes)

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
