"""Calls cuBLASLt, the library that torch has loaded, with a workspace of its own."""

import ctypes

import torch

FLOAT32, COMPUTE_FLOAT32, TRANSPOSE_A, TRANSPOSED = 0, 68, 3, 1
WORKSPACE_BYTES = 4 << 20
library, handle = None, ctypes.c_void_p()
plans, workspaces = {}, {}


def check(status):
    if status != 0:
        raise RuntimeError(f"cuBLASLt: status {status}")


def load():
    global library
    if library is None:
        name = f"libcublasLt.so.{torch.version.cuda.split('.')[0]}"
        library = ctypes.CDLL(name)
        check(library.cublasLtCreate(ctypes.byref(handle)))


def layout(rows, columns):
    made = ctypes.c_void_p()
    size = ctypes.c_uint64
    check(
        library.cublasLtMatrixLayoutCreate(ctypes.byref(made), FLOAT32, size(rows), size(columns), ctypes.c_int64(rows))
    )
    return made


def plan(m, n, k):
    load()
    operation, transposed = ctypes.c_void_p(), ctypes.c_int32(TRANSPOSED)
    check(library.cublasLtMatmulDescCreate(ctypes.byref(operation), COMPUTE_FLOAT32, FLOAT32))
    check(library.cublasLtMatmulDescSetAttribute(operation, TRANSPOSE_A, ctypes.byref(transposed), ctypes.c_size_t(4)))
    # Row by row as torch has them, these are the transposed matrices column by column: y' = weight'' x'.
    return operation, layout(k, n), layout(k, m), layout(n, m)


def run(x, weight, y):
    (m, k), n = x.shape, len(weight)
    if (m, n, k) not in plans:
        plans[m, n, k] = plan(m, n, k)
    if x.device not in workspaces:
        workspaces[x.device] = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=x.device)
    operation, left, right, result = plans[m, n, k]
    one, zero, pointer = ctypes.c_float(1), ctypes.c_float(0), ctypes.c_void_p
    check(
        library.cublasLtMatmul(
            handle, operation, ctypes.byref(one), pointer(weight.data_ptr()), left, pointer(x.data_ptr()), right,
            ctypes.byref(zero), pointer(y.data_ptr()), result, pointer(y.data_ptr()), result, None,
            pointer(workspaces[x.device].data_ptr()), ctypes.c_size_t(WORKSPACE_BYTES),
            pointer(torch.cuda.current_stream().cuda_stream),
        )
    )  # fmt: skip
