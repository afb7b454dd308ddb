// class: CUDA, tensor cores with accumulation in float32
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <mma.h>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

using namespace nvcuda;

__global__ void gemm(const half* A, const half* B, half* C, int M, int N, int K) {
  __shared__ float tile[8][16][16];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int m = (blockIdx.y * 8 + warp) * 16, n = blockIdx.x * 16;
  if (m >= M || n >= N) return;
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> b;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
  wmma::fill_fragment(c, 0.f);
  for (int k = 0; k < K; k += 16) {
    wmma::load_matrix_sync(a, A + m * K + k, K);
    wmma::load_matrix_sync(b, B + n * K + k, K);
    wmma::mma_sync(c, a, b, c);
  }
  wmma::store_matrix_sync(&tile[warp][0][0], c, 16, wmma::mem_row_major);
  __syncwarp();
  for (int i = lane; i < 256; i += 32) C[(m + i / 16) * N + n + i % 16] = __float2half(tile[warp][i / 16][i % 16]);
}

void run(tvm::ffi::TensorView A, tvm::ffi::TensorView B, tvm::ffi::TensorView C) {
  const int M = A.size(0), K = A.size(1), N = B.size(0);
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(A.device().device_type, A.device().device_id));
  gemm<<<dim3(N / 16, (M + 127) / 128), 256, 0, stream>>>(static_cast<const half*>(A.data_ptr()),
                                                         static_cast<const half*>(B.data_ptr()),
                                                         static_cast<half*>(C.data_ptr()), M, N, K);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
