#include <cstdint>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

// Rows of A and B are both contiguous in K; four columns at a time share the loads of A.
void run(tvm::ffi::TensorView A, tvm::ffi::TensorView B, tvm::ffi::TensorView C) {
  const int64_t M = A.size(0), K = A.size(1), N = B.size(0);
  const float* a = static_cast<const float*>(A.data_ptr());
  const float* b = static_cast<const float*>(B.data_ptr());
  float* c = static_cast<float*>(C.data_ptr());
  for (int64_t m = 0; m < M; ++m) {
    for (int64_t n = 0; n < N; n += 4) {
      const int64_t width = N - n < 4 ? N - n : 4;
      float lanes[4][8] = {};
      for (int64_t k = 0; k + 8 <= K; k += 8)
        for (int64_t j = 0; j < width; ++j)
          for (int lane = 0; lane < 8; ++lane)
            lanes[j][lane] += a[m * K + k + lane] * b[(n + j) * K + k + lane];
      for (int64_t j = 0; j < width; ++j) {
        float sum = 0.0f;
        for (float lane : lanes[j]) sum += lane;
        for (int64_t k = K / 8 * 8; k < K; ++k) sum += a[m * K + k] * b[(n + j) * K + k];
        c[m * N + n + j] = sum;
      }
    }
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
