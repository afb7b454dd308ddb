// class: CUDA, cuBLAS with a handle for each device
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <map>
#include <mutex>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

static cublasHandle_t handle_of(int device) {
  static std::mutex lock;
  static std::map<int, cublasHandle_t> handles;
  std::lock_guard<std::mutex> guard(lock);
  auto [entry, is_new] = handles.try_emplace(device, nullptr);
  if (is_new) {
    if (cublasCreate(&entry->second) != CUBLAS_STATUS_SUCCESS) TVM_FFI_THROW(RuntimeError) << "cublasCreate failed";
    void* workspace = nullptr;
    cudaMalloc(&workspace, 32 << 20);
    cublasSetWorkspace(entry->second, workspace, 32 << 20);
    cublasSetMathMode(entry->second, CUBLAS_PEDANTIC_MATH);
  }
  return entry->second;
}

// Row-major C = A B^T is column-major C^T = B A^T.
void run(tvm::ffi::TensorView A, tvm::ffi::TensorView B, tvm::ffi::TensorView C) {
  const int M = A.size(0), K = A.size(1), N = B.size(0), device = A.device().device_id;
  cublasHandle_t handle = handle_of(device);
  cublasSetStream(handle, static_cast<cudaStream_t>(TVMFFIEnvGetStream(A.device().device_type, device)));
  const float one = 1.f, zero = 0.f;
  const auto status = cublasSgemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, N, M, K, &one, static_cast<const float*>(B.data_ptr()), K,
                                  static_cast<const float*>(A.data_ptr()), K, &zero, static_cast<float*>(C.data_ptr()), N);
  if (status != CUBLAS_STATUS_SUCCESS) TVM_FFI_THROW(RuntimeError) << "cublasSgemm: " << cublasGetStatusString(status);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
