#include <cublas_v2.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

using tvm::ffi::TensorView;

// Row-major c = a b is column-major c' = b' a'.
void Gemm(TensorView a, TensorView b, TensorView c) {
  static thread_local cublasHandle_t handle = nullptr;
  if (handle == nullptr && cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS) {
    TVM_FFI_THROW(RuntimeError) << "cublasCreate fails";
  }
  DLDevice device = a.device();
  cublasSetStream(handle, static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id)));
  const int m = int(a.size(0)), k = int(a.size(1)), n = int(b.size(1));
  const float one = 1, zero = 0;
  cublasStatus_t status = cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, &one,
                                      static_cast<const float*>(b.data_ptr()), n,
                                      static_cast<const float*>(a.data_ptr()), k, &zero,
                                      static_cast<float*>(c.data_ptr()), n);
  if (status != CUBLAS_STATUS_SUCCESS) TVM_FFI_THROW(RuntimeError) << "cublasSgemm fails with " << int(status);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Gemm);
