"""Parts of the block of `transformer_block`: their definitions, solutions and workloads."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from decoder_layer import PAGES
from fib_compile.device import hardware_from_device
from fib_schema import (
    AxisConst,
    BuildSpec,
    Definition,
    RandomInput,
    ScalarInput,
    Solution,
    SourceFile,
    TraceSet,
    Workload,
)

HERE = Path(__file__).parent
PARTS = {
    "input_norm": "rmsnorm_h4096",
    "qkv": "gemm_n6144_k4096",
    "attention": "gqa_paged_decode_h32_kv8_d128_ps64",
    "o": "gemm_n4096_k4096",
    "post_norm": "fused_add_rmsnorm_h4096",
    "down": "gemm_n4096_k14336",
}
"""The definition of each part that has one; the gate and up projection, rotary embedding and SiLU have none."""
_SMALL_HEADS = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 16, "page_size": 8}
SMALL = {
    "input_norm": {"hidden_size": 64},
    "qkv": {"N": 128, "K": 64},
    "attention": _SMALL_HEADS,
    "o": {"N": 64, "K": 64},
    "post_norm": {"hidden_size": 64},
    "down": {"N": 64, "K": 96},
}
"""Constants for ``--small``."""
_GEMM = ("gemm_torch.py", "gemm_triton.py", "gemm.cu")
ON_GPU = {
    "input_norm": ("rmsnorm_torch.py", "rmsnorm_triton.py", "rmsnorm.cu"),
    "qkv": _GEMM,
    "attention": ("gqa_paged_decode_torch.py", "gqa_paged_decode_triton.py"),
    "o": _GEMM,
    "post_norm": ("fused_add_rmsnorm_torch.py", "fused_add_rmsnorm_triton.py"),
    "down": _GEMM,
}
REFERENCE = "reference.py"
ON_CPU = {
    "input_norm": ("rmsnorm_torch.py", "rmsnorm.cpp"),
    "qkv": ("gemm_torch.py", REFERENCE),
    "attention": ("gqa_paged_decode_torch.py", REFERENCE),
    "o": ("gemm_torch.py", REFERENCE),
    "post_norm": ("fused_add_rmsnorm_torch.py", REFERENCE),
    "down": ("gemm_torch.py", REFERENCE),
}
BATCHES = (1, 16, 64)
"""Recorded for all these definitions but attention, which has no workloads."""
LARGE = {"input_norm": 14418, "qkv": 972}
"""Recorded workloads whose kernels should take 30 us and more, to measure what apply adds."""


def definition_of(part: str, data_set: TraceSet, *, is_small: bool) -> Definition:
    """The data set's definition in bfloat16, and with other constants if it is to be small."""
    found = data_set.definitions[PARTS[part]]
    constants = SMALL[part] if is_small else {}
    suffix = ("_bf16" if found.op_type == "gemm" else "") + ("_small" if is_small else "")
    return attrs.evolve(
        found,
        name=found.name + suffix,
        axes={name: AxisConst(constants[name]) if name in constants else axis for name, axis in found.axes.items()},
        inputs={name: _in_bfloat16(spec) for name, spec in found.inputs.items()},
        outputs={name: _in_bfloat16(spec) for name, spec in found.outputs.items()},
        reference=_with_constants(found.reference, constants),
    )


def _in_bfloat16(spec: Any) -> Any:
    return attrs.evolve(spec, dtype="bfloat16") if spec.dtype == "float16" else spec


def _with_constants(reference: str, constants: Mapping[str, int]) -> str:
    """References assert their constants."""
    for name, value in constants.items():
        reference = re.sub(rf"\b{name} == \d+", f"{name} == {value}", reference)
    return reference


def solution_of(file: str, definition: Definition, device: str) -> Solution:
    """A solution of one file for this device."""
    is_reference = file == REFERENCE
    text = definition.reference if is_reference else (HERE / "solutions" / file).read_text("utf-8")
    if "rmsnorm" in file:
        text = text.replace("1e-6", "1e-5")  # the epsilon of these definitions, which tiny inputs show
    if file == "gemm_triton.py":
        text = text.replace("tl.float16", "tl.bfloat16")
    language = "triton" if "triton" in file else {".py": "python", ".cu": "cuda", ".cpp": "cpp"}[Path(file).suffix]
    returns = language == "python"
    spec = BuildSpec(language, (hardware_from_device(device),), f"{file}::run", destination_passing_style=not returns)
    name = f"{file.replace('.', '_')}_{definition.name}"
    return Solution(name, definition.name, "fib", spec, (SourceFile(file, text),))


def axes_of(part: str, batch: int) -> dict[str, int]:
    """The sizes of a part's variable axes, in a block of this many sequences."""
    if part == "attention":
        pages = batch * PAGES
        return {"batch_size": batch, "len_indptr": batch + 1, "num_pages": pages, "num_kv_indices": pages}
    return {"batch_size": batch} if "norm" in part else {"M": batch}


def workload_of(part: str, definition: Definition, batch: int) -> Workload:
    """Random tensors of the block's shapes."""
    inputs: dict[str, Any] = {name: RandomInput() for name in definition.inputs}
    if part == "attention":
        inputs["sm_scale"] = ScalarInput(1 / math.sqrt(definition.const_axes["head_dim"]))
    return Workload(axes_of(part, batch), inputs, f"{definition.name}-{batch}")
