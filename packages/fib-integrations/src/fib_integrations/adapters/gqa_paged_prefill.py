"""``flashinfer.prefill.BatchPrefillWithPagedKVCacheWrapper``, causal."""

from __future__ import annotations

from typing import Any

import torch
from fib_schema import Definition

from .. import attention
from ..adapter import Adapter
from ..attention import AttentionPlan
from .gqa_paged_decode import read_run

_WRAPPER = "flashinfer.prefill.BatchPrefillWithPagedKVCacheWrapper"
_INPUTS = "q k_cache v_cache qo_indptr kv_indptr kv_indices sm_scale"
_INPUTS_OF_PAGES = "q k_cache v_cache qo_indptr kv_indptr kv_indices kv_last_page_len sm_scale"
PADDED = frozenset(
    {
        "gqa_paged_prefill_causal_h16_kv1_d128_ps64",
        "gqa_paged_prefill_causal_h20_kv4_d128_ps64",
        "gqa_paged_prefill_causal_h24_kv4_d128_ps64",
    }
)
"""Definitions that give ``kv_last_page_len`` the length of the offsets: one more than there are requests."""


def read_plan(
    wrapper: Any,
    qo_indptr: torch.Tensor,
    paged_kv_indptr: torch.Tensor,
    paged_kv_indices: torch.Tensor,
    paged_kv_last_page_len: torch.Tensor,
    num_qo_heads: int,
    num_kv_heads: int,
    head_dim_qk: int,
    page_size: int,
    head_dim_vo: int | None = None,
    causal: bool = False,
    pos_encoding_mode: str = "NONE",
    sm_scale: float | None = None,
    window_left: int = -1,
    logits_soft_cap: float | None = None,
    q_data_type: Any = "float16",
    kv_data_type: Any = None,
    o_data_type: Any = None,
) -> AttentionPlan | str:
    """Requests with any number of queries, the last ones of their sequences."""
    problem = (
        (None if causal else "it is not causal")
        or (None if head_dim_vo in (None, head_dim_qk) else "values have another size than keys")
        or attention.why_not_wrapper(wrapper)
        or attention.why_not_plain(
            pos_encoding_mode=pos_encoding_mode, window_left=window_left, logits_soft_cap=logits_soft_cap
        )
        or attention.why_not_dtypes(q_data_type, kv_data_type, o_data_type)
    )
    if problem:
        return problem
    name = f"gqa_paged_prefill_causal_h{num_qo_heads}_kv{num_kv_heads}_d{head_dim_qk}_ps{page_size}"
    offsets = (
        attention.on_device(wrapper, qo_indptr, "_qo_indptr_buf"),
        attention.on_device(wrapper, paged_kv_indptr, "_paged_kv_indptr_buf"),
    )
    indices = attention.on_device(wrapper, paged_kv_indices, "_paged_kv_indices_buf")
    last = attention.on_device(wrapper, paged_kv_last_page_len, "_paged_kv_last_page_len_buf")
    if name in PADDED:
        last = torch.nn.functional.pad(last, (0, 1), value=1)
    scale = attention.scale_of(sm_scale, head_dim_qk)
    kv_indices = indices[: attention.last_value(paged_kv_indptr)]
    return AttentionPlan(
        attention.described(name, _INPUTS if page_size == 1 else _INPUTS_OF_PAGES),
        attention.last_value(qo_indptr),
        (*offsets, kv_indices, scale) if page_size == 1 else (*offsets, kv_indices, last, scale),
        layout=wrapper._kv_layout,  # noqa: SLF001 FlashInfer has no public name for it
        is_routable=not attention.is_replayed(wrapper),
    )


def _baseline(definition: Definition) -> str | None:
    has_pages = "kv_last_page_len" in definition.inputs
    if (
        not definition.name.startswith("gqa_paged_prefill_causal_h")
        or [*definition.inputs] != (_INPUTS_OF_PAGES if has_pages else _INPUTS).split()
    ):
        return None
    last = "kv_last_page_len[: len(kv_indptr) - 1]" if has_pages else "torch.ones_like(kv_indptr[1:])"
    offsets = ("qo_indptr", "kv_indptr", "kv_indices", last)
    sizes = ("q.shape[1]", "k_cache.shape[2]", "q.shape[2]", "k_cache.shape[1]")
    types = ("q_data_type=q.dtype", "kv_data_type=k_cache.dtype")
    return attention.baseline(
        definition,
        _WRAPPER,
        plan=(*offsets, *sizes, "causal=True", *types),
        run="q, (k_cache, v_cache)",
        workspace_mib=256,
    )


GQA_PAGED_PREFILL = Adapter(
    name="gqa_paged_prefill",
    op_types=("gqa_paged",),
    targets=attention.targets(_WRAPPER, plan=read_plan, run=read_run, hints=attention.PREFILL_HINTS),
    covers="causal; both layouts, caches in one tensor or two, `out`, `lse`, `return_lse`",
    leaves="what is not causal, custom masks, and what decoding leaves",
    baseline=_baseline,
)
