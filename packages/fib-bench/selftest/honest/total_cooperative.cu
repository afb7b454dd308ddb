// A cooperative launch: all blocks add their parts up, wait for each other, and the first one finishes.
#include <cooperative_groups.h>

#include <algorithm>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

constexpr int kThreads = 256, kMost = 1024;
__device__ float parts[kMost];

__device__ float BlockSum(float sum) {
  __shared__ float warps[kThreads / 32];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(~0u, sum, step);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = threadIdx.x < kThreads / 32 ? warps[threadIdx.x] : 0;
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(~0u, sum, step);
  __syncthreads();
  return sum;
}

__global__ void Kernel(const float* x, float* y, int64_t n) {
  float sum = 0;
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x)
    sum += x[i];
  sum = BlockSum(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
  cooperative_groups::this_grid().sync();
  if (blockIdx.x > 0) return;
  sum = 0;
  for (int i = threadIdx.x; i < gridDim.x; i += blockDim.x) sum += *static_cast<volatile float*>(&parts[i]);
  sum = BlockSum(sum);
  if (threadIdx.x == 0) *y = sum;
}

void run(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  const int device = x.device().device_id;
  int processors = 0, resident = 0;
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, Kernel, kThreads, 0);
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(x.device().device_type, device));
  const float* in = static_cast<const float*>(x.data_ptr());
  float* out = static_cast<float*>(y.data_ptr());
  int64_t n = x.numel();
  void* arguments[] = {&in, &out, &n};
  const int blocks = std::min(processors * std::min(resident, 4), kMost);
  const cudaError_t error = cudaLaunchCooperativeKernel(Kernel, blocks, kThreads, arguments, 0, stream);
  TVM_FFI_ICHECK(error == cudaSuccess) << cudaGetErrorString(error);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
