"""Measurement of `OpaqueCost`: a call with inputs like those of attention, as an opaque operator and compiled.

The solution does what a kernel's launch takes of the host, and hardly anything on the device: it allocates two outputs
and launches one kernel, in Triton if that is installed, else in torch. The graph is that of `compiled_measurement`.
Consecutive calls of it wait for the host; where a graph waits for the device, replays show what the operator adds.
"""

from __future__ import annotations

from importlib.util import find_spec

from fib_schema import AxisConst, AxisVar, BuildSpec, Definition, Solution, SourceFile, SupportedLanguages, TensorSpec

from .compiled_measurement import CompiledJob, measure
from .compiled_times import CALLS, HOST, REPLAYS
from .key import ApplyKey
from .opaque_cost import OpaqueCost, save_opaque_cost

_ROWS, _PAGES = 2, 4
_MAX_US = 2000.0
"""A larger cost is that of a busy host: 360 us are the most that was measured on an idle one."""
_REFERENCE = """
def run(q, k_cache, v_cache, kv_indptr, kv_indices, sm_scale):
    return q * sm_scale, q[..., 0] * sm_scale
"""
_IN_TORCH = """
import torch

def run(q, k_cache, v_cache, kv_indptr, kv_indices, sm_scale):
    output = torch.empty_like(q)
    lse = torch.empty(q.shape[:2], dtype=q.dtype, device=q.device)
    torch.mul(q, sm_scale, out=output)
    torch.mul(q[..., 0], sm_scale, out=lse)
    return output, lse
"""
_IN_TRITON = """
import torch
import triton
import triton.language as tl

@triton.jit
def scale(q, k_cache, v_cache, kv_indptr, kv_indices, output, lse, factor, rows, DIM: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, DIM)
    values = tl.load(q + row * DIM + at) * factor
    tl.store(output + row * DIM + at, values)
    tl.store(lse + row + at, values, mask=at == 0)

def run(q, k_cache, v_cache, kv_indptr, kv_indices, sm_scale):
    output = torch.empty_like(q)
    lse = torch.empty(q.shape[:2], dtype=q.dtype, device=q.device)
    rows, dim = lse.numel(), q.shape[-1]
    scale[(rows,)](q, k_cache, v_cache, kv_indptr, kv_indices, output, lse, sm_scale, rows, DIM=dim)
    return output, lse
"""


def measure_opaque_cost(hardware: str, device: str, timeout_seconds: float) -> OpaqueCost | str:
    """Measure the cost in a child process, and keep it; returns the reason if that failed.

    Args:
        hardware: The device's name in traces.
        device: On which to measure.
        timeout_seconds: After it the child is killed.
    """
    (found,) = measure(opaque_job(hardware, device), timeout_seconds).values()
    if isinstance(found, str):
        return found
    added = {way: max(0.0, routed - compiled) for way, (routed, compiled) in found.pairs_us.items()}
    calls_us = max(added[CALLS], added.get(HOST, 0.0))
    if calls_us > _MAX_US:
        return f"the host was busy: {calls_us:.0f} us were measured, and an operator costs at most {_MAX_US:.0f}"
    return save_opaque_cost(hardware, calls_us, added.get(REPLAYS))


def opaque_job(hardware: str, device: str) -> CompiledJob:
    """The job by which the cost is measured."""
    axes = {"batch_size": AxisVar(), "num_pages": AxisVar(), "len_indptr": AxisVar()}
    constants = {"heads": AxisConst(8), "kv_heads": AxisConst(2), "dim": AxisConst(64), "page_size": AxisConst(16)}
    cache = TensorSpec(("num_pages", "page_size", "kv_heads", "dim"), "float32")
    inputs = {
        "q": TensorSpec(("batch_size", "heads", "dim"), "float32"),
        "k_cache": cache,
        "v_cache": cache,
        "kv_indptr": TensorSpec(("len_indptr",), "int32"),
        "kv_indices": TensorSpec(("num_pages",), "int32"),
        "sm_scale": TensorSpec(None, "float32"),
    }
    outputs = {
        "output": TensorSpec(("batch_size", "heads", "dim"), "float32"),
        "lse": TensorSpec(("batch_size", "heads"), "float32"),
    }
    definition = Definition("fib_apply_opaque", "opaque", {**axes, **constants}, inputs, outputs, _REFERENCE)
    is_in_triton = device != "cpu" and find_spec("triton") is not None
    # Not declared as Triton: the kernel would be inlined.
    spec = BuildSpec(SupportedLanguages.PYTHON, (hardware,), "main.py::run", destination_passing_style=False)
    source = SourceFile("main.py", _IN_TRITON if is_in_triton else _IN_TORCH)
    solution = Solution("opaque", definition.name, "fib", spec, (source,))
    key = ApplyKey({"batch_size": _ROWS, "num_pages": _PAGES, "len_indptr": _ROWS + 1})
    offsets = [row * _PAGES // _ROWS for row in range(_ROWS + 1)]
    values = {key.encode: {"kv_indptr": offsets, "kv_indices": list(range(_PAGES))}}
    return CompiledJob(definition, solution, (key,), hardware, device, values)
