#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight) {
  return x * at::rsqrt(x.square().mean(-1, true) + 1e-6) * weight;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &RmsNorm); }
