// class: CUDA for Hopper, TMA loads whose tensor maps are encoded by the driver's entry point
#include <cuda.h>
#include <cuda_runtime.h>
#include <cudaTypedefs.h>

#include <cstdint>
#include <map>
#include <tuple>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#define CUDA_CHECK(x)                                                                                   \
  do {                                                                                                  \
    cudaError_t e_ = (x);                                                                               \
    if (e_ != cudaSuccess) TVM_FFI_THROW(RuntimeError) << #x << " failed: " << cudaGetErrorString(e_);  \
  } while (0)

static PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  static void* entry = nullptr;
  if (entry == nullptr) {
    cudaDriverEntryPointQueryResult found;
    CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess) TVM_FFI_THROW(RuntimeError) << "the driver has no tensor maps";
  }
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
}

static CUtensorMap make_map(const void* data, uint64_t rows, uint64_t columns, uint32_t box_rows, uint32_t box_columns) {
  CUtensorMap map;
  const cuuint64_t sizes[2] = {columns, rows}, strides[1] = {columns * sizeof(float)};
  const cuuint32_t box[2] = {box_columns, box_rows}, steps[2] = {1, 1};
  const CUresult status = encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, const_cast<void*>(data), sizes, strides,
                                    box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                    CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) TVM_FFI_THROW(RuntimeError) << "cuTensorMapEncodeTiled: " << static_cast<int>(status);
  return map;
}

constexpr int BM = 64, BN = 64, BK = 16, STAGES = 4;

__device__ __forceinline__ uint32_t smem(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ void wait(uint64_t* bar, uint32_t phase) {
  asm volatile(
      "{\n.reg .pred p;\nagain: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra again;\ndone:\n}"
      ::"r"(smem(bar)), "r"(phase) : "memory");
}

__device__ __forceinline__ void load(void* to, const CUtensorMap* map, int x, int y, uint64_t* bar) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
      ::"r"(smem(to)), "l"(map), "r"(smem(bar)), "r"(x), "r"(y) : "memory");
}

__global__ void __launch_bounds__(256) gemm(const __grid_constant__ CUtensorMap ma, const __grid_constant__ CUtensorMap mb,
                                            float* C, int M, int N, int K) {
  __shared__ alignas(128) float a[STAGES][BM][BK];
  __shared__ alignas(128) float b[STAGES][BN][BK];
  __shared__ alignas(8) uint64_t full[STAGES];
  const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN, steps = K / BK;
  if (threadIdx.x == 0) {
    for (auto& bar : full) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(smem(&bar)));
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  auto issue = [&](int step) {
    const int s = step % STAGES;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem(&full[s])),
                 "r"(static_cast<uint32_t>(sizeof(a[0]) + sizeof(b[0]))) : "memory");
    load(a[s], &ma, step * BK, m0, &full[s]);
    load(b[s], &mb, step * BK, n0, &full[s]);
  };
  if (threadIdx.x == 0)
    for (int s = 0; s < STAGES - 1 && s < steps; ++s) issue(s);
  const int ty = threadIdx.x / 16 * 4, tx = threadIdx.x % 16 * 4;
  float acc[4][4] = {};
  for (int step = 0; step < steps; ++step) {
    if (threadIdx.x == 0 && step + STAGES - 1 < steps) issue(step + STAGES - 1);
    const int s = step % STAGES;
    wait(&full[s], (step / STAGES) & 1);
    for (int k = 0; k < BK; ++k)
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) acc[i][j] = fmaf(a[s][ty + i][k], b[s][tx + j][k], acc[i][j]);
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j)
      if (m0 + ty + i < M) C[static_cast<size_t>(m0 + ty + i) * N + n0 + tx + j] = acc[i][j];
}

void run(tvm::ffi::TensorView A, tvm::ffi::TensorView B, tvm::ffi::TensorView C) {
  const int M = A.size(0), K = A.size(1), N = B.size(0);
  if (M == 0) return;
  const CUtensorMap ma = make_map(A.data_ptr(), M, K, BM, BK), mb = make_map(B.data_ptr(), N, K, BN, BK);
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(A.device().device_type, A.device().device_id));
  gemm<<<dim3(N / BN, (M + BM - 1) / BM), 256, 0, stream>>>(ma, mb, static_cast<float*>(C.data_ptr()), M, N, K);
  CUDA_CHECK(cudaGetLastError());
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
