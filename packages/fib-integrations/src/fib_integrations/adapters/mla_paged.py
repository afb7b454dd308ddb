"""Adapter for multi-head latent attention (MLA) with a paged KV cache: decode and incremental prefill.

Runs of wrappers for CUDA graphs are traced, not routed: a later plan may change which queries belong to a request, and
computes lengths that the wrapper keeps in no buffer.
"""

from __future__ import annotations

from typing import Any

import torch
from fib_schema import Definition

from .. import attention
from ..adapter import Adapter, Conversion
from ..attention import AttentionPlan

_WRAPPER = "flashinfer.mla.BatchMLAPagedAttentionWrapper"
_DECODE = "q_nope q_pe ckv_cache kpe_cache kv_indptr kv_indices"
_PREFILL = "q_nope q_pe ckv_cache kpe_cache qo_indptr kv_indptr kv_indices"

_BUFFERS = ("_kv_len_arr_buf", "_kv_indptr_buf", "_kv_indices_buf", "_qo_indptr_buf")


def convert_plan(
    wrapper: Any,
    qo_indptr: Any = None,
    kv_indptr: Any = None,
    kv_indices: Any = None,
    kv_len_arr: Any = None,
    num_heads: int | None = None,
    head_dim_ckv: int | None = None,
    head_dim_kpe: int | None = None,
    page_size: int | None = None,
    causal: bool | None = None,
    sm_scale: float | None = None,
    q_data_type: Any = None,
    kv_data_type: Any = None,
) -> AttentionPlan | str:
    """One query per request makes it a decode. Reading the offsets synchronises, as FlashInfer's plan has just done."""
    required = (qo_indptr, kv_indptr, kv_indices, kv_len_arr, num_heads, head_dim_ckv, head_dim_kpe)
    if any(value is None for value in required) or page_size is None or sm_scale is None:
        return "it was planned without offsets, indices, sizes or a scale"
    if type(sm_scale) not in (float, int):
        return "its softmax scale is not a number"
    if problem := attention.unsupported_plan(wrapper, (q_data_type, kv_data_type, None), layouts=(None, "NHD")):
        return problem
    queries, offsets, lengths = qo_indptr.cpu(), kv_indptr.cpu(), kv_len_arr.cpu()
    is_decode = bool((queries.diff() == 1).all())
    if not is_decode and not causal:
        return "it is not causal"
    if not torch.equal((lengths + page_size - 1) // page_size, offsets.diff().to(lengths.dtype)):
        return "kv_len_arr and kv_indptr disagree about the number of pages"
    given, replayed = (kv_len_arr, kv_indptr, kv_indices, qo_indptr), attention.is_replayed(wrapper)
    needed = given[:3] if is_decode else given
    kv_len_arr, kv_indptr, kv_indices, *of_queries = attention.on_device(wrapper, needed, _BUFFERS, replayed=replayed)
    planned = (
        *of_queries,
        kv_indptr,
        kv_indices[: int(offsets[-1])],
        *(() if page_size == 1 else ((kv_len_arr - 1) % page_size + 1,)),
        float(sm_scale),
    )
    stage = "decode" if is_decode else "prefill_causal"
    inputs = f"{_DECODE if is_decode else _PREFILL}{'' if page_size == 1 else ' kv_last_page_len'} sm_scale"
    name = f"mla_paged_{stage}_h{num_heads}_ckv{head_dim_ckv}_kpe{head_dim_kpe}_ps{page_size}"
    return attention.make_plan(wrapper, name, inputs, int(queries[-1]), planned)


def convert_run(
    plan: AttentionPlan,
    q_nope: torch.Tensor | None,
    q_pe: torch.Tensor | None,
    ckv_cache: torch.Tensor | None,
    kpe_cache: torch.Tensor | None,
    out: Any = None,
    lse: Any = None,
    return_lse: bool = False,
) -> Conversion:
    """All inputs other than queries and caches come from the plan."""
    if q_nope is None or q_pe is None or ckv_cache is None or kpe_cache is None:
        return "its queries or caches are packed"
    if q_nope.shape[0] != plan.rows:
        return "the number of queries differs from the plan"
    outputs = attention.output_buffers(plan, q_nope, out, lse, return_lse)
    return plan, (q_nope, q_pe, ckv_cache, kpe_cache, *plan.inputs, *outputs), bool(outputs)


def _baseline(definition: Definition) -> str | None:
    is_decode = definition.name.startswith("mla_paged_decode_h")
    if not is_decode and not definition.name.startswith("mla_paged_prefill_causal_h"):
        return None
    queries = "torch.arange(len(kv_indptr), dtype=torch.int32, device=q_nope.device)" if is_decode else "qo_indptr"
    lengths = "(kv_indptr[1:] - kv_indptr[:-1])"
    if "kv_last_page_len" in definition.inputs:
        lengths = f"torch.clamp({lengths} - 1, min=0) * ckv_cache.shape[1] + kv_last_page_len * ({lengths} > 0)"
    return f"""import flashinfer.mla
import torch

_WORKSPACE_BYTES = 128 * 1024 * 1024


def setup({", ".join(definition.inputs)}):
    workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=q_nope.device)
    wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace)
    wrapper.plan(
        qo_indptr={queries},
        kv_indptr=kv_indptr,
        kv_indices=kv_indices,
        kv_len_arr={lengths}.to(torch.int32),
        num_heads=q_nope.shape[1],
        head_dim_ckv=q_nope.shape[2],
        head_dim_kpe=q_pe.shape[2],
        page_size=ckv_cache.shape[1],
        causal={not is_decode},
        sm_scale=float(sm_scale),
        q_data_type=q_nope.dtype,
        kv_data_type=ckv_cache.dtype,
    )
    return {{"wrapper": wrapper}}


def run({", ".join(definition.inputs)}, output, lse, *, wrapper):
    wrapper.run(
        q_nope=q_nope, q_pe=q_pe, ckv_cache=ckv_cache, kpe_cache=kpe_cache, out=output, lse=lse, return_lse=True
    )
"""


MLA_PAGED = Adapter(
    name="mla_paged",
    op_types=("mla_paged",),
    targets=(attention.plan_target(_WRAPPER, convert_plan), attention.run_target(_WRAPPER, convert_run)),
    supported="one query per request, or causal prefill; `out`, `lse`, `return_lse`",
    unsupported="several non-causal queries per request, log-sum-exps to base e, packed inputs, scales, sinks; "
    "CUDA-graph wrappers are traced, not routed",
    baseline=_baseline,
)
