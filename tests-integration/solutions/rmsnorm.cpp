#include <cmath>
#include <cstdint>
#include <cstring>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

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

void run(tvm::ffi::TensorView x, tvm::ffi::TensorView weight, tvm::ffi::TensorView y) {
  const int64_t rows = x.size(0), columns = x.size(1);
  const uint16_t* w = static_cast<const uint16_t*>(weight.data_ptr());
  for (int64_t row = 0; row < rows; ++row) {
    const uint16_t* in = static_cast<const uint16_t*>(x.data_ptr()) + row * columns;
    uint16_t* out = static_cast<uint16_t*>(y.data_ptr()) + row * columns;
    float sum = 0.0f;
    for (int64_t i = 0; i < columns; ++i) sum += widen(in[i]) * widen(in[i]);
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>(columns) + 1e-6f);
    for (int64_t i = 0; i < columns; ++i) out[i] = narrow(widen(in[i]) * scale * widen(w[i]));
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
