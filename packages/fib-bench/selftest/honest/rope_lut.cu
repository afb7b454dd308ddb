// Cosines and sines depend on positions alone: a table of them is made on the device in the first call, and kept.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

constexpr int kTokens = 1 << 13, kHalf = 32;
__device__ float2 table[kTokens * kHalf];

__global__ void Fill() {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float frequency = powf(10000.0f, -(float(i % kHalf * 2) / (kHalf * 2)));
  const float angle = float(i / kHalf) * frequency;
  table[i] = make_float2(cosf(angle), sinf(angle));
}

__global__ void Rotate(const float* x, float* y, int heads, int64_t pairs) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i >= pairs) return;
  const int64_t place = i % kHalf, head = i / kHalf;
  const float2 turn = table[head / heads * kHalf + place];
  const float first = x[head * 2 * kHalf + place], second = x[head * 2 * kHalf + kHalf + place];
  y[head * 2 * kHalf + place] = first * turn.x - second * turn.y;
  y[head * 2 * kHalf + kHalf + place] = second * turn.x + first * turn.y;
}

void run(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  static bool made = false;
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(x.device().device_type, x.device().device_id));
  const int64_t tokens = x.size(0), heads = x.size(1), pairs = tokens * heads * kHalf;
  TVM_FFI_ICHECK(tokens <= kTokens && x.size(2) == 2 * kHalf);
  if (!made) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(stream, &status);
    Fill<<<kTokens * kHalf / 256, 256, 0, stream>>>();
    if (status == cudaStreamCaptureStatusNone) made = cudaStreamSynchronize(stream) == cudaSuccess;  // else with each replay
  }
  Rotate<<<(pairs + 255) / 256, 256, 0, stream>>>(static_cast<const float*>(x.data_ptr()),
                                                  static_cast<float*>(y.data_ptr()), int(heads), pairs);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
