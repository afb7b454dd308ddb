// class: CUDA, cuBLASLt with a plan for each shape
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <map>
#include <stdexcept>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

static void ok(cublasStatus_t s) {
  if (s != CUBLAS_STATUS_SUCCESS) TVM_FFI_THROW(RuntimeError) << cublasLtGetStatusString(s);
}

class Plan {
 public:
  static constexpr size_t kWorkspace = 32 << 20;

  Plan(cublasLtHandle_t handle, int m, int n, int k) {
    ok(cublasLtMatmulDescCreate(&op_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    cublasOperation_t transposed = CUBLAS_OP_T, plain = CUBLAS_OP_N;
    ok(cublasLtMatmulDescSetAttribute(op_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
    ok(cublasLtMatmulDescSetAttribute(op_, CUBLASLT_MATMUL_DESC_TRANSB, &plain, sizeof plain));
    ok(cublasLtMatrixLayoutCreate(&a_, CUDA_R_32F, k, n, k));  // column major: C' = B A'
    ok(cublasLtMatrixLayoutCreate(&b_, CUDA_R_32F, k, m, k));
    ok(cublasLtMatrixLayoutCreate(&c_, CUDA_R_32F, n, m, n));
    cublasLtMatmulPreference_t preference;
    ok(cublasLtMatmulPreferenceCreate(&preference));
    size_t limit = kWorkspace;
    ok(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &limit, sizeof limit));
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    ok(cublasLtMatmulAlgoGetHeuristic(handle, op_, a_, b_, c_, c_, preference, 1, &result, &found));
    cublasLtMatmulPreferenceDestroy(preference);
    if (found == 0) TVM_FFI_THROW(RuntimeError) << "cublasLt has no algorithm for " << m << "x" << n << "x" << k;
    algorithm_ = result.algo;
  }

  void run(cublasLtHandle_t handle, const void* A, const void* B, void* C, void* workspace, cudaStream_t stream) const {
    const float one = 1.f, zero = 0.f;
    ok(cublasLtMatmul(handle, op_, &one, B, a_, A, b_, &zero, C, c_, C, c_, &algorithm_, workspace, kWorkspace, stream));
  }

 private:
  cublasLtMatmulDesc_t op_{};
  cublasLtMatrixLayout_t a_{}, b_{}, c_{};
  cublasLtMatmulAlgo_t algorithm_{};
};

void run(tvm::ffi::TensorView A, tvm::ffi::TensorView B, tvm::ffi::TensorView C) {
  static cublasLtHandle_t handle = [] {
    cublasLtHandle_t made;
    ok(cublasLtCreate(&made));
    return made;
  }();
  static void* workspace = [] {
    void* made = nullptr;
    if (cudaMalloc(&made, Plan::kWorkspace) != cudaSuccess) TVM_FFI_THROW(RuntimeError) << "no workspace";
    return made;
  }();
  static std::map<std::tuple<int, int, int>, Plan> plans;
  const int m = A.size(0), n = B.size(0), k = A.size(1);
  if (m == 0) return;
  auto [it, is_new] = plans.try_emplace({m, n, k}, handle, m, n, k);
  (void)is_new;
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(A.device().device_type, A.device().device_id));
  it->second.run(handle, A.data_ptr(), B.data_ptr(), C.data_ptr(), workspace, stream);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
