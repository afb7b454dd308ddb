#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

at::Tensor Run(const at::Tensor& x) { return x.mul(2); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &Run); }
