// Adds all values up with one atomic addition per block, and returns the sum.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

namespace ffi = tvm::ffi;

__global__ void Kernel(const float* x, float* y, int64_t n) {
  float sum = 0;
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x)
    sum += x[i];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(~0u, sum, step);
  if (threadIdx.x % 32 == 0) atomicAdd(y, sum);
}

ffi::Tensor run(ffi::TensorView x) {
  ffi::Tensor y = ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, ffi::Shape({}), x.dtype(), x.device());
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(x.device().device_type, x.device().device_id));
  cudaMemsetAsync(y.data_ptr(), 0, sizeof(float), stream);
  Kernel<<<132, 256, 0, stream>>>(static_cast<const float*>(x.data_ptr()), static_cast<float*>(y.data_ptr()), x.numel());
  return y;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
