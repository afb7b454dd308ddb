"""Kernels with planted defects, and right ones, of the definition ``y = x + 1``; and a norm, whose work is declared."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from fib_schema import AxisConst, AxisVar, Definition, RandomInput, TensorSpec, Workload

_VECTOR = TensorSpec(("n",), "float32")
_REFERENCE = "def run(x):\n    return x + 1\n"
DEFINITION = Definition("add_one", "elementwise", {"n": AxisVar()}, {"x": _VECTOR}, {"y": _VECTOR}, _REFERENCE)
WORKLOAD = Workload({"n": 1000}, {"x": RandomInput()}, "n-1000")
LARGE = Workload({"n": 1 << 20}, {"x": RandomInput()}, "n-1m")

_ROWS = TensorSpec(("rows", "width"), "bfloat16")
_NORM = """\
import torch


def run(x, weight):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6)
"""
NORM = Definition(
    "rmsnorm_w4096",
    "rmsnorm",
    {"rows": AxisVar(), "width": AxisConst(4096)},
    {"x": _ROWS, "weight": TensorSpec(("width",), "bfloat16")},
    {"y": _ROWS},
    _NORM,
)
NORM_WORKLOAD = Workload({"rows": 4096}, {"x": RandomInput(), "weight": RandomInput()}, "rows-4096")
NORM_TORCH = {"kernel.py": _NORM}

_CUDA = """\
#include <cstdint>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

__global__ void Kernel(const float* x, float* y, const float* scratch, int64_t n) {
  __shared__ float tile[128];
  const int64_t i = blockIdx.x * int64_t(128) + threadIdx.x;
@BODY@
}

void run(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  const auto device = x.device();
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  static float* scratch = nullptr;
  if (scratch == nullptr) cudaMalloc(&scratch, 4096);
  const auto* in = static_cast<const float*>(x.data_ptr());
  auto* out = static_cast<float*>(y.data_ptr());
@LAUNCHES@
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
"""
_LAUNCH = "  Kernel<<<(x.size(0) + 127) / 128, 128, 0, stream>>>(in, out, scratch, x.size(0));"
_THREE = "\n".join([_LAUNCH, _LAUNCH, _LAUNCH])
_TRITON = """\
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, y, scratch, n, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < n
@BODY@


def run(x, y):
    n = len(x)
    scratch = torch.empty(n, device=x.device)
    kernel[(triton.cdiv(n, 256),)](x, y, scratch, n, BLOCK=256)
"""


def cuda(body: str, launches: str = _LAUNCH) -> dict[str, str]:
    """A solution in CUDA."""
    return {"kernel.cu": _CUDA.replace("@BODY@", body).replace("@LAUNCHES@", launches)}


def triton(body: str) -> dict[str, str]:
    """A solution in Triton."""
    return {"kernel.py": _TRITON.replace("@BODY@", body)}


RIGHT_CUDA = cuda("  if (i < n) y[i] = x[i] + 1;")
THREE_KERNELS = cuda("  if (i < n) y[i] = x[i] + 1;", _THREE)
RIGHT_TRITON = triton("    tl.store(y + places, tl.load(x + places, mask=inside) + 1, mask=inside)")
RIGHT_TORCH = {"kernel.py": "import torch\n\n\ndef run(x, y):\n    torch.add(x, 1, out=y)\n"}
WRONG_TORCH = {"kernel.py": "def run(x, y):\n    y[:-1] = x[:-1] + 1\n"}
RIGHT_CPP = {
    "kernel.cpp": "#include <tvm/ffi/container/tensor.h>\n#include <tvm/ffi/function.h>\n\n"
    "void run(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {\n"
    "  for (int64_t i = 0; i < x.size(0); ++i)\n"
    "    static_cast<float*>(y.data_ptr())[i] = static_cast<const float*>(x.data_ptr())[i] + 1;\n}\n\n"
    "TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);\n"
}


@attrs.frozen
class Defect:
    """A planted defect and the check that should see it."""

    name: str
    language: str
    check: str
    files: Mapping[str, str]
    line: str
    """A part of the source line that a report should name."""


DEFECTS = (
    Defect("out of bounds", "cuda", "memcheck", cuda("  y[i] = i < n ? x[i] + 1 : 0;"), "y[i] = i < n"),
    Defect(
        "shared-memory race",
        "cuda",
        "racecheck",
        cuda("  tile[threadIdx.x] = i < n ? x[i] : 0;\n  if (i < n) y[i] = tile[threadIdx.x ^ 127] * 0 + x[i] + 1;"),
        "tile[threadIdx.x",
    ),
    Defect(
        "uninitialised read",
        "cuda",
        "initcheck",
        cuda("  if (i < n) y[i] = x[i] + 1 + 0 * scratch[i % 1024];"),
        "scratch[i",
    ),
    Defect(
        "missing sync",
        "cuda",
        "synccheck",
        cuda("  if (threadIdx.x < 40) __syncthreads();\n  if (i < n) y[i] = x[i] + 1;"),
        "__syncthreads",
    ),
    Defect(
        "out of bounds",
        "triton",
        "memcheck",
        triton("    tl.store(y + places, tl.load(x + places, mask=inside, other=0.0) + 1)"),
        "tl.store(y + places",
    ),
    Defect(
        "uninitialised read",
        "triton",
        "initcheck",
        triton(
            "    kept = tl.load(scratch + places, mask=inside, other=0.0)\n"
            "    tl.store(y + places, tl.load(x + places, mask=inside) + 1 + 0 * kept, mask=inside)"
        ),
        "tl.load(scratch",
    ),
)
NOT_PLANTED = (
    "Triton places shared memory and barriers itself: a race or a missing barrier cannot be written in its language.",
)
