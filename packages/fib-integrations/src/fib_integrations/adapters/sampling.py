"""``flashinfer.sampling``: sampling from probabilities by top-k, top-p, and both."""

from __future__ import annotations

from typing import Any

import torch
from fib_schema import Definition

from ..adapter import Adapter, Call, Described, Reading


def _row_values(value: Any, probs: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A limit for each row; FlashInfer takes one for all as well."""
    if isinstance(value, torch.Tensor):
        return value
    return torch.full((probs.shape[0],), value, dtype=dtype, device=probs.device)


def read_top_k(probs: torch.Tensor, top_k: Any) -> Reading:
    """The likeliest k of each row."""
    return ("top_k", probs.shape[-1]), (probs, _row_values(top_k, probs, torch.int32)), False


def read_top_p(probs: torch.Tensor, top_p: Any) -> Reading:
    """The likeliest of each row that make up p."""
    return ("top_p", probs.shape[-1]), (probs, _row_values(top_p, probs, torch.float32)), False


def read_top_k_top_p(probs: torch.Tensor, top_k: Any, top_p: Any, filter_apply_order: str = "top_k_first") -> Reading:
    """First the one, then the other."""
    if filter_apply_order != "top_k_first":
        return f"both limits apply at once (filter_apply_order={filter_apply_order!r})"
    limits = _row_values(top_k, probs, torch.int32), _row_values(top_p, probs, torch.float32)
    return ("top_k", "top_p", probs.shape[-1]), (probs, *limits), False


def _describe(key: tuple[Any, ...]) -> Described:
    *limits, vocabulary = key
    return Described(f"{'_'.join(limits)}_sampling_from_probs_v{vocabulary}", ("probs", *limits), ("samples",))


def _give(samples: torch.Tensor) -> torch.Tensor:
    """FlashInfer's samples are of 32 bits, those of definitions of 64."""
    return samples.to(torch.int32)


def _baseline(definition: Definition) -> str | None:
    function = definition.name.rpartition("_v")[0]
    limits = [name for name in definition.inputs if name != "probs"]
    if not function.endswith("_sampling_from_probs") or function != f"{'_'.join(limits)}_sampling_from_probs":
        return None
    arguments = ", ".join(definition.inputs)
    return f"""import torch
import flashinfer.sampling


def run({arguments}):
    return flashinfer.sampling.{function}({arguments}).to(torch.int64)
"""


_HINTS = frozenset({"deterministic"})

SAMPLING = Adapter(
    name="sampling",
    op_types=("sampling",),
    targets=(
        Call(
            path="flashinfer.sampling.top_k_sampling_from_probs",
            read=read_top_k,
            describe=_describe,
            give=_give,
            is_comparable=False,
            ignored=_HINTS,
        ),
        Call(
            path="flashinfer.sampling.top_p_sampling_from_probs",
            read=read_top_p,
            describe=_describe,
            give=_give,
            is_comparable=False,
            ignored=_HINTS,
        ),
        Call(
            path="flashinfer.sampling.top_k_top_p_sampling_from_probs",
            read=read_top_k_top_p,
            describe=_describe,
            give=_give,
            is_comparable=False,
            ignored=_HINTS,
        ),
    ),
    covers="limits as tensors or numbers; top-k before top-p",
    leaves="`indices`, a generator or a seed (the caller wants certain samples), `check_nan`, both limits at once",
    baseline=_baseline,
)
