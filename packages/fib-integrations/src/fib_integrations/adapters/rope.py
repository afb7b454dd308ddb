"""Adapter for rotary position embeddings.

Patched: ``flashinfer.rope.apply_rope_with_cos_sin_cache`` and ``apply_rope_with_cos_sin_cache_inplace``.

Converted: calls of NeoX style whose queries and keys have two dimensions. All other calls reach the original
unchanged, such as those with interleaved pairs (``is_neox=False``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from fib_schema import Definition

from ..adapter import Adapter, Call, Conversion, DefinitionRef, Original

_INPUTS = ("q", "k", "cos_sin_cache", "positions")


def convert_rope(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool = True,
) -> Conversion:
    """The definition has a dimension for heads; FlashInfer concatenates them."""
    if not is_neox:
        return "rotated pairs are interleaved (is_neox=False)"
    if query.dim() != 2 or key.dim() != 2:
        return "queries or keys are not matrices"
    q, k = query.view(query.shape[0], -1, head_size), key.view(key.shape[0], -1, head_size)
    return rope_key(head_size, cos_sin_cache), (q, k, cos_sin_cache, positions), False


def rope_key(head_size: int, cos_sin_cache: torch.Tensor) -> tuple[int, int]:
    """The key of `convert_rope`."""
    return head_size, cos_sin_cache.shape[1]


def describe_rope(key: tuple[int, int]) -> DefinitionRef:
    """The definition of a key of `convert_rope`."""
    head_size, rotary_dim = key
    name = f"rope_with_cos_sin_cache_neox_style_d{head_size}_rd{rotary_dim}"
    return DefinitionRef(name, _INPUTS, ("q_out", "k_out"))


def _finalize(
    result: tuple[torch.Tensor, torch.Tensor], query: torch.Tensor, key: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    q, k = result
    return q.reshape(query.shape), k.reshape(key.shape)


def finalize_in_place(result: tuple[torch.Tensor, torch.Tensor], query: torch.Tensor, key: torch.Tensor) -> None:
    """Write the results over the inputs."""
    q, k = result
    if q.data_ptr() != query.data_ptr():
        query.copy_(q.reshape(query.shape))
        key.copy_(k.reshape(key.shape))


def _shadow(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any], values: Sequence[Any]) -> Any:
    query, key = original(*args, **kwargs)
    return query.view(values[0].shape), key.view(values[1].shape)


def shadow_in_place(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any], values: Sequence[Any]) -> Any:
    """Call the original and return the definition's outputs, which it wrote over the inputs."""
    original(*args, **kwargs)
    return values[0], values[1]


def _baseline(definition: Definition) -> str | None:
    if not definition.name.startswith("rope_with_cos_sin_cache_neox_style_") or tuple(definition.inputs) != _INPUTS:
        return None
    return """import flashinfer.rope


def run(q, k, cos_sin_cache, positions):
    query, key = flashinfer.rope.apply_rope_with_cos_sin_cache(
        positions, q.flatten(1), k.flatten(1), q.shape[-1], cos_sin_cache, is_neox=True
    )
    return query.view(q.shape), key.view(k.shape)
"""


_PATH = "flashinfer.rope.apply_rope_with_cos_sin_cache"
ROPE = Adapter(
    name="rope",
    op_types=("rope",),
    targets=(
        Call(
            path=_PATH, convert=convert_rope, describe=describe_rope, key=rope_key, finalize=_finalize, shadow=_shadow
        ),
        Call(
            path=f"{_PATH}_inplace",
            convert=convert_rope,
            describe=describe_rope,
            key=rope_key,
            finalize=finalize_in_place,
            added_kernels=("query.copy_(result)", "key.copy_(result)"),
            shadow=shadow_in_place,
        ),
    ),
    supported="NeoX style, out of place or in place",
    unsupported="interleaved pairs (`is_neox=False`); other than two dimensions",
    baseline=_baseline,
)
