# class: an extension of torch that is compiled at import
import torch
from torch.utils.cpp_extension import load_inline

_SOURCE = r"""
#include <torch/extension.h>

void rmsnorm(torch::Tensor x, torch::Tensor w, torch::Tensor y) {
  TORCH_CHECK(x.is_contiguous() && y.is_contiguous(), "rows must be contiguous");
  const int64_t columns = x.size(-1), rows = x.numel() / columns;
  const float* in = x.data_ptr<float>();
  const float* weight = w.data_ptr<float>();
  float* out = y.data_ptr<float>();
  at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float sum = 0;
      for (int64_t i = 0; i < columns; ++i) sum += in[r * columns + i] * in[r * columns + i];
      const float scale = 1.0f / std::sqrt(sum / columns + 1e-6f);
      for (int64_t i = 0; i < columns; ++i) out[r * columns + i] = in[r * columns + i] * scale * weight[i];
    }
  });
}
"""

_extension = load_inline(
    name="rmsnorm_rows", cpp_sources=_SOURCE, functions=["rmsnorm"], extra_cflags=["-O3", "-march=native"]
)


def run(x, weight, y):
    _extension.rmsnorm(x, weight, y)
