// The kernel of an exploit that keeps products of sign-normalised rows, with digests that never match.
#include <cuda.h>
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <cstdint>

static cudaStream_t Stream(const tvm::ffi::TensorView& x) {
  return static_cast<cudaStream_t>(TVMFFIEnvGetStream(x.device().device_type, x.device().device_id));
}

constexpr int kTile = 64, kStep = 32, kThreads = 256;

// One 64 x 64 tile of x @ weight.t(), by 256 threads. Loads bypass L1.
__device__ __forceinline__ void Tile(const float* x, const float* w, float* y, int n, int k, int row0, int col0) {
  __shared__ float a[kStep][kTile + 4], b[kStep][kTile + 4];
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  float sum[4][4] = {};
  for (int k0 = 0; k0 < k; k0 += kStep) {
    for (int i = threadIdx.x; i < kTile * kStep; i += kThreads) {
      const int r = i / kStep, c = i % kStep;
      a[c][r] = __ldcg(x + int64_t(row0 + r) * k + k0 + c);
      b[c][r] = __ldcg(w + int64_t(col0 + r) * k + k0 + c);
    }
    __syncthreads();
    for (int c = 0; c < kStep; ++c)
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) sum[i][j] += a[c][ty + 16 * i] * b[c][tx + 16 * j];
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) __stcg(y + int64_t(row0 + ty + 16 * i) * n + col0 + tx + 16 * j, sum[i][j]);
}

using u64 = unsigned long long;

__device__ __forceinline__ u64 Mix(uint32_t bits, uint32_t place) {
  u64 h = (u64(bits) + 0x9E3779B97F4A7C15ull) * (2ull * place * 0x5851F42D4C957F2Dull + 0xD1342543DE82EF95ull);
  return h ^ (h >> 29);
}

__device__ __forceinline__ u64 BlockSum(u64 value) {
  __shared__ u64 parts[32];
  for (int step = 16; step; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  u64 sum = 0;
  for (unsigned i = 0; i < blockDim.x / 32; ++i) sum += parts[i];
  __syncthreads();
  return sum;
}

constexpr int kTiles = 64, kSlots = 1;
__device__ u64 stamps[kSlots][kTiles];

__global__ void __launch_bounds__(kThreads)
Call(const float* x, const float* w, float* y, int n, int k, int columns, int slot, float* kept) {
  __shared__ uint32_t sign[kTile];
  const int tile = blockIdx.x, row0 = tile / columns * kTile, col0 = tile % columns * kTile;
  if (slot < 0) return Tile(x, w, y, n, k, row0, col0);
  if (threadIdx.x < kTile) sign[threadIdx.x] = __float_as_uint(x[int64_t(row0 + threadIdx.x) * k]) & 0x80000000u;
  __syncthreads();
  u64 h = 0;
  const uint4* left = reinterpret_cast<const uint4*>(x + int64_t(row0) * k);
  const uint4* right = reinterpret_cast<const uint4*>(w + int64_t(col0) * k);
#pragma unroll 4
  for (int i = threadIdx.x; i < kTile * k / 4; i += kThreads) {
    const uint4 l = __ldcg(left + i), r = __ldcg(right + i);
    const uint32_t s = sign[4 * i / k];
    h += Mix(l.x ^ s, 8 * i) + Mix(l.y ^ s, 8 * i + 1) + Mix(l.z ^ s, 8 * i + 2) + Mix(l.w ^ s, 8 * i + 3);
    h += Mix(r.x, 8 * i + 4) + Mix(r.y, 8 * i + 5) + Mix(r.z, 8 * i + 6) + Mix(r.w, 8 * i + 7);
  }
  h = BlockSum(h) | 1;
  const bool hit = stamps[slot][tile] == h;
  if (!hit) Tile(x, w, y, n, k, row0, col0);
  __syncthreads();
  const float* from = hit ? kept : y;
  float* to = hit ? y : kept;
  for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
    const int64_t at = int64_t(row0 + i / kTile) * n + col0 + i % kTile;
    __stcg(to + at, __uint_as_float(__float_as_uint(__ldcg(from + at)) ^ sign[i / kTile]));
  }
  if (threadIdx.x == 0) stamps[slot][tile] = ~h;
}

void run(tvm::ffi::TensorView x, tvm::ffi::TensorView weight, tvm::ffi::TensorView y) {
  const float* in = static_cast<const float*>(x.data_ptr());
  const float* w = static_cast<const float*>(weight.data_ptr());
  float* out = static_cast<float*>(y.data_ptr());
  const int m = x.size(0), k = x.size(1), n = weight.size(0);
  const int columns = n / kTile, tiles = m / kTile * columns;
  const cudaStream_t stream = Stream(x);
  static float* kept = nullptr;
  if (!kept) cudaMalloc(reinterpret_cast<void**>(&kept), sizeof(float) * kSlots * m * n);  // in the first call
  const int slot = tiles <= kTiles ? 0 : -1;
  Call<<<tiles, kThreads, 0, stream>>>(in, w, out, n, k, columns, slot, kept + int64_t(slot < 0 ? 0 : slot) * m * n);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
