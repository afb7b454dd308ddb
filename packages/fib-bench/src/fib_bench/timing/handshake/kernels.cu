// Device code of a handshake: what stands around each timed call. Compiled by NVRTC, or by nvcc for tests.
#include "handshake.h"

static __device__ __forceinline__ u64 load_system(const u64* from) {
  u64 value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

static __device__ __forceinline__ void store_system(u64* to, u64 value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

static __device__ __forceinline__ u64 nanoseconds() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

enum { kPollerCycles = 200 };  // between pollers: a share of the time of a load

static __device__ u64 wait_for(const u64* word, u64 timeout_ns) {
  const u64 begin = nanoseconds();
  u64 value;
  while (!(value = load_system(word)))
    if (nanoseconds() - begin > timeout_ns) return 1;  // the judge has gone: nobody reads what follows
  return value;
}

// The same, and removes the word.
static __device__ u64 take(u64* word, u64 timeout_ns) {
  const u64 value = wait_for(word, timeout_ns);
  store_system(word, 0);
  return value;
}

// Whether this block is the last one to arrive; one is, whatever a call has made of the counter.
static __device__ bool is_last_of(u32 blocks, u32* counter) { return atomicInc(counter, blocks - 1) >= blocks - 1; }

// Waits until the call may be prepared. With `keyed`, what came is the key of the inputs.
extern "C" __global__ void fib_wait(FibMailbox* mail, FibState* state, int call, int keyed, u64 timeout_ns) {
  for (int i = 0; i < FIB_SM_WORDS; ++i) state->sms[i] = 0;
  const u64 start = take(&mail->start[call], timeout_ns);
  state->seed = fib_one_way(start);
  state->poison = fib_poison(start);
  state->began = 0;
  if (keyed) state->key = start;
}

// Fills inputs from the key, and poisons outputs: those that `call` has.
extern "C" __global__ void __launch_bounds__(256, 4)
fib_fill_inputs(FibState* state, const __grid_constant__ FibCall call) {
  const u64 key = state->key, poison = state->poison;
  const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, threads = (u64)gridDim.x * blockDim.x;
  for (u32 i = 0; i < call.inputs; ++i) fib_fill(call.input[i], key, thread, threads);
  for (u32 i = 0; i < call.outputs; ++i) {
    const FibOutput& out = call.output[i];
    const u64 words = out.source % 8 ? 0 : out.bytes / 8;
    for (u64 k = thread; k < words; k += threads) ((u64*)out.source)[k] = poison;
    for (u64 k = words * 8 + thread; k < out.bytes; k += threads)
      ((unsigned char*)out.source)[k] = (unsigned char)(poison >> (8 * (k % 8)));
  }
  __syncthreads();
  if (threadIdx.x == 0 && is_last_of(gridDim.x, &state->filled)) state->key = 0;
}

static __device__ __forceinline__ u32 load_from_l2(const char* from) {
  u32 word;
  asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
  return word;
}

static __device__ u64 join_block(u64 mine, u64* parts) {
  parts[threadIdx.x] = mine;
  __syncthreads();
  for (int width = blockDim.x / 2; width; width /= 2) {
    if (threadIdx.x < width) parts[threadIdx.x] = fib_join(parts[threadIdx.x], parts[threadIdx.x + width]);
    __syncthreads();
  }
  return parts[0];
}

// Fills the L2 cache with other lines, by one load from each; what it has loaded becomes part of the digest. It does
// not write: written lines would have to go to memory while the next call runs. Loads of `ld.global.nc` with
// `L1::no_allocate` would evict nothing. A block needs the whole shared memory of a multiprocessor: where anything
// else is resident, it has to wait, and another multiprocessor gets two blocks.
extern "C" __global__ void fib_flush(FibState* state, const char* buffer, u64 lines) {
  __shared__ u64 parts[1024];
  if (threadIdx.x == 0) {
    u32 sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    atomicOr(&state->sms[sm / 32 % FIB_SM_WORDS], 1u << sm % 32);
  }
  const u64 step = (u64)gridDim.x * blockDim.x;
  u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  u64 h = fib_scramble(state->seed + i);
  for (; i + 7 * step < lines; i += 8 * step) {
    u32 words[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) words[k] = load_from_l2(buffer + (i + k * step) * FIB_LINE_BYTES);
#pragma unroll
    for (int k = 0; k < 8; ++k) h = fib_absorb(h, words[k]);
  }
  for (; i < lines; i += step) h = fib_absorb(h, load_from_l2(buffer + i * FIB_LINE_BYTES));
  h = join_block(h, parts);
  if (threadIdx.x == 0) state->flush[blockIdx.x] = h;
}

// Writes the pattern of a flush buffer, once.
extern "C" __global__ void fib_pattern(u32* buffer, u64 lines, u64 pattern) {
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < lines; i += (u64)gridDim.x * blockDim.x)
    buffer[i * (FIB_LINE_BYTES / 4)] = fib_line(pattern, i);
}

static __device__ void report(FibMailbox* mail, const FibState* state, int call) {
  u32 count = 0;
  for (int i = 0; i < FIB_SM_WORDS; ++i) count += __popc(state->sms[i]);
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(&mail->free_sms[call]), "r"(count) : "memory");
  __threadfence_system();
  store_system(&mail->ready[call], 1);
}

