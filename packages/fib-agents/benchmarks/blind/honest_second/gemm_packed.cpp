// class: C++ with packed panels, OpenMP and aligned buffers of each thread
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#ifdef _OPENMP
#include <omp.h>
#endif

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

namespace {
constexpr int64_t MC = 96, NC = 512, KC = 256, MR = 6, NR = 16;

struct Free {
  void operator()(float* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<float[], Free>;

Buffer aligned(size_t count) {
  return Buffer(static_cast<float*>(std::aligned_alloc(64, (count * sizeof(float) + 63) / 64 * 64)));
}

inline void micro(const float* a, const float* b, float* c, int64_t k, int64_t ldc, int64_t m, int64_t n) {
  float acc[MR][NR] = {};
  for (int64_t p = 0; p < k; ++p) {
    __builtin_prefetch(b + (p + 4) * NR);
    for (int i = 0; i < MR; ++i)
      for (int j = 0; j < NR; ++j) acc[i][j] += a[p * MR + i] * b[p * NR + j];
  }
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) c[i * ldc + j] += acc[i][j];
}
}  // namespace

void run(tvm::ffi::TensorView A, tvm::ffi::TensorView B, tvm::ffi::TensorView C) {
  const int64_t M = A.size(0), K = A.size(1), N = B.size(0);
  const float *a = static_cast<const float*>(A.data_ptr()), *b = static_cast<const float*>(B.data_ptr());
  float* c = static_cast<float*>(C.data_ptr());
  std::memset(c, 0, sizeof(float) * M * N);
#pragma omp parallel
  {
    Buffer pa = aligned((MC + MR) * KC), pb = aligned((NC + NR) * KC);
#pragma omp for collapse(2) schedule(dynamic)
    for (int64_t jc = 0; jc < N; jc += NC)
      for (int64_t ic = 0; ic < M; ic += MC) {
        const int64_t nc = std::min(NC, N - jc), mc = std::min(MC, M - ic);
        for (int64_t pc = 0; pc < K; pc += KC) {
          const int64_t kc = std::min(KC, K - pc);
          for (int64_t j = 0; j < nc; j += NR)
            for (int64_t p = 0; p < kc; ++p)
              for (int64_t r = 0; r < NR; ++r)
                pb[j * kc + p * NR + r] = j + r < nc ? b[(jc + j + r) * K + pc + p] : 0.f;
          for (int64_t i = 0; i < mc; i += MR)
            for (int64_t p = 0; p < kc; ++p)
              for (int64_t r = 0; r < MR; ++r)
                pa[i * kc + p * MR + r] = i + r < mc ? a[(ic + i + r) * K + pc + p] : 0.f;
          for (int64_t j = 0; j < nc; j += NR)
            for (int64_t i = 0; i < mc; i += MR)
              micro(&pa[i * kc], &pb[j * kc], &c[(ic + i) * N + jc + j], kc, N, std::min(MR, mc - i),
                    std::min(NR, nc - j));
        }
      }
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
