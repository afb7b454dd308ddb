// RMS normalisation of the sum of two bfloat16 tensors: one block for each row, which is read once and stays in registers.

#include <cstdint>

#include <cuda_bf16.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

using tvm::ffi::TensorView;

namespace {

constexpr int kWidth = 8;  // elements that a thread loads at once: 16 bytes
constexpr int kLoads = 4;  // of one thread
constexpr int kMaxThreads = 1024;

struct alignas(16) Pack {
  __nv_bfloat162 pairs[kWidth / 2];
};

__global__ void FusedAddRmsNormKernel(const Pack* x, const Pack* residual, const Pack* weight, Pack* y, int columns) {
  const int packs = columns / kWidth, lane = threadIdx.x % 32;
  const int64_t start = int64_t(blockIdx.x) * packs;
  float2 sums[kLoads][kWidth / 2];
  float total = 0;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int place = threadIdx.x + i * blockDim.x;
    if (place < packs) {
      const Pack left = x[start + place], right = residual[start + place];
#pragma unroll
      for (int j = 0; j < kWidth / 2; ++j) {
        const float2 one = __bfloat1622float2(left.pairs[j]), other = __bfloat1622float2(right.pairs[j]);
        const float2 sum = make_float2(one.x + other.x, one.y + other.y);
        total += sum.x * sum.x + sum.y * sum.y;
        sums[i][j] = sum;
      }
    }
  }

  __shared__ float partial[kMaxThreads / 32];
  for (int offset = 16; offset > 0; offset /= 2) total += __shfl_xor_sync(~0u, total, offset);
  if (lane == 0) partial[threadIdx.x / 32] = total;
  __syncthreads();
  total = lane < blockDim.x / 32 ? partial[lane] : 0;
  for (int offset = 16; offset > 0; offset /= 2) total += __shfl_xor_sync(~0u, total, offset);
  const float factor = rsqrtf(total / columns + 1e-6f);

#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int place = threadIdx.x + i * blockDim.x;
    if (place < packs) {
      const Pack scales = weight[place];
      Pack result;
#pragma unroll
      for (int j = 0; j < kWidth / 2; ++j) {
        const float2 scale = __bfloat1622float2(scales.pairs[j]);
        result.pairs[j] = __floats2bfloat162_rn(sums[i][j].x * factor * scale.x, sums[i][j].y * factor * scale.y);
      }
      y[start + place] = result;
    }
  }
}

void FusedAddRmsNorm(TensorView x, TensorView residual, TensorView weight, TensorView y) {
  const int64_t rows = x.size(0), columns = x.size(1), packs = columns / kWidth;
  if (columns % kWidth != 0 || packs > kMaxThreads * kLoads) {
    TVM_FFI_THROW(ValueError) << "rows of " << columns << " columns; wanted is a multiple of " << kWidth
                              << ", at most " << kMaxThreads * kLoads * kWidth;
  }
  if (rows == 0) return;
  const DLDevice device = x.device();
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  const unsigned threads = unsigned((packs + kLoads * 32 - 1) / (kLoads * 32) * 32);
  FusedAddRmsNormKernel<<<unsigned(rows), threads, 0, stream>>>(
      static_cast<const Pack*>(x.data_ptr()), static_cast<const Pack*>(residual.data_ptr()),
      static_cast<const Pack*>(weight.data_ptr()), static_cast<Pack*>(y.data_ptr()), int(columns));
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) TVM_FFI_THROW(RuntimeError) << "the kernel does not start: " << cudaGetErrorString(error);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, FusedAddRmsNorm);