static __device__ void start_call(FibMailbox* mail, FibState* state, int call, int keyed, u64 go) {
  for (int line = 0; line < FIB_POLLERS; ++line) store_system(&mail->go[line][call], 0);
  state->go = fib_one_way(go);
  if (keyed) state->key = go;
}

// Reports that the call is prepared, and waits for the clock to start. A load of host memory takes a microsecond, so
// one poller would see the word that much earlier or later. Several, one after the other, each see it in a line of
// its own (loads of one line are joined); the kernel ends when the last load is back, at about the same time always.
extern "C" __global__ void fib_gate(FibMailbox* mail, FibState* state, int call, int keyed, u64 timeout_ns) {
  __shared__ volatile u64 seen;
  if (threadIdx.x == 0) {
    seen = 0;
    report(mail, state, call);
  }
  __syncthreads();
  if (threadIdx.x % 32) return;
  const int line = threadIdx.x / 32;
  for (const long long since = clock64(); clock64() - since < kPollerCycles * line;) {
  }
  const u64 begin = nanoseconds();
  u64 go;
  do {
    go = load_system(&mail->go[line][call]);
    if (!go && nanoseconds() - begin > timeout_ns) go = 1;  // the judge has gone: nobody reads what follows
  } while (!go && !seen);
  if (!go || atomicExch((unsigned long long*)&seen, go)) return;  // another warp has seen it
  start_call(mail, state, call, keyed, go);
}

// The same where the host waits.
extern "C" __global__ void fib_ready(FibMailbox* mail, FibState* state, int call) { report(mail, state, call); }

extern "C" __global__ void fib_take(FibMailbox* mail, FibState* state, int call, int keyed) {
  start_call(mail, state, call, keyed, wait_for(&mail->go[0][call], 0));
}

static __device__ __forceinline__ uint4 word_at(u64 source, u64 word, u64 bytes) {
  if (source % 16 == 0 && word * 16 + 16 <= bytes) return __ldcg((const uint4*)source + word);
  u32 parts[4] = {0, 0, 0, 0};
  for (u64 k = 0; k < 16 && word * 16 + k < bytes; ++k)
    parts[k / 4] |= (u32)((const volatile unsigned char*)source)[word * 16 + k] << (8 * (k % 4));
  return make_uint4(parts[0], parts[1], parts[2], parts[3]);
}

static __device__ void copy_word(const FibOutput& out, u64 word, uint4 w) {
  if (word * 16 + 16 <= out.bytes) {
    ((uint4*)out.target)[word] = w;
  } else {
    const u32 rest[4] = {w.x, w.y, w.z, w.w};
    for (u64 k = 0; word * 16 + k < out.bytes; ++k)
      ((unsigned char*)out.target)[word * 16 + k] = (unsigned char)(rest[k / 4] >> (8 * (k % 4)));
  }
}

// The share of one block in the digest of the outputs of the call `blockIdx.y`; copies them where that is asked for.
static __device__ u64 digest_block(const FibCall& call, u64 seed, u64 go, u64* parts) {
  const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, threads = (u64)gridDim.x * blockDim.x;
  u64 h = fib_begin(seed, go, thread);
  for (u32 i = 0; i < call.outputs; ++i) {
    const FibOutput& out = call.output[i];
    const u64 source = out.source + call.stride * blockIdx.y, words = (out.bytes + 15) / 16;
    for (u64 word = thread; word < words; word += threads) {
      const uint4 w = word_at(source, word, out.bytes);
      h = fib_absorb(fib_absorb(h, (u64)w.x | (u64)w.y << 32), (u64)w.z | (u64)w.w << 32);
      if (out.target) copy_word(out, word, w);
    }
  }
  return join_block(h, parts);
}

// Joins what the blocks of a digest and of a flush have found; every thread of one block takes part.
static __device__ u64 digest_of(const u64* partials, int blocks, const u64* flush, int flush_blocks, u64* parts) {
  u64 h = 0;
  for (int i = threadIdx.x; i < blocks; i += blockDim.x) h = fib_absorb(h, __ldcg(partials + i));
  for (int i = threadIdx.x; i < flush_blocks; i += blockDim.x) h = fib_absorb(h, __ldcg(flush + i));
  return join_block(h + threadIdx.x, parts);
}

