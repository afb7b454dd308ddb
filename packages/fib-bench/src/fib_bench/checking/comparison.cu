// Device code of comparisons: an output with the expected one, the magnitude of an output, known wrong answers.
//
// The rule is that of `element_statistics.py`, in float64 as there. Every block makes the statistics of its elements; the
// block that finishes last combines them. All numbers that are combined are integers, among them the bits of errors,
// which are not negative and therefore ordered like the errors. So results do not depend on how blocks are scheduled.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define THREADS 256
#define KINDS(X) \
  X(FLOAT64) X(FLOAT32) X(FLOAT16) X(BFLOAT16) X(FLOAT8) X(FLOAT4) \
  X(INT64) X(INT32) X(INT16) X(INT8) X(UINT8)
#define NAME(kind) kind,
enum Kind : u32 { KINDS(NAME) };
enum Answer : u32 { TENSOR, FINITE_OF_TENSOR, SCALED };

// The same as `Job` in `fused_comparison.py`.
struct Job {
  const void *found, *expected;
  const double *found_values, *expected_values;  // of floats of 8 and 4 bits, by their bits
  u64 count, per_block;                          // elements
  u64 width, rows;                               // of rows
  double atol, rtol, limit, row_share;
  double factor;           // SCALED: what expected elements are multiplied by
  u64* finished;           // blocks; zero before, as all counts below
  u64* wrong_in_row;       // [rows]
  u64* undefined_in_row;   // [rows]; null if no element is NaN
  u64* partials;           // [blocks, words of Part]
  u64* result;             // [12] or [4] or [3]
  u32 found_kind, expected_kind, answer, padding;
};

static __device__ __forceinline__ double from_bits(u64 bits) { return __longlong_as_double((i64)bits); }
static __device__ __forceinline__ u64 bits_of(double value) { return (u64)__double_as_longlong(value); }
static __device__ __forceinline__ double infinity() { return from_bits(0x7ff0000000000000ull); }
static __device__ __forceinline__ bool is_nan(double value) { return value != value; }
static __device__ __forceinline__ bool is_finite(double value) { return fabs(value) < infinity(); }
static __device__ __forceinline__ bool is_float(u32 kind) { return kind <= FLOAT4; }
static __device__ __forceinline__ u64 larger(u64 a, u64 b) { return a > b ? a : b; }

static __device__ __forceinline__ double from_half(u32 half) {
  const u64 sign = (u64)(half & 0x8000) << 48, exponent = half >> 10 & 31, mantissa = half & 1023;
  if (exponent == 31) return from_bits(sign | 0x7ff0000000000000ull | mantissa << 42);
  if (exponent) return from_bits(sign | (exponent + 1008) << 52 | mantissa << 42);
  const double subnormal = (double)mantissa * 0x1p-24;
  return sign ? -subnormal : subnormal;
}

template <u32 kind>
static __device__ __forceinline__ i64 integer_at(const void* data, u64 i) {
  if constexpr (kind == INT64) return ((const i64*)data)[i];
  if constexpr (kind == INT32) return ((const int*)data)[i];
  if constexpr (kind == INT16) return ((const short*)data)[i];
  if constexpr (kind == INT8) return ((const signed char*)data)[i];
  if constexpr (kind == UINT8) return ((const u8*)data)[i];
  return 0;
}

template <u32 kind>
static __device__ __forceinline__ double double_at(const void* data, const double* values, u64 i) {
  if constexpr (kind == FLOAT64) return ((const double*)data)[i];
  if constexpr (kind == FLOAT32) return ((const float*)data)[i];
  if constexpr (kind == FLOAT16) return from_half(((const u16*)data)[i]);
  if constexpr (kind == BFLOAT16) return __uint_as_float((u32)((const u16*)data)[i] << 16);
  if constexpr (kind == FLOAT8) return values[((const u8*)data)[i]];
  if constexpr (kind == FLOAT4) return values[((const u8*)data)[i / 2] >> 4 * (i % 2) & 15];
  return (double)integer_at<kind>(data, i);
}

#define INTEGER_CASE(kind) case kind: return integer_at<kind>(data, i);
static __device__ i64 integer_of(u32 kind, const void* data, u64 i) {
  switch (kind) { KINDS(INTEGER_CASE) }
  return 0;
}

#define DOUBLE_CASE(kind) case kind: return double_at<kind>(data, values, i);
static __device__ double double_of(u32 kind, const void* data, const double* values, u64 i) {
  switch (kind) { KINDS(DOUBLE_CASE) }
  return 0;
}

// What elements have in common: maxima, the first of the worst elements, counts. Errors are bits of doubles.
struct Part {
  u64 absolute, relative, raw_relative, worst_error, index, wrong, capped, different;
};
static constexpr u32 WORDS = sizeof(Part) / sizeof(u64);

