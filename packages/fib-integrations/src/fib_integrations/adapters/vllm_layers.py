"""Adapters for the functions below vLLM's custom ops: attention, experts and linear layers in bfloat16.

vLLM's defaults on Hopper are FlashAttention 3, Triton's experts and cuBLAS. The custom ops of the former two call the
patched functions when they run, also while a CUDA graph is captured; a replay calls no Python.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeAlias

import torch

from ..adapter import VLLM, Adapter, Call, Conversion, DefinitionRef, Family, Original
from .elementwise import return_nothing

_LAYERS = "vllm.model_executor.layers"
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
_DECODE_REFERENCE = """\
import torch


@torch.no_grad()
def run(q, k_cache, v_cache, seq_lens, block_table, softmax_scale):
    page_size, kv_heads = k_cache.shape[1], k_cache.shape[2]
    output = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    for request, keys in enumerate(seq_lens.tolist()):
        if keys > 0:  # else the engine has filled up its batch, and the row is zero
            pages = block_table[request, : (keys + page_size - 1) // page_size].long()
            k, v = (cache[pages].flatten(0, 1)[:keys].float() for cache in (k_cache, v_cache))
            queries = q[request].float().unflatten(0, (kv_heads, -1))
            weights = (torch.einsum("hgd,khd->hgk", queries, k) * softmax_scale).softmax(-1)
            output[request] = torch.einsum("hgk,khd->hgd", weights, v).flatten(0, 1).to(q.dtype)
    return output
"""
_SAME_IN_ANY_BATCH = "the engine asks for results that no batch changes"
_FA = "vllm.vllm_flash_attn.flash_attn_interface.flash_attn_varlen_func"
_HINTS = frozenset(
    {"max_seqlen_k", "scheduler_metadata", "num_splits", "fa_version"}
    | {"q_descale", "k_descale", "v_descale"}  # of fp8 only
)
_FA_BASELINE = """\
import torch
from vllm.v1.attention.backends.fa_utils import get_flash_attn_version
from vllm.vllm_flash_attn import flash_attn_varlen_func, get_scheduler_metadata


def setup({inputs}):
    version, splits, metadata = get_flash_attn_version(), 0, None
    queries, keys, offsets = {queries}, int(seq_lens.max()), {offsets}
    if version == 3:
        splits = 32 if len(q) <= 512 else 0  # as for the sizes that vLLM captures
        metadata = get_scheduler_metadata(
            len(seq_lens), queries, keys, q.shape[1], k_cache.shape[2], q.shape[2], seq_lens, qkv_dtype=q.dtype,
            cu_seqlens_q=offsets, page_size=k_cache.shape[1], causal=True, num_splits=splits,
        )
    return {{"plan": dict(
        cu_seqlens_q=offsets, max_seqlen_q=queries, max_seqlen_k=keys, scheduler_metadata=metadata, num_splits=splits,
        fa_version=version,
    )}}


def run({inputs}, output, *, plan):
    flash_attn_varlen_func(
        q=q, k=k_cache, v=v_cache, out=output, seqused_k=seq_lens, softmax_scale=softmax_scale, causal=True,
        block_table=block_table, **plan,
    )
"""
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
    baseline=_FA_BASELINE.format(
        inputs="q, k_cache, v_cache, cu_seqlens_q, seq_lens, block_table, softmax_scale",
        queries="int(cu_seqlens_q.diff().max())",
        offsets="cu_seqlens_q",
    ),
)
_DECODE = Family(
    name=_CAUSAL.name.replace("causal", "decode"),
    op_type="gqa_paged",
    inputs={
        "q": "num_seqs num_qo_heads head_dim bfloat16",
        "k_cache": _CACHES,
        "v_cache": _CACHES,
        "seq_lens": "num_seqs int32",
        "block_table": "num_seqs max_pages_per_seq int32",
        "softmax_scale": "float32",
    },
    outputs={"output": "num_seqs num_qo_heads head_dim bfloat16"},
    reference=_DECODE_REFERENCE,
    description="Attention of one query per request to a paged cache, as vLLM calls FlashAttention. Requests without "
    "keys fill up captured batches: the engine reads none of their rows, which are zero here.",
    constraints=("seq_lens.min().item() >= 0", "seq_lens.max().item() <= max_pages_per_seq * page_size"),
    baseline=_FA_BASELINE.format(
        inputs="q, k_cache, v_cache, seq_lens, block_table, softmax_scale",
        queries="1",
        offsets="torch.arange(len(q) + 1, dtype=torch.int32, device=q.device)",
    ),
)
captures_decodes: ContextVar[bool] = ContextVar("captures_decodes", default=False)
"""Whether captured calls with one query per request are replayed only with such, and with requests without keys."""


def convert_attention(
    q: _Tensor, k: _Tensor, v: _Tensor, max_seqlen_q: int, cu_seqlens_q: _Tensor, seqused_k: Any = None,
    softmax_scale: float | None = None, causal: bool = False, window_size: Any = None, softcap: float | None = 0.0,
    block_table: Any = None, return_softmax_lse: bool = False, out: Any = None,
) -> Conversion:  # fmt: skip
    """Causal attention to a paged cache. FlashAttention reads scales of quantised tensors only if the dtype is fp8.

    vLLM adds requests without keys to captured calls, and other graphs may be replayed with any number of queries.
    """
    if q.is_cuda and torch.cuda.is_current_stream_capturing() and not (max_seqlen_q == 1 and captures_decodes.get()):
        return "a captured call has requests with which no solution was verified"
    if _is_set("VLLM_BATCH_INVARIANT"):
        return _SAME_IN_ANY_BATCH
    if _is_set("VLLM_USE_BREAKABLE_CUDAGRAPH"):
        return "the engine adds requests to calls that are not captured"
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
    values: tuple[Any, ...] = q, k, v, cu_seqlens_q, seqused_k, block_table, scale
    if max_seqlen_q == 1:
        if len(q) != len(seqused_k):
            return "a request has no query"
        values = q, k, v, seqused_k, block_table, scale
    key = attention_key(q, k, max_seqlen_q)
    return (key, values, False) if out is None else (key, (*values, out), True)


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "0") not in {"", "0"}


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


# -- experts -----------------------------------------------------------------------------------------

_MOE_REFERENCE = """\
import torch


@torch.no_grad()
def run(hidden_states, gate_up_weights, down_weights, topk_weights, topk_ids):
    output = torch.zeros(hidden_states.shape, dtype=torch.float32, device=hidden_states.device)
    for expert in topk_ids.unique().tolist():
        if not 0 <= expert < len(gate_up_weights):
            continue  # a row without an expert
        rows, places = (topk_ids == expert).nonzero(as_tuple=True)
        gate, up = (hidden_states[rows].float() @ gate_up_weights[expert].float().T).chunk(2, dim=-1)
        down = (torch.nn.functional.silu(gate) * up) @ down_weights[expert].float().T
        output.index_add_(0, rows, down * topk_weights[rows, places, None].float())
    return output.to(hidden_states.dtype)
"""
_EXPERTS = Family(
    name="moe_bf16_e{num_experts}_topk{top_k}_h{hidden_size}_i{intermediate_size}",
    op_type="moe",
    inputs={
        "hidden_states": "num_tokens hidden_size bfloat16",
        "gate_up_weights": "num_experts gate_up_size hidden_size bfloat16",
        "down_weights": "num_experts hidden_size intermediate_size bfloat16",
        "topk_weights": "num_tokens top_k float32",
        "topk_ids": "num_tokens top_k int32",
    },
    outputs={"output": "num_tokens hidden_size bfloat16"},
    reference=_MOE_REFERENCE,
    description="Experts with SiLU, as vLLM calls them: `gate_up_weights` has the rows of the gates first.",
    constraints=("gate_up_size == 2 * intermediate_size",),
    baseline="""from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts_impl


def run(hidden_states, gate_up_weights, down_weights, topk_weights, topk_ids):
    return fused_experts_impl(hidden_states, gate_up_weights, down_weights, topk_weights, topk_ids)
""",
)
_QUANTISATION = ("quant_dtype", "weight_quant_dtype", "w1_scale", "w2_scale", "w1_bias", "w2_bias", "gemm1_clamp_limit")


def convert_experts(
    self: Any, output: _Tensor, hidden_states: _Tensor, w1: _Tensor, w2: _Tensor, topk_weights: _Tensor,
    topk_ids: _Tensor, activation: Any, global_num_experts: int, expert_map: Any, a1q_scale: Any, a2_scale: Any,
    apply_router_weight_on_input: bool,
) -> Conversion:  # fmt: skip
    """Gated experts without quantisation."""
    if hidden_states.dtype is not _BF16 or w1.dtype is not _BF16 or w2.dtype is not _BF16:
        return _NOT_BF16
    given = [name for name in _QUANTISATION if getattr(self.quant_config, name) is not None]
    if given or self.quantization_emulation or a1q_scale is not None or a2_scale is not None:
        return "it has a quantisation, a bias or a limit of the activation"
    if getattr(getattr(self, "activation_config", None), "clamp_limit", None) is not None:  # of later versions
        return "it has a limit of the activation"
    if _is_set("VLLM_BATCH_INVARIANT"):
        return _SAME_IN_ANY_BATCH
    if _is_set("VLLM_MOE_SKIP_PADDING"):
        return "rows of padding have no experts"
    if getattr(activation, "value", activation) != "silu":
        return "the activation is another one"
    if expert_map is not None or global_num_experts not in (-1, w1.shape[0]):
        return "some experts are on other devices"
    if apply_router_weight_on_input or self._lora_context is not None:
        return "the weights of the routing apply to the input, or it has LoRA weights"
    if topk_weights.dtype is not torch.float32 or topk_ids.dtype is not torch.int32:
        return "the routing is not of float32 and int32"
    return experts_key(w1, w2, topk_ids), (hidden_states, w1, w2, topk_weights, topk_ids, output), True


def experts_key(w1: _Tensor, w2: _Tensor, topk_ids: _Tensor) -> tuple[int, int, int, int]:
    """The key of `convert_experts`."""
    return w1.shape[0], topk_ids.shape[1], w1.shape[2], w2.shape[2]


VLLM_EXPERTS = Adapter(
    name="vllm_experts",
    op_types=("moe",),
    targets=(
        Call(
            path=f"{_LAYERS}.fused_moe.experts.triton_moe.TritonExperts.apply",
            convert=convert_experts,
            describe=_EXPERTS.describe,
            key=experts_key,
            finalize=return_nothing,
            ignored=frozenset({"workspace13", "workspace2", "expert_tokens_meta"}),
        ),
    ),
    supported="bfloat16 with SiLU: products, activation and sum in one",
    unsupported="quantisation, biases, other activations, LoRA, expert parallelism, weights on the input",
    engine=VLLM,
    families=(_EXPERTS,),
)


# -- linear layers -----------------------------------------------------------------------------------

_LINEAR = Family(
    name="gemm_bf16_n{N}_k{K}",
    op_type="gemm",
    inputs={"A": "M K bfloat16", "B": "N K bfloat16"},
    outputs={"C": "M N bfloat16"},
    reference="import torch\n\n\n@torch.no_grad()\ndef run(A, B):\n    return (A.float() @ B.float().T).to(A.dtype)\n",
    description="A linear layer without bias, as vLLM calls it: `C = A @ B.T`.",
    baseline="import torch\n\n\ndef run(A, B, C):\n    torch.mm(A, B.t(), out=C)\n",
)


def convert_linear(x: _Tensor, weight: _Tensor, bias: Any = None) -> Conversion:
    """A layer without bias."""
    if bias is not None:
        return "it has a bias"
    if x.dim() != 2 or weight.dim() != 2:
        return "a factor is not a matrix"
    if x.dtype is not _BF16 or weight.dtype is not _BF16:
        return _NOT_BF16
    return tuple(weight.shape), (x, weight), False


@functools.cache
def _linear_op() -> tuple[Any, list[Original], Any]:
    """The op ``fib_integrations::linear``, the function that it calls (in a list), and its library."""
    make: Any = torch.library.Library  # it has no types
    library, routed = make("fib_integrations", "DEF"), list[Original]()
    library.define("linear(Tensor x, Tensor weight) -> Tensor")
    # a compiled graph relies on the strides of the op's fake result
    library.impl("linear", lambda x, weight: routed[0](None, x, weight).contiguous(), "CompositeExplicitAutograd")
    library._register_fake("linear", lambda x, weight: x.new_empty((x.shape[0], weight.shape[0])))  # noqa: SLF001
    return torch.ops.fib_integrations.linear.default, routed, library


def opaque_linear(original: Original, routed: Original, may_serve: Callable[[Any], bool]) -> Original:
    """The function that a compiled model calls: an op, whose kernel is chosen when it runs or is captured.

    Where no solution may serve, the compiler gets the product itself. The op has no gradient.
    """
    op, places, _ = _linear_op()
    places[:] = [routed]

    def default_unquantized_gemm(layer: Any, x: Any, weight: Any, bias: Any = None) -> Any:
        is_op = not torch.is_grad_enabled() and not isinstance(convert_linear(x, weight, bias), str)
        is_op = is_op and may_serve((weight.shape[0], weight.shape[1]))
        return op(x, weight) if is_op else original(layer, x, weight, bias)

    return default_unquantized_gemm


VLLM_LINEAR = Adapter(
    name="vllm_linear",
    op_types=("gemm",),
    targets=(
        Call(
            path=f"{_LAYERS}.utils.default_unquantized_gemm",
            convert=convert_linear,
            describe=_LINEAR.describe,
            key=lambda weight: tuple(weight.shape),
            ignored=frozenset({"layer"}),
            compiled_as=opaque_linear,
        ),
    ),
    supported="matrices in bfloat16, the logits too; a compiled model gets an op where a solution may serve",
    unsupported="a bias; other than two dimensions",
    engine=VLLM,
    families=(_LINEAR,),
)
