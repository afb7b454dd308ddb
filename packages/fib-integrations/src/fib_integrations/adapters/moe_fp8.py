"""Adapter for mixture-of-experts layers in fp8 with block scales."""

from __future__ import annotations

from typing import Any

import torch
from fib_schema import AxisConst, Definition

from ..adapter import Adapter, Call, Conversion, DefinitionRef

_RENORMALIZE, _DEEPSEEK = 1, 2
"""FlashInfer's ``RoutingMethodType``."""
_TENSORS = (
    "hidden_states",
    "hidden_states_scale",
    "gemm1_weights",
    "gemm1_weights_scale",
    "gemm2_weights",
    "gemm2_weights_scale",
)


def convert_moe(
    routing_logits: torch.Tensor,
    routing_bias: Any,
    hidden_states: torch.Tensor,
    hidden_states_scale: torch.Tensor,
    gemm1_weights: torch.Tensor,
    gemm1_weights_scale: torch.Tensor,
    gemm2_weights: torch.Tensor,
    gemm2_weights_scale: torch.Tensor,
    num_experts: int,
    top_k: int,
    n_group: int | None,
    topk_group: int | None,
    intermediate_size: int,
    local_expert_offset: int,
    local_num_experts: int,
    routed_scaling_factor: float | None,
    routing_method_type: int = 0,
) -> Conversion:
    """DeepSeek's routing, or a softmax of the top-k logits."""
    sizes = top_k, local_num_experts, hidden_states.shape[1], intermediate_size
    weights = gemm1_weights, gemm1_weights_scale, gemm2_weights, gemm2_weights_scale
    tensors = hidden_states, hidden_states_scale, *weights
    if routing_method_type == _DEEPSEEK:
        if routing_bias is None or routed_scaling_factor is None or not n_group or not topk_group:
            return "DeepSeek routing lacks a bias, a scaling factor or groups"
        scalars = int(local_expert_offset), float(routed_scaling_factor)
        return (n_group, topk_group, *sizes), (routing_logits, routing_bias, *tensors, *scalars), False
    if routing_method_type != _RENORMALIZE:
        return f"the routing method is unsupported (routing_method_type={routing_method_type!r})"
    if routing_bias is not None or routed_scaling_factor not in (None, 1.0) or (n_group or 0) > 1:
        return "renormalised routing has a bias, a scaling factor or groups"
    if num_experts != local_num_experts or local_expert_offset:
        return "some experts are on other devices"
    return sizes, (routing_logits, *tensors), False


def _describe(key: tuple[int, ...]) -> DefinitionRef:
    top_k, experts, hidden, intermediate = key[-4:]
    ending = f"e{experts}_h{hidden}_i{intermediate}"
    if len(key) == 4:
        name = f"moe_fp8_block_scale_renorm_topk{top_k}_{ending}"
        return DefinitionRef(name, ("routing_logits", *_TENSORS), ("output",))
    name = f"moe_fp8_block_scale_ds_routing_topk{top_k}_ng{key[0]}_kg{key[1]}_{ending}"
    inputs = ("routing_logits", "routing_bias", *_TENSORS, "local_expert_offset", "routed_scaling_factor")
    return DefinitionRef(name, inputs, ("output",))


def _baseline(definition: Definition) -> str | None:
    words = definition.name.removeprefix("moe_fp8_block_scale_").split("_")
    if not definition.name.startswith("moe_fp8_block_scale_"):
        return None
    is_deepseek = words[0] == "ds"
    sizes = {name: axis.value for name, axis in definition.axes.items() if isinstance(axis, AxisConst)}
    numbers = {
        word.rstrip("0123456789"): int(word.lstrip("abcdefghijklmnopqrstuvwxyz"))
        for word in words[2 if is_deepseek else 1 :]
    }
    local, intermediate = sizes["num_local_experts"], sizes["intermediate_size"]
    bias, offset, factor = (
        ("routing_bias", "local_expert_offset", "routed_scaling_factor") if is_deepseek else ("None", "0", "None")
    )
    groups = f"n_group={numbers['ng']}, topk_group={numbers['kg']}" if is_deepseek else "n_group=None, topk_group=None"
    return f"""import flashinfer.fused_moe


def run({", ".join(definition.inputs)}):
    return flashinfer.fused_moe.trtllm_fp8_block_scale_moe(
        routing_logits,
        {bias},
        hidden_states,
        hidden_states_scale,
        gemm1_weights,
        gemm1_weights_scale,
        gemm2_weights,
        gemm2_weights_scale,
        num_experts={sizes.get("num_experts", local)},
        top_k={numbers["topk"]},
        {groups},
        intermediate_size={intermediate},
        local_expert_offset={offset},
        local_num_experts={local},
        routed_scaling_factor={factor},
        routing_method_type={_DEEPSEEK if is_deepseek else _RENORMALIZE},
    )
"""


MOE_FP8 = Adapter(
    name="moe_fp8",
    op_types=("moe",),
    targets=(
        Call(
            path="flashinfer.fused_moe.core.trtllm_fp8_block_scale_moe",
            convert=convert_moe,
            describe=_describe,
            ignored=frozenset({"enable_pdl", "tune_max_num_tokens"}),
        ),
    ),
    supported="fp8 with block scales, DeepSeek routing or renormalised top-k",
    unsupported="other routing, shuffled or blocked weights, unfinalised outputs, other activations, a missing bias",
    baseline=_baseline,
)
