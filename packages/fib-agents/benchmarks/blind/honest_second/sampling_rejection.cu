// class: CUDA, rejection sampling with Philox, as serving engines do
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cuda_runtime.h>
#include <curand_kernel.h>

#include <atomic>
#include <random>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

constexpr int THREADS = 512;
using Reduce = cub::BlockReduce<float, THREADS>;
using Scan = cub::BlockScan<float, THREADS>;

__global__ void __launch_bounds__(THREADS)
    sample(const float* probs, const float* top_p, int32_t* token, int vocabulary, uint64_t seed, uint64_t offset) {
  __shared__ union {
    Reduce::TempStorage reduce;
    Scan::TempStorage scan;
  } temp;
  __shared__ float shared_value;
  __shared__ int shared_token;
  const float* p = probs + static_cast<size_t>(blockIdx.x) * vocabulary;
  curandStatePhilox4_32_10_t state;
  curand_init(seed, blockIdx.x, offset, &state);
  float low = 0.f;
  for (int round = 0; round < 64; ++round) {
    float mine = 0.f;
    for (int i = threadIdx.x; i < vocabulary; i += THREADS) mine += p[i] > low ? p[i] : 0.f;
    const float mass = Reduce(temp.reduce).Sum(mine);
    if (threadIdx.x == 0) {
      shared_value = mass * curand_uniform(&state);
      shared_token = -1;
    }
    __syncthreads();
    const float target = shared_value;
    float before = 0.f;
    for (int base = 0; base < vocabulary && shared_token < 0; base += THREADS) {
      const int i = base + threadIdx.x;
      const float value = i < vocabulary && p[i] > low ? p[i] : 0.f;
      float upto, chunk;
      Scan(temp.scan).InclusiveSum(value, upto, chunk);
      if (value > 0.f && before + upto - value < target && target <= before + upto) shared_token = i;
      before += chunk;
      __syncthreads();
    }
    const int chosen = max(shared_token, 0);
    const float pivot = p[chosen];
    float above = 0.f;
    for (int i = threadIdx.x; i < vocabulary; i += THREADS) above += p[i] > pivot ? p[i] : 0.f;
    __syncthreads();
    const float sum = Reduce(temp.reduce).Sum(above);
    if (threadIdx.x == 0) shared_value = sum;
    __syncthreads();
    if (shared_value < top_p[blockIdx.x]) break;
    low = pivot;
    __syncthreads();
  }
  if (threadIdx.x == 0) token[blockIdx.x] = shared_token;
}

void run(tvm::ffi::TensorView probs, tvm::ffi::TensorView top_p, tvm::ffi::TensorView token) {
  static const uint64_t seed = std::random_device{}();
  static std::atomic<uint64_t> calls{0};
  if (probs.size(0) == 0) return;
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(probs.device().device_type, probs.device().device_id));
  sample<<<probs.size(0), THREADS, 0, stream>>>(
      static_cast<const float*>(probs.data_ptr()), static_cast<const float*>(top_p.data_ptr()),
      static_cast<int32_t*>(token.data_ptr()), probs.size(1), seed, 256 * calls++);
  if (cudaGetLastError() != cudaSuccess) TVM_FFI_THROW(RuntimeError) << "sampling failed";
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