// Ends a call: the digest of its outputs stops the clock.
// `host_go`: the illegible word that started the clock, where the host has taken it; else 0.
extern "C" __global__ void fib_digest(FibMailbox* mail, FibState* state, int index, u64 host_go, int flush_blocks,
                                      const __grid_constant__ FibCall call) {
  __shared__ u64 parts[256];
  __shared__ int is_last;
  const u64 go = host_go ? host_go : state->go;
  if (threadIdx.x == 0) atomicMax((unsigned long long*)&state->began, (unsigned long long)nanoseconds());
  const u64 mine = digest_block(call, state->seed, go, parts);
  if (threadIdx.x == 0) {
    state->partials[blockIdx.x] = mine;
    __threadfence();
    is_last = is_last_of(gridDim.x, &state->arrived);
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  const u64 began = __ldcg(&state->began), ended = nanoseconds(), most = (1 << FIB_SPAN_BITS) - 1;
  const u64 taken = ended > began ? (ended - began) / 16 : 0;  // a call can have written there, and gains nothing
  const u64 digest = digest_of(state->partials, gridDim.x, state->flush, flush_blocks, parts);
  if (threadIdx.x == 0) store_system(&mail->stop[index], fib_state_span(digest, taken < most ? taken | 1 : most));
}

// Ends a pass.
extern "C" __global__ void fib_tail(FibMailbox* mail) { store_system(&mail->end, 1); }

// -- the judge's ----------------------------------------------------------------------------------------------------

// The digests of several calls at once, from copies of their outputs. `words`: seed, go and key of each call.
extern "C" __global__ void fib_redigest(const __grid_constant__ FibCall call, const u64* words, u64* partials) {
  __shared__ u64 parts[256];
  const u64 seed = fib_one_way(words[3 * blockIdx.y]), go = fib_one_way(words[3 * blockIdx.y + 1]);
  const u64 mine = digest_block(call, seed, go, parts);
  if (threadIdx.x == 0) partials[(u64)blockIdx.y * gridDim.x + blockIdx.x] = mine;
}

// What the flush of each call must have found; grid and block as those of the flush.
extern "C" __global__ void fib_reflush(u64 lines, u64 pattern, const u64* words, int calls, u64* found) {
  __shared__ u64 parts[1024];
  const u64 step = (u64)gridDim.x * blockDim.x, first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  for (int call = blockIdx.y; call < calls; call += gridDim.y) {
    u64 h = fib_scramble(fib_one_way(words[3 * call]) + first);
    for (u64 i = first; i < lines; i += step) h = fib_absorb(h, fib_line(pattern, i));
    h = join_block(h, parts);
    if (threadIdx.x == 0) found[(u64)call * gridDim.x + blockIdx.x] = h;
    __syncthreads();
  }
}

// `digests`: the words that stopped the clock, whose durations are taken over.
extern "C" __global__ void fib_rejoin(const u64* partials, int blocks, const u64* flush, int flush_blocks,
                                      u64* digests) {
  __shared__ u64 parts[256];
  const u64 call = blockIdx.x;
  const u64 digest = digest_of(partials + call * blocks, blocks, flush + call * flush_blocks, flush_blocks, parts);
  if (threadIdx.x == 0) digests[call] = fib_state_span(digest, digests[call] & ((1 << FIB_SPAN_BITS) - 1));
}

// Counts what the outputs of call `blockIdx.y` still hold of their poison.
extern "C" __global__ void fib_unwritten(const __grid_constant__ FibCall call, const u64* words, u32* counts) {
  const u64 pattern = fib_poison(words[3 * blockIdx.y]);
  u32 found = 0;
  for (u32 i = 0; i < call.outputs; ++i) {
    const u64 source = call.output[i].source + call.stride * blockIdx.y, bytes = call.output[i].bytes;
    if (bytes >= 4 && bytes < 8 && blockIdx.x == 0 && threadIdx.x == 0) found += *(const u32*)source == (u32)pattern;
    for (u64 word = (u64)blockIdx.x * blockDim.x + threadIdx.x; word < bytes / 8; word += (u64)gridDim.x * blockDim.x)
      found += ((const u64*)source)[word] == pattern;
  }
  if (found) atomicAdd(counts + blockIdx.y, found);
}

// Fills inputs from a key that is known.
extern "C" __global__ void __launch_bounds__(256, 4) fib_refill(u64 key, const __grid_constant__ FibCall call) {
  const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, threads = (u64)gridDim.x * blockDim.x;
  for (u32 i = 0; i < call.inputs; ++i) fib_fill(call.input[i], key, thread, threads);
}

// The least that any call does: each thread writes a word of an output after it has read a word of an input.
// Large outputs are written in part, so that no honest kernel has to be as fast as a copy.
extern "C" __global__ void fib_least(FibState* state, const char* from, u32 words, char* to, u32 count) {
  const u32 word = blockIdx.x * blockDim.x + threadIdx.x;
  const uint4 found = words ? __ldcg((const uint4*)from + (word < words ? word : word % words)) : make_uint4(0, 0, 0, 0);
  if (word == 0) state->residue = found.x;
  if (word < count) ((uint4*)to)[word] = found;
}
