// class: CUDA, WMMA with three TF32 products for each float32 product
#include <cuda_pipeline.h>
#include <cuda_runtime.h>
#include <mma.h>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

using namespace nvcuda;

constexpr int BM = 64, BN = 64, BK = 32, PAD = 4, WARPS = 4;

template <typename F>
__device__ void split(const F& whole, F& big, F& small) {
  for (int i = 0; i < whole.num_elements; ++i) {
    big.x[i] = wmma::__float_to_tf32(whole.x[i]);
    small.x[i] = wmma::__float_to_tf32(whole.x[i] - big.x[i]);
  }
}

__global__ void __launch_bounds__(32 * WARPS) gemm(const float* __restrict__ A, const float* __restrict__ B, float* C,
                                                   int M, int N, int K) {
  __shared__ __align__(16) float a[2][BM][BK + PAD];
  __shared__ __align__(16) float b[2][BN][BK + PAD];
  const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN, warp = threadIdx.x / 32;
  auto fetch = [&](int stage, int k0) {
    for (int i = threadIdx.x; i < BM * BK / 4; i += blockDim.x) {
      const int r = i / (BK / 4), c = i % (BK / 4) * 4;
      if (m0 + r < M) __pipeline_memcpy_async(&a[stage][r][c], &A[size_t(m0 + r) * K + k0 + c], 16);
      else *reinterpret_cast<float4*>(&a[stage][r][c]) = make_float4(0, 0, 0, 0);
      __pipeline_memcpy_async(&b[stage][r][c], &B[size_t(n0 + r) * K + k0 + c], 16);
    }
    __pipeline_commit();
  };
  wmma::fragment<wmma::accumulator, 16, 16, 8, float> acc[4];
  for (auto& f : acc) wmma::fill_fragment(f, 0.f);
  fetch(0, 0);
  for (int k0 = 0, stage = 0; k0 < K; k0 += BK, stage ^= 1) {
    if (k0 + BK < K) fetch(stage ^ 1, k0 + BK);
    __pipeline_wait_prior(k0 + BK < K ? 1 : 0);
    __syncthreads();
    for (int k = 0; k < BK; k += 8) {
      wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> fa, a1, a2;
      wmma::load_matrix_sync(fa, &a[stage][warp * 16][k], BK + PAD);
      split(fa, a1, a2);
      for (int n = 0; n < 4; ++n) {
        wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::col_major> fb, b1, b2;
        wmma::load_matrix_sync(fb, &b[stage][n * 16][k], BK + PAD);
        split(fb, b1, b2);
        wmma::mma_sync(acc[n], a2, b1, acc[n]);
        wmma::mma_sync(acc[n], a1, b2, acc[n]);
        wmma::mma_sync(acc[n], a1, b1, acc[n]);
      }
    }
    __syncthreads();
  }
  const int row = m0 + warp * 16;
  __shared__ float tail[16][BN];
  for (int n = 0; n < 4; ++n) {
    if (row + 16 <= M) wmma::store_matrix_sync(&C[size_t(row) * N + n0 + n * 16], acc[n], N, wmma::mem_row_major);
    else if (row < M) {
      wmma::store_matrix_sync(&tail[0][n * 16], acc[n], BN, wmma::mem_row_major);
      __syncwarp();
      for (int i = threadIdx.x % 32; i < (M - row) * 16; i += 32)
        C[size_t(row + i / 16) * N + n0 + n * 16 + i % 16] = tail[i / 16][n * 16 + i % 16];
    }
  }
}

void run(tvm::ffi::TensorView A, tvm::ffi::TensorView B, tvm::ffi::TensorView C) {
  const int M = A.size(0), K = A.size(1), N = B.size(0);
  if (M == 0) return;
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(A.device().device_type, A.device().device_id));
  const dim3 grid(N / BN, (M + BM - 1) / BM);
  gemm<<<grid, 32 * WARPS, 0, stream>>>(static_cast<const float*>(A.data_ptr()), static_cast<const float*>(B.data_ptr()),
                                        static_cast<float*>(C.data_ptr()), M, N, K);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) TVM_FFI_THROW(RuntimeError) << "gemm: " << cudaGetErrorString(error);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
