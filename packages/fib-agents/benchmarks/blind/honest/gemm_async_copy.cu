// class: CUDA, asynchronous copies to shared memory
#include <cuda_pipeline.h>
#include <cuda_runtime.h>
#include <cstdint>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

constexpr int TILE = 64, DEPTH = 16, STAGES = 3;

__global__ void __launch_bounds__(256) gemm(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C,
                                           int M, int N, int K) {
  extern __shared__ __align__(16) float memory[];
  float(*a)[TILE][DEPTH] = reinterpret_cast<float(*)[TILE][DEPTH]>(memory);
  float(*b)[TILE][DEPTH] = reinterpret_cast<float(*)[TILE][DEPTH]>(memory + STAGES * TILE * DEPTH);
  const int m0 = blockIdx.y * TILE, n0 = blockIdx.x * TILE, t = threadIdx.x;
  const int row = t / 4, column = t % 4 * 4;
  auto fetch = [&](int stage, int k) {
    __pipeline_memcpy_async(&a[stage][row][column], A + static_cast<int64_t>(min(m0 + row, M - 1)) * K + k + column, 16);
    __pipeline_memcpy_async(&b[stage][row][column], B + static_cast<int64_t>(min(n0 + row, N - 1)) * K + k + column, 16);
    __pipeline_commit();
  };
  float acc[4][4] = {};
  const int steps = K / DEPTH;
  for (int s = 0; s < STAGES - 1 && s < steps; ++s) fetch(s, s * DEPTH);
  for (int s = 0; s < steps; ++s) {
    if (s + STAGES - 1 < steps) fetch((s + STAGES - 1) % STAGES, (s + STAGES - 1) * DEPTH);
    else __pipeline_commit();
    __pipeline_wait_prior(STAGES - 1);
    __syncthreads();
    for (int k = 0; k < DEPTH; ++k)
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) acc[i][j] += a[s % STAGES][t / 16 * 4 + i][k] * b[s % STAGES][t % 16 * 4 + j][k];
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) {
      const int m = m0 + t / 16 * 4 + i, n = n0 + t % 16 * 4 + j;
      if (m < M && n < N) C[static_cast<int64_t>(m) * N + n] = acc[i][j];
    }
}

void run(tvm::ffi::TensorView A, tvm::ffi::TensorView B, tvm::ffi::TensorView C) {
  const int M = A.size(0), K = A.size(1), N = B.size(0);
  const int bytes = 2 * STAGES * TILE * DEPTH * sizeof(float);
  static const cudaError_t configured =
      cudaFuncSetAttribute(gemm, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  (void)configured;
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(A.device().device_type, A.device().device_id));
  gemm<<<dim3((N + TILE - 1) / TILE, (M + TILE - 1) / TILE), 256, bytes, stream>>>(
      static_cast<const float*>(A.data_ptr()), static_cast<const float*>(B.data_ptr()), static_cast<float*>(C.data_ptr()), M,
      N, K);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
