"""``flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper``."""

from __future__ import annotations

from typing import Any

import torch
from fib_schema import Definition

from .. import attention
from ..adapter import Adapter, Reading
from ..attention import AttentionPlan

_WRAPPER = "flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper"
_INPUTS = "q k_cache v_cache kv_indptr kv_indices sm_scale"
_INPUTS_OF_PAGES = "q k_cache v_cache kv_indptr kv_indices kv_last_page_len sm_scale"


def read_plan(
    wrapper: Any,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    last_page_len: torch.Tensor,
    num_qo_heads: int,
    num_kv_heads: int,
    head_dim: int,
    page_size: int,
    pos_encoding_mode: str = "NONE",
    window_left: int = -1,
    logits_soft_cap: float | None = None,
    q_data_type: Any = "float16",
    kv_data_type: Any = None,
    o_data_type: Any = None,
    data_type: Any = None,
    sm_scale: float | None = None,
) -> AttentionPlan | str:
    """One query for each request."""
    problem = (
        attention.why_not_wrapper(wrapper)
        or attention.why_not_plain(
            pos_encoding_mode=pos_encoding_mode, window_left=window_left, logits_soft_cap=logits_soft_cap
        )
        or attention.why_not_dtypes(q_data_type or data_type, kv_data_type or data_type, o_data_type)
    )
    if problem:
        return problem
    kv_indptr = attention.on_device(wrapper, indptr, "_paged_kv_indptr_buf")
    kv_indices = attention.on_device(wrapper, indices, "_paged_kv_indices_buf")[: attention.last_value(indptr)]
    last = attention.on_device(wrapper, last_page_len, "_paged_kv_last_page_len_buf")
    name = f"gqa_paged_decode_h{num_qo_heads}_kv{num_kv_heads}_d{head_dim}_ps{page_size}"
    scale = attention.scale_of(sm_scale, head_dim)
    return AttentionPlan(
        attention.described(name, _INPUTS if page_size == 1 else _INPUTS_OF_PAGES),
        len(last_page_len),
        (kv_indptr, kv_indices, scale) if page_size == 1 else (kv_indptr, kv_indices, last, scale),
        layout=wrapper._kv_layout,  # noqa: SLF001 FlashInfer has no public name for it
        is_routable=not attention.is_replayed(wrapper),
    )


def read_run(
    plan: AttentionPlan,
    q: torch.Tensor,
    paged_kv_cache: Any,
    q_scale: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
    out: Any = None,
    lse: Any = None,
    return_lse: bool = False,
) -> Reading:
    """All inputs but queries and caches were planned."""
    has_scale = k_scale is not None or v_scale is not None or q_scale is not None
    if has_scale and attention.is_scaled(q_scale, k_scale, v_scale):
        return "it is scaled, as quantised values are"
    if q.shape[0] != plan.rows:
        return "there are more queries than were planned for"
    if type(paged_kv_cache) is not tuple or plan.layout != "NHD":
        paged_kv_cache = attention.paged_caches(paged_kv_cache, plan.layout)
    k_cache, v_cache = paged_kv_cache
    if out is None:
        return plan, (q, k_cache, v_cache, *plan.tail), False
    outputs = attention.buffers(plan, q, out, lse, return_lse)
    return plan, (q, k_cache, v_cache, *plan.tail, *outputs), bool(outputs)


def _baseline(definition: Definition) -> str | None:
    has_pages = "kv_last_page_len" in definition.inputs
    if (
        not definition.name.startswith("gqa_paged_decode_h")
        or [*definition.inputs] != (_INPUTS_OF_PAGES if has_pages else _INPUTS).split()
    ):
        return None
    last = "kv_last_page_len" if has_pages else "torch.ones_like(kv_indptr[1:])"
    sizes = ("q.shape[1]", "k_cache.shape[2]", "q.shape[2]", "k_cache.shape[1]")
    types = ("q_data_type=q.dtype", "kv_data_type=k_cache.dtype")
    return attention.baseline(
        definition,
        _WRAPPER,
        plan=("kv_indptr", "kv_indices", last, *sizes, *types),
        run="q, (k_cache, v_cache)",
        workspace_mib=128,
    )


GQA_PAGED_DECODE = Adapter(
    name="gqa_paged_decode",
    op_types=("gqa_paged",),
    targets=attention.targets(_WRAPPER, plan=read_plan, run=read_run, hints=attention.DECODE_HINTS),
    covers="both layouts, caches in one tensor or two, `out`, `lse`, `return_lse`",
    leaves="windows, soft caps, positions inside, scales, sinks, mixed types, `jit_args`, `forward`; wrappers for CUDA "
    "graphs are seen by listeners, not routed",
    baseline=_baseline,
)
