"""Adapters for grouped-query attention with a paged KV cache.

Runs of CUDA-graph wrappers are routed in decode with the wrapper's whole buffers, to solutions that were verified with
padded indices. Those of prefill are traced, not routed: a later plan may change which queries belong to a request.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from fib_schema import Definition

from .. import attention
from ..adapter import Adapter, Conversion
from ..attention import Settings, WrapperPlan

_DECODE_WRAPPER = "flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper"
_PREFILL_WRAPPER = "flashinfer.prefill.BatchPrefillWithPagedKVCacheWrapper"
PADDED = frozenset(
    {
        "gqa_paged_prefill_causal_h16_kv1_d128_ps64",
        "gqa_paged_prefill_causal_h20_kv4_d128_ps64",
        "gqa_paged_prefill_causal_h24_kv4_d128_ps64",
    }
)
"""Definitions whose ``kv_last_page_len`` has the length of the offsets: one more than there are requests."""

_PAGES = ("_paged_kv_indptr_buf", "_paged_kv_indices_buf", "_paged_kv_last_page_len_buf")
"""The attributes of a wrapper that describe its pages."""


_Sizes: TypeAlias = tuple[int, int, int, int]
"""Heads of queries, heads of keys and values, elements of a head, tokens of a page."""


def _inputs(*, is_prefill: bool, page_size: int) -> str:
    """The inputs of a definition; pages of one token have no last-page length."""
    offsets = "qo_indptr kv_indptr" if is_prefill else "kv_indptr"
    return f"q k_cache v_cache {offsets} kv_indices {'' if page_size == 1 else 'kv_last_page_len '}sm_scale"


def _pages(
    wrapper: Any, indptr: Any, indices: Any, last_page_len: Any, page_size: int, *, replayed: bool
) -> tuple[list[torch.Tensor], int]:
    """The inputs that describe pages, and the number of page numbers; engines pass more than the offsets cover."""
    tensors = (indptr, indices) if page_size == 1 else (indptr, indices, last_page_len)
    found, total = attention.on_device(wrapper, tensors, _PAGES, replayed=replayed), attention.last_value(indptr)
    if found[1].shape[0] != total:
        found[1] = found[1][:total]
    return found, total


@attention.cached_kind
def _decode_kind(layout: str, sizes: _Sizes, settings: Settings) -> attention.PlanKind:
    heads, kv_heads, head_dim, page_size = sizes
    name = f"gqa_paged_decode_h{heads}_kv{kv_heads}_d{head_dim}_ps{page_size}"
    return attention.make_kind(name, _inputs(is_prefill=False, page_size=page_size), layout, head_dim, settings)


@attention.cached_kind
def _prefill_kind(layout: str, sizes: _Sizes, settings: Settings) -> attention.PlanKind:
    heads, kv_heads, head_dim, page_size = sizes
    name = f"gqa_paged_prefill_causal_h{heads}_kv{kv_heads}_d{head_dim}_ps{page_size}"
    return attention.make_kind(name, _inputs(is_prefill=True, page_size=page_size), layout, head_dim, settings)


def convert_decode_plan(
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
) -> WrapperPlan | str:
    """One query per request."""
    dtypes = q_data_type or data_type, kv_data_type or data_type, o_data_type
    sizes = num_qo_heads, num_kv_heads, head_dim, page_size
    settings = Settings(True, pos_encoding_mode, False, window_left, logits_soft_cap, sm_scale)
    kind = _decode_kind(wrapper, dtypes, sizes, settings)
    if isinstance(kind, str):
        return kind
    replayed, rows = attention.is_replayed(wrapper), last_page_len.shape[0]
    pages, total = _pages(wrapper, indptr, indices, last_page_len, page_size, replayed=replayed)
    buffers = attention.page_buffers(wrapper, _PAGES[1], (_PAGES[0], _PAGES[2])) if replayed else attention.NO_BUFFERS
    inputs = (*pages, kind.sm_scale)
    plan = attention.AttentionPlan(kind.definition, rows, inputs, kind.layout, None, not replayed, buffers)
    return WrapperPlan(wrapper, plan, kind, (rows, total))


def convert_prefill_plan(
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
) -> WrapperPlan | str:
    """Any number of queries per request: the last tokens of its sequence."""
    if head_dim_vo not in (None, head_dim_qk):
        return "head_dim_vo differs from head_dim_qk"
    dtypes = q_data_type, kv_data_type, o_data_type
    sizes = num_qo_heads, num_kv_heads, head_dim_qk, page_size
    settings = Settings(causal, pos_encoding_mode, False, window_left, logits_soft_cap, sm_scale)
    kind = _prefill_kind(wrapper, dtypes, sizes, settings)
    if isinstance(kind, str):
        return kind
    replayed, rows = attention.is_replayed(wrapper), attention.last_value(qo_indptr)
    queries = attention.on_device(wrapper, (qo_indptr,), ("_qo_indptr_buf",), replayed=replayed)
    given = paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len
    pages, total = _pages(wrapper, *given, page_size, replayed=replayed)
    if kind.definition.name in PADDED:
        pages[-1] = torch.nn.functional.pad(pages[-1], (0, 1), value=1)
    plan = attention.AttentionPlan(
        kind.definition, rows, (*queries, *pages, kind.sm_scale), kind.layout, None, not replayed
    )
    return WrapperPlan(wrapper, plan, kind, (rows, total, qo_indptr.shape[0]))


def convert_run(
    planned: WrapperPlan,
    q: torch.Tensor,
    paged_kv_cache: Any,
    q_scale: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
    out: Any = None,
    lse: Any = None,
    return_lse: bool = False,
) -> Conversion:
    """All inputs other than queries and caches come from the plan."""
    for scale in (q_scale, k_scale, v_scale):
        if scale is not None and (type(scale) is not float or scale != 1.0) and attention.is_scaled(scale):
            return "it has quantisation scales"
    plan = planned.current
    if isinstance(plan, str):
        return plan
    if q.shape[0] != plan.rows:
        return "the number of queries differs from the plan"
    if type(paged_kv_cache) is not tuple or plan.layout != "NHD":
        paged_kv_cache = attention.paged_caches(paged_kv_cache, plan.layout)
    k_cache, v_cache = paged_kv_cache
    if out is None:
        return plan, (q, k_cache, v_cache, *plan.inputs), False
    outputs = attention.output_buffers(plan, q, out, lse, return_lse, planned.wrapper)
    return plan, (q, k_cache, v_cache, *plan.inputs, *outputs), bool(outputs)


def convert_decode_forward(
    planned: WrapperPlan,
    q: torch.Tensor,
    paged_kv_cache: Any,
    pos_encoding_mode: str = "NONE",
    q_scale: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
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
    settings = Settings(True, pos_encoding_mode, False, window_left, logits_soft_cap, sm_scale, rope_scale, rope_theta)
    planned.use(settings)
    return convert_run(planned, q, paged_kv_cache, q_scale, k_scale, v_scale, out, lse, return_lse)


def convert_prefill_forward(
    planned: WrapperPlan,
    q: torch.Tensor,
    paged_kv_cache: Any,
    causal: bool = False,
    pos_encoding_mode: str = "NONE",
    use_fp16_qk_reduction: bool = False,
    k_scale: Any = None,
    v_scale: Any = None,
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
    return convert_run(planned, q, paged_kv_cache, None, k_scale, v_scale, out, lse, return_lse)


def _baseline(definition: Definition, *, is_prefill: bool, uses_tensor_cores: bool = False) -> str | None:
    prefix = "gqa_paged_prefill_causal_h" if is_prefill else "gqa_paged_decode_h"
    has_pages = "kv_last_page_len" in definition.inputs
    inputs = _inputs(is_prefill=is_prefill, page_size=2 if has_pages else 1).split()
    if not definition.name.startswith(prefix) or list(definition.inputs) != inputs:
        return None
    last = "torch.ones_like(kv_indptr[1:])"
    if has_pages:
        last = "kv_last_page_len[: len(kv_indptr) - 1]" if is_prefill else "kv_last_page_len"
    sizes = ("q.shape[1]", "k_cache.shape[2]", "q.shape[2]", "k_cache.shape[1]")
    pages = ("kv_indptr", "kv_indices", last, *sizes)
    return attention.baseline_source(
        definition,
        _PREFILL_WRAPPER if is_prefill else _DECODE_WRAPPER,
        plan=("qo_indptr", *pages, "causal=True") if is_prefill else pages,
        run="q, (k_cache, v_cache)",
        workspace_mib=256 if is_prefill else 384 if uses_tensor_cores else 128,
        settings=("use_tensor_cores=True",) if uses_tensor_cores else (),
    )


GQA_PAGED_DECODE = Adapter(
    name="gqa_paged_decode",
    op_types=("gqa_paged",),
    targets=attention.targets(
        _DECODE_WRAPPER,
        plan=convert_decode_plan,
        run=convert_run,
        forward=convert_decode_forward,
        hints=attention.DECODE_HINTS,
    ),
    supported="NHD and HND, caches in one tensor or two, `out`, `lse`, `return_lse`; `forward`; CUDA-graph wrappers",
    unsupported="windows, soft caps, positional encodings, scales, sinks, mixed dtypes, `jit_args`",
    baseline=lambda definition: _baseline(definition, is_prefill=False),
    other_baselines={"tensor_cores": lambda one: _baseline(one, is_prefill=False, uses_tensor_cores=True)},
)
GQA_PAGED_PREFILL = Adapter(
    name="gqa_paged_prefill",
    op_types=("gqa_paged",),
    targets=attention.targets(
        _PREFILL_WRAPPER,
        plan=convert_prefill_plan,
        run=convert_run,
        forward=convert_prefill_forward,
        hints=attention.PREFILL_HINTS,
    ),
    supported="causal; NHD and HND, caches in one tensor or two, `out`, `lse`, `return_lse`; `forward`",
    unsupported="non-causal attention, custom masks, and what `gqa_paged_decode` does not support; "
    "CUDA-graph wrappers are traced, not routed",
    baseline=lambda definition: _baseline(definition, is_prefill=True),
)
