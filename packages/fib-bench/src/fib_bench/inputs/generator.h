// Generator of inputs: every value of a timed call from one 64-bit key.
//
// The same code is compiled for the device (NVRTC) and for the host, where the judge makes the inputs of CPU calls. A
// value depends on the key, on the position of the input and on that of the element, never on the number of threads.
// Device and host use other functions for logarithms and angles: compare only what one of them made.
#pragma once

typedef unsigned long long u64;
typedef unsigned int u32;

#ifdef __CUDACC__
#define FIB_BOTH static __device__ __forceinline__
#define FIB_APART static __device__ __noinline__  // what is not fast anyway, so that the code stays small
#define FIB_UNROLL _Pragma("unroll")
#else
#include <math.h>
#include <string.h>
#define FIB_BOTH static inline
#define FIB_APART static inline
#define FIB_UNROLL
#endif

enum FibKind {
  FIB_NORMAL = 0,       // scale times a mixture of distributions by rows, with single elements of other magnitude
  FIB_UNIFORM = 1,      // low to high
  FIB_SHARES = 2,       // rows of positive numbers whose sum is 1
  FIB_DIRECTION = 3,    // rows of length 1
  FIB_RESCALE = 4,      // base, each element times low to high
  FIB_INTEGER = 5,      // first to last, both included; elements of the base outside these bounds stay
  FIB_BYTES = 6,        // any bits
  FIB_MASK = 7,         // true with the probability `high`; with `first`, also the first element of each row
  FIB_SEALED = 8,       // integers of the base, encrypted or, where it is encrypted, decrypted
};

enum FibDType {
  FIB_FLOAT32 = 0, FIB_FLOAT16 = 1, FIB_BFLOAT16 = 2, FIB_FLOAT8_E4M3FN = 3, FIB_FLOAT8_E5M2 = 4,
  FIB_FLOAT4_E2M1 = 5, FIB_INT64 = 6, FIB_INT32 = 7, FIB_INT16 = 8, FIB_INT8 = 9, FIB_BOOL = 10,
};

// What may occur in an input of kind FIB_NORMAL.
enum FibMask {
  FIB_HAS_NORMAL = 1, FIB_HAS_WIDE = 2, FIB_HAS_TINY = 4, FIB_HAS_ZEROS_AND_ONES = 8, FIB_HAS_SHIFTED = 16,
  FIB_HAS_SCALES = 32,  // a magnitude for each row
  FIB_HAS_SPIKES = 64,  // single elements that are far from others or zero
};

struct FibInput {
  u64 target, base;        // addresses, 16-byte aligned; base: values that are changed, in the same layout, or 0
  u64 elements;            // a pair of fp4 numbers is one element of one byte
  u32 kind, dtype;
  u32 row;                 // elements of a row
  u32 index;               // position among the inputs
  u32 mask;                // FIB_NORMAL: what may occur
  float scale;             // FIB_NORMAL: of normal values; FIB_RESCALE: what takes the place of zeros
  float low, high;         // bounds of values or factors; FIB_NORMAL: of the binary logarithms of wide rows
  u64 first, last;         // FIB_INTEGER: bounds, signed; FIB_RESCALE: what changes places (1: rows, 2: elements
                           // of a row), whether signs are drawn
  u32 dims;                // 0: contiguous
  u32 shape[4], stride[4]; // strides in elements
  u32 padding;
};

struct FibWords {
  u32 w[4];
};

enum FibDomain { FIB_VALUES = 0, FIB_MORE_VALUES = 1, FIB_ROWS = 2, FIB_TENSORS = 3 };

