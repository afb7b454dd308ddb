#include <cmath>
#include <cstdint>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

// One pass finds the maximum and the sum together (Milakov and Gimelshein, arXiv:1805.02867).
void run(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  const int64_t rows = x.size(0), columns = x.size(1);
  for (int64_t row = 0; row < rows; ++row) {
    const float* in = static_cast<const float*>(x.data_ptr()) + row * columns;
    float* out = static_cast<float*>(y.data_ptr()) + row * columns;
    float highest = -INFINITY, sum = 0.0f;
    for (int64_t i = 0; i < columns; ++i) {
      if (in[i] > highest) {
        sum *= std::exp(highest - in[i]);
        highest = in[i];
      }
      sum += std::exp(in[i] - highest);
    }
    for (int64_t i = 0; i < columns; ++i) out[i] = std::exp(in[i] - highest) / sum;
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
