"""``flashinfer.norm.rmsnorm`` and ``fused_add_rmsnorm``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from fib_schema import Definition

from ..adapter import Adapter, Call, Described, Original, Reading
from ..references import small_constant

EPSILON = {
    "rmsnorm_h128": 1e-6,
    "rmsnorm_h512": 1e-6,
    "rmsnorm_h1536": 1e-6,
    "rmsnorm_h4096": 1e-5,
    "rmsnorm_h7168": 1e-6,
    "fused_add_rmsnorm_h2048": 1e-6,
    "fused_add_rmsnorm_h3072": 1e-6,
    "fused_add_rmsnorm_h4096": 1e-5,
    "fused_add_rmsnorm_h5120": 1e-6,
    "fused_add_rmsnorm_h5376": 1e-6,
    "fused_add_rmsnorm_h7168": 1e-6,
}
"""What the references of the public data set have built in."""
_DECLARED = {name: {"eps": value} for name, value in EPSILON.items()}


def read_rmsnorm(input: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, out: Any = None) -> Reading:
    """Rows of one size, normalised."""
    if input.dim() != 2:
        return "the input is no matrix"
    key = weight.shape[0], eps
    return (key, (input, weight), False) if out is None else (key, (input, weight, out), True)


def _describe_rmsnorm(key: tuple[int, float]) -> Described:
    return Described(f"rmsnorm_h{key[0]}", ("hidden_states", "weight"), ("output",), {"eps": key[1]})


def read_fused_add_rmsnorm(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6
) -> Reading:
    """The same of a sum."""
    if input.dim() != 2:
        return "the input is no matrix"
    return (weight.shape[0], eps), (input, residual, weight), False


def _describe_fused_add(key: tuple[int, float]) -> Described:
    inputs = ("hidden_states", "residual", "weight")
    return Described(f"fused_add_rmsnorm_h{key[0]}", inputs, ("output",), {"eps": key[1]})


def _give_fused_add(result: torch.Tensor, input: torch.Tensor, residual: torch.Tensor) -> None:
    """Write the sum and the result where FlashInfer writes them; the definition knows of the result alone."""
    if result is not input:
        residual.add_(input)
        input.copy_(result)


def _shadow_fused_add(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any], values: Sequence[Any]) -> Any:
    original(*args, **kwargs)
    return values[0]


def _baseline_rmsnorm(definition: Definition) -> str | None:
    epsilon = small_constant(definition.reference)
    if epsilon is None:
        return None
    return f"""import flashinfer.norm


def run(hidden_states, weight, output):
    flashinfer.norm.rmsnorm(hidden_states, weight, eps={epsilon!r}, out=output)
"""


def _baseline_fused_add(definition: Definition) -> str | None:
    epsilon = small_constant(definition.reference)
    if epsilon is None:
        return None
    return f"""import flashinfer.norm


def run(hidden_states, residual, weight, output):
    output.copy_(hidden_states)
    flashinfer.norm.fused_add_rmsnorm(output, residual.clone(), weight, eps={epsilon!r})
"""


RMSNORM = Adapter(
    name="rmsnorm",
    op_types=("rmsnorm",),
    targets=(
        Call(
            path="flashinfer.norm.rmsnorm",
            read=read_rmsnorm,
            describe=_describe_rmsnorm,
            ignored=frozenset({"enable_pdl"}),
        ),
    ),
    covers="matrices, with `out` or without",
    leaves="three dimensions; another epsilon than the reference's",
    declared=_DECLARED,
    baseline=lambda definition: _baseline_rmsnorm(definition) if definition.name.startswith("rmsnorm_h") else None,
)
FUSED_ADD_RMSNORM = Adapter(
    name="fused_add_rmsnorm",
    op_types=("rmsnorm",),
    targets=(
        Call(
            path="flashinfer.norm.fused_add_rmsnorm",
            read=read_fused_add_rmsnorm,
            describe=_describe_fused_add,
            give=_give_fused_add,
            shadow=_shadow_fused_add,
            ignored=frozenset({"enable_pdl"}),
        ),
    ),
    covers="matrices; the sum and the result are written in place",
    leaves="another epsilon than the reference's",
    declared=_DECLARED,
    baseline=lambda definition: _baseline_fused_add(definition) if definition.name.startswith("fused_add_") else None,
)
