// Two kernels with programmatic dependent launch: the second begins early, and waits before it reads what the first has written.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

constexpr int kMost = 1 << 16;
__device__ float scales[kMost];

__global__ void Scales(const float* x, int columns) {
  __shared__ float parts[4];
  const float* in = x + int64_t(blockIdx.x) * columns;
  float sum = 0;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += in[i] * in[i];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(~0u, sum, step);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) scales[blockIdx.x] = rsqrtf((parts[0] + parts[1] + parts[2] + parts[3]) / columns + 1e-6f);
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__global__ void Multiply(const float* x, const float* weight, float* y, int columns) {
  const float* in = x + int64_t(blockIdx.x) * columns;
  const float first = threadIdx.x < columns ? in[threadIdx.x] * weight[threadIdx.x] : 0;  // inputs do not depend
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");  // all of Scales has ended, and its writes are visible
#endif
  const float scale = *static_cast<volatile float*>(&scales[blockIdx.x]);
  float* out = y + int64_t(blockIdx.x) * columns;
  if (threadIdx.x < columns) out[threadIdx.x] = first * scale;
  for (int i = threadIdx.x + blockDim.x; i < columns; i += blockDim.x) out[i] = in[i] * scale * weight[i];
}

void run(tvm::ffi::TensorView x, tvm::ffi::TensorView weight, tvm::ffi::TensorView y) {
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(x.device().device_type, x.device().device_id));
  const int rows = x.size(0), columns = x.size(1);
  TVM_FFI_ICHECK_LE(rows, kMost);
  const float* in = static_cast<const float*>(x.data_ptr());
  Scales<<<rows, 128, 0, stream>>>(in, columns);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = rows;
  config.blockDim = 128;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  const cudaError_t error = cudaLaunchKernelEx(&config, Multiply, in, static_cast<const float*>(weight.data_ptr()),
                                               static_cast<float*>(y.data_ptr()), columns);
  TVM_FFI_ICHECK(error == cudaSuccess) << cudaGetErrorString(error);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
