#pragma once

#include <cstdint>

// One block for each row.
__global__ void RmsNormKernel(const float* x, const float* weight, float* y, int64_t columns) {
  __shared__ float partial[32];
  x += blockIdx.x * columns;
  y += blockIdx.x * columns;
  float total = 0;
  for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) total += x[i] * x[i];
  for (int offset = 16; offset > 0; offset /= 2) total += __shfl_down_sync(~0u, total, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = total;
  __syncthreads();
  total = 0;
  for (int warp = 0; warp < blockDim.x / 32; ++warp) total += partial[warp];
  const float factor = rsqrtf(total / columns + 1e-6f);
  for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) y[i] = x[i] * factor * weight[i];
}
