#include <cstdint>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

void run(tvm::ffi::TensorView x, tvm::ffi::TensorView weight, tvm::ffi::TensorView y) {
  const int64_t m = x.size(0), k = x.size(1), n = weight.size(0);
  const float* a = static_cast<const float*>(x.data_ptr());
  const float* b = static_cast<const float*>(weight.data_ptr());
  float* c = static_cast<float*>(y.data_ptr());
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      float lanes[8] = {};
      for (int64_t p = 0; p < k; p += 8)
        for (int64_t lane = 0; lane < 8; ++lane) lanes[lane] += a[i * k + p + lane] * b[j * k + p + lane];
      float sum = 0;
      for (float lane : lanes) sum += lane;
      c[i * n + j] = sum;
    }
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
