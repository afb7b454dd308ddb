"""Adapter for prefill attention with a ragged KV cache: GQA, and MLA before weight absorption."""

from __future__ import annotations

from typing import Any

import torch
from fib_schema import Definition

from .. import attention
from ..adapter import Adapter, Conversion
from ..attention import Settings, WrapperPlan

_WRAPPER = "flashinfer.prefill.BatchPrefillWithRaggedKVCacheWrapper"
_INPUTS = "q k v qo_indptr kv_indptr sm_scale"


def _name(heads: int, kv_heads: int, qk: int, vo: int) -> str | None:
    if qk == vo:
        return f"gqa_ragged_prefill_causal_h{heads}_kv{kv_heads}_d{qk}"
    return f"mla_ragged_prefill_causal_h{heads}_qk{qk}_vo{vo}" if heads == kv_heads else None


@attention.cached_kind
def _kind(layout: str, sizes: tuple[int, int, int, int], settings: Settings) -> attention.PlanKind | str:
    name = _name(*sizes)
    if name is None:
        return "head_dim_vo differs from head_dim_qk, and heads are grouped"
    return attention.make_kind(name, _INPUTS, layout, sizes[2], settings)


def convert_plan(
    wrapper: Any,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    num_qo_heads: int,
    num_kv_heads: int,
    head_dim_qk: int,
    head_dim_vo: int | None = None,
    causal: bool = False,
    pos_encoding_mode: str = "NONE",
    window_left: int = -1,
    logits_soft_cap: float | None = None,
    sm_scale: float | None = None,
    q_data_type: Any = "float16",
    kv_data_type: Any = None,
    o_data_type: Any = None,
) -> WrapperPlan | str:
    """Any number of queries per request; keys and values of the requests are concatenated."""
    dtypes = q_data_type, kv_data_type, o_data_type
    sizes = num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo or head_dim_qk
    settings = Settings(causal, pos_encoding_mode, False, window_left, logits_soft_cap, sm_scale)
    kind = _kind(wrapper, dtypes, sizes, settings)
    if isinstance(kind, str):
        return kind
    rows, keys = attention.last_value(qo_indptr), attention.last_value(kv_indptr)
    replayed = attention.is_replayed(wrapper)
    buffers = "_qo_indptr_buf", "_kv_indptr_buf"
    offsets = attention.on_device(wrapper, (qo_indptr, kv_indptr), buffers, replayed=replayed)
    inputs = (*offsets, kind.sm_scale)
    plan = attention.AttentionPlan(kind.definition, rows, inputs, kind.layout, keys, not replayed)
    return WrapperPlan(wrapper, plan, kind, (rows, keys, qo_indptr.shape[0]))


def convert_run(
    planned: WrapperPlan,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_scale: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
    o_scale: Any = None,
    out: Any = None,
    lse: Any = None,
    return_lse: bool = False,
) -> Conversion:
    """In the layout HND, the heads of keys and values come first."""
    if attention.is_scaled(q_scale, k_scale, v_scale, o_scale):
        return "it has quantisation scales"
    plan = planned.current
    if isinstance(plan, str):
        return plan
    if plan.layout != "NHD":
        k, v = k.transpose(0, 1), v.transpose(0, 1)
    if q.shape[0] != plan.rows or k.shape[0] != plan.keys:
        return "the number of queries or keys differs from the plan"
    outputs = attention.output_buffers(plan, q, out, lse, return_lse, planned.wrapper)
    return plan, (q, k, v, *plan.inputs, *outputs), bool(outputs)


def convert_forward(
    planned: WrapperPlan,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    pos_encoding_mode: str = "NONE",
    use_fp16_qk_reduction: bool = False,
    window_left: int = -1,
    logits_soft_cap: float | None = None,
    sm_scale: float | None = None,
    rope_scale: float | None = None,
    rope_theta: float | None = None,
    out: Any = None,
    lse: Any = None,
    return_lse: bool = False,
) -> Conversion:
    """As `convert_run`, with settings that replace those of the plan."""
    settings = Settings(
        causal, pos_encoding_mode, use_fp16_qk_reduction, window_left, logits_soft_cap, sm_scale, rope_scale, rope_theta
    )
    planned.use(settings)
    return convert_run(planned, q, k, v, out=out, lse=lse, return_lse=return_lse)


def _baseline(definition: Definition) -> str | None:
    is_known = definition.name.startswith(("gqa_ragged_prefill_causal_h", "mla_ragged_prefill_causal_h"))
    if not is_known or list(definition.inputs) != _INPUTS.split():
        return None
    sizes = ("q.shape[1]", "k.shape[1]", "q.shape[2]", "v.shape[2]")
    plan = ("qo_indptr", "kv_indptr", *sizes, "causal=True")
    return attention.baseline_source(definition, _WRAPPER, plan=plan, run="q, k, v", workspace_mib=256)


RAGGED_PREFILL = Adapter(
    name="ragged_prefill",
    op_types=("gqa_ragged", "mla_ragged"),
    targets=attention.targets(
        _WRAPPER, plan=convert_plan, run=convert_run, forward=convert_forward, hints=attention.PREFILL_HINTS
    ),
    supported="causal; GQA, and MLA with smaller values than keys; `out`, `lse`, `return_lse`; `forward`",
    unsupported="non-causal attention, custom masks, other offsets, and what `gqa_paged_decode` does not support",
    baseline=_baseline,
)
