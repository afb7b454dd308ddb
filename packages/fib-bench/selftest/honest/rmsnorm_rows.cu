#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

__global__ void Kernel(const float* x, const float* weight, float* y, int columns) {
  __shared__ float total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  const float* in = x + int64_t(blockIdx.x) * columns;
  float sum = 0;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += in[i] * in[i];
  atomicAdd(&total, sum);
  __syncthreads();
  const float scale = rsqrtf(total / columns + 1e-6f);
  for (int i = threadIdx.x; i < columns; i += blockDim.x)
    y[int64_t(blockIdx.x) * columns + i] = in[i] * scale * weight[i];
}

void run(tvm::ffi::TensorView x, tvm::ffi::TensorView weight, tvm::ffi::TensorView y) {
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(x.device().device_type, x.device().device_id));
  Kernel<<<x.size(0), 128, 0, stream>>>(static_cast<const float*>(x.data_ptr()),
                                        static_cast<const float*>(weight.data_ptr()),
                                        static_cast<float*>(y.data_ptr()), x.size(1));
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
