// Structures that the host module, the device code and Python share. Sizes are checked on both sides.
#pragma once
#include "generator.h"

#define FIB_MAX_INPUTS 24
#define FIB_MAX_OUTPUTS 12
#define FIB_MAX_CALLS 64
#define FIB_BLOCKS 256        // of a flush or a digest, at most
#define FIB_LINE_BYTES 128    // of the L2 cache
#define FIB_SM_WORDS 8        // bits for 256 multiprocessors
#define FIB_POLLERS 8         // warps that wait for the clock to start, each at a cache line of its own
#define FIB_SPAN_BITS 20      // of a digest on a device: how long it took, in units of 16 ns

// Host memory that the judge and the worker (its device, or its host code) read and write during a pass.
// No word of a call is written twice in a pass; the judge clears it before one.
struct FibMailbox {
  u64 start[FIB_MAX_CALLS];  // judge: the call may be prepared
  u64 ready[FIB_MAX_CALLS];  // worker: it is prepared
  u64 stop[FIB_MAX_CALLS];   // worker: the digest of the outputs, which stops the clock; a device adds its duration
  u32 free_sms[FIB_MAX_CALLS];  // device: multiprocessors that nothing else occupied during the flush
  u32 own_ns[FIB_MAX_CALLS];    // worker, on the CPU: nanoseconds by its own clock, or the largest number
  u64 end;                      // device: the pass has ended
  alignas(FIB_LINE_BYTES) u64 go[FIB_POLLERS][FIB_MAX_CALLS];  // judge: the clock runs; a word for each poller, written in order
};

// Memory of the worker, on the device where there is one.
struct FibState {
  u64 seed;   // what came as `start` and as `go`, each made illegible
  u64 go;
  u64 key;    // of the inputs, `start` or `go`; 0 once they are made: who knows it need not read them
  u64 poison; // of the outputs, made of `start`: they are poisoned before the clock runs
  u64 began;  // when the last block of the digest did, by the device's clock: before that a call can still run
  u64 flush[FIB_BLOCKS];
  u64 partials[FIB_BLOCKS];
  u32 sms[FIB_SM_WORDS];
  u32 arrived, filled;
  u32 residue;  // without a meaning: what the least call stores
};

struct FibOutput {
  u64 source;  // what the call writes
  u64 target;  // where the digest copies it to, 16-byte aligned; 0 copies nothing
  u64 bytes;
};

// What one call reads and writes.
struct FibCall {
  u32 inputs, outputs, blocks, padding;  // blocks of the digest
  u64 stride;  // bytes from one call's outputs to the next, where several are digested at once
  FibInput input[FIB_MAX_INPUTS];
  FibOutput output[FIB_MAX_OUTPUTS];
};

// The words of a flush buffer: different in every line, and in every worker.
FIB_BOTH u32 fib_line(u64 pattern, u64 line) {
  u64 x = (line + 1) * 0x9e3779b97f4a7c15ULL ^ pattern;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ULL;
  return (u32)(x >> 32);
}

FIB_BOTH u64 fib_scramble(u64 x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  return x ^ x >> 33;
}

FIB_BOTH u64 fib_absorb(u64 h, u64 word) {
  h = (h ^ word) * 0x9e3779b97f4a7c15ULL;
  return h ^ h >> 29;
}

FIB_BOTH u64 fib_join(u64 left, u64 right) { return fib_scramble(fib_absorb(left * 3, right)); }

// A word from which the first cannot be told: it lies where a call can read it.
FIB_BOTH u64 fib_one_way(u64 x) {
  return fib_scramble(x ^ 0x5851f42d4c957f2dULL) + fib_scramble((x << 1 | x >> 63) + 0x14057b7ef767814fULL);
}

FIB_BOTH u64 fib_poison(u64 start) { return fib_one_way(start ^ 0x706f69736f6eULL) | 0x0100000000000001ULL; }

// A digest that states how long it took, in a word that nobody can alter who does not know the digest.
FIB_BOTH u64 fib_state_span(u64 digest, u64 span) { return fib_absorb(digest, span) << FIB_SPAN_BITS | span; }

FIB_BOTH u64 fib_begin(u64 seed, u64 go, u64 thread) { return fib_scramble(seed ^ fib_scramble(go + thread)); }
