"""Helpers of adapters: binding of arguments, values by instance, layouts and scales of attention calls.

Shapes: NHD caches are ``[pages, page_size, heads, dim]`` or ``[tokens, heads, dim]``; HND caches have the heads before
the page's or the sequence's tokens.
"""

from __future__ import annotations

import inspect
import math
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch


class ArgBinder:
    """Binds the arguments of calls to a function's parameters."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._signature = inspect.signature(fn)

    @classmethod
    def from_callable(cls, fn: Callable[..., Any]) -> ArgBinder:
        """The binder of a function."""
        return cls(fn)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name, with defaults.

        Raises:
            TypeError: The arguments do not fit.
        """
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)


class ContextStore:
    """A mutable mapping for each instance, which lives as long as the instance."""

    def __init__(self) -> None:
        self._values: weakref.WeakKeyDictionary[object, dict[str, Any]] = weakref.WeakKeyDictionary()

    def get(self, inst: object) -> dict[str, Any]:
        """The mapping of an instance; empty at first."""
        return self._values.setdefault(inst, {})


def infer_kv_layout_from_args(inst: object) -> str | None:
    """The layout that an attention wrapper was made with: ``NHD``, ``HND``, or None if it does not tell."""
    layout = getattr(inst, "_kv_layout", None)
    return layout if layout in ("NHD", "HND") else None


def infer_paged_kv_layout_from_tensors(paged_kv_cache: Any, num_kv_heads: int) -> str | None:
    """The layout of a paged cache by its shape; None if both layouts fit, or none does."""
    if isinstance(paged_kv_cache, (tuple, list)):
        shape = tuple(paged_kv_cache[0].shape)
    else:
        shape = (paged_kv_cache.shape[0], *paged_kv_cache.shape[2:])
    return _layout(shape, 4, num_kv_heads)


def infer_ragged_kv_layout_from_tensors(ragged_k_or_v: torch.Tensor, num_kv_heads: int) -> str | None:
    """The layout of a ragged 3-d tensor by its shape; None if both layouts fit, or none does."""
    return _layout(tuple(ragged_k_or_v.shape), 3, num_kv_heads)


def _layout(shape: tuple[int, ...], dimensions: int, num_kv_heads: int) -> str | None:
    if len(shape) != dimensions:
        return None
    is_nhd, is_hnd = shape[-2] == num_kv_heads, shape[-3] == num_kv_heads
    return None if is_nhd == is_hnd else "NHD" if is_nhd else "HND"


def normalize_paged_kv_to_nhd(paged_kv_cache: Any, kv_layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of a paged cache as NHD views; see `infer_paged_kv_layout_from_tensors`.

    Raises:
        ValueError: There is no such layout.
    """
    keys, values = paged_kv_cache if isinstance(paged_kv_cache, (tuple, list)) else paged_kv_cache.unbind(1)
    return normalize_ragged_kv_to_nhd(keys, kv_layout), normalize_ragged_kv_to_nhd(values, kv_layout)


def normalize_ragged_kv_to_nhd(ragged_k_or_v: torch.Tensor, kv_layout: str) -> torch.Tensor:
    """A ragged tensor as an NHD view.

    Raises:
        ValueError: There is no such layout.
    """
    if kv_layout not in ("NHD", "HND"):
        raise ValueError(f"kv_layout must be 'NHD' or 'HND', got {kv_layout!r}")
    return ragged_k_or_v if kv_layout == "NHD" else ragged_k_or_v.transpose(-3, -2)


def pick_sm_scale_gqa(head_dim: int, maybe: Any) -> float:
    """The given scale of scores, else ``1 / sqrt(head_dim)``."""
    return 1.0 / math.sqrt(head_dim) if maybe is None else float(maybe)


def pick_sm_scale_mla(head_dim_qk_nope: int, head_dim_qk_pe: int, maybe: Any) -> float:
    """The given scale of scores, else that of the width before absorption."""
    return pick_sm_scale_gqa(head_dim_qk_nope + head_dim_qk_pe, maybe)


def write_back_outputs(
    *,
    output: torch.Tensor,
    lse: torch.Tensor,
    want_lse: bool,
    out_buf: torch.Tensor | None = None,
    lse_buf: torch.Tensor | None = None,
) -> Any:
    """Copy results into the caller's buffers, if there are any; returns what an attention call returns."""
    result = output if out_buf is None else out_buf.copy_(output)
    scores = lse if lse_buf is None else lse_buf.copy_(lse)
    return (result, scores) if want_lse else result
