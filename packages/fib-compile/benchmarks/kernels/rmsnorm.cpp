#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cmath>

using tvm::ffi::TensorView;

void RmsNorm(TensorView x, TensorView weight, TensorView y) {
  const int64_t columns = x.size(1);
  const float* scale = static_cast<const float*>(weight.data_ptr());
  for (int64_t row = 0; row < x.size(0); ++row) {
    const float* from = static_cast<const float*>(x.data_ptr()) + row * columns;
    float* to = static_cast<float*>(y.data_ptr()) + row * columns;
    double total = 0;
    for (int64_t i = 0; i < columns; ++i) total += double(from[i]) * from[i];
    const float factor = float(1 / std::sqrt(total / columns + 1e-6));
    for (int64_t i = 0; i < columns; ++i) to[i] = from[i] * factor * scale[i];
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, RmsNorm);
