// Structures that the host module, the device code and Python share. Sizes are checked on both sides.
#pragma once

typedef unsigned long long u64;
typedef unsigned int u32;

#define FIB_MAX_INPUTS 24
#define FIB_MAX_OUTPUTS 12
#define FIB_MAX_CALLS 256
#define FIB_DIGEST_BLOCKS 128
#define FIB_LINE_BYTES 128  // of the L2 cache
#define FIB_SM_WORDS 8  // bits for 256 multiprocessors

// How a link derives an input from two candidates.
enum FibMode { FIB_ELEMENT = 0, FIB_PAIR_SWAP = 1, FIB_WHOLE = 2 };

// One page of host memory that the judge and the device read and write during a pass.
struct FibMailbox {
  u64 go;            // judge: number of the pass that may start
  u64 nonce[4];      // judge: written before `go`
  u64 padding[3];
  u64 armed;         // device: number of the pass that waits for `go`
  u64 done;          // device: number of the pass that has ended
  u64 digest[2];     // device: written before `done`
  u64 free_sms;      // device: fewest multiprocessors that were free when the cache was flushed
  u64 timed_out;     // device: `go` did not come
  u32 spans[FIB_MAX_CALLS];  // device: nanoseconds from the end of each flush to the start of the digest
  u32 flushes[FIB_MAX_CALLS];  // device: nanoseconds that each flush took
};

// Device memory of the worker.
struct FibState {
  u64 pass;
  u64 nonce[4];
  u64 chain[2 * (FIB_MAX_CALLS + 1)];
  u64 partials[2 * FIB_DIGEST_BLOCKS];
  u64 began[FIB_MAX_CALLS];    // when the first block of a flush began, by the device's clock
  u64 flushed[FIB_MAX_CALLS];  // when the last block of a flush ended
  u64 digested[FIB_MAX_CALLS]; // when the first block of a digest began
  u32 sms[FIB_MAX_CALLS * FIB_SM_WORDS];
  u32 residue;       // without a meaning: a store that depends on everything a flush has read
};

struct FibInput {
  u64 first, second;  // candidates, 16-byte aligned
  u64 target;         // what the call reads, 16-byte aligned
  u64 bytes;
  u32 mode;
  u32 item_bytes;
  u32 row_items;      // elements of one row, for FIB_PAIR_SWAP
  u32 index;          // position among the inputs
};

struct FibOutput {
  u64 source;  // what the call writes
  u64 target;  // where the digest copies it to, 16-byte aligned; 0 copies nothing
  u64 bytes;
};

struct FibLink {
  u32 inputs, outputs;
  FibInput input[FIB_MAX_INPUTS];
  FibOutput output[FIB_MAX_OUTPUTS];
};

struct FibDigest {
  u32 outputs, blocks;
  int call;    // negative: leaves no time
  u32 padding;
  u64 stride;  // bytes from one slot's outputs to the next, where several slots are digested at once
  FibOutput output[FIB_MAX_OUTPUTS];
};
