// class: CUDA, cooperative launch over the whole device
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

namespace cg = cooperative_groups;

__device__ float2 partials[4096];

__global__ void softmax(const float* x, float* y, int rows, int columns) {
  auto grid = cg::this_grid();
  auto warp = cg::tiled_partition<32>(cg::this_thread_block());
  for (int row = 0; row < rows; ++row) {
    const int64_t base = static_cast<int64_t>(row) * columns;
    float top = -INFINITY, sum = 0.f;
    for (int i = grid.thread_rank(); i < columns; i += grid.size()) {
      const float v = x[base + i], next = fmaxf(top, v);
      sum = sum * __expf(top - next) + __expf(v - next);
      top = next;
    }
    const float peak = cg::reduce(warp, top, cg::greater<float>());
    sum = cg::reduce(warp, top == -INFINITY ? 0.f : sum * __expf(top - peak), cg::plus<float>());
    const int warps = grid.size() / 32;
    if (warp.thread_rank() == 0) partials[grid.thread_rank() / 32] = make_float2(peak, sum);
    grid.sync();
    float all = -INFINITY, total = 0.f;
    for (int i = 0; i < warps; ++i) all = fmaxf(all, partials[i].x);
    for (int i = 0; i < warps; ++i) total += partials[i].y * __expf(partials[i].x - all);
    for (int i = grid.thread_rank(); i < columns; i += grid.size()) y[base + i] = __expf(x[base + i] - all) / total;
    grid.sync();
  }
}

void run(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  const auto* in = static_cast<const float*>(x.data_ptr());
  auto* out = static_cast<float*>(y.data_ptr());
  int rows = x.size(0), columns = x.size(1), per_sm = 0, sms = 0, device = x.device().device_id;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, softmax, 256, 0);
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  const int blocks = std::min({per_sm * sms, 512, (columns + 255) / 256});
  void* arguments[] = {&in, &out, &rows, &columns};
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(x.device().device_type, device));
  cudaLaunchCooperativeKernel(softmax, dim3(blocks), dim3(256), arguments, 0, stream);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
