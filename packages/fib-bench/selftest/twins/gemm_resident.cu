// A tiled product whose weights are loaded into shared memory as a whole.
#include <cuda.h>
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <cstdint>

static cudaStream_t Stream(const tvm::ffi::TensorView& x) {
  return static_cast<cudaStream_t>(TVMFFIEnvGetStream(x.device().device_type, x.device().device_id));
}
[[maybe_unused]] static bool Capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(stream, &status);
  return status != cudaStreamCaptureStatusNone;
}

constexpr int kTile = 64, kStep = 32, kThreads = 256;

// One 64 x 64 tile of x @ weight.t(), by 256 threads. Loads bypass L1.
__device__ __forceinline__ void Tile(const float* x, const float* w, float* y, int n, int k, int row0, int col0) {
  __shared__ float a[kStep][kTile + 4], b[kStep][kTile + 4];
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  float sum[4][4] = {};
  for (int k0 = 0; k0 < k; k0 += kStep) {
    for (int i = threadIdx.x; i < kTile * kStep; i += kThreads) {
      const int r = i / kStep, c = i % kStep;
      a[c][r] = __ldcg(x + int64_t(row0 + r) * k + k0 + c);
      b[c][r] = __ldcg(w + int64_t(col0 + r) * k + k0 + c);
    }
    __syncthreads();
    for (int c = 0; c < kStep; ++c)
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) sum[i][j] += a[c][ty + 16 * i] * b[c][tx + 16 * j];
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) __stcg(y + int64_t(row0 + ty + 16 * i) * n + col0 + tx + 16 * j, sum[i][j]);
}

__device__ __forceinline__ void CopyTile(const float* from, float* to, int n, int row0, int col0) {
  for (int i = threadIdx.x; i < kTile * kTile / 4; i += kThreads) {
    const int64_t at = int64_t(row0 + i / 16) * n + col0 + i % 16 * 4;
    __stcg(reinterpret_cast<float4*>(to + at), __ldcg(reinterpret_cast<const float4*>(from + at)));
  }
}

// All of a block's weights stay in shared memory.
constexpr int kWords = kTile * 257, kTag = 8;

__global__ void __launch_bounds__(kThreads) Resident(const float* x, const float* w, float* y, int n, int k, int columns) {
  extern __shared__ uint32_t memory[];
  float* b = reinterpret_cast<float*>(memory + kTag);
  __shared__ float a[kStep][kTile + 4];
  const int row0 = blockIdx.x / columns * kTile, col0 = blockIdx.x % columns * kTile;
  for (int i = threadIdx.x; i < kTile * k; i += kThreads) b[i / k * 257 + i % k] = __ldcg(w + int64_t(col0) * k + i);
  __syncthreads();
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  float sum[4][4] = {};
  for (int k0 = 0; k0 < k; k0 += kStep) {
    for (int i = threadIdx.x; i < kTile * kStep; i += kThreads)
      a[i % kStep][i / kStep] = __ldcg(x + int64_t(row0 + i / kStep) * k + k0 + i % kStep);
    __syncthreads();
    for (int c = 0; c < kStep; ++c)
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) sum[i][j] += a[c][ty + 16 * i] * b[(tx + 16 * j) * 257 + k0 + c];
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) y[int64_t(row0 + ty + 16 * i) * n + col0 + tx + 16 * j] = sum[i][j];
}

void run(tvm::ffi::TensorView x, tvm::ffi::TensorView weight, tvm::ffi::TensorView y) {
  const float* in = static_cast<const float*>(x.data_ptr());
  const float* w = static_cast<const float*>(weight.data_ptr());
  float* out = static_cast<float*>(y.data_ptr());
  const int m = x.size(0), k = x.size(1), n = weight.size(0);
  const int columns = n / kTile, tiles = m / kTile * columns;
  const cudaStream_t stream = Stream(x);
  const int bytes = (kTag + kWords) * 4;
  cudaFuncSetAttribute(Resident, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  Resident<<<tiles, kThreads, bytes, stream>>>(in, w, out, n, k, columns);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
