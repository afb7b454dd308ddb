// class: CUDA, vector loads through inline PTX
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <cstdint>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#define CHECK(call)                                                                       \
  do {                                                                                    \
    cudaError_t status = (call);                                                          \
    if (status != cudaSuccess) TVM_FFI_THROW(RuntimeError) << cudaGetErrorString(status); \
  } while (0)

__device__ __forceinline__ uint4 load_once(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

template <int THREADS>
__global__ void rmsnorm(const __nv_bfloat16* x, const __nv_bfloat16* w, __nv_bfloat16* y, int columns) {
  __shared__ float partial[THREADS / 32];
  const int64_t base = static_cast<int64_t>(blockIdx.x) * columns;
  float sum = 0.f;
  for (int i = threadIdx.x * 8; i < columns; i += THREADS * 8) {
    uint4 raw = load_once(x + base + i);
    auto* pair = reinterpret_cast<__nv_bfloat162*>(&raw);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float2 f = __bfloat1622float2(pair[j]);
      sum += f.x * f.x + f.y * f.y;
    }
  }
  for (int s = 16; s; s >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, s);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0.f;
#pragma unroll
  for (int i = 0; i < THREADS / 32; ++i) sum += partial[i];
  const float scale = rsqrtf(sum / columns + 1e-6f);
  for (int i = threadIdx.x; i < columns; i += THREADS)
    y[base + i] = __float2bfloat16(__bfloat162float(x[base + i]) * scale * __bfloat162float(w[i]));
}

void run(tvm::ffi::TensorView x, tvm::ffi::TensorView w, tvm::ffi::TensorView y) {
  const int rows = x.size(0), columns = x.size(1);
  if (rows == 0) return;
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(x.device().device_type, x.device().device_id));
  rmsnorm<256><<<rows, 256, 0, stream>>>(static_cast<const __nv_bfloat16*>(x.data_ptr()),
                                         static_cast<const __nv_bfloat16*>(w.data_ptr()),
                                         static_cast<__nv_bfloat16*>(y.data_ptr()), columns);
  CHECK(cudaGetLastError());
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
