// A block per row.
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

constexpr int kThreads = 128;

__device__ __forceinline__ void Row(const float* in, const float* weight, float* out, int columns) {
  __shared__ float parts[kThreads / 32];
  float sum = 0;
  for (int i = threadIdx.x; i < columns; i += kThreads) sum += in[i] * in[i];
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  const float scale = rsqrtf((parts[0] + parts[1] + parts[2] + parts[3]) / columns + 1e-6f);
  for (int i = threadIdx.x; i < columns; i += kThreads) out[i] = in[i] * scale * weight[i];
}

__global__ void Kernel(const float* x, const float* weight, float* y, int columns) {
  const int64_t at = int64_t(blockIdx.x) * columns;
  Row(x + at, weight, y + at, columns);
}

void run(tvm::ffi::TensorView x, tvm::ffi::TensorView weight, tvm::ffi::TensorView y) {
  const float* in = static_cast<const float*>(x.data_ptr());
  const float* w = static_cast<const float*>(weight.data_ptr());
  float* out = static_cast<float*>(y.data_ptr());
  const int rows = x.size(0), columns = x.size(1);
  const cudaStream_t stream = Stream(x);
  Kernel<<<rows, kThreads, 0, stream>>>(in, w, out, columns);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
