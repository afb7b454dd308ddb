"""Adapters for RMS normalisation.

Patched: ``flashinfer.norm.rmsnorm`` and ``flashinfer.norm.fused_add_rmsnorm``.

Converted: calls on matrices, with or without ``out``. Fall through: three-dimensional inputs, and an epsilon other
than the constant in the definition's reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from fib_schema import Definition

from ..adapter import Adapter, Call, Conversion, DefinitionRef, Original
from ..definitions import epsilon_constant

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
"""The constants in the references of the public data set."""
CONSTANTS = {name: {"eps": value} for name, value in EPSILON.items()}
"""The same, as `Adapter.reference_constants`."""
_INPUTS = {
    "rmsnorm": ("hidden_states", "weight"),
    "fused_add_rmsnorm": ("hidden_states", "residual", "weight"),
}
_NOT_A_MATRIX = "the input is not a matrix"


def convert_rmsnorm(input: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, out: Any = None) -> Conversion:
    """Rows of one size."""
    if input.dim() != 2:
        return _NOT_A_MATRIX
    key = "rmsnorm", weight.shape[0], eps
    return (key, (input, weight), False) if out is None else (key, (input, weight, out), True)


def convert_fused_add_rmsnorm(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6
) -> Conversion:
    """Rows of one size."""
    if input.dim() != 2:
        return _NOT_A_MATRIX
    return ("fused_add_rmsnorm", weight.shape[0], eps), (input, residual, weight), False


def describe(key: tuple[str, int, float]) -> DefinitionRef:
    """The definition of a key of the functions above."""
    name, hidden_size, epsilon = key
    return DefinitionRef(f"{name}_h{hidden_size}", _INPUTS[name], ("output",), {"eps": epsilon})


def finalize_fused_add(result: torch.Tensor, input: torch.Tensor, residual: torch.Tensor) -> None:
    """Write the sum and the result in place, as FlashInfer does; the definition returns only the result."""
    if result is not input:
        residual.add_(input)
        input.copy_(result)


def shadow_fused_add(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any], values: Sequence[Any]) -> Any:
    """Call the original and return the definition's output, which it wrote over the input."""
    original(*args, **kwargs)
    return values[0]


def _baseline_rmsnorm(definition: Definition) -> str | None:
    epsilon = epsilon_constant(definition.reference)
    if epsilon is None or not definition.name.startswith("rmsnorm_h"):
        return None
    return f"""import flashinfer.norm


def run(hidden_states, weight, output):
    flashinfer.norm.rmsnorm(hidden_states, weight, eps={epsilon!r}, out=output)
"""


def _baseline_fused_add(definition: Definition) -> str | None:
    epsilon = epsilon_constant(definition.reference)
    if epsilon is None or not definition.name.startswith("fused_add_"):
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
            convert=convert_rmsnorm,
            describe=describe,
            ignored=frozenset({"enable_pdl"}),
        ),
    ),
    supported="matrices, with or without `out`",
    unsupported="three dimensions; an epsilon other than the reference's",
    reference_constants=CONSTANTS,
    baseline=_baseline_rmsnorm,
)
FUSED_ADD_RMSNORM = Adapter(
    name="fused_add_rmsnorm",
    op_types=("rmsnorm",),
    targets=(
        Call(
            path="flashinfer.norm.fused_add_rmsnorm",
            convert=convert_fused_add_rmsnorm,
            describe=describe,
            finalize=finalize_fused_add,
            added_kernels=("residual.add_(input)", "input.copy_(result)"),
            shadow=shadow_fused_add,
            ignored=frozenset({"enable_pdl"}),
        ),
    ),
    supported="matrices; the sum and the result are written in place",
    unsupported="three dimensions; an epsilon other than the reference's",
    reference_constants=CONSTANTS,
    baseline=_baseline_fused_add,
)
