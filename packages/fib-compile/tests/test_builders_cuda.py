"""CUDA sources compile without a GPU, for the requested architectures."""

import json
from pathlib import Path

import pytest
import torch
from compile_samples import ADD_ONE, TENSOR_CPP, make_solution
from fib_compile import BuildError, TVMFFIBuilder
from fib_compile.toolchain import MissingTool, find_library, find_nvcc

KERNEL = (
    TENSOR_CPP
    + """
__global__ void AddOne(const float* x, float* y, int64_t n) {
  int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) y[i] = x[i] + 1;
}

extern "C" int __tvm_ffi_run(void*, const TVMFFIAny* args, int32_t, TVMFFIAny*) {
  const DLTensor* x = tensor(args[0]);
  const DLTensor* y = tensor(args[1]);
  int64_t n = x->shape[0] * x->shape[1];
  AddOne<<<(n + 255) / 256, 256>>>(static_cast<const float*>(x->data), static_cast<float*>(y->data), n);
  return cudaGetLastError() == cudaSuccess ? 0 : -1;
}
"""
)


def has_toolchain():
    try:
        find_nvcc()
    except MissingTool:
        return False
    return find_library("libcudart.so.13") is not None


needs_nvcc = pytest.mark.skipif(not has_toolchain(), reason="needs nvcc and libcudart of CUDA 13")


@pytest.fixture
def cuda_solution():
    return make_solution({"kernel.cu": KERNEL}, language="cuda", dps=True)


@needs_nvcc
def test_a_kernel_compiles_loads_and_is_found_again(cuda_solution, monkeypatch):
    monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "9.0a")
    runnable = TVMFFIBuilder().build(ADD_ONE, cuda_solution)

    library = Path(runnable.metadata.misc["library"])
    facts = json.loads(library.with_name("manifest.json").read_text())["facts"]
    assert facts["architectures"] == ["9.0a"]
    assert facts["libraries"] == ["libcudart.so.13"]
    assert b"sm_90a" in library.read_bytes()

    monkeypatch.setenv("FIB_CACHE_ONLY", "1")
    assert TVMFFIBuilder().build(ADD_ONE, cuda_solution).metadata.misc["library"] == str(library)
    monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "8.0")
    with pytest.raises(BuildError, match="FIB_CACHE_ONLY forbids compiling; and the cache holds no library that fits"):
        TVMFFIBuilder().build(ADD_ONE, cuda_solution)


@needs_nvcc
def test_a_library_for_several_architectures_serves_each(cuda_solution, monkeypatch):
    monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "8.0 9.0a")
    library = TVMFFIBuilder().build(ADD_ONE, cuda_solution).metadata.misc["library"]
    monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "9.0a")
    assert TVMFFIBuilder().build(ADD_ONE, cuda_solution).metadata.misc["library"] == library
    monkeypatch.setenv("FIB_CACHE_ONLY", "1")
    monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "8.6")
    assert TVMFFIBuilder().build(ADD_ONE, cuda_solution).metadata.misc["library"] == library


@needs_nvcc
def test_an_error_of_nvcc_is_shown(monkeypatch):
    monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "9.0a")
    with pytest.raises(BuildError) as caught:
        TVMFFIBuilder().build(ADD_ONE, make_solution({"k.cu": "int f() { return x; }"}, language="cuda"))
    assert caught.value.details[0] == 'k.cu(1): error: identifier "x" is undefined'


@pytest.mark.gpu
@pytest.mark.usefixtures("needs_gpu")
def test_a_kernel_computes(cuda_solution):
    x = torch.arange(2000, dtype=torch.float32, device="cuda").reshape(500, 4)
    assert torch.equal(TVMFFIBuilder().build(ADD_ONE, cuda_solution).call_value_returning(x), x + 1)
