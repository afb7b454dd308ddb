// class: CUDA, thread block clusters with distributed shared memory
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

namespace cg = cooperative_groups;
using tvm::ffi::TensorView;

constexpr int kThreads = 128;
constexpr int kCluster = 2;
constexpr int kVec = 8;

__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads)
    rmsnorm_cluster(const __nv_bfloat16* __restrict__ x, const __nv_bfloat16* __restrict__ w,
                    __nv_bfloat16* __restrict__ y, int columns, float eps) {
  cg::cluster_group cluster = cg::this_cluster();
  __shared__ float warp_sums[kThreads / 32];
  __shared__ float block_sum;
  const int rank = cluster.block_rank();
  const int row = blockIdx.x / kCluster;
  const int part = columns / kCluster;
  const __nv_bfloat16* in = x + static_cast<size_t>(row) * columns + rank * part;
  __nv_bfloat16* out = y + static_cast<size_t>(row) * columns + rank * part;
  const __nv_bfloat16* weight = w + rank * part;

  uint4 kept[4];
  int used = 0;
  float sum = 0.f;
  for (int i = threadIdx.x * kVec; i < part; i += kThreads * kVec) {
    kept[used] = *reinterpret_cast<const uint4*>(in + i);
    const auto* v = reinterpret_cast<const __nv_bfloat16*>(&kept[used++]);
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      const float f = __bfloat162float(v[j]);
      sum = fmaf(f, f, sum);
    }
  }
#pragma unroll
  for (int offset = 16; offset; offset >>= 1) sum += __shfl_down_sync(~0u, sum, offset);
  if ((threadIdx.x & 31) == 0) warp_sums[threadIdx.x >> 5] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0.f;
    for (float s : warp_sums) total += s;
    block_sum = total;
  }
  cluster.sync();
  float total = 0.f;
  for (int peer = 0; peer < kCluster; ++peer) total += *cluster.map_shared_rank(&block_sum, peer);
  const float scale = rsqrtf(total / columns + eps);
  used = 0;
  for (int i = threadIdx.x * kVec; i < part; i += kThreads * kVec) {
    auto* v = reinterpret_cast<__nv_bfloat16*>(&kept[used++]);
#pragma unroll
    for (int j = 0; j < kVec; ++j)
      v[j] = __hmul(__float2bfloat16(__bfloat162float(v[j]) * scale), weight[i + j]);
    *reinterpret_cast<uint4*>(out + i) = *reinterpret_cast<uint4*>(v);
  }
  cluster.sync();
}

void run(TensorView x, TensorView weight, TensorView y) {
  const int rows = static_cast<int>(x.size(0));
  const int columns = static_cast<int>(x.size(1));
  if (rows == 0) return;
  if (columns > kCluster * kThreads * kVec * 4) TVM_FFI_THROW(ValueError) << "too many columns: " << columns;
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(x.device().device_type, x.device().device_id));
  rmsnorm_cluster<<<rows * kCluster, kThreads, 0, stream>>>(
      static_cast<const __nv_bfloat16*>(x.data_ptr()), static_cast<const __nv_bfloat16*>(weight.data_ptr()),
      static_cast<__nv_bfloat16*>(y.data_ptr()), columns, 1e-6f);
  if (cudaError_t error = cudaGetLastError(); error != cudaSuccess)
    TVM_FFI_THROW(RuntimeError) << cudaGetErrorString(error);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
