// C = A B^T on tensor cores, for float16 and bfloat16, with sums in float32.
//
// A block computes a tile of C. It copies tiles of A and B into shared memory asynchronously, some steps
// ahead of its warps, which multiply fragments of 16 by 16 by 16. N and K are multiples of 8, M is anything.

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

using tvm::ffi::TensorView;

namespace {

constexpr int kDepth = 64;          // columns of A and B in one step
constexpr int kPiece = 8;           // elements in one copy: 16 bytes
constexpr int kPitch = kDepth + kPiece;  // the rows of a fragment lie in different banks
constexpr int kFragment = 16;

template <int kRows, int kColumns, int kWarpRows, int kWarpColumns, int kStages>
struct Tiling {
  static constexpr int rows = kRows, columns = kColumns, stages = kStages, warp_columns = kWarpColumns;
  static constexpr int threads = 32 * kWarpRows * kWarpColumns;
  static constexpr int down = kRows / kWarpRows / kFragment;  // fragments of one warp
  static constexpr int across = kColumns / kWarpColumns / kFragment;
  static constexpr int stage = (kRows + kColumns) * kPitch;  // elements of both tiles
  static constexpr int shared_bytes = kStages * stage * 2;
};

using Large = Tiling<128, 128, 2, 2, 3>;
using Medium = Tiling<64, 64, 2, 2, 4>;  // where there are too few large ones for the device
using Small = Tiling<16, 32, 1, 2, 8>;   // for a few rows

constexpr int kPiecesInRow = kDepth / kPiece;

// Copies kRows rows, one piece of some of them by each thread, whose first is at `from`; `rows` are left from
// there on. What is outside the matrix becomes zero.
template <int kRows, int kThreads, typename T>
__device__ void Copy(T* to, const T* from, int64_t width, int64_t rows, bool inside) {
  constexpr int kStride = kThreads / kPiecesInRow;
  static_assert(kRows % kStride == 0);
#pragma unroll
  for (int row = 0; row < kRows; row += kStride) {
    const unsigned address = unsigned(__cvta_generic_to_shared(to + row * kPitch));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(address), "l"(from + row * width), "r"(inside && row < rows ? 16 : 0)
                 : "memory");
  }
}