static __device__ __forceinline__ Part joined(Part a, Part b) {
  const bool takes_a = a.worst_error > b.worst_error || (a.worst_error == b.worst_error && a.index < b.index);
  return {larger(a.absolute, b.absolute), larger(a.relative, b.relative), larger(a.raw_relative, b.raw_relative),
          takes_a ? a.worst_error : b.worst_error, takes_a ? a.index : b.index,
          a.wrong + b.wrong, a.capped + b.capped, a.different + b.different};
}

// The first of the rows with most wrong elements, and how many rows have too many.
struct Rows {
  u64 wrong, index, bad;
};

static __device__ __forceinline__ Rows joined(Rows a, Rows b) {
  const bool takes_a = a.wrong > b.wrong || (a.wrong == b.wrong && a.index < b.index);
  return {takes_a ? a.wrong : b.wrong, takes_a ? a.index : b.index, a.bad + b.bad};
}

struct Extent {
  u64 largest, undefined, infinite;
};

static __device__ __forceinline__ Extent joined(Extent a, Extent b) {
  return {larger(a.largest, b.largest), a.undefined + b.undefined, a.infinite + b.infinite};
}

// Joins one value of each thread of a block; all threads get the result.
template <class T>
static __device__ T reduced(T mine) {
  __shared__ T all[THREADS];
  __syncthreads();
  all[threadIdx.x] = mine;
  __syncthreads();
  for (u32 half = THREADS / 2; half; half /= 2) {
    if (threadIdx.x < half) all[threadIdx.x] = joined(all[threadIdx.x], all[threadIdx.x + half]);
    __syncthreads();
  }
  return all[0];
}

// A count of one row that is kept in a thread while its elements are of that row.
struct RowCount {
  u64 row, count;
};

static __device__ __forceinline__ void flush(RowCount& counted, u64* rows) {
  if (counted.count) atomicAdd(rows + counted.row, counted.count);
  counted.count = 0;
}

static __device__ __forceinline__ void count_in(RowCount& counted, u64* rows, u64 row) {
  if (counted.count && counted.row != row) flush(counted, rows);
  counted.row = row;
  ++counted.count;
}

struct Errors {
  double absolute, relative;
};

// 0 where both are equal and where `b` is NaN; infinite where either alone is NaN or infinite.
static __device__ __forceinline__ Errors errors_of(double a, double b) {
  if (a == b || is_nan(b)) return {0, 0};
  double absolute = fabs(a - b);
  if (is_nan(absolute)) absolute = infinity();
  const double relative = absolute / fabs(b);
  return {absolute, is_nan(relative) ? infinity() : relative};
}

static __device__ __forceinline__ void count_wrong(Part& part, RowCount& rows, const Job& job, u64 i, double error) {
  if (bits_of(error) > part.worst_error) part.worst_error = bits_of(error), part.index = i;
  ++part.wrong;
  part.capped += error > job.limit;
  count_in(rows, job.wrong_in_row, i / job.width);
}

template <u32 kind>
static __device__ Part compared(const Job& job, u64 begin, u64 end) {
  Part part = {};
  RowCount wrong_rows = {}, undefined_rows = {};
  for (u64 i = begin + threadIdx.x; i < end; i += THREADS) {
    const double a = double_at<kind>(job.found, job.found_values, i);
    const double b = double_at<kind>(job.expected, job.expected_values, i);
    Errors errors = errors_of(a, b);
    if constexpr (kind > FLOAT4) {  // float64 cannot distinguish integers beyond 2**53
      const u64 distance = (u64)integer_at<kind>(job.found, i) - (u64)integer_at<kind>(job.expected, i);
      errors.absolute = fmax(errors.absolute, (double)(i64)((i64)distance < 0 ? 0 - distance : distance));
    }
    part.absolute = larger(part.absolute, bits_of(errors.absolute));
    part.raw_relative = larger(part.raw_relative, bits_of(errors.relative));
    if (errors.absolute > job.atol) {
      part.relative = larger(part.relative, bits_of(errors.relative));
      if (kind > FLOAT4 || errors.relative > job.rtol) count_wrong(part, wrong_rows, job, i, errors.absolute);
    }
    if (job.undefined_in_row && is_nan(b)) count_in(undefined_rows, job.undefined_in_row, i / job.width);
  }
  flush(wrong_rows, job.wrong_in_row);
  flush(undefined_rows, job.undefined_in_row);
  return part;
}

static __device__ Part probed(const Job& job, u64 begin, u64 end) {
  Part part = {};
  RowCount wrong_rows = {}, undefined_rows = {};
  for (u64 i = begin + threadIdx.x; i < end; i += THREADS) {
    const double b = double_of(job.expected_kind, job.expected, job.expected_values, i);
    if (job.undefined_in_row && is_nan(b)) count_in(undefined_rows, job.undefined_in_row, i / job.width);
    if (!is_finite(b)) continue;
    double a = b * job.factor;
    if (job.answer != SCALED) a = double_of(job.found_kind, job.found, job.found_values, i);
    if (job.answer == FINITE_OF_TENSOR && !is_finite(a)) continue;
    const Errors errors = errors_of(a, b);
    part.different += errors.absolute > 0;
    if (errors.absolute > job.atol && errors.relative > job.rtol)
      count_wrong(part, wrong_rows, job, i, errors.absolute);
  }
  flush(wrong_rows, job.wrong_in_row);
  flush(undefined_rows, job.undefined_in_row);
  return part;
}

