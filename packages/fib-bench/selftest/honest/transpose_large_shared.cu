// Transposes tiles of 128 x 128 in 66 KB of dynamic shared memory.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

constexpr int kTile = 128, kPitch = kTile + 1;
constexpr size_t kBytes = sizeof(float) * kTile * kPitch;

__global__ void Kernel(const float* x, float* y, int rows, int columns) {
  extern __shared__ float tile[];
  const int row = blockIdx.y * kTile, column = blockIdx.x * kTile;
  for (int i = threadIdx.y; i < kTile; i += blockDim.y)
    for (int j = threadIdx.x; j < kTile; j += blockDim.x)
      if (row + i < rows && column + j < columns) tile[i * kPitch + j] = x[int64_t(row + i) * columns + column + j];
  __syncthreads();
  for (int j = threadIdx.y; j < kTile; j += blockDim.y)
    for (int i = threadIdx.x; i < kTile; i += blockDim.x)
      if (row + i < rows && column + j < columns) y[int64_t(column + j) * rows + row + i] = tile[i * kPitch + j];
}

void run(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(x.device().device_type, x.device().device_id));
  const int rows = x.size(0), columns = x.size(1);
  const cudaError_t error = cudaFuncSetAttribute(Kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  TVM_FFI_ICHECK(error == cudaSuccess) << cudaGetErrorString(error);
  const dim3 grid((columns + kTile - 1) / kTile, (rows + kTile - 1) / kTile);
  Kernel<<<grid, dim3(32, 16), kBytes, stream>>>(static_cast<const float*>(x.data_ptr()),
                                                 static_cast<float*>(y.data_ptr()), rows, columns);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
