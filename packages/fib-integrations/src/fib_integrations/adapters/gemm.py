"""Matrix products: ``flashinfer.gemm.mm_bf16``, and torch's own where asked for."""

from __future__ import annotations

from typing import Any

import torch
from fib_schema import Definition

from ..adapter import Adapter, Call, Described, Reading


def _reading(a: torch.Tensor, b: torch.Tensor, out: Any) -> Reading:
    """A product with `b` by rows: what definitions call A and B."""
    if a.dim() != 2 or b.dim() != 2:
        return "a factor is no matrix"
    key = b.shape[0], b.shape[1]
    return (key, (a, b), False) if out is None else (key, (a, b, out), True)


def _describe(key: tuple[int, int]) -> Described:
    return Described(f"gemm_n{key[0]}_k{key[1]}", ("A", "B"), ("C",))


def read_mm_bf16(a: torch.Tensor, b: torch.Tensor, out: Any = None, out_dtype: torch.dtype = torch.bfloat16) -> Reading:
    """FlashInfer's `b` is by columns."""
    if out_dtype is not a.dtype:
        return "the result has another type than the factors"
    return _reading(a, b.t(), out)


def read_linear(input: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> Reading:
    """A layer without bias."""
    return "it has a bias" if bias is not None else _reading(input, weight, None)


def read_mm(input: torch.Tensor, mat2: torch.Tensor, out: Any = None) -> Reading:
    """Covered where the second factor is the transpose of a matrix by rows."""
    return _reading(input, mat2.t(), out)


def _baseline(definition: Definition) -> str | None:
    if list(definition.inputs) != ["A", "B"] or str(definition.inputs["A"].dtype) != "bfloat16":
        return None
    return """import flashinfer.gemm


def run(A, B, C):
    flashinfer.gemm.mm_bf16(A, B.t(), out=C)
"""


GEMM = Adapter(
    name="gemm",
    op_types=("gemm",),
    targets=(
        Call(
            path="flashinfer.gemm.gemm_base.mm_bf16",
            read=read_mm_bf16,
            describe=_describe,
            ignored=frozenset({"pdl", "backend"}),
        ),
    ),
    covers="`mm_bf16`, with `out` or without",
    leaves="a bias; another type of the result",
    baseline=_baseline,
)
TORCH_LINEAR = Adapter(
    name="torch_linear",
    op_types=("gemm",),
    targets=(
        Call(
            path="torch.nn.functional.linear",
            read=read_linear,
            describe=_describe,
            signature="input, weight, bias=None",
        ),
    ),
    covers="`torch.nn.functional.linear` of a matrix",
    leaves="a bias; other than two dimensions",
    is_default=False,
)
TORCH_MM = Adapter(
    name="torch_mm",
    op_types=("gemm",),
    targets=(
        Call(
            path="torch.mm",
            read=read_mm,
            describe=_describe,
            signature="input, mat2, *args, out=None, **kwargs",
        ),
    ),
    covers="`torch.mm`, where the second factor is the transpose of a matrix by rows",
    leaves="everything else",
    is_default=False,
)
