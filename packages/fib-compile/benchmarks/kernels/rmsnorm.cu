#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include "rmsnorm.cuh"

using tvm::ffi::TensorView;

void RmsNorm(TensorView x, TensorView weight, TensorView y) {
  DLDevice device = x.device();
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  RmsNormKernel<<<x.size(0), 256, 0, stream>>>(
      static_cast<const float*>(x.data_ptr()), static_cast<const float*>(weight.data_ptr()),
      static_cast<float*>(y.data_ptr()), x.size(1));
  if (cudaGetLastError() != cudaSuccess) TVM_FFI_THROW(RuntimeError) << "the kernel does not start";
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, RmsNorm);
