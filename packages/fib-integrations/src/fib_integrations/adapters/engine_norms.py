"""Adapters for the norms and rotary embeddings of engines that do not go through FlashInfer.

Patched: of vLLM ``vllm._custom_ops.rms_norm``, ``fused_add_rms_norm`` and ``rotary_embedding``; of SGLang
``sgl_kernel.elementwise.rmsnorm`` and ``fused_add_rmsnorm``, and those of the same names in
``sglang.kernels.ops.layernorm.norm``. These are what the entries ``layernorm.rmsnorm`` and
``layernorm.fused_add_rmsnorm`` of SGLang's kernel registry call (backends AOT and JIT). No entry is added to that
registry: its backends are a closed enumeration, and selection fails if an op has a second usable one. The ``vllm.ir``
ops have a provider instead (`fib_integrations.vllm_provider`).

Converted: matrices with weights. Fall through: three dimensions, missing weights, an epsilon other than the
reference's, interleaved rotary embeddings, and those of a part of a head.
"""

from __future__ import annotations

from typing import Any

import torch

from ..adapter import Adapter, Call, Conversion
from ..engines import SGL_KERNEL, SGLANG, VLLM
from .rmsnorm import (
    CONSTANTS,
    convert_fused_add_rmsnorm,
    convert_rmsnorm,
    describe,
    finalize_fused_add,
    shadow_fused_add,
)
from .rope import convert_rope, describe_rope, finalize_in_place, rope_key, shadow_in_place

_ADDED = ("residual.add_(input)", "input.copy_(result)")
_MATRICES = "matrices; results are written as the engine expects them"
_OTHERS = "three dimensions; no weight; an epsilon other than the reference's"


def convert_custom_rms_norm(out: torch.Tensor, input: torch.Tensor, weight: Any, epsilon: float) -> Conversion:
    """VLLM passes the output first."""
    return "it has no weight" if weight is None else convert_rmsnorm(input, weight, epsilon, out)


def convert_custom_fused_add(input: torch.Tensor, residual: torch.Tensor, weight: Any, epsilon: float) -> Conversion:
    """The sum and the result are written in place."""
    return "it has no weight" if weight is None else convert_fused_add_rmsnorm(input, residual, weight, epsilon)


def convert_custom_rope(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: Any,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
) -> Conversion:
    """Keys may be missing, where layers share them."""
    if key is None:
        return "it has no keys"
    return convert_rope(positions, query, key, head_size, cos_sin_cache, is_neox)


def convert_jit_rmsnorm(input: torch.Tensor, weight: torch.Tensor, out: Any = None, eps: float = 1e-6) -> Conversion:
    """Without a buffer, the input is overwritten."""
    return "it overwrites its input" if out is None else convert_rmsnorm(input, weight, eps, out)


def _return_nothing(result: object) -> None:
    del result


VLLM_CUSTOM_OPS = Adapter(
    name="vllm_custom_ops",
    op_types=("rmsnorm", "rope"),
    targets=(
        Call(
            path="vllm._custom_ops.rms_norm",
            convert=convert_custom_rms_norm,
            describe=describe,
            finalize=_return_nothing,
        ),
        Call(
            path="vllm._custom_ops.fused_add_rms_norm",
            convert=convert_custom_fused_add,
            describe=describe,
            finalize=finalize_fused_add,
            added_kernels=_ADDED,
            shadow=shadow_fused_add,
        ),
        Call(
            path="vllm._custom_ops.rotary_embedding",
            convert=convert_custom_rope,
            describe=describe_rope,
            key=rope_key,
            finalize=finalize_in_place,
            added_kernels=("query.copy_(result)", "key.copy_(result)"),
            shadow=shadow_in_place,
        ),
    ),
    supported=_MATRICES,
    unsupported=f"{_OTHERS}; no keys, interleaved pairs, `rope_dim_offset`, `inverse`",
    reference_constants=CONSTANTS,
    engine=VLLM,
)
SGLANG_KERNELS = Adapter(
    name="sgl_kernel",
    op_types=("rmsnorm",),
    targets=(
        Call(
            path="sgl_kernel.elementwise.rmsnorm",
            convert=convert_rmsnorm,
            describe=describe,
            ignored=frozenset({"enable_pdl"}),
        ),
        Call(
            path="sgl_kernel.elementwise.fused_add_rmsnorm",
            convert=convert_fused_add_rmsnorm,
            describe=describe,
            finalize=finalize_fused_add,
            added_kernels=_ADDED,
            shadow=shadow_fused_add,
            ignored=frozenset({"enable_pdl"}),
        ),
    ),
    supported=_MATRICES,
    unsupported=_OTHERS,
    reference_constants=CONSTANTS,
    engine=SGL_KERNEL,
)
SGLANG_JIT = Adapter(
    name="sglang_jit_norms",
    op_types=("rmsnorm",),
    targets=(
        Call(
            path="sglang.kernels.ops.layernorm.norm.rmsnorm",
            convert=convert_jit_rmsnorm,
            describe=describe,
            finalize=_return_nothing,
        ),
        Call(
            path="sglang.kernels.ops.layernorm.norm.fused_add_rmsnorm",
            convert=convert_fused_add_rmsnorm,
            describe=describe,
            finalize=finalize_fused_add,
            added_kernels=_ADDED,
            shadow=shadow_fused_add,
        ),
    ),
    supported=_MATRICES,
    unsupported=f"{_OTHERS}; an input that is overwritten; `cast_x_before_out_mul`",
    reference_constants=CONSTANTS,
    engine=SGLANG,
)
