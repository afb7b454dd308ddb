#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <cute/tensor.hpp>

using tvm::ffi::TensorView;

// One warp for each row.
template <class Matrix, class Vector, class Result>
__global__ void RmsNormKernel(Matrix x, Vector weight, Result y) {
  auto values = x(blockIdx.x, cute::_);
  auto results = y(blockIdx.x, cute::_);
  float total = 0;
  for (int i = threadIdx.x; i < cute::size(values); i += 32) total += values(i) * values(i);
  for (int offset = 16; offset > 0; offset /= 2) total += __shfl_xor_sync(~0u, total, offset);
  const float factor = rsqrtf(total / cute::size(values) + 1e-6f);
  for (int i = threadIdx.x; i < cute::size(values); i += 32) results(i) = values(i) * factor * weight(i);
}

template <class Pointer>
auto Rows(Pointer data, int64_t rows, int64_t columns) {
  auto layout = cute::make_layout(cute::make_shape(rows, columns), cute::make_stride(columns, cute::_1{}));
  return cute::make_tensor(cute::make_gmem_ptr(data), layout);
}

void RmsNorm(TensorView x, TensorView weight, TensorView y) {
  DLDevice device = x.device();
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  auto scale = cute::make_tensor(cute::make_gmem_ptr(static_cast<const float*>(weight.data_ptr())),
                                 cute::make_layout(weight.size(0)));
  RmsNormKernel<<<x.size(0), 32, 0, stream>>>(
      Rows(static_cast<const float*>(x.data_ptr()), x.size(0), x.size(1)), scale,
      Rows(static_cast<float*>(y.data_ptr()), x.size(0), x.size(1)));
  if (cudaGetLastError() != cudaSuccess) TVM_FFI_THROW(RuntimeError) << "the kernel does not start";
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, RmsNorm);
