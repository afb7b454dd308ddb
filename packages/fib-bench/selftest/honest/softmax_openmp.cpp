#include <algorithm>
#include <cmath>
#include <cstdint>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

void run(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  const int64_t rows = x.size(0), columns = x.size(1);
#pragma omp parallel for
  for (int64_t row = 0; row < rows; ++row) {
    const float* in = static_cast<const float*>(x.data_ptr()) + row * columns;
    float* out = static_cast<float*>(y.data_ptr()) + row * columns;
    const float largest = *std::max_element(in, in + columns);
    float total = 0;
    for (int64_t i = 0; i < columns; ++i) total += out[i] = std::exp(in[i] - largest);
    for (int64_t i = 0; i < columns; ++i) out[i] /= total;
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
