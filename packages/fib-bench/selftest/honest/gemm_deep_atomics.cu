// Clears the result, then adds the parts of a split sum up with atomic additions.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

constexpr int kTile = 32, kDepth = 32, kPart = 512;

// Each block has 32 x 8 threads, and each thread four rows of one column.
__global__ void Kernel(const float* x, const float* weight, float* y, int m, int n, int k) {
  __shared__ float a[kTile][kDepth + 1], b[kTile][kDepth + 1];
  const int row = blockIdx.x * kTile, column = blockIdx.y * kTile, first = blockIdx.z * kPart;
  float sum[4] = {};
  for (int start = first; start < min(first + kPart, k); start += kDepth) {
    for (int i = threadIdx.y; i < kTile; i += blockDim.y) {
      const int place = start + threadIdx.x;
      a[i][threadIdx.x] = row + i < m && place < k ? x[int64_t(row + i) * k + place] : 0;
      b[i][threadIdx.x] = column + i < n && place < k ? weight[int64_t(column + i) * k + place] : 0;
    }
    __syncthreads();
    for (int i = 0; i < kDepth; ++i)
      for (int j = 0; j < 4; ++j) sum[j] += a[threadIdx.y + 8 * j][i] * b[threadIdx.x][i];
    __syncthreads();
  }
  for (int j = 0; j < 4; ++j) {
    const int i = row + threadIdx.y + 8 * j;
    if (i < m && column + threadIdx.x < n) atomicAdd(&y[int64_t(i) * n + column + threadIdx.x], sum[j]);
  }
}

void run(tvm::ffi::TensorView x, tvm::ffi::TensorView weight, tvm::ffi::TensorView y) {
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(x.device().device_type, x.device().device_id));
  const int m = x.size(0), k = x.size(1), n = weight.size(0);
  cudaMemsetAsync(y.data_ptr(), 0, sizeof(float) * m * n, stream);
  const dim3 grid((m + kTile - 1) / kTile, (n + kTile - 1) / kTile, (k + kPart - 1) / kPart);
  Kernel<<<grid, dim3(32, 8), 0, stream>>>(static_cast<const float*>(x.data_ptr()),
                                           static_cast<const float*>(weight.data_ptr()),
                                           static_cast<float*>(y.data_ptr()), m, n, k);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
