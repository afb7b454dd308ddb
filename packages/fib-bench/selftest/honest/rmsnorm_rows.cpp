#include <cmath>
#include <cstdint>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

void run(tvm::ffi::TensorView x, tvm::ffi::TensorView weight, tvm::ffi::TensorView y) {
  const int64_t rows = x.size(0), columns = x.size(1);
  const float* w = static_cast<const float*>(weight.data_ptr());
  for (int64_t row = 0; row < rows; ++row) {
    const float* in = static_cast<const float*>(x.data_ptr()) + row * columns;
    float* out = static_cast<float*>(y.data_ptr()) + row * columns;
    double sum = 0;
    for (int64_t i = 0; i < columns; ++i) sum += double(in[i]) * in[i];
    const float scale = 1 / std::sqrt(sum / columns + 1e-6);
    for (int64_t i = 0; i < columns; ++i) out[i] = in[i] * scale * w[i];
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
