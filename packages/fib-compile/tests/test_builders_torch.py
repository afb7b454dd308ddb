"""TorchBuilder compiles extension modules of torch, with g++ alone."""

from importlib.util import find_spec

import pytest
import torch
from compile_samples import ADD_ONE, make_solution
from fib_compile import BuildError, TorchBuilder

KERNEL = """
#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

at::Tensor AddOne(const at::Tensor& x) { return x.add(1); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &AddOne); }
"""

CUDA = """
#include <ATen/cuda/CUDAContext.h>
#include <torch/csrc/utils/pybind.h>

__global__ void Kernel(const float* x, float* y, int64_t n) {
  int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) y[i] = x[i] + 1;
}

void AddOne(const at::Tensor& x, at::Tensor& y) {
  auto stream = at::cuda::getCurrentCUDAStream();
  Kernel<<<(x.numel() + 255) / 256, 256, 0, stream>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &AddOne); }
"""

FAST = """
#include <Python.h>

// A module without torch's headers compiles fifty times as fast.
#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)

static PyObject* Run(PyObject*, PyObject* x) { Py_INCREF(x); return x; }
static PyMethodDef methods[] = {{"run", Run, METH_O, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "m", nullptr, -1, methods};
extern "C" PyObject* JOIN(PyInit_, TORCH_EXTENSION_NAME)() { return PyModule_Create(&module); }
"""


def solution_of(text, **fields):
    return make_solution(text, language="cpp", binding="torch", **fields)


def test_only_solutions_with_the_torch_binding_are_built():
    assert TorchBuilder().can_build(solution_of(""))
    assert not TorchBuilder().can_build(make_solution("", language="cpp"))
    assert not TorchBuilder().can_build(make_solution(""))
    assert TorchBuilder.is_available() == (find_spec("torch") is not None)


@pytest.mark.slow  # ATen's headers take 15 s to compile
def test_a_real_extension():
    runnable = TorchBuilder().build(ADD_ONE, solution_of(KERNEL))
    x = torch.zeros(2, 4)
    assert torch.equal(runnable(x), x + 1)
    y = torch.empty(2, 4)
    runnable.call_destination_passing(x, y)
    assert torch.equal(y, x + 1)


def test_a_missing_function_lists_what_is_exported():
    with pytest.raises(BuildError, match="the module has no function 'rnu'; it exports run"):
        TorchBuilder().build(ADD_ONE, solution_of(FAST, entry="kernel.cpp::rnu"))


def test_sources_without_a_module_say_what_is_missing():
    with pytest.raises(BuildError, match="is PYBIND11_MODULE"):
        TorchBuilder().build(ADD_ONE, solution_of("int x;\n"))


@pytest.mark.gpu
@pytest.mark.usefixtures("needs_gpu")
def test_a_cuda_extension_computes():
    solution = make_solution({"kernel.cu": CUDA}, language="cuda", binding="torch", dps=True)
    x = torch.arange(2000, dtype=torch.float32, device="cuda").reshape(500, 4)
    assert torch.equal(TorchBuilder().build(ADD_ONE, solution).call_value_returning(x), x + 1)
