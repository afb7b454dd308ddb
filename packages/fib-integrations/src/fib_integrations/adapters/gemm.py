"""Adapters for matrix products; the second factor is stored as definitions have it, N by K."""

from __future__ import annotations

from typing import Any

import torch
from fib_schema import Definition

from ..adapter import Adapter, Call, Conversion, DefinitionRef


def _convert(a: torch.Tensor, b: torch.Tensor, out: Any) -> Conversion:
    """A product of the definition's A (M by K) and B (N by K)."""
    if a.dim() != 2 or b.dim() != 2:
        return "a factor is not a matrix"
    key = b.shape[0], b.shape[1]
    return (key, (a, b), False) if out is None else (key, (a, b, out), True)


def _describe(key: tuple[int, int]) -> DefinitionRef:
    return DefinitionRef(f"gemm_n{key[0]}_k{key[1]}", ("A", "B"), ("C",))


def convert_mm_bf16(
    a: torch.Tensor, b: torch.Tensor, out: Any = None, out_dtype: torch.dtype = torch.bfloat16
) -> Conversion:
    """FlashInfer takes `b` in column-major order: K by N."""
    if out_dtype is not a.dtype:
        return f"the output dtype ({out_dtype}) differs from that of the factors"
    return _convert(a, b.t(), out)


def convert_linear(input: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> Conversion:
    """A layer without bias."""
    return "it has a bias" if bias is not None else _convert(input, weight, None)


def convert_mm(input: torch.Tensor, mat2: torch.Tensor, out: Any = None) -> Conversion:
    """Routed only if `mat2` is the transpose of a contiguous matrix: solutions are verified for that layout."""
    return _convert(input, mat2.t(), out)


def _baseline(definition: Definition) -> str | None:
    if list(definition.inputs) != ["A", "B"] or str(definition.inputs["A"].dtype) != "bfloat16":
        return None
    return """import flashinfer.gemm


def run(A, B, C):
    flashinfer.gemm.mm_bf16(A, B.t(), out=C)
"""


_LINEAR_SIGNATURE, _MM_SIGNATURE = "input, weight, bias=None", "input, mat2, *args, out=None, **kwargs"
"""`inspect` cannot read those of builtins."""

GEMM = Adapter(
    name="gemm",
    op_types=("gemm",),
    targets=(
        Call(
            path="flashinfer.gemm.gemm_base.mm_bf16",
            convert=convert_mm_bf16,
            describe=_describe,
            ignored=frozenset({"pdl", "backend"}),
        ),
    ),
    supported="`mm_bf16`, with or without `out`",
    unsupported="a bias; another output dtype",
    baseline=_baseline,
)
TORCH_LINEAR = Adapter(
    name="torch_linear",
    op_types=("gemm",),
    targets=(
        Call(
            path="torch.nn.functional.linear", convert=convert_linear, describe=_describe, signature=_LINEAR_SIGNATURE
        ),
    ),
    supported="`torch.nn.functional.linear` of a matrix",
    unsupported="a bias; other than two dimensions",
    is_default=False,
)
TORCH_MM = Adapter(
    name="torch_mm",
    op_types=("gemm",),
    targets=(Call(path="torch.mm", convert=convert_mm, describe=_describe, signature=_MM_SIGNATURE),),
    supported="`torch.mm`, if the second factor is the transpose of a contiguous matrix",
    unsupported="all other calls",
    is_default=False,
)
