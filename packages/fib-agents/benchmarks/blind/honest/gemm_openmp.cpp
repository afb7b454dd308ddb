// class: C++ with OpenMP
#include <omp.h>

#include <algorithm>
#include <cstdint>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

void run(tvm::ffi::TensorView A, tvm::ffi::TensorView B, tvm::ffi::TensorView C) {
  const int64_t M = A.size(0), K = A.size(1), N = B.size(0);
  TVM_FFI_ICHECK_EQ(K, B.size(1)) << "A and B must have the same depth";
  const auto* a = static_cast<const float*>(A.data_ptr());
  const auto* b = static_cast<const float*>(B.data_ptr());
  auto* c = static_cast<float*>(C.data_ptr());
#pragma omp parallel for collapse(2) schedule(dynamic, 4)
  for (int64_t m0 = 0; m0 < M; m0 += 32)
    for (int64_t n0 = 0; n0 < N; n0 += 32)
      for (int64_t m = m0; m < std::min(m0 + 32, M); ++m)
        for (int64_t n = n0; n < std::min(n0 + 32, N); ++n) {
          float sum = 0.f;
#pragma omp simd reduction(+ : sum)
          for (int64_t k = 0; k < K; ++k) sum += a[m * K + k] * b[n * K + k];
          c[m * N + n] = sum;
        }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
