// Decode of grouped-query attention over pages of a KV cache, for heads of 128 bfloat16 numbers.
//
// A block has one sequence and one key head, whose query heads share all reads. A half warp reads kBatch keys and
// their values at a time; the results of the half warps are joined at the end. Sequences are not split among blocks: a
// few long ones leave most of the device idle. Queries and caches may be views; only offsets say which pages are read.

#include <cstdint>

#include <cuda_bf16.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

using tvm::ffi::TensorView;

namespace {

constexpr int kDim = 128;
constexpr int kWidth = 8;  // numbers that a lane reads at once: 16 bytes
constexpr int kLanes = kDim / kWidth;
constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kBatch = 4;
constexpr unsigned kAll = ~0u;

struct alignas(16) Pack {
  __nv_bfloat162 pairs[kWidth / 2];
};

struct Arguments {
  const __nv_bfloat16 *queries, *keys, *values;
  const int *offsets, *pages, *last;
  __nv_bfloat16* output;
  float* lse;
  float scale;  // of logits in base 2
  int page, heads;
  int64_t query_row, query_head, key_page, key_token, key_head, value_page, value_token, value_head;
};

__device__ void Widen(float (&to)[kWidth], Pack from) {
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i) {
    const float2 pair = __bfloat1622float2(from.pairs[i]);
    to[2 * i] = pair.x, to[2 * i + 1] = pair.y;
  }
}

__device__ Pack Read(const __nv_bfloat16* from) { return *reinterpret_cast<const Pack*>(from); }

// The factor for sums relative to `old` that are to be relative to `now`, the greater one: 0 if nothing was summed.
__device__ float Fade(float old, float now) { return now == -INFINITY ? 0 : exp2f(old - now); }

template <int kGroup>
__global__ void __launch_bounds__(kThreads, kGroup <= 4 ? 2 : 1) DecodeKernel(const Arguments a) {
  const int sequence = blockIdx.x, head = blockIdx.y;
  const int warp = threadIdx.x / 32, half = threadIdx.x / kLanes % 2, lane = threadIdx.x % kLanes;
  const int first = a.offsets[sequence], count = a.offsets[sequence + 1] - first;
  const int length = count > 0 ? (count - 1) * a.page + a.last[sequence] : 0;

  float query[kGroup][kWidth], found[kGroup][kWidth] = {}, peak[kGroup], total[kGroup] = {};
  const __nv_bfloat16* from = a.queries + sequence * a.query_row + head * kGroup * a.query_head + lane * kWidth;
#pragma unroll
  for (int g = 0; g < kGroup; ++g) {
    peak[g] = -INFINITY;
    Widen(query[g], Read(from + g * a.query_head));
#pragma unroll
    for (int i = 0; i < kWidth; ++i) query[g][i] *= a.scale;
  }

  const __nv_bfloat16 *keys = a.keys + head * a.key_head + lane * kWidth,
                      *values = a.values + head * a.value_head + lane * kWidth;
  constexpr int kStep = kWarps * 2 * kBatch;
  int start = (warp * 2 + half) * kBatch, page = start < length ? a.pages[first + start / a.page] : 0;
  for (int of_warp = warp * 2 * kBatch; of_warp < length; of_warp += kStep, start += kStep) {
    const int token = start % a.page;  // all keys of a batch are of one page
    const __nv_bfloat16 *key_from = keys + page * a.key_page + token * a.key_token,
                        *value_from = values + page * a.value_page + token * a.value_token;
    Pack key[kBatch] = {}, value[kBatch] = {};  // memory behind a sequence may hold NaN
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      if (start + j < length) key[j] = Read(key_from + j * a.key_token);
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      if (start + j < length) value[j] = Read(value_from + j * a.value_token);
    }
    if (start + kStep < length) page = a.pages[first + (start + kStep) / a.page];
    float logits[kBatch][kGroup];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      float wide[kWidth];
      Widen(wide, key[j]);
#pragma unroll
      for (int g = 0; g < kGroup; ++g) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < kWidth; ++i) sum += query[g][i] * wide[i];
#pragma unroll
        for (int offset = kLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(kAll, sum, offset);
        logits[j][g] = start + j < length ? sum : -INFINITY;
      }
    }
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      float higher = peak[g];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) higher = fmaxf(higher, logits[j][g]);
      const float fade = Fade(peak[g], higher);
      peak[g] = higher, total[g] *= fade;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) found[g][i] *= fade;
#pragma unroll
      for (int j = 0; j < kBatch; ++j) total[g] += logits[j][g] = Fade(logits[j][g], higher);
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      float wide[kWidth];
      Widen(wide, value[j]);
#pragma unroll
      for (int g = 0; g < kGroup; ++g) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) found[g][i] += logits[j][g] * wide[i];
      }
    }
  }

  __shared__ float peaks[kWarps][kGroup], totals[kWarps][kGroup];
  __shared__ float4 parts[kWarps][kGroup][kDim / 4];
