// class: CUDA, bulk copies through shared memory
#include <cuda/barrier>
#include <cuda_runtime.h>

#include <cstdint>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

using barrier = cuda::barrier<cuda::thread_scope_block>;
namespace cde = cuda::device::experimental;

template <int STAGES>
__global__ void gather(const char* pages, const int32_t* indices, char* out, int used, int bytes) {
  extern __shared__ __align__(128) char buffer[];
  __shared__ barrier bars[STAGES];
  if (threadIdx.x == 0) {
    for (auto& bar : bars) init(&bar, 1);
    cde::fence_proxy_async_shared_cta();
    barrier::arrival_token tokens[STAGES];
    int issued = 0, i = 0;
    for (int slot = blockIdx.x; slot < used || i < issued;) {
      while (slot < used && issued - i < STAGES) {
        const int s = issued % STAGES;
        cde::cp_async_bulk_wait_group_read<0>();
        cde::cp_async_bulk_global_to_shared(buffer + s * bytes, pages + size_t(indices[slot]) * bytes, bytes, bars[s]);
        tokens[s] = cuda::device::barrier_arrive_tx(bars[s], 1, bytes);
        ++issued;
        slot += gridDim.x;
      }
      const int s = i % STAGES;
      bars[s].wait(std::move(tokens[s]));
      const size_t target = blockIdx.x + size_t(i) * gridDim.x;
      cde::cp_async_bulk_shared_to_global(out + target * bytes, buffer + s * bytes, bytes);
      cde::cp_async_bulk_commit_group();
      ++i;
    }
    cde::cp_async_bulk_wait_group<0>();
  }
}

void run(tvm::ffi::TensorView pages, tvm::ffi::TensorView indptr, tvm::ffi::TensorView indices,
         tvm::ffi::TensorView out) {
  (void)indptr;
  const int used = indices.size(0), bytes = pages.size(1) * pages.size(2) * 2;
  if (used == 0) return;
  static int sms = [] {
    int device, count;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    return count;
  }();
  constexpr int kStages = 4;
  const auto kernel = gather<kStages>;
  static const cudaError_t once =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kStages * bytes);
  if (once != cudaSuccess) TVM_FFI_THROW(RuntimeError) << cudaGetErrorString(once);
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(pages.device().device_type, pages.device().device_id));
  kernel<<<min(used, 4 * sms), 32, kStages * bytes, stream>>>(
      static_cast<const char*>(pages.data_ptr()), static_cast<const int32_t*>(indices.data_ptr()),
      static_cast<char*>(out.data_ptr()), used, bytes);
  if (cudaGetLastError() != cudaSuccess) TVM_FFI_THROW(RuntimeError) << "launch failed";
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
