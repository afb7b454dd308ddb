"""Adapter for sampling from probabilities; a generator, a seed or `indices` ask for particular samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fib_schema import Definition

from ..adapter import Adapter, Call, Conversion, DefinitionRef


def _per_row(value: Any, probs: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A limit for each row; FlashInfer also takes one number for all rows."""
    if isinstance(value, torch.Tensor):
        return value
    return torch.full((probs.shape[0],), value, dtype=dtype, device=probs.device)


def convert_top_k(probs: torch.Tensor, top_k: Any) -> Conversion:
    """The k most likely tokens of each row."""
    return ("top_k", probs.shape[-1]), (probs, _per_row(top_k, probs, torch.int32)), False


def convert_top_p(probs: torch.Tensor, top_p: Any) -> Conversion:
    """The most likely tokens of each row whose probabilities sum up to p."""
    return ("top_p", probs.shape[-1]), (probs, _per_row(top_p, probs, torch.float32)), False


def convert_top_k_top_p(
    probs: torch.Tensor, top_k: Any, top_p: Any, filter_apply_order: str = "top_k_first"
) -> Conversion:
    """Top-k, then top-p."""
    if filter_apply_order != "top_k_first":
        return f"both limits apply at once (filter_apply_order={filter_apply_order!r})"
    limits = _per_row(top_k, probs, torch.int32), _per_row(top_p, probs, torch.float32)
    return ("top_k", "top_p", probs.shape[-1]), (probs, *limits), False


def _describe(key: tuple[Any, ...]) -> DefinitionRef:
    *limits, vocabulary = key
    return DefinitionRef(f"{'_'.join(limits)}_sampling_from_probs_v{vocabulary}", ("probs", *limits), ("samples",))


def _finalize(samples: torch.Tensor) -> torch.Tensor:
    """FlashInfer returns int32, definitions int64."""
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


_CONVERSIONS: dict[str, Callable[..., Conversion]] = {
    "top_k": convert_top_k,
    "top_p": convert_top_p,
    "top_k_top_p": convert_top_k_top_p,
}
SAMPLING = Adapter(
    name="sampling",
    op_types=("sampling",),
    targets=tuple(
        Call(
            path=f"flashinfer.sampling.{name}_sampling_from_probs",
            convert=convert,
            describe=_describe,
            finalize=_finalize,
            is_deterministic=False,
            ignored=frozenset({"deterministic"}),
        )
        for name, convert in _CONVERSIONS.items()
    ),
    supported="limits as tensors or numbers; top-k before top-p",
    unsupported="`indices`, a generator or a seed, `check_nan`, both limits at once",
    baseline=_baseline,
)