static __device__ Rows worst_row(const Job& job) {
  const volatile u64 *wrong = job.wrong_in_row, *undefined = job.undefined_in_row;  // not from this block's cache
  Rows rows = {};
  for (u64 row = threadIdx.x; row < job.rows; row += THREADS) {
    const u64 count = wrong[row], defined = job.width - (undefined ? undefined[row] : 0);
    if (count > rows.wrong) rows.wrong = count, rows.index = row;
    rows.bad += (double)count > fmax(1.0, (double)defined * job.row_share);
  }
  return reduced(rows);
}

// Publishes the statistics of a block; returns whether all others have done so, with those of all.
static __device__ bool combined(const Job& job, Part mine, Part& total, Rows& rows) {
  __shared__ bool is_last;
  mine = reduced(mine);
  if (threadIdx.x == 0) {
    const u64 words[WORDS] = {mine.absolute, mine.relative, mine.raw_relative, mine.worst_error,
                              mine.index, mine.wrong, mine.capped, mine.different};
    for (u32 word = 0; word < WORDS; ++word) job.partials[blockIdx.x * WORDS + word] = words[word];
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(job.finished, 1ull) + 1 == gridDim.x;
  __syncthreads();
  if (!is_last) return false;
  __threadfence();
  total = {};
  for (u32 block = threadIdx.x; block < gridDim.x; block += THREADS) {
    const volatile u64* from = job.partials + block * WORDS;
    total = joined(total, Part{from[0], from[1], from[2], from[3], from[4], from[5], from[6], from[7]});
  }
  total = reduced(total);
  rows = {};
  if (total.wrong) rows = worst_row(job);
  return threadIdx.x == 0;
}

#define COMPARED_CASE(kind) case kind: part = compared<kind>(job, begin, end); break;

// Writes a row as `Statistics.pack` and `Statistics.pack_rows` do together.
extern "C" __global__ void __launch_bounds__(THREADS) fib_compare(const Job job) {
  const u64 begin = blockIdx.x * job.per_block, end = min(begin + job.per_block, job.count);
  Part part = {}, total;
  Rows rows;
  switch (job.expected_kind) { KINDS(COMPARED_CASE) }
  if (!combined(job, part, total, rows)) return;
  job.result[0] = total.absolute;
  job.result[1] = total.relative;
  job.result[2] = total.raw_relative;
  job.result[3] = total.wrong ? total.worst_error : bits_of(-1.0);
  job.result[4] = total.wrong;
  job.result[5] = total.capped;
  job.result[6] = total.index;
  if (is_float(job.expected_kind)) {
    job.result[7] = bits_of(double_of(job.found_kind, job.found, job.found_values, total.index));
    job.result[8] = bits_of(double_of(job.expected_kind, job.expected, job.expected_values, total.index));
  } else {
    job.result[7] = (u64)integer_of(job.found_kind, job.found, total.index);
    job.result[8] = (u64)integer_of(job.expected_kind, job.expected, total.index);
  }
  job.result[9] = rows.wrong;
  job.result[10] = rows.index;
  job.result[11] = rows.bad;
}

// Counts elements of a known wrong answer that differ, are wrong, exceed the limit, and rows with too many wrong ones.
extern "C" __global__ void __launch_bounds__(THREADS) fib_probe(const Job job) {
  const u64 begin = blockIdx.x * job.per_block, end = min(begin + job.per_block, job.count);
  Part total;
  Rows rows;
  if (!combined(job, probed(job, begin, end), total, rows)) return;
  job.result[0] = total.different;
  job.result[1] = total.wrong;
  job.result[2] = total.capped;
  job.result[3] = rows.bad;
}

// The largest finite magnitude, the elements that are NaN, and those that are infinite. The result is zero before.
extern "C" __global__ void __launch_bounds__(THREADS) fib_extent(const Job job) {
  const u64 begin = blockIdx.x * job.per_block, end = min(begin + job.per_block, job.count);
  Extent mine = {};
  for (u64 i = begin + threadIdx.x; i < end; i += THREADS) {
    const double value = fabs(double_of(job.expected_kind, job.expected, job.expected_values, i));
    if (is_nan(value)) ++mine.undefined;
    else if (value == infinity()) ++mine.infinite;
    else mine.largest = larger(mine.largest, bits_of(value));
  }
  mine = reduced(mine);
  if (threadIdx.x != 0) return;
  atomicMax(job.result + 0, mine.largest);
  atomicAdd(job.result + 1, mine.undefined);
  atomicAdd(job.result + 2, mine.infinite);
}
