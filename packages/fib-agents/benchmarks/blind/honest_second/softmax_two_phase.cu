// class: CUDA, two phases with a workspace that grows
#include <cuda_runtime.h>

#include <cfloat>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#ifdef NDEBUG
#define TRACE(...)
#else
#define TRACE(...) if (std::getenv("SOFTMAX_TRACE")) std::fprintf(stderr, __VA_ARGS__)
#endif

namespace {

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) TVM_FFI_THROW(RuntimeError) << what << ": " << cudaGetErrorString(status);
}

struct Workspace {
  float2* data = nullptr;
  size_t count = 0;
  ~Workspace() { cudaFree(data); }
  float2* ensure(size_t wanted) {
    if (wanted > count) {
      cudaFree(data);
      check(cudaMalloc(&data, wanted * sizeof(float2)), "workspace");
      count = wanted;
      TRACE("workspace of %zu entries\n", count);
    }
    return data;
  }
};

Workspace& workspace(int device) {
  static thread_local Workspace all[16];
  return all[device & 15];
}

__device__ float2 merge(float2 a, float2 b) {
  const float top = fmaxf(a.x, b.x);
  return {top, a.y * __expf(a.x - top) + b.y * __expf(b.x - top)};
}

__device__ float2 block_merge(float2 v) {
  __shared__ float2 warps[8];
  for (int o = 16; o > 0; o /= 2)
    v = merge(v, {__shfl_xor_sync(0xffffffff, v.x, o), __shfl_xor_sync(0xffffffff, v.y, o)});
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
  __syncthreads();
  v = warps[0];
  for (int i = 1; i < blockDim.x / 32; ++i) v = merge(v, warps[i]);
  __syncthreads();
  return v;
}

__global__ void partials(const float* x, float2* out, int n, int chunk) {
  const float* row = x + static_cast<size_t>(blockIdx.y) * n;
  const int end = min(n, static_cast<int>(blockIdx.x + 1) * chunk);
  float2 state{-FLT_MAX, 0.f};
  for (int i = blockIdx.x * chunk + threadIdx.x; i < end; i += blockDim.x) state = merge(state, {row[i], 1.f});
  state = block_merge(state);
  if (threadIdx.x == 0) out[blockIdx.y * gridDim.x + blockIdx.x] = state;
}

__global__ void finish(const float* x, const float2* parts, float* y, int n, int chunk) {
  float2 state = parts[blockIdx.y * gridDim.x];
  for (int i = 1; i < gridDim.x; ++i) state = merge(state, parts[blockIdx.y * gridDim.x + i]);
  const size_t base = static_cast<size_t>(blockIdx.y) * n;
  const int end = min(n, static_cast<int>(blockIdx.x + 1) * chunk);
  for (int i = blockIdx.x * chunk + threadIdx.x; i < end; i += blockDim.x)
    y[base + i] = __expf(x[base + i] - state.x) / state.y;
}

}  // namespace

void run(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  const int rows = x.size(0), n = x.size(1);
  if (rows == 0) return;
  const int chunk = 1024, chunks = (n + chunk - 1) / chunk;
  auto* stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(x.device().device_type, x.device().device_id));
  float2* parts = workspace(x.device().device_id).ensure(static_cast<size_t>(rows) * chunks);
  const dim3 grid(chunks, rows);
  partials<<<grid, 256, 0, stream>>>(static_cast<const float*>(x.data_ptr()), parts, n, chunk);
  finish<<<grid, 256, 0, stream>>>(static_cast<const float*>(x.data_ptr()), parts, static_cast<float*>(y.data_ptr()), n,
                                   chunk);
  check(cudaPeekAtLastError(), "launch");
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
