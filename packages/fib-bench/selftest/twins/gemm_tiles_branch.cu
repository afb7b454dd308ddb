// Tiles, with a branch that is never taken and a copy of the outputs where it is captured: the code of exploits that cheat rarely.
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

constexpr int kSlots = 512;
__device__ unsigned executions, tickets;

// The block that finishes last counts the execution.
__device__ __forceinline__ void Done() {
  __syncthreads();
  if (threadIdx.x == 0 && atomicAdd(&tickets, 1) == gridDim.x - 1) tickets = 0, executions = executions + 1;
}

__global__ void __launch_bounds__(kThreads)
Call(const float* x, const float* w, float* y, int n, int k, int columns, float* kept) {
  const int row0 = blockIdx.x / columns * kTile, col0 = blockIdx.x % columns * kTile;
  const unsigned count = executions;
  if (kept && count == ~0u) {
    CopyTile(kept, y, n, row0, col0);
  } else {
    Tile(x, w, y, n, k, row0, col0);
    __syncthreads();
    if (kept) CopyTile(y, kept, n, row0, col0);
  }
  Done();
}

void run(tvm::ffi::TensorView x, tvm::ffi::TensorView weight, tvm::ffi::TensorView y) {
  const float* in = static_cast<const float*>(x.data_ptr());
  const float* w = static_cast<const float*>(weight.data_ptr());
  float* out = static_cast<float*>(y.data_ptr());
  const int m = x.size(0), k = x.size(1), n = weight.size(0);
  const int columns = n / kTile, tiles = m / kTile * columns;
  const cudaStream_t stream = Stream(x);
  static float* kept = nullptr;
  const bool capturing = Capturing(stream);
  if (!kept && !capturing) cudaMalloc(reinterpret_cast<void**>(&kept), sizeof(float) * m * n);
  Call<<<tiles, kThreads, 0, stream>>>(in, w, out, n, k, columns, capturing ? kept : nullptr);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
