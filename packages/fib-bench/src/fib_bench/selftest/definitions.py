"""Definitions of the self-test. Small operations with sizes for each kind of device, implemented by all suites."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import attrs
from fib_schema import AxisConst, AxisVar, Definition, RandomInput, ScalarInput, TensorSpec, Workload

Sizes = Mapping[str, int]


def data_folder() -> Path:
    """Folder of the suites and references: ``data/`` beside this module in a wheel, else that beside ``src/``."""
    installed = Path(__file__).with_name("data")
    return installed if installed.is_dir() else Path(__file__).parents[3] / "selftest"


@attrs.frozen
class Op:
    """A definition in short notation: ``float32[m,k]`` is a tensor, ``float32`` alone a scalar."""

    op_type: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    cpu: Sizes
    """Values of the variable axes on the CPU; `cuda` has those for CUDA devices."""
    cuda: Sizes
    fixed: Sizes = attrs.field(factory=dict)
    """The constant axes."""
    constraints: tuple[str, ...] = ()

    def definition(self, name: str) -> Definition:
        """The definition of a name; its reference is the file of that name in ``references/``."""
        variable = {axis: AxisVar() for axis in self.cpu}
        return Definition(
            name=name,
            op_type=self.op_type,
            axes=variable | {axis: AxisConst(value=size) for axis, size in self.fixed.items()},
            inputs={key: _spec(text) for key, text in self.inputs.items()},
            outputs={key: _spec(text) for key, text in self.outputs.items()},
            reference=data_folder().joinpath("references", f"{name}.py").read_text("utf-8"),
            constraints=self.constraints,
        )

    def workload(self, name: str, kind: str) -> Workload:
        """The workload for a kind of device, ``cpu`` or ``cuda``."""
        inputs = {
            key: RandomInput() if "[" in text else ScalarInput(_SCALARS[key]) for key, text in self.inputs.items()
        }
        return Workload(dict(self.cuda if kind == "cuda" else self.cpu), inputs, f"{name}-{kind}")


_SCALARS: Mapping[str, float] = {"eps": 1e-6, "factor": 2.0}


def _spec(text: str) -> TensorSpec:
    match = re.fullmatch(r"(\w+)(?:\[([\w,]*)\])?", text)
    assert match is not None, text
    shape = None if match[2] is None else tuple(axis for axis in match[2].split(",") if axis)
    return TensorSpec(shape, match[1])


_ROWS_CPU, _ROWS_CUDA = {"rows": 32}, {"rows": 4096}
_TOKENS_CPU, _TOKENS_CUDA = {"tokens": 64}, {"tokens": 4096}

OPS: Mapping[str, Op] = {
    "scale": Op("elementwise", {"x": "float32[n]"}, {"y": "float32[n]"}, {"n": 20_000}, {"n": 1 << 22}),
    "negate": Op("elementwise", {"x": "bfloat16[n]"}, {"y": "bfloat16[n]"}, {"n": 20_000}, {"n": 1 << 22}),
    "tiny": Op("elementwise", {"x": "float32[n]"}, {"y": "float32[n]"}, {"n": 8}, {"n": 8}),
    "affine": Op(
        "elementwise",
        {"x": "float32[n]", "factor": "float32", "bias": "float32[n]"},
        {"y": "float32[n]"},
        {"n": 20_000},
        {"n": 1 << 20},
    ),
    "transpose": Op(
        "layout", {"x": "float32[rows,columns]"}, {"y": "float32[columns,rows]"}, _ROWS_CPU, _ROWS_CUDA,
        {"columns": 512},
    ),
    "silu_and_mul": Op(
        "activation", {"x": "float32[rows,both]"}, {"y": "float32[rows,half]"}, _ROWS_CPU, _ROWS_CUDA,
        {"both": 1024, "half": 512},
    ),
    "rmsnorm": Op(
        "rmsnorm", {"x": "float32[rows,columns]", "weight": "float32[columns]"}, {"y": "float32[rows,columns]"},
        _ROWS_CPU, _ROWS_CUDA, {"columns": 512},
    ),
    "layernorm": Op(
        "layernorm", {"x": "float32[rows,columns]", "weight": "float32[columns]", "eps": "float32"},
        {"y": "float32[rows,columns]"}, _ROWS_CPU, _ROWS_CUDA, {"columns": 512},
    ),
    "softmax": Op(
        "softmax", {"x": "float32[rows,columns]"}, {"y": "float32[rows,columns]"}, _ROWS_CPU, _ROWS_CUDA,
        {"columns": 512},
    ),
    "moments": Op(
        "reduction", {"x": "float32[rows,columns]"}, {"mean": "float32[rows]", "variance": "float32[rows]"},
        _ROWS_CPU, _ROWS_CUDA, {"columns": 512},
    ),
    "total": Op("reduction", {"x": "float32[n]"}, {"y": "float32[]"}, {"n": 20_000}, {"n": 1 << 20}),
    "cumsum": Op(
        "scan", {"x": "float32[rows,columns]"}, {"y": "float32[rows,columns]"}, _ROWS_CPU, _ROWS_CUDA, {"columns": 512}
    ),
    "state_scan": Op(
        "linear_recurrence", {"gate": "float32[tokens,width]", "x": "float32[tokens,width]"},
        {"y": "float32[tokens,width]"}, _TOKENS_CPU, {"tokens": 256}, {"width": 64},
    ),
    "gemm": Op(
        "gemm", {"x": "float32[m,k]", "weight": "float32[n,k]"}, {"y": "float32[m,n]"}, {"m": 128}, {"m": 1024},
        {"n": 256, "k": 256},
    ),
    "gemm_deep": Op(
        "gemm", {"x": "float32[m,k]", "weight": "float32[n,k]"}, {"y": "float32[m,n]"}, {"m": 8}, {"m": 128},
        {"n": 32, "k": 16_384},
    ),
    "gemm_bf16": Op(
        "gemm", {"x": "bfloat16[m,k]", "weight": "bfloat16[n,k]"}, {"y": "bfloat16[m,n]"}, {"m": 64}, {"m": 1024},
        {"n": 256, "k": 256},
    ),
    "conv1d": Op(
        "convolution", {"x": "float32[tokens,width]", "weight": "float32[width,taps]"}, {"y": "float32[tokens,width]"},
        _TOKENS_CPU, _TOKENS_CUDA, {"width": 64, "taps": 4},
    ),
    "rope": Op(
        "rope", {"x": "float32[tokens,heads,width]"}, {"y": "float32[tokens,heads,width]"}, _TOKENS_CPU, _TOKENS_CUDA,
        {"heads": 4, "width": 64},
    ),
    "int8_rows": Op(
        "quantise", {"x": "float32[rows,columns]"}, {"q": "int8[rows,columns]", "scale": "float32[rows]"},
        _ROWS_CPU, _ROWS_CUDA, {"columns": 512},
    ),
    "largest": Op(
        "selection", {"x": "float32[rows,columns]"}, {"values": "float32[rows,kept]", "places": "int64[rows,kept]"},
        _ROWS_CPU, _ROWS_CUDA, {"columns": 512, "kept": 8},
    ),
    "greedy": Op(
        "selection", {"logits": "float32[batch_size,vocab_size]"}, {"tokens": "int64[batch_size]"},
        {"batch_size": 16}, {"batch_size": 256}, {"vocab_size": 32_768},
    ),
    "top_k_sampling": Op(
        "sampling", {"probs": "float32[batch_size,vocab_size]", "top_k": "int32[batch_size]"},
        {"samples": "int64[batch_size]"}, {"batch_size": 4}, {"batch_size": 64}, {"vocab_size": 32_768},
    ),
    "ragged_attention": Op(
        "gqa_ragged",
        {
            "q": "float32[total_q,heads,head_dim]", "k": "float32[total_kv,heads,head_dim]",
            "v": "float32[total_kv,heads,head_dim]", "qo_indptr": "int32[ends]", "kv_indptr": "int32[ends]",
        },
        {"output": "float32[total_q,heads,head_dim]"},
        {"total_q": 48, "total_kv": 96, "ends": 5}, {"total_q": 512, "total_kv": 4096, "ends": 9},
        {"heads": 4, "head_dim": 32},
        ("qo_indptr[-1] == total_q", "kv_indptr[-1] == total_kv"),
    ),
    "paged_decode": Op(
        "gqa_paged",
        {
            "q": "float32[batch,heads,head_dim]", "k_cache": "float32[num_pages,page_size,heads,head_dim]",
            "v_cache": "float32[num_pages,page_size,heads,head_dim]", "kv_indptr": "int32[ends]",
            "kv_indices": "int32[num_kv_indices]",
        },
        {"output": "float32[batch,heads,head_dim]"},
        {"batch": 4, "ends": 5, "num_pages": 32, "num_kv_indices": 24},
        {"batch": 16, "ends": 17, "num_pages": 1024, "num_kv_indices": 512},
        {"page_size": 4, "heads": 4, "head_dim": 32},
        ("kv_indptr[-1] == num_kv_indices", "ends == batch + 1"),
    ),
}  # fmt: skip
"""Definitions by name."""
