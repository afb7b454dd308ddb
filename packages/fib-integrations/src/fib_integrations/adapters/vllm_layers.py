"""Adapters for the functions below vLLM's custom ops: attention in bfloat16.

vLLM's defaults on Hopper are FlashAttention 3, Triton's experts and cuBLAS. The custom ops of the former two call the
patched functions when they run, also while a CUDA graph is captured; a replay calls no Python.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import attrs
import torch

from ..adapter import VLLM, Adapter, Call, Conversion, DefinitionRef, Family

_Tensor: TypeAlias = torch.Tensor
_BF16, _NOT_BF16 = torch.bfloat16, "a tensor is not bfloat16"
_FA_REFERENCE = """\
import torch


@torch.no_grad()
def run(q, k_cache, v_cache, cu_seqlens_q, seq_lens, block_table, softmax_scale):
    page_size, kv_heads = k_cache.shape[1], k_cache.shape[2]
    group = q.shape[1] // kv_heads
    output = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    first = cu_seqlens_q.tolist()
    for request, keys in enumerate(seq_lens.tolist()):
        rows = slice(first[request], first[request + 1])
        count = rows.stop - rows.start
        if count <= 0 or keys <= 0:
            continue
        pages = block_table[request, : (keys + page_size - 1) // page_size].long()
        # the queries are the last tokens of their request
        places = torch.arange(keys - count, keys, device=q.device)[:, None]
        hidden = torch.arange(keys, device=q.device)[None, :] > places
        for head in range(kv_heads):
            heads = slice(head * group, (head + 1) * group)
            k = k_cache[pages, :, head].flatten(0, 1)[:keys].float()
            v = v_cache[pages, :, head].flatten(0, 1)[:keys].float()
            scores = torch.einsum("qhd,kd->hqk", q[rows, heads].float(), k) * softmax_scale
            weights = scores.masked_fill(hidden, float("-inf")).softmax(-1).nan_to_num(0.0)
            output[rows, heads] = torch.einsum("hqk,kd->qhd", weights, v).to(q.dtype)
    return output
"""
_FA = "vllm.vllm_flash_attn.flash_attn_interface.flash_attn_varlen_func"
_HINTS = frozenset(
    {"max_seqlen_k", "scheduler_metadata", "num_splits", "fa_version", "deterministic"}
    | {"q_descale", "k_descale", "v_descale"}  # of fp8 only
)
_CACHES = "num_pages page_size num_kv_heads head_dim bfloat16"
_CAUSAL = Family(
    name="fa_paged_causal_h{num_qo_heads}_kv{num_kv_heads}_d{head_dim}_ps{page_size}",
    op_type="gqa_paged",
    inputs={
        "q": "total_q num_qo_heads head_dim bfloat16",
        "k_cache": _CACHES,
        "v_cache": _CACHES,
        "cu_seqlens_q": "len_indptr int32",
        "seq_lens": "num_seqs int32",
        "block_table": "num_seqs max_pages_per_seq int32",
        "softmax_scale": "float32",
    },
    outputs={"output": "total_q num_qo_heads head_dim bfloat16"},
    reference=_FA_REFERENCE,
    description="Causal attention to a paged cache, as vLLM calls FlashAttention: rows of `block_table` have the pages "
    "of a request, `seq_lens` its number of keys, and its queries are its last tokens.",
    constraints=(
        "len_indptr == num_seqs + 1",
        "total_q == cu_seqlens_q[-1].item()",
        "seq_lens.max().item() <= max_pages_per_seq * page_size",
    ),
    baseline="""from vllm.v1.attention.backends.fa_utils import get_flash_attn_version
from vllm.vllm_flash_attn import flash_attn_varlen_func


def run(q, k_cache, v_cache, cu_seqlens_q, seq_lens, block_table, softmax_scale, output):
    flash_attn_varlen_func(
        q=q, k=k_cache, v=v_cache, out=output, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=len(q), seqused_k=seq_lens,
        max_seqlen_k=block_table.shape[1] * k_cache.shape[1], softmax_scale=softmax_scale, causal=True,
        block_table=block_table, fa_version=get_flash_attn_version(),
    )
""",
)
_DECODE = attrs.evolve(
    _CAUSAL,
    name=_CAUSAL.name.replace("causal", "decode"),
    constraints=(*_CAUSAL.constraints, "total_q == num_seqs"),
    baseline=str(_CAUSAL.baseline).replace("len(q)", "1"),
)


def convert_attention(
    q: _Tensor, k: _Tensor, v: _Tensor, max_seqlen_q: int, cu_seqlens_q: _Tensor, seqused_k: Any = None,
    softmax_scale: float | None = None, causal: bool = False, window_size: Any = None, softcap: float | None = 0.0,
    block_table: Any = None, return_softmax_lse: bool = False, out: Any = None,
) -> Conversion:  # fmt: skip
    """Causal attention to a paged cache. FlashAttention reads scales of quantised tensors only if the dtype is fp8."""
    if block_table is None or seqused_k is None:
        return "its keys are not in pages"
    if q.dtype is not _BF16 or k.dtype is not _BF16 or v.dtype is not _BF16:
        return _NOT_BF16
    if k.shape != v.shape or q.shape[2] != k.shape[3]:
        return "the sizes of queries, keys and values differ"
    if max_seqlen_q != 1 and causal is not True:
        return "it is not causal"
    if window_size is not None and (window_size[0] >= 0 or window_size[1] > 0):
        return "it has a sliding window"
    if softcap:
        return "it has a logits soft cap"
    if return_softmax_lse:
        return "it returns the log-sum-exp"
    scale = float(q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)
    values = q, k, v, cu_seqlens_q, seqused_k, block_table, scale
    key = attention_key(q, k, max_seqlen_q)
    return (key, values, False) if out is None else (key, (*values, out), True)


def attention_key(q: _Tensor, k: _Tensor, max_seqlen_q: int) -> tuple[bool, int, int, int, int]:
    """The key of `convert_attention`."""
    return max_seqlen_q == 1, q.shape[1], k.shape[2], q.shape[2], k.shape[1]


def _describe(key: tuple[bool, int, int, int, int]) -> DefinitionRef:
    return (_DECODE if key[0] else _CAUSAL).describe(key[1:])


VLLM_ATTENTION = Adapter(
    name="vllm_attention",
    op_types=("gqa_paged",),
    targets=(Call(path=_FA, convert=convert_attention, describe=_describe, key=attention_key, ignored=_HINTS),),
    supported="bfloat16, causal, paged (`block_table`), with or without `out`",
    unsupported="fp8, windows, soft caps, ALiBi, sinks, masks, MLA (`q_v`), cascades, log-sum-exp, keys without pages",
    engine=VLLM,
    families=(_CAUSAL, _DECODE),
)