// Philox 4x32-10. Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011.
FIB_BOTH FibWords fib_philox(u32 c0, u32 c1, u32 c2, u32 c3, u64 key) {
  u32 k0 = (u32)key, k1 = (u32)(key >> 32);
  FIB_UNROLL
  for (int round = 0; round < 10; ++round) {
    const u64 a = (u64)0xD2511F53u * c0, b = (u64)0xCD9E8D57u * c2;
    const u32 next = (u32)(b >> 32) ^ c1 ^ k0, other = (u32)(a >> 32) ^ c3 ^ k1;
    c1 = (u32)b;
    c3 = (u32)a;
    c0 = next;
    c2 = other;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

FIB_BOTH FibWords fib_words(const FibInput& in, u64 key, u64 counter, u32 domain) {
  return fib_philox((u32)counter, (u32)(counter >> 32), in.index, domain, key);
}

FIB_BOTH u32 fib_mix(u32 x) {  // finaliser of MurmurHash3, public domain
  x ^= x >> 16;
  x *= 0x85ebca6bu;
  x ^= x >> 13;
  x *= 0xc2b2ae35u;
  return x ^ x >> 16;
}

FIB_BOTH u32 fib_scaled(u32 word, u32 count) { return (u32)((u64)word * count >> 32); }  // 0 to count - 1

// -- numbers -----------------------------------------------------------------------------------------

#ifdef __CUDACC__
FIB_BOTH float fib_float(u32 bits) { return __uint_as_float(bits); }
FIB_BOTH u32 fib_bits(float value) { return __float_as_uint(value); }
FIB_BOTH float fib_log2(float x) { return __log2f(x); }
FIB_BOTH float fib_exp2(float x) { return exp2f(x); }
FIB_BOTH float fib_sqrt(float x) {
  float root;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(x));
  return root;
}
FIB_BOTH void fib_sincos(float x, float* s, float* c) { *s = __sinf(x), *c = __cosf(x); }
FIB_BOTH u64 fib_high(u64 a, u64 b) { return __umul64hi(a, b); }
#else
FIB_BOTH float fib_float(u32 bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
FIB_BOTH u32 fib_bits(float value) {
  u32 bits;
  memcpy(&bits, &value, 4);
  return bits;
}
FIB_BOTH float fib_log2(float x) { return log2f(x); }
FIB_BOTH float fib_exp2(float x) { return exp2f(x); }
FIB_BOTH float fib_sqrt(float x) { return sqrtf(x); }
FIB_BOTH void fib_sincos(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
FIB_BOTH u64 fib_high(u64 a, u64 b) { return (u64)((unsigned __int128)a * b >> 64); }
#endif

// Uniform in 0 to 1, without 1, from the high bits of a word; 16 bits come to lie between two steps, so never at 0.
FIB_BOTH float fib_unit(u32 word) { return fib_float(0x3f800000u | word >> 9) - 1.0f; }
FIB_BOTH float fib_unit16(u32 half) { return fib_float(0x3f800040u | half << 7) - 1.0f; }

FIB_BOTH u32 fib_width(u32 dtype) {
  return dtype == FIB_INT64 ? 8 : dtype == FIB_FLOAT32 || dtype == FIB_INT32 ? 4
       : dtype == FIB_FLOAT16 || dtype == FIB_BFLOAT16 || dtype == FIB_INT16 ? 2 : 1;
}

FIB_BOTH u32 fib_to_bfloat16(float value) {
  const u32 bits = fib_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return bits >> 16 | 0x40u;
  return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

// A floating format of one or two bytes. Formats without an infinity have the largest number in its place.
struct FibFormat {
  int mantissa, bias;
  u32 sign, largest, infinity, nan;
};

FIB_BOTH FibFormat fib_format(u32 dtype) {
  if (dtype == FIB_FLOAT16) return {10, 15, 0x8000u, 0x7bffu, 0x7c00u, 0x7e00u};
  if (dtype == FIB_FLOAT8_E5M2) return {2, 15, 0x80u, 0x7bu, 0x7cu, 0x7eu};
  return {3, 7, 0x80u, 0x7eu, 0x7eu, 0x7fu};
}

// Rounds to nearest even; finite numbers beyond the largest one become that.
FIB_BOTH u32 fib_to_small(const FibFormat& f, float value) {
  const u32 bits = fib_bits(value), size = bits & 0x7fffffffu, sign = bits >> 31 ? f.sign : 0;
  if (size >= 0x7f800000u) return sign | (size > 0x7f800000u ? f.nan : f.infinity);
  const int exponent = (int)(size >> 23) - 127, least = 1 - f.bias;
  const int shift = 23 - f.mantissa + (exponent < least ? least - exponent : 0);
  if (size < 0x00800000u || shift > 24) return sign;
  const u32 digits = (size & 0x7fffffu) | 0x800000u, rest = digits & ((1u << shift) - 1), half = 1u << (shift - 1);
  u32 code = digits >> shift;
  code += rest > half || (rest == half && (code & 1u));
  if (exponent > least) code += (u32)(exponent - least) << f.mantissa;
  return sign | (code > f.largest ? f.largest : code);
}

FIB_BOTH float fib_from_small(const FibFormat& f, u32 code) {
  const u32 sign = code & f.sign ? 0x80000000u : 0, size = code & (f.sign - 1);
  if (size > f.largest) return fib_float(sign | (size == f.infinity ? 0x7f800000u : 0x7fc00000u));
  const u32 exponent = size >> f.mantissa, digits = size & ((1u << f.mantissa) - 1);
  if (exponent) return fib_float(sign | (u32)((int)exponent + 127 - f.bias) << 23 | digits << (23 - f.mantissa));
  return fib_float(fib_bits((float)digits * fib_float((u32)(128 - f.bias - f.mantissa) << 23)) | sign);
}

FIB_BOTH u32 fib_encode(u32 dtype, float value) {
  if (dtype == FIB_FLOAT32) return fib_bits(value);
  return dtype == FIB_BFLOAT16 ? fib_to_bfloat16(value) : fib_to_small(fib_format(dtype), value);
}

FIB_BOTH float fib_decode(u32 dtype, u32 code) {
  if (dtype == FIB_FLOAT32) return fib_float(code);
  return dtype == FIB_BFLOAT16 ? fib_float(code << 16) : fib_from_small(fib_format(dtype), code);
}

// -- places ------------------------------------------------------------------------------------------

struct FibPlace {
  u64 row;
  u32 column;
};

FIB_APART FibPlace fib_place(const FibInput& in, u64 element) {
  if (element >> 32) return {element / in.row, (u32)(element % in.row)};
  return {(u32)element / in.row, (u32)element % in.row};
}

FIB_BOTH u64 fib_offset(const FibInput& in, u64 element) {
  if (!in.dims) return element;
  u64 offset = 0;
  for (int d = (int)in.dims - 1; d >= 0; --d) {
    offset += element % in.shape[d] * in.stride[d];
    element /= in.shape[d];
  }
  return offset;
}

FIB_APART u64 fib_load(const FibInput& in, u64 element) {
  const u64 offset = fib_offset(in, element);
  switch (fib_width(in.dtype)) {
    case 1: return ((const unsigned char*)in.base)[offset];
    case 2: return ((const unsigned short*)in.base)[offset];
    case 4: return ((const u32*)in.base)[offset];
    default: return ((const u64*)in.base)[offset];
  }
}

FIB_APART void fib_store(const FibInput& in, u64 element, u64 code) {
  const u64 offset = fib_offset(in, element);
  switch (fib_width(in.dtype)) {
    case 1: ((unsigned char*)in.target)[offset] = (unsigned char)code; break;
    case 2: ((unsigned short*)in.target)[offset] = (unsigned short)code; break;
    case 4: ((u32*)in.target)[offset] = (u32)code; break;
    default: ((u64*)in.target)[offset] = code;
  }
}

FIB_APART float fib_load_float(const FibInput& in, u64 row, u32 column) {
  return fib_decode(in.dtype, (u32)fib_load(in, row * in.row + column));
}

FIB_APART void fib_store_float(const FibInput& in, u64 element, float value) {
  fib_store(in, element, fib_encode(in.dtype, value));
}

#ifdef __CUDACC__
FIB_BOTH u32 fib_two(u32 dtype, float low, float high) {
#if __CUDA_ARCH__ >= 800
  u32 both;
  if (dtype == FIB_BFLOAT16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
#else
  return fib_encode(dtype, low) | fib_encode(dtype, high) << 16;
#endif
}

FIB_APART u32 fib_four(u32 dtype, float a, float b, float c, float d) {
  return fib_encode(dtype, a) | fib_encode(dtype, b) << 8 | fib_encode(dtype, c) << 16 | fib_encode(dtype, d) << 24;
}

// Stores eight floating values of a contiguous input.
FIB_BOTH void fib_store_group(const FibInput& in, u64 first, const float* v) {
  const u32 width = fib_width(in.dtype);
  char* to = (char*)in.target + first * width;
  if (width == 4) {
    ((float4*)to)[0] = make_float4(v[0], v[1], v[2], v[3]);
    ((float4*)to)[1] = make_float4(v[4], v[5], v[6], v[7]);
  } else if (width == 2) {
    *(uint4*)to = make_uint4(fib_two(in.dtype, v[0], v[1]), fib_two(in.dtype, v[2], v[3]),
                             fib_two(in.dtype, v[4], v[5]), fib_two(in.dtype, v[6], v[7]));
  } else {
    *(uint2*)to = make_uint2(fib_four(in.dtype, v[0], v[1], v[2], v[3]), fib_four(in.dtype, v[4], v[5], v[6], v[7]));
  }
}

// Loads eight floating values of a contiguous base.
FIB_BOTH void fib_load_group(const FibInput& in, u64 first, float* v) {
  const u32 width = fib_width(in.dtype);
  const uint4* from = (const uint4*)((const char*)in.base + first * width);
  const uint4 a = width == 1 ? make_uint4(((const uint2*)from)->x, ((const uint2*)from)->y, 0, 0) : from[0];
  const uint4 b = width == 4 ? from[1] : make_uint4(0, 0, 0, 0);
  const u32 words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  FIB_UNROLL
  for (u32 j = 0; j < 8; ++j) {
    const u32 code = width == 4 ? words[j] : width == 2 ? words[j / 2] >> (16 * (j % 2)) & 0xffffu
                                                        : words[j / 4] >> (8 * (j % 4)) & 0xffu;
    v[j] = fib_decode(in.dtype, code);
  }
}
#endif

// Stores the floating values of a group, eight or as many as it has.
FIB_BOTH void fib_store_floats(const FibInput& in, u64 first, const float* v) {
#ifdef __CUDACC__
  if (!in.dims && first + 8 <= in.elements) return fib_store_group(in, first, v);
#endif
  FIB_UNROLL
  for (int j = 0; j < 8; ++j)
    if (first + j < in.elements) fib_store_float(in, first + j, v[j]);
}

// -- normal values -----------------------------------------------------------------------------------

// What a row is like. A value is normal * amplitude + mean. In shifted rows a mean is added: of the column's sign, or in
// `count` columns from `begin` on, so that no part of a row tells what the others are like.
struct FibRow {
  float amplitude, mean, shift;
  u32 begin, count;
  float spike, span;  // a spike is 2 to 2 + span times this
  u32 chance;         // of a spike in eight elements, of 65,536
};

struct FibTensor {
  float widest;  // binary logarithm of the largest factor of a wide row
  u32 columns;   // seed of the signs of columns
};

// Very wide rows occur in three of eight tensors: where they are keys, few of them take all the weight of a softmax,
// and a call that skips the others must not be what the median shows.
FIB_BOTH FibTensor fib_tensor(const FibInput& in, u64 key) {
  const FibWords d = fib_words(in, key, 0, FIB_TENSORS);
  return {(d.w[0] & 7u) < 3 || in.high < 1.0f ? in.high : 1.0f, d.w[1]};
}

// The distribution of a row: one of four rows has another one than the normal distribution.
FIB_BOTH u32 fib_row_kind(u32 mask, u32 word) {
  u32 others = mask & (FIB_HAS_WIDE | FIB_HAS_TINY | FIB_HAS_ZEROS_AND_ONES | FIB_HAS_SHIFTED);
  if (!others || (word & 3u)) return FIB_HAS_NORMAL;
  u32 count = 0;
  for (u32 bit = FIB_HAS_WIDE; bit <= FIB_HAS_SHIFTED; bit *= 2) count += (others & bit) != 0;
  for (u32 left = fib_scaled(word, count); left; --left) others &= others - 1;
  return others & (0u - others);
}

FIB_APART FibRow fib_row(const FibInput& in, const FibTensor& tensor, u64 key, u64 row) {
  const FibWords d = fib_words(in, key, row, FIB_ROWS);
  const float size = in.mask & FIB_HAS_SCALES ? in.scale * fib_exp2(2.0f * fib_unit(d.w[1]) - 1.0f) : in.scale;
  const float about_one = in.scale * (0.75f + 0.5f * fib_unit(d.w[3] << 8));
  const u32 chance = in.mask & FIB_HAS_SPIKES ? (u32)fib_exp2(11.0f + 3.5f * fib_unit(d.w[2])) : 0;
  FibRow made = {size, 0.0f, 0.0f, 0, 0, size, 6.0f, chance};
  switch (fib_row_kind(in.mask, d.w[0])) {
    case FIB_HAS_WIDE:
      made.amplitude = made.spike = in.scale * fib_exp2(in.low + (tensor.widest - in.low) * fib_unit(d.w[1]));
      made.span = 2.0f;
      break;
    case FIB_HAS_TINY:  // in every other one, the spikes are not tiny
      made.amplitude *= in.dtype == FIB_FLOAT8_E4M3FN || in.dtype == FIB_FLOAT8_E5M2 ? 0.03125f : 1e-3f;
      if (d.w[3] >> 31) made.spike = made.amplitude;
      break;
    case FIB_HAS_ZEROS_AND_ONES:
      made.mean = d.w[3] >> 31 ? about_one : 0.0f;
      made.amplitude = 0.015625f * made.mean;  // a variance of 0 that is a difference of squares is NaN by chance
      break;
    case FIB_HAS_SHIFTED: made.shift = 3.0f * about_one; break;
    case FIB_HAS_NORMAL:
      if (!(in.mask & FIB_HAS_SHIFTED) || d.w[3] >> 31) break;
      made.shift = d.w[3] >> 30 & 1u ? about_one : -about_one;
      made.begin = fib_scaled(fib_mix(d.w[0]), in.row);
      made.count = 1 + (in.row >> (d.w[3] >> 28 & 3u));
      break;
  }
  return made;
}

FIB_BOTH void fib_normal_pair(u32 word, float* first, float* second) {  // the Box-Muller transform
  const float radius = fib_sqrt(-1.3862943611f * fib_log2(fib_unit16(word & 0xffffu)));
  float s, c;
  fib_sincos(6.2831853072f * fib_unit16(word >> 16) - 3.1415926536f, &s, &c);
  *first = radius * c;
  *second = radius * s;
}

// The spike of a group, drawn from all its words: the element that has one, if the chance of its row is higher than the
// other bits.
FIB_BOTH u32 fib_spike(const FibWords& d) {
  return fib_mix(d.w[0] ^ (d.w[1] << 8 | d.w[1] >> 24) ^ (d.w[2] << 16 | d.w[2] >> 16) ^ (d.w[3] << 24 | d.w[3] >> 8));
}

FIB_BOTH bool fib_has_spike(const FibRow& row, u32 spike) { return (spike >> 3 & 0xffffu) < row.chance; }

FIB_BOTH float fib_spike_value(const FibRow& row, u32 spike) {
  if ((spike >> 19 & 3u) == 0) return 0.0f;
  const float size = row.spike * (2.0f + row.span * fib_unit16(spike >> 16));
  return spike >> 21 & 1u ? -size : size;
}

FIB_BOTH float fib_shift(const FibRow& row, const FibTensor& tensor, u32 column) {
  if (row.count) return column - row.begin < row.count ? row.shift : 0.0f;
  return fib_mix(tensor.columns + (column >> 3)) >> (column & 7u) & 1u ? row.shift : -row.shift;
}

// A row that was looked at last, or none.
struct FibLastRow {
  u64 number;
  FibRow row;
};

FIB_BOTH void fib_seek(const FibInput& in, const FibTensor& tensor, u64 key, u64 number, FibLastRow* last) {
  if (last->number == number) return;
  last->number = number;
  last->row = fib_row(in, tensor, key, number);
}

// A group of eight elements of one row.
FIB_BOTH void fib_mix_group(const FibRow& row, const FibTensor& tensor, u32 column, u32 spike, float* v) {
  FIB_UNROLL
  for (u32 j = 0; j < 8; ++j) v[j] = v[j] * row.amplitude + row.mean;
  if (row.shift != 0.0f) {
    FIB_UNROLL
    for (u32 j = 0; j < 8; ++j) v[j] += fib_shift(row, tensor, column + j);
  }
  if (fib_has_spike(row, spike)) {
    const float value = fib_spike_value(row, spike);
    FIB_UNROLL
    for (u32 j = 0; j < 8; ++j) v[j] = j == (spike & 7u) ? value : v[j];
  }
}

FIB_BOTH void fib_plain_group(const FibWords& d, float* v) {
  FIB_UNROLL
  for (int j = 0; j < 8; j += 2) fib_normal_pair(d.w[j / 2], v + j, v + j + 1);
}

// A group of any input, which may lie in several rows.
FIB_APART void fib_normals_apart(
    const FibInput& in, const FibTensor& tensor, u64 key, u64 group, FibPlace place, FibLastRow* last) {
  const FibWords d = fib_words(in, key, group, FIB_VALUES);
  const u32 spike = fib_spike(d);
  float v[8];
  fib_plain_group(d, v);
  for (u32 j = 0; j < 8 && group * 8 + j < in.elements; ++j, ++place.column) {
    if (place.column == in.row) place = {place.row + 1, 0};
    fib_seek(in, tensor, key, place.row, last);
    const FibRow& row = last->row;
    float value = v[j] * row.amplitude + row.mean;
    if (row.shift != 0.0f) value += fib_shift(row, tensor, place.column);
    if (j == (spike & 7u) && fib_has_spike(row, spike)) value = fib_spike_value(row, spike);
    fib_store_float(in, group * 8 + j, value);
  }
}

FIB_BOTH void fib_normals(
    const FibInput& in, const FibTensor& tensor, u64 key, u64 group, FibPlace place, FibLastRow* last) {
#ifdef __CUDACC__
  if (in.dims || place.column + 8 > in.row || group * 8 + 8 > in.elements) {
    FibLastRow own = {~0ull, {}};  // the other one stays in registers
    return fib_normals_apart(in, tensor, key, group, place, &own);
  }
  const FibWords d = fib_words(in, key, group, FIB_VALUES);
  float v[8];
  fib_plain_group(d, v);
  fib_seek(in, tensor, key, place.row, last);
  fib_mix_group(last->row, tensor, place.column, fib_spike(d), v);
  fib_store_group(in, group * 8, v);
#else
  fib_normals_apart(in, tensor, key, group, place, last);
#endif
}

// -- other kinds -------------------------------------------------------------------------------------

FIB_APART void fib_uniforms(const FibInput& in, u64 key, u64 group) {
  const FibWords a = fib_words(in, key, group, FIB_VALUES), b = fib_words(in, key, group, FIB_MORE_VALUES);
  float v[8];
  FIB_UNROLL
  for (int j = 0; j < 8; ++j) v[j] = in.low + (in.high - in.low) * fib_unit(j < 4 ? a.w[j & 3] : b.w[j & 3]);
  fib_store_floats(in, group * 8, v);
}

// The row of the base that a row comes from.
FIB_APART u64 fib_source_row(const FibInput& in, u64 key, u64 row) {
  const u64 rows = in.elements / in.row;
  const FibWords d = fib_words(in, key, 0, FIB_TENSORS);
  return (row + fib_high((u64)d.w[2] << 32 | d.w[3], rows)) % rows;
}

// Factors lie in a window of two fifths of the bounds, another one for each row: no sum over a row can be foretold.
FIB_BOTH float fib_least_factor(const FibInput& in, u64 key, u64 row) {
  return in.low + 0.6f * (in.high - in.low) * fib_unit(fib_words(in, key, row, FIB_ROWS).w[0]);
}

FIB_BOTH float fib_factor(const FibInput& in, const FibWords& d, float least, u32 j) {
  return least + 0.4f * (in.high - in.low) * fib_unit16(d.w[j / 2] >> (16 * (j % 2)) & 0xffffu);
}

FIB_BOTH float fib_rescaled(const FibInput& in, float old, float factor, u32 signs, u32 j) {
  if (!in.last) return factor * old;
  const float size = factor * (old == 0.0f ? in.scale : old);
  return signs >> j & 1u ? -size : size;
}

// A permutation of 0 to count - 1, by steps that permute the numbers below a power of two.
FIB_APART u32 fib_permuted(u32 place, u32 count, const FibWords& seed) {
  u32 bits = 1;
  while (bits < 31 && (1u << bits) < count) ++bits;
  const u32 below = (1u << bits) - 1, half = (bits + 1) / 2;
  do {
    FIB_UNROLL
    for (int k = 0; k < 4; ++k) {
      place = (place * (seed.w[k] | 1u) + (seed.w[k] >> 7)) & below;
      place ^= place >> half;
    }
  } while (place >= count);
  return place;
}

FIB_APART void fib_rescale_apart(const FibInput& in, u64 key, u64 group, FibPlace place) {
  const FibWords d = fib_words(in, key, group, FIB_VALUES);
  const u32 signs = fib_spike(d);
  u64 source = 0, drawn = ~0ull;
  float least = 0.0f;
  FibWords seed = {};
  for (u32 j = 0; j < 8 && group * 8 + j < in.elements; ++j, ++place.column) {
    if (place.column == in.row) place = {place.row + 1, 0};
    if (drawn != place.row) {
      drawn = place.row;
      least = fib_least_factor(in, key, drawn);
      source = in.first & 1 ? fib_source_row(in, key, drawn) : drawn;
      if (in.first & 2) seed = fib_words(in, key, drawn, FIB_MORE_VALUES);
    }
    const u32 column = in.first & 2 ? fib_permuted(place.column, in.row, seed) : place.column;
    const float factor = fib_factor(in, d, least, j);
    fib_store_float(in, group * 8 + j, fib_rescaled(in, fib_load_float(in, source, column), factor, signs, j));
  }
}

FIB_APART void fib_rescale(const FibInput& in, u64 key, u64 group) {
  const FibPlace place = fib_place(in, group * 8);
#ifdef __CUDACC__
  if (!in.dims && !(in.first & 2) && place.column + 8 <= in.row && in.row % 8 == 0) {
    const FibWords d = fib_words(in, key, group, FIB_VALUES);
    const float least = fib_least_factor(in, key, place.row);
    const u32 signs = fib_spike(d);
    const u64 source = in.first & 1 ? fib_source_row(in, key, place.row) : place.row;
    float v[8];
    fib_load_group(in, source * in.row + place.column, v);
    FIB_UNROLL
    for (u32 j = 0; j < 8; ++j) v[j] = fib_rescaled(in, v[j], fib_factor(in, d, least, j), signs, j);
    return fib_store_group(in, group * 8, v);
  }
#endif
  fib_rescale_apart(in, key, group, place);
}

// A row of numbers with a known sum is split again and again, down to blocks of eight and their elements. The key draws
// each split, and for each row how unequal they are.
struct FibBlock {
  u64 row;
  u32 first, seed;
  float power, v[8];
};

// The part of the left one of two neighbours; that of the right one by the opposite sign.
FIB_BOTH float fib_part(float odds) { return 1.0f / (1.0f + fib_exp2(-odds)); }

// Splits `whole` among `count` places by the place that is wanted; returns its part.
FIB_BOTH float fib_split(const FibBlock& block, float whole, u32 begin, u32 count, u32 wanted) {
  u32 end = begin + count;
  while (end - begin > 1) {
    const u32 middle = begin + (end - begin) / 2;
    const float unit = fib_unit16(fib_mix(block.seed + middle * 0x9e3779b9u) >> 16);
    const float odds = block.power * (fib_log2(unit) - fib_log2(1.0f - unit)) +
                       fib_log2((float)(middle - begin) / (float)(end - middle));
    whole *= fib_part(wanted < middle ? odds : -odds);
    (wanted < middle ? end : begin) = middle;
  }
  return whole;
}

FIB_APART void fib_seek_block(const FibInput& in, u64 key, FibPlace place, FibBlock* block) {
  if (block->row == place.row && block->first == (place.column & ~7u)) return;
  const FibWords d = fib_words(in, key, place.row, FIB_ROWS);
  const u32 first = place.column & ~7u, count = in.row - first < 8 ? in.row - first : 8;
  *block = {place.row, first, d.w[0], in.kind == FIB_SHARES ? 1.5f + fib_unit(d.w[1]) : 0.5f, {}};
  const float whole = fib_split(*block, 1.0f, 0, (in.row + 7) / 8, first / 8);
  block->seed = fib_mix(block->seed ^ d.w[2]);  // the splits of blocks and of their elements have nothing in common
  for (u32 j = 0; j < count; ++j) block->v[j] = fib_split(*block, whole, first, count, first + j);
}

FIB_APART void fib_shares(const FibInput& in, u64 key, u64 group) {
  FibPlace place = fib_place(in, group * 8);
  FibBlock block = {~0ull, 0, 0, 0.0f, {}};
  const u32 signs = in.kind == FIB_DIRECTION ? fib_words(in, key, group, FIB_VALUES).w[0] : 0;
  float v[8] = {};
  for (u32 j = 0; j < 8 && group * 8 + j < in.elements; ++j, ++place.column) {
    if (place.column == in.row) place = {place.row + 1, 0};
    fib_seek_block(in, key, place, &block);
    const float share = block.v[place.column & 7u];
    v[j] = in.kind == FIB_SHARES ? share : signs >> j & 1u ? -fib_sqrt(share) : fib_sqrt(share);
  }
  fib_store_floats(in, group * 8, v);
}

FIB_BOTH u64 fib_signed(u32 dtype, u64 code) {  // a stored integer as a signed one of 64 bits
  switch (dtype) {
    case FIB_INT8: return (u64)(long long)(signed char)code;
    case FIB_INT16: return (u64)(long long)(short)code;
    case FIB_INT32: return (u64)(long long)(int)code;
    default: return code;
  }
}

FIB_APART void fib_integers(const FibInput& in, u64 key, u64 group) {
  const u64 count = in.last - in.first + 1;  // 0: all
  for (int j = 0; j < 8 && group * 8 + j < in.elements; ++j) {
    const u64 element = group * 8 + j;
    const FibWords d = fib_words(in, key, element / 2, FIB_VALUES);
    const u64 word = (u64)d.w[element % 2 * 2] << 32 | d.w[element % 2 * 2 + 1];
    u64 value = count ? in.first + fib_high(word, count) : word;
    if (in.base) {
      const long long old = (long long)fib_signed(in.dtype, fib_load(in, element));
      if (old < (long long)in.first || old > (long long)in.last) value = (u64)old;
    }
    fib_store(in, element, value);
  }
}

FIB_APART void fib_bytes(const FibInput& in, u64 key, u64 group) {
  const FibWords d = fib_words(in, key, group, FIB_VALUES);
#ifdef __CUDACC__
  if (!in.dims && group * 8 + 8 <= in.elements) {
    ((uint2*)in.target)[group] = make_uint2(d.w[0], d.w[1]);
    return;
  }
#endif
  for (int j = 0; j < 8 && group * 8 + j < in.elements; ++j)
    fib_store(in, group * 8 + j, d.w[j / 4] >> (8 * (j % 4)) & 0xffu);
}

FIB_APART void fib_masks(const FibInput& in, u64 key, u64 group) {
  const FibWords d = fib_words(in, key, group, FIB_VALUES);
  for (u32 j = 0; j < 8 && group * 8 + j < in.elements; ++j) {
    const bool is_drawn = fib_unit16(d.w[j / 2] >> (16 * (j % 2)) & 0xffffu) < in.high;
    fib_store(in, group * 8 + j, is_drawn || (in.first && fib_place(in, group * 8 + j).column == 0));
  }
}

FIB_APART void fib_sealed(const FibInput& in, u64 key, u64 group) {
  for (int j = 0; j < 8 && group * 8 + j < in.elements; ++j) {
    const u64 element = group * 8 + j;
    const FibWords d = fib_words(in, key, element / 2, FIB_VALUES);
    fib_store(in, element, fib_load(in, element) ^ ((u64)d.w[element % 2 * 2] << 32 | d.w[element % 2 * 2 + 1]));
  }
}

FIB_BOTH FibPlace fib_later(const FibInput& in, FibPlace place, FibPlace distance) {
  place.row += distance.row;
  if (in.row - place.column <= distance.column) {
    place.column -= in.row - distance.column;
    ++place.row;
  } else {
    place.column += distance.column;
  }
  return place;
}

// Writes the share of one thread. Eight threads write 128 bytes or more of neighbouring groups, four times in a row:
// what a row is like is drawn once for that.
FIB_BOTH void fib_fill_normals(const FibInput& in, u64 key, u64 thread, u64 threads) {
  const u64 groups = (in.elements + 7) / 8;
  const u32 lanes = threads % 8 ? 1 : 8, steps = groups > threads ? 4 : 1;
  const u64 step = threads * steps;
  u64 first = (thread - thread % lanes) * steps + thread % lanes;
  if (first >= groups) return;
  const FibTensor tensor = fib_tensor(in, key);
  const FibPlace near = fib_place(in, lanes * 8), far = fib_place(in, step * 8);
  FibLastRow last = {~0ull, {}};
  FibPlace begin = fib_place(in, first * 8);
  for (; first < groups; first += step, begin = fib_later(in, begin, far)) {
    FibPlace place = begin;
    u64 group = first;
    for (u32 i = 0; i < steps && group < groups; ++i, group += lanes, place = fib_later(in, place, near))
      fib_normals(in, tensor, key, group, place, &last);
  }
}

FIB_BOTH void fib_fill(const FibInput& in, u64 key, u64 thread, u64 threads) {
  if (in.kind == FIB_NORMAL) return fib_fill_normals(in, key, thread, threads);
  for (u64 group = thread; group < (in.elements + 7) / 8; group += threads) {
    switch (in.kind) {
      case FIB_UNIFORM: fib_uniforms(in, key, group); break;
      case FIB_SHARES:
      case FIB_DIRECTION: fib_shares(in, key, group); break;
      case FIB_RESCALE: fib_rescale(in, key, group); break;
      case FIB_INTEGER: fib_integers(in, key, group); break;
      case FIB_BYTES: fib_bytes(in, key, group); break;
      case FIB_MASK: fib_masks(in, key, group); break;
      case FIB_SEALED: fib_sealed(in, key, group); break;
    }
  }
}