// Four matrices of 8 by 8 into the registers of a warp; each lane names one row of one of them.
template <typename T>
__device__ void LoadMatrices(unsigned (&to)[4], const T* row) {
  const unsigned address = unsigned(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

#define MULTIPLY(kind)                                                                    \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." kind "." kind                              \
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"              \
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                            \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

__device__ void Multiply(float (&sum)[4], const unsigned (&a)[4], const unsigned* b, const __half*) { MULTIPLY("f16"); }
__device__ void Multiply(float (&sum)[4], const unsigned (&a)[4], const unsigned* b, const __nv_bfloat16*) {
  MULTIPLY("bf16");
}

__device__ void StorePair(__half* to, float x, float y) { *reinterpret_cast<__half2*>(to) = __floats2half2_rn(x, y); }
__device__ void StorePair(__nv_bfloat16* to, float x, float y) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(x, y);
}

template <typename Tiles, typename T>
__global__ void __launch_bounds__(Tiles::threads) GemmKernel(const T* a, const T* b, T* c, int64_t m, int64_t n,
                                                            int64_t k) {
  extern __shared__ __align__(128) unsigned char shared[];
  T* const tiles = reinterpret_cast<T*>(shared);
  const int64_t row = int64_t(blockIdx.x) * Tiles::rows, column = int64_t(blockIdx.y) * Tiles::columns;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp / Tiles::warp_columns * Tiles::down * kFragment;
  const int warp_column = warp % Tiles::warp_columns * Tiles::across * kFragment;
  const int steps = int((k + kDepth - 1) / kDepth);

  const int piece_row = threadIdx.x / kPiecesInRow, piece_column = threadIdx.x % kPiecesInRow * kPiece;
  const int piece = piece_row * kPitch + piece_column;
  const int64_t left_rows = m - row - piece_row, right_rows = n - column - piece_row;
  const T* left_from = a + (row + piece_row) * k + piece_column;
  const T* right_from = b + (column + piece_row) * k + piece_column;
  auto fetch = [&](int step) {
    if (step < steps) {
      T* const to = tiles + step % Tiles::stages * Tiles::stage + piece;
      const int64_t depth = int64_t(step) * kDepth;
      const bool inside = depth + piece_column < k;
      Copy<Tiles::rows, Tiles::threads>(to, left_from + depth, k, left_rows, inside);
      Copy<Tiles::columns, Tiles::threads>(to + Tiles::rows * kPitch, right_from + depth, k, right_rows, inside);
    }
    __pipeline_commit();  // also when there is nothing: a wait counts commits
  };

  // A fragment of C is two of 16 by 8, beside each other. The lane's rows of A go down first, those of B across.
  float sums[Tiles::down][Tiles::across][2][4] = {};
  const int left_place = (warp_row + lane % 16) * kPitch + lane / 16 * 8;
  const int right_place = (Tiles::rows + warp_column + lane / 16 * 8 + lane % 8) * kPitch + lane / 8 % 2 * 8;
  for (int step = 0; step < Tiles::stages - 1; ++step) fetch(step);
  for (int step = 0; step < steps; ++step) {
    __pipeline_wait_prior(Tiles::stages - 2);
    __syncthreads();
    fetch(step + Tiles::stages - 1);
    const T* const tile = tiles + step % Tiles::stages * Tiles::stage;
#pragma unroll
    for (int depth = 0; depth < kDepth; depth += kFragment) {
      unsigned left[Tiles::down][4], right[Tiles::across][4];
      for (int i = 0; i < Tiles::down; ++i)
        LoadMatrices(left[i], tile + left_place + i * kFragment * kPitch + depth);
      for (int j = 0; j < Tiles::across; ++j)
        LoadMatrices(right[j], tile + right_place + j * kFragment * kPitch + depth);
      for (int i = 0; i < Tiles::down; ++i)
        for (int j = 0; j < Tiles::across; ++j)
          for (int half = 0; half < 2; ++half) Multiply(sums[i][j][half], left[i], right[j] + 2 * half, a);
    }
  }

  // Of each 16 by 8 a lane has two neighbours in one row, and those eight rows below.
  for (int i = 0; i < Tiles::down; ++i)
    for (int j = 0; j < Tiles::across; ++j)
      for (int half = 0; half < 2; ++half)
        for (int below = 0; below < 2; ++below) {
          const int64_t to_row = row + warp_row + i * kFragment + below * 8 + lane / 4;
          const int64_t to_column = column + warp_column + j * kFragment + half * 8 + lane % 4 * 2;
          const float* pair = sums[i][j][half] + 2 * below;
          if (to_row < m && to_column < n) StorePair(c + to_row * n + to_column, pair[0], pair[1]);
        }
}

template <typename Tiles>
dim3 Grid(int64_t m, int64_t n) {
  return dim3(unsigned((m + Tiles::rows - 1) / Tiles::rows), unsigned((n + Tiles::columns - 1) / Tiles::columns));
}

template <typename Tiles, typename T>
cudaError_t Launch(TensorView a, TensorView b, TensorView c, cudaStream_t stream) {
  const auto kernel = GemmKernel<Tiles, T>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tiles::shared_bytes);
  if (error != cudaSuccess) return error;
  const int64_t m = a.size(0), n = b.size(0), k = a.size(1);
  kernel<<<Grid<Tiles>(m, n), Tiles::threads, Tiles::shared_bytes, stream>>>(
      static_cast<const T*>(a.data_ptr()), static_cast<const T*>(b.data_ptr()), static_cast<T*>(c.data_ptr()), m, n,
      k);
  return cudaGetLastError();
}

template <typename T>
cudaError_t LaunchFor(TensorView a, TensorView b, TensorView c, cudaStream_t stream) {
  constexpr unsigned kMultiprocessors = 132;  // of an H200
  const dim3 large = Grid<Large>(a.size(0), b.size(0));
  if (a.size(0) <= Small::rows) return Launch<Small, T>(a, b, c, stream);
  if (large.x * large.y < kMultiprocessors) return Launch<Medium, T>(a, b, c, stream);
  return Launch<Large, T>(a, b, c, stream);
}

void Gemm(TensorView a, TensorView b, TensorView c) {
  if (a.size(1) % kPiece != 0 || b.size(0) % kPiece != 0) {
    TVM_FFI_THROW(ValueError) << "N is " << b.size(0) << " and K is " << a.size(1) << "; wanted are multiples of "
                              << kPiece;
  }
  if (a.size(0) == 0 || b.size(0) == 0) return;
  const DLDevice device = a.device();
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  const DLDataType dtype = a.dtype();
  cudaError_t error = cudaErrorInvalidValue;
  if (dtype.code == kDLFloat && dtype.bits == 16) error = LaunchFor<__half>(a, b, c, stream);
  if (dtype.code == kDLBfloat) error = LaunchFor<__nv_bfloat16>(a, b, c, stream);
  if (error != cudaSuccess) TVM_FFI_THROW(RuntimeError) << "the kernel does not start: " << cudaGetErrorString(error);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Gemm);
