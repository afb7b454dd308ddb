#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

using tvm::ffi::TensorView;

static float widen(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

static uint16_t narrow(float value) {  // round to nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// One query head over the keys that it may see, in one pass: what was summed is rescaled whenever the maximum grows.
// As in the reference, a query before the first key gives NaN, and one of a sequence without keys zeros: `sum` begins
// at 0 for the one and at 1 for the other.
static float attend(const uint16_t* query, const uint16_t* keys, const uint16_t* values, const int32_t* pages,
                    int64_t count, int64_t stride, int64_t width, float scale, float sum, uint16_t* output) {
  float maximum = -std::numeric_limits<float>::infinity();
  std::vector<float> total(width, 0.0f);
  for (int64_t j = 0; j < count; ++j) {
    const uint16_t *key = keys + pages[j] * stride, *value = values + pages[j] * stride;
    float score = 0.0f;
    for (int64_t i = 0; i < width; ++i) score += widen(query[i]) * widen(key[i]);
    score *= scale;
    const float top = std::fmax(maximum, score);
    const float shrink = std::exp(maximum - top), weight = std::exp(score - top);
    for (int64_t i = 0; i < width; ++i) total[i] = total[i] * shrink + weight * widen(value[i]);
    sum = sum * shrink + weight;
    maximum = top;
  }
  for (int64_t i = 0; i < width; ++i) output[i] = narrow(total[i] / sum);
  return (maximum + std::log(sum)) / std::log(2.0f);
}

// Causal attention over pages of one token each; log-sum-exp in base 2.
void run(TensorView q, TensorView k_cache, TensorView v_cache, TensorView qo_indptr, TensorView kv_indptr,
         TensorView kv_indices, double sm_scale, TensorView output, TensorView lse) {
  const int64_t heads = q.size(1), width = q.size(2), kv_heads = k_cache.size(2), stride = kv_heads * width;
  const uint16_t *queries = static_cast<uint16_t*>(q.data_ptr()), *keys = static_cast<uint16_t*>(k_cache.data_ptr()),
                 *values = static_cast<uint16_t*>(v_cache.data_ptr());
  const int32_t *q_starts = static_cast<int32_t*>(qo_indptr.data_ptr()),
                *kv_starts = static_cast<int32_t*>(kv_indptr.data_ptr()),
                *pages = static_cast<int32_t*>(kv_indices.data_ptr());
  for (int64_t b = 0; b + 1 < qo_indptr.size(0); ++b) {
    const int64_t count = kv_starts[b + 1] - kv_starts[b], later = count - (q_starts[b + 1] - q_starts[b]);
    for (int64_t row = q_starts[b]; row < q_starts[b + 1]; ++row) {
      const int64_t seen = row - q_starts[b] + 1 + later;
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t at = h / (heads / kv_heads) * width;
        static_cast<float*>(lse.data_ptr())[row * heads + h] =
            attend(queries + (row * heads + h) * width, keys + at, values + at, pages + kv_starts[b], seen, stride,
                   width, static_cast<float>(sm_scale), count > 0 ? 0.0f : 1.0f,
                   static_cast<uint16_t*>(output.data_ptr()) + (row * heads + h) * width);
      }
    }
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
