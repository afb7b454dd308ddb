// class: C++ with intrinsics, chosen at run time
#include <immintrin.h>

#include <cstdint>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

__attribute__((target("avx512f"))) static void add_512(const float* a, const float* b, float* c, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) _mm512_storeu_ps(c + i, _mm512_add_ps(_mm512_loadu_ps(a + i), _mm512_loadu_ps(b + i)));
  for (; i < n; ++i) c[i] = a[i] + b[i];
}

__attribute__((target("avx2"))) static void add_256(const float* a, const float* b, float* c, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm_prefetch(reinterpret_cast<const char*>(a + i + 256), _MM_HINT_T0);
    _mm256_storeu_ps(c + i, _mm256_add_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i)));
  }
  for (; i < n; ++i) c[i] = a[i] + b[i];
}

static void add_plain(const float* a, const float* b, float* c, int64_t n) {
  for (int64_t i = 0; i < n; ++i) c[i] = a[i] + b[i];
}

using Add = void (*)(const float*, const float*, float*, int64_t);

static Add choose() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return add_512;
  return __builtin_cpu_supports("avx2") ? add_256 : add_plain;
}

void run(tvm::ffi::TensorView a, tvm::ffi::TensorView b, tvm::ffi::TensorView c) {
  static const Add add = choose();
  add(static_cast<const float*>(a.data_ptr()), static_cast<const float*>(b.data_ptr()), static_cast<float*>(c.data_ptr()),
      a.size(0));
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
