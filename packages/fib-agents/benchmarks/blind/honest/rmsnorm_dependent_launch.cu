// class: CUDA, two kernels with programmatic dependent launch
#include <cuda_runtime.h>
#include <cstdint>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

__global__ void squares(const float* x, float* y, int columns) {
  const int64_t base = static_cast<int64_t>(blockIdx.x) * columns;
  float sum = 0.f;
  for (int i = threadIdx.x; i < columns; i += 32) sum += x[base + i] * x[base + i];
  for (int s = 16; s; s >>= 1) sum += __shfl_xor_sync(~0u, sum, s);
  if (threadIdx.x == 0) y[base] = rsqrtf(sum / columns + 1e-6f);
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

__global__ void scale(const float* x, const float* w, float* y, int columns) {
  const int64_t base = static_cast<int64_t>(blockIdx.x) * columns;
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  const float factor = y[base];
  __syncwarp();
  for (int i = threadIdx.x; i < columns; i += 32) y[base + i] = x[base + i] * factor * w[i];
}

void run(tvm::ffi::TensorView x, tvm::ffi::TensorView w, tvm::ffi::TensorView y) {
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(x.device().device_type, x.device().device_id));
  const auto* in = static_cast<const float*>(x.data_ptr());
  auto* out = static_cast<float*>(y.data_ptr());
  const int columns = x.size(1);
  squares<<<x.size(0), 32, 0, stream>>>(in, out, columns);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(x.size(0));
  config.blockDim = dim3(32);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, scale, in, static_cast<const float*>(w.data_ptr()), out, columns);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