#pragma unroll
  for (int g = 0; g < kGroup; ++g) {
    const float higher = fmaxf(peak[g], __shfl_xor_sync(kAll, peak[g], kLanes)), fade = Fade(peak[g], higher);
    total[g] *= fade;
    total[g] += __shfl_xor_sync(kAll, total[g], kLanes);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      found[g][i] *= fade;
      found[g][i] += __shfl_xor_sync(kAll, found[g][i], kLanes);
    }
    if (half == 0) {
      parts[warp][g][2 * lane] = make_float4(found[g][0], found[g][1], found[g][2], found[g][3]);
      parts[warp][g][2 * lane + 1] = make_float4(found[g][4], found[g][5], found[g][6], found[g][7]);
      if (lane == 0) peaks[warp][g] = higher, totals[warp][g] = total[g];
    }
  }
  __syncthreads();
  for (int pair = threadIdx.x; pair < kGroup * kDim / 2; pair += kThreads) {
    const int g = pair / (kDim / 2), i = pair % (kDim / 2);
    float higher = -INFINITY, sum = 0;
    float2 result = make_float2(0, 0);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) higher = fmaxf(higher, peaks[w][g]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float fade = Fade(peaks[w][g], higher);
      const float2 part = reinterpret_cast<const float2*>(parts[w][g])[i];
      sum += totals[w][g] * fade, result.x += part.x * fade, result.y += part.y * fade;
    }
    const int64_t row = (int64_t(sequence) * a.heads + head) * kGroup + g;
    const float scale = sum > 0 ? 1 / sum : 0;
    reinterpret_cast<__nv_bfloat162*>(a.output + row * kDim)[i] = __floats2bfloat162_rn(result.x * scale, result.y * scale);
    if (i == 0) a.lse[row] = higher + log2f(sum);
  }
}

// Whether a lane can read all its numbers at once.
bool IsAligned(TensorView x) {
  bool found = reinterpret_cast<uintptr_t>(x.data_ptr()) % sizeof(Pack) == 0 && x.stride(-1) == 1;
  for (int i = 0; i + 1 < x.ndim(); ++i) found = found && (x.size(i) == 1 || x.stride(i) % kWidth == 0);
  return found;
}

void GqaPagedDecode(TensorView q, TensorView k_cache, TensorView v_cache, TensorView kv_indptr, TensorView kv_indices,
                    TensorView kv_last_page_len, double sm_scale, TensorView output, TensorView lse) {
  const int64_t batch = q.size(0), heads = k_cache.size(2), group = heads == 0 ? 0 : q.size(1) / heads;
  const int64_t page = k_cache.size(1);
  if (q.size(2) != kDim || page % kBatch != 0) {
    TVM_FFI_THROW(ValueError) << "heads of " << q.size(2) << " numbers and pages of " << page << " tokens; wanted are "
                              << kDim << ", and a multiple of " << kBatch;
  }
  if (!IsAligned(q) || !IsAligned(k_cache) || !IsAligned(v_cache) || !output.IsContiguous() || !lse.IsContiguous()) {
    TVM_FFI_THROW(ValueError) << "wanted are inputs whose rows are aligned to 16 bytes, and contiguous outputs";
  }
  if (batch == 0) return;
  const auto numbers = [](TensorView x) { return static_cast<__nv_bfloat16*>(x.data_ptr()); };
  const auto integers = [](TensorView x) { return static_cast<const int*>(x.data_ptr()); };
  const Arguments arguments = {
      numbers(q), numbers(k_cache), numbers(v_cache), integers(kv_indptr), integers(kv_indices),
      integers(kv_last_page_len), numbers(output), static_cast<float*>(lse.data_ptr()),
      float(sm_scale * 1.4426950408889634), int(page), int(heads), q.stride(0), q.stride(1), k_cache.stride(0),
      k_cache.stride(1), k_cache.stride(2), v_cache.stride(0), v_cache.stride(1), v_cache.stride(2)};
  const DLDevice device = q.device();
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  const dim3 grid{unsigned(batch), unsigned(heads)};
  switch (group) {
    case 1: DecodeKernel<1><<<grid, kThreads, 0, stream>>>(arguments); break;
    case 2: DecodeKernel<2><<<grid, kThreads, 0, stream>>>(arguments); break;
    case 3: DecodeKernel<3><<<grid, kThreads, 0, stream>>>(arguments); break;
    case 4: DecodeKernel<4><<<grid, kThreads, 0, stream>>>(arguments); break;
    case 5: DecodeKernel<5><<<grid, kThreads, 0, stream>>>(arguments); break;
    case 6: DecodeKernel<6><<<grid, kThreads, 0, stream>>>(arguments); break;
    case 8: DecodeKernel<8><<<grid, kThreads, 0, stream>>>(arguments); break;
    default: TVM_FFI_THROW(ValueError) << group << " query heads for each key head; wanted are 1 to 6, or 8";
  }
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) TVM_FFI_THROW(RuntimeError) << "the kernel does not start: " << cudaGetErrorString(error);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, GqaPagedDecode);
