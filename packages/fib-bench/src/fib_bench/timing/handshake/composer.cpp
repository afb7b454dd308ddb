// Composition, inspection and launch of passes of handshakes, and the judge's clock around every call.
//
// The driver is called through a table that is resolved before any solution is loaded and made read-only then.
// Nothing here calls Python or torch. The declarations of the driver's interface that are needed stand here, so that
// no CUDA toolkit has to be installed. Source: CUDA driver API, version 13.0.
#include <dlfcn.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <vector>

#include "handshake.h"

typedef int Status;
typedef void *Function, *Graph, *Node, *Executable, *Module, *Stream, *Context;

struct KernelNode {  // CUDA_KERNEL_NODE_PARAMS_v2
  Function function;
  u32 grid[3], block[3], shared_bytes;
  void** parameters;
  void** extra;
  void* kernel;
  Context context;
};

struct MemoryCopy {  // CUDA_MEMCPY3D_v2
  struct Side {
    size_t x, y, z, level;
    int kind;
    const void* host;
    u64 device;
    void *array, *reserved;
    size_t pitch, height;
  } from, to;
  size_t width, height, depth;
};

struct MemorySet {  // CUDA_MEMSET_NODE_PARAMS
  u64 target;
  size_t pitch;
  u32 value, item_bytes;
  size_t width, height;
};

struct Driver {
  Status (*load)(Module*, const void*);
  Status (*function)(Function*, Module, const char*);
  Status (*function_name)(const char**, Function);
  Status (*set_attribute)(Function, int, int);
  Status (*create)(Graph*, u32);
  Status (*add_kernel)(Node*, Graph, const Node*, size_t, const KernelNode*);
  Status (*add_child)(Node*, Graph, const Node*, size_t, Graph);
  Status (*instantiate)(Executable*, Graph, u64);
  Status (*upload)(Executable, Stream);
  Status (*launch)(Executable, Stream);
  Status (*destroy)(Graph);
  Status (*destroy_executable)(Executable);
  Status (*nodes)(Graph, Node*, size_t*);
  Status (*type)(Node, int*);
  Status (*child)(Node, Graph*);
  Status (*kernel_of)(Node, KernelNode*);
  Status (*copy_of)(Node, MemoryCopy*);
  Status (*set_of)(Node, MemorySet*);
  Status (*kernel_attribute)(Node, int, void*);
  Status (*pointer_attribute)(void*, int, u64);
  Status (*current)(Context*);
  Status (*register_host)(void*, size_t, u32);
  Status (*unregister_host)(void*);
  Status (*device_pointer)(u64*, void*, u32);
  Status (*synchronise)();
  Status (*reset_lines)();
  Status (*launch_kernel)(Function, u32, u32, u32, u32, u32, u32, u32, Stream, void**, void**);
  Status (*error_name)(Status, const char**);
  Status (*allocate)(u64*, size_t);
  Status (*clear)(u64, unsigned char, size_t);
  Status (*copy_in)(u64, const void*, size_t);
  Status (*copy_out)(void*, u64, size_t);
  Function wait, fill, flush, pattern, gate, ready, take, digest, tail, redigest, reflush, rejoin, unwritten, refill,
      least;
  u32 multiprocessors, flush_shared_bytes;
  u64 state, flush_buffer, flush_lines;
  Context context;
};

static union {
  Driver driver;
  char page[4096];
} table __attribute__((aligned(4096)));
static_assert(sizeof(Driver) <= 4096, "one page");

static FibState host_state;  // of calls on the CPU
static u64 host_began;

enum { kKernel = 0, kCopy = 1, kSet = 2, kChild = 4, kEmpty = 5 };
enum { kThreads = 256, kFlushThreads = 1024, kMaxDynamicShared = 8, kCarveout = 9, kDeviceUpdatable = 13 };
enum { kContextOf = 1, kMemoryType = 2 };

static Status fail(char* text, size_t size, const char* what, Status status) {
  const char* name = "unknown error";
  if (table.driver.error_name) table.driver.error_name(status, &name);
  snprintf(text, size, "%s: %s", what, name);
  return status ? status : -1;
}

#define TRY(call, what)                                            \
  do {                                                             \
    const Status status_ = (call);                                 \
    if (status_) return fail(error, error_size, what, status_);    \
  } while (0)

static u64 now(void) {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC_RAW, &time);
  return (u64)time.tv_sec * 1000000000ull + (u64)time.tv_nsec;
}

static void set_go(FibMailbox* mail, u32 call, u64 word) {
  for (auto& line : mail->go) __atomic_store_n(&line[call], word, __ATOMIC_RELEASE);
}

static void pause_cpu(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

extern "C" {

u64 fib_sizes(int what) {
  const u64 sizes[] = {sizeof(FibMailbox), sizeof(FibCall), sizeof(FibInput), sizeof(FibOutput)};
  return what < 4 ? sizes[what] : 0;
}

// Where the table lies, for a check from outside.
u64 fib_table(void) { return (u64)&table; }

// Loads the device code and allocates what passes need. `flush_bytes`: one and a half times the L2 cache.
Status fib_open(const void* image, u32 multiprocessors, u32 shared_bytes, u64 flush_bytes, char* error,
                size_t error_size) {
  Driver& d = table.driver;
  if (d.multiprocessors) {  // it is set last
    Context now_current = nullptr;
    if (!d.current(&now_current) && now_current == d.context) return 0;
    snprintf(error, error_size, "the module is open for another device");
    return -1;
  }
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) {
    snprintf(error, error_size, "libcuda.so.1 cannot be loaded");
    return -1;
  }
  struct {
    void* slot;
    const char* name;
  } const symbols[] = {
      {&d.load, "cuModuleLoadData"}, {&d.function, "cuModuleGetFunction"}, {&d.function_name, "cuFuncGetName"},
      {&d.set_attribute, "cuFuncSetAttribute"}, {&d.create, "cuGraphCreate"},
      {&d.add_kernel, "cuGraphAddKernelNode_v2"}, {&d.add_child, "cuGraphAddChildGraphNode"},
      {&d.instantiate, "cuGraphInstantiateWithFlags"}, {&d.upload, "cuGraphUpload"}, {&d.launch, "cuGraphLaunch"},
      {&d.destroy, "cuGraphDestroy"}, {&d.destroy_executable, "cuGraphExecDestroy"}, {&d.nodes, "cuGraphGetNodes"},
      {&d.type, "cuGraphNodeGetType"}, {&d.child, "cuGraphChildGraphNodeGetGraph"},
      {&d.kernel_of, "cuGraphKernelNodeGetParams_v2"}, {&d.copy_of, "cuGraphMemcpyNodeGetParams"},
      {&d.set_of, "cuGraphMemsetNodeGetParams"}, {&d.kernel_attribute, "cuGraphKernelNodeGetAttribute"},
      {&d.pointer_attribute, "cuPointerGetAttribute"}, {&d.current, "cuCtxGetCurrent"},
      {&d.register_host, "cuMemHostRegister_v2"}, {&d.unregister_host, "cuMemHostUnregister"},
      {&d.device_pointer, "cuMemHostGetDevicePointer_v2"}, {&d.synchronise, "cuCtxSynchronize"},
      {&d.reset_lines, "cuCtxResetPersistingL2Cache"}, {&d.launch_kernel, "cuLaunchKernel"},
      {&d.error_name, "cuGetErrorName"}, {&d.allocate, "cuMemAlloc_v2"}, {&d.clear, "cuMemsetD8_v2"},
      {&d.copy_in, "cuMemcpyHtoD_v2"}, {&d.copy_out, "cuMemcpyDtoH_v2"},
  };
  for (const auto& symbol : symbols) {
    void* address = dlsym(library, symbol.name);
    if (!address) {
      snprintf(error, error_size, "the driver has no %s", symbol.name);
      return -1;
    }
    memcpy(symbol.slot, &address, sizeof address);
  }
  Module module;
  TRY(d.load(&module, image), "loading the device code");
  struct {
    Function* slot;
    const char* name;
  } const kernels[] = {
      {&d.wait, "fib_wait"}, {&d.fill, "fib_fill_inputs"}, {&d.flush, "fib_flush"}, {&d.pattern, "fib_pattern"},
      {&d.gate, "fib_gate"}, {&d.ready, "fib_ready"}, {&d.take, "fib_take"},
      {&d.digest, "fib_digest"}, {&d.tail, "fib_tail"}, {&d.redigest, "fib_redigest"}, {&d.reflush, "fib_reflush"},
      {&d.rejoin, "fib_rejoin"}, {&d.unwritten, "fib_unwritten"}, {&d.refill, "fib_refill"}, {&d.least, "fib_least"},
  };
  for (const auto& kernel : kernels) TRY(d.function(kernel.slot, module, kernel.name), kernel.name);
  TRY(d.set_attribute(d.flush, kMaxDynamicShared, (int)shared_bytes), "shared memory of the flush");
  // What precedes a call leaves multiprocessors as the flush does: another split of L1 and shared memory takes time.
  for (Function function : {d.wait, d.fill, d.gate, d.ready, d.take})
    TRY(d.set_attribute(function, kCarveout, 100), "split of L1 and shared memory");
  TRY(d.allocate(&d.state, sizeof(FibState)), "allocating the state of passes");
  TRY(d.clear(d.state, 0, sizeof(FibState)), "clearing the state of passes");
  TRY(d.allocate(&d.flush_buffer, flush_bytes), "allocating the flush buffer");
  d.flush_lines = flush_bytes / FIB_LINE_BYTES;
  TRY(d.current(&d.context), "asking for the context");
  d.multiprocessors = multiprocessors < FIB_BLOCKS ? multiprocessors : FIB_BLOCKS;
  d.flush_shared_bytes = shared_bytes;
  if (mprotect(&table, sizeof table, PROT_READ)) {
    snprintf(error, error_size, "the table of driver functions cannot be made read-only");
    return -1;
  }
  return 0;
}

// Writes the pattern of this worker into the flush buffer.
Status fib_seed(u64 pattern, char* error, size_t error_size) {
  const Driver& d = table.driver;
  u64 buffer = d.flush_buffer, lines = d.flush_lines;
  void* parameters[] = {&buffer, &lines, &pattern};
  TRY(d.launch_kernel(d.pattern, d.multiprocessors, 1, 1, 1024, 1, 1, 0, nullptr, parameters, nullptr), "the pattern");
  TRY(d.synchronise(), "the pattern");
  return 0;
}

Status fib_map_mailbox(void* host, u64* device, char* error, size_t error_size) {
  TRY(table.driver.register_host(host, 8192, 2 /* device map */), "registering the mailbox");
  TRY(table.driver.device_pointer(device, host, 0), "mapping the mailbox");
  return 0;
}

Status fib_unmap_mailbox(void* host) { return table.driver.unregister_host(host); }

static bool is_on_device(u64 address) {
  int kind = 0;  // 2: device memory
  Context owner = nullptr, current = nullptr;
  const Driver& d = table.driver;
  return d.pointer_attribute(&kind, kMemoryType, address) == 0 && kind == 2 && d.current(&current) == 0 &&
         (d.pointer_attribute(&owner, kContextOf, address) != 0 || owner == nullptr || owner == current);
}

// Whether a kernel is one of a handshake, whatever module it was loaded from.
static bool is_ours(Function function) {
  const char* name = nullptr;
  if (table.driver.function_name(&name, function) || !name) return false;
  for (const char* ours : {"fib_wait", "fib_fill_inputs", "fib_flush", "fib_gate", "fib_ready", "fib_take", "fib_digest",
                           "fib_tail"})
    if (!strcmp(name, ours)) return true;
  return false;
}

// Refuses what could outlast a call or run elsewhere than on the device. Counts the nodes that do something, and copies
// and fills among them.
Status fib_inspect(Graph graph, u64* counts, char* error, size_t error_size) {
  const Driver& d = table.driver;
  size_t count = 0;
  TRY(d.nodes(graph, nullptr, &count), "listing the captured nodes");
  if (count > 1 << 16) {
    snprintf(error, error_size, "the call consists of %zu nodes", count);
    return -1;
  }
  std::vector<Node> nodes(count);
  TRY(d.nodes(graph, nodes.data(), &count), "listing the captured nodes");
  for (Node node : nodes) {
    int type = -1;
    TRY(d.type(node, &type), "asking for the type of a node");
    const char* problem = nullptr;
    if (type == kKernel) {
      struct { int updatable; char rest[60]; void* handle; } value = {};
      if (d.kernel_attribute(node, kDeviceUpdatable, &value) == 0 && value.updatable)
        problem = "a kernel node that the device may update";
      KernelNode kernel = {};
      Context current = nullptr;
      TRY(d.kernel_of(node, &kernel), "asking for a kernel");
      TRY(d.current(&current), "asking for the context");
      if (kernel.context && kernel.context != current) problem = "a kernel of another context";
      if (kernel.function && is_ours(kernel.function)) problem = "a kernel of the harness";
      ++counts[0];
    } else if (type == kCopy) {
      MemoryCopy copy;
      TRY(d.copy_of(node, &copy), "asking for a copy's addresses");
      for (const auto* side : {&copy.from, &copy.to})
        if (side->kind == 1 || (side->kind != 3 && !is_on_device(side->device))) problem = "a copy from or to the host";
      ++counts[0], ++counts[1];
    } else if (type == kSet) {
      MemorySet set;
      TRY(d.set_of(node, &set), "asking for an address that is set");
      if (!is_on_device(set.target)) problem = "a node that sets memory of the host";
      ++counts[0], ++counts[1];
    } else if (type == kChild) {
      Graph inner;
      TRY(d.child(node, &inner), "asking for a child graph");
      if (const Status status = fib_inspect(inner, counts, error, error_size)) return status;
    } else if (type != kEmpty) {
      problem = type == 3 ? "a host function" : type == 6 || type == 7 ? "an event" : type == 8 || type == 9
                ? "a semaphore" : type == 10 || type == 11 ? "an allocation" : "a node of unknown kind";
    }
    if (problem) {
      snprintf(error, error_size, "the captured call contains %s", problem);
      return -1;
    }
  }
  return 0;
}

// The calls of a pass, in a worker.
struct FibPass {
  u64 mailbox;       // as the device sees it; on the CPU as the host does
  u64 host_mailbox;
  u64 timeout_ns;
  u32 calls, kind;
  u32 is_late, is_host;  // is_late: `go` is the key; is_host: the functions run on the CPU
  const Graph* graphs;   // one for each call, where calls were captured
  const FibCall* call;   // one for each call
  Stream stream;         // of eager calls
};

enum { kSolution = 0, kNothing = 1, kLeast = 2 };

static u32 blocks_for(u64 bytes, u32 most) {
  const u64 blocks = bytes / (kThreads * 32) + 1;
  return (u32)(blocks < most ? blocks : most);
}

static u64 filled_bytes(const FibCall& call) {
  u64 bytes = 0;
  for (u32 i = 0; i < call.inputs; ++i) bytes += call.input[i].elements * 2;
  for (u32 i = 0; i < call.outputs; ++i) bytes += call.output[i].bytes;
  return bytes;
}

// One kernel of a handshake: added to a graph, or launched.
struct Step {
  Graph graph;
  Node last;
  Stream stream;

  Status run(Function function, u32 blocks, u32 threads, u32 shared, void** parameters) {
    const Driver& d = table.driver;
    if (!graph) return d.launch_kernel(function, blocks, 1, 1, threads, 1, 1, shared, stream, parameters, nullptr);
    KernelNode node = {function, {blocks, 1, 1}, {threads, 1, 1}, shared, parameters, nullptr, nullptr, nullptr};
    Node added;
    const Status status = d.add_kernel(&added, graph, last ? &last : nullptr, last ? 1 : 0, &node);
    last = added;
    return status;
  }
};

// Fills the inputs of a call, poisons its outputs, or both.
static Status fill(Step& step, FibCall call, bool inputs, bool outputs) {
  u64 state = table.driver.state;
  if (!inputs) call.inputs = 0;
  if (!outputs) call.outputs = 0;
  void* parameters[] = {&state, &call};
  return step.run(table.driver.fill, blocks_for(filled_bytes(call), table.driver.multiprocessors * 4), kThreads, 0,
                  parameters);
}

// What comes before the clock: the key and the inputs, poison in the outputs, and the flush. In a pass without calls the
// outputs are written once more: a digest then finds them in the cache, not yet in memory, as after a call with small ones.
static Status prepare(Step& step, const FibPass& pass, int index, const FibCall& call, bool is_call) {
  const Driver& d = table.driver;
  u64 mailbox = pass.mailbox, state = d.state, timeout = pass.timeout_ns;
  u64 buffer = d.flush_buffer, lines = d.flush_lines;
  int keyed = !pass.is_late;
  void* wait[] = {&mailbox, &state, &index, &keyed, &timeout};
  if (const Status s = step.run(d.wait, 1, 1, 0, wait)) return s;
  if (const Status s = fill(step, call, keyed && is_call, true)) return s;
  void* flush[] = {&state, &buffer, &lines};
  if (const Status s = step.run(d.flush, d.multiprocessors, kFlushThreads, d.flush_shared_bytes, flush)) return s;
  return is_call ? 0 : fill(step, call, false, true);
}

static Status digest(Step& step, const FibPass& pass, int index, u64 host_go, FibCall& call) {
  const Driver& d = table.driver;
  u64 mailbox = pass.mailbox, state = d.state;
  int flush_blocks = (int)d.multiprocessors;
  void* parameters[] = {&mailbox, &state, &index, &host_go, &flush_blocks, &call};
  return step.run(d.digest, call.blocks, kThreads, 0, parameters);
}

// For each call: its preparation, the gate, the call, the digest. Where the cache is flushed before the clock, the same
// precedes it without the call: what drifts, or differs between graphs, is in both. Returns a graph that can be launched
// again and again.
Status fib_compose(const FibPass* pass, Executable* made, char* error, size_t error_size) {
  const Driver& d = table.driver;
  Graph graph;
  TRY(d.create(&graph, 0), "creating a pass");
  Step step = {graph, nullptr, nullptr};
  u64 mailbox = pass->mailbox, state = d.state, timeout = pass->timeout_ns;
  const bool is_paired = pass->kind == kSolution && !pass->is_late;
  const int each = is_paired ? 2 : 1;
  for (int index = 0; index < (int)pass->calls * each; ++index) {
    const int slot = index / each;
    const int kind = is_paired && index % 2 == 0 ? (int)kNothing : (int)pass->kind;
    FibCall call = pass->call[slot];
    for (u32 i = 0; i < call.outputs; ++i)
      if (call.output[i].bytes && !is_on_device(call.output[i].source)) {
        snprintf(error, error_size, "output %u of a captured call is not in memory of the device", i);
        d.destroy(graph);
        return -1;
      }
    TRY(prepare(step, *pass, index, call, kind == kSolution), "composing what comes before a call");
    int keyed = pass->is_late;
    void* gate[] = {&mailbox, &state, &index, &keyed, &timeout};
    TRY(step.run(d.gate, 1, 32 * FIB_POLLERS, 0, gate), "composing a gate");
    if (pass->is_late) TRY(fill(step, call, true, false), "composing inputs");
    if (kind == kSolution) {
      Node added;
      TRY(d.add_child(&added, graph, &step.last, 1, pass->graphs[slot]), "composing a call");
      step.last = added;
    } else if (kind == kLeast) {
      u64 from = 0, to = 0;
      u32 words = 0, count = 0;  // of the largest input, with at least a byte for each element, and the largest output
      const u32 most = call.blocks * kThreads;
      for (u32 i = 0; i < call.inputs; ++i) {
        const u32 there = (u32)std::min<u64>(call.input[i].elements / 16, most);
        if (there > words) from = call.input[i].target, words = there;
      }
      for (u32 i = 0; i < call.outputs; ++i) {
        const u32 there = call.output[i].source % 16 ? 0 : (u32)std::min<u64>(call.output[i].bytes / 16, most);
        if (there > count) to = call.output[i].source, count = there;
      }
      void* least[] = {&state, &from, &words, &to, &count};
      TRY(step.run(d.least, call.blocks, kThreads, 0, least), "composing the least call");
    }
    TRY(digest(step, *pass, index, 0, call), "composing a digest");
  }
  void* tail[] = {&mailbox};
  TRY(step.run(d.tail, 1, 1, 0, tail), "composing the tail");
  Status status = d.instantiate(made, graph, 0);
  d.destroy(graph);
  if (status) return fail(error, error_size, "instantiating a pass", status);
  if ((status = d.upload(*made, nullptr))) {
    d.destroy_executable(*made);
    return fail(error, error_size, "uploading a pass", status);
  }
  TRY(d.synchronise(), "uploading a pass");
  return 0;
}

Status fib_launch(Executable pass, char* error, size_t error_size) {
  TRY(table.driver.synchronise(), "work before a pass");
  TRY(table.driver.reset_lines(), "resetting lines that persist in the cache");
  TRY(table.driver.launch(pass, nullptr), "launching a pass");
  return 0;
}

Status fib_finish(char* error, size_t error_size) {
  TRY(table.driver.synchronise(), "a pass");
  return 0;
}

Status fib_discard(Executable pass) { return table.driver.destroy_executable(pass); }

// -- calls that the host launches -------------------------------------------------------------------------------------

static u64 wait_on_host(const u64* word, u64 timeout_ns) {
  const u64 begin = now();
  u64 value;
  while (!(value = __atomic_load_n(word, __ATOMIC_ACQUIRE))) {
    const u64 waited = now() - begin;
    if (waited > timeout_ns) return 1;
    if (waited > 50000) sched_yield(); else pause_cpu();
  }
  return value;
}

void fib_generate(const FibInput* inputs, int count, u64 key) {
  for (int i = 0; i < count; ++i) fib_fill(inputs[i], key, 0, 1);
}

static void poison_on_host(const FibCall& call, u64 start) {
  const u64 poison = fib_poison(start);
  for (u32 i = 0; i < call.outputs; ++i) {
    char* target = (char*)call.output[i].source;
    u64 k = 0;
    for (; k + 8 <= call.output[i].bytes; k += 8) memcpy(target + k, &poison, 8);
    memcpy(target + k, &poison, call.output[i].bytes - k);
  }
}

static u64 digest_on_host(const FibCall& call, u64 seed, u64 go, u64 offset, bool copies) {
  u64 h = fib_begin(seed, go, 0);
  for (u32 i = 0; i < call.outputs; ++i) {
    const FibOutput& out = call.output[i];
    const char* source = (const char*)out.source + offset;
    u64 k = 0;
    for (; k + 8 <= out.bytes; k += 8) {
      u64 word;
      memcpy(&word, source + k, 8);
      h = fib_absorb(h, word);
    }
    u64 rest = 0;
    memcpy(&rest, source + k, out.bytes - k);
    h = fib_absorb(h, rest ^ out.bytes);
    if (copies && out.target) memcpy((void*)out.target, source, out.bytes);
  }
  return fib_scramble(h) | 1;
}

// Prepares an eager call: its inputs and the flush.
Status fib_prepare(const FibPass* pass, int index, char* error, size_t error_size) {
  FibMailbox* mail = (FibMailbox*)pass->host_mailbox;
  if (pass->is_host) {
    const u64 start = wait_on_host(&mail->start[index], pass->timeout_ns);
    __atomic_store_n(&mail->start[index], 0, __ATOMIC_RELEASE);
    host_state.seed = fib_one_way(start);
    const FibCall& call = pass->call[index];
    if (!pass->is_late) fib_generate(call.input, (int)call.inputs, start);
    poison_on_host(call, start);
    __atomic_store_n(&mail->ready[index], 1, __ATOMIC_RELEASE);
    return 0;
  }
  Step step = {nullptr, nullptr, pass->stream};
  u64 mailbox = pass->mailbox, state = table.driver.state;
  TRY(prepare(step, *pass, index, pass->call[index], pass->kind == kSolution), "launching what comes before a call");
  void* ready[] = {&mailbox, &state, &index};
  TRY(step.run(table.driver.ready, 1, 1, 0, ready), "launching what comes before a call");
  return 0;
}

// Waits until the clock runs; where `go` is the key, makes the inputs.
Status fib_await(const FibPass* pass, int index, char* error, size_t error_size) {
  FibMailbox* mail = (FibMailbox*)pass->host_mailbox;
  const bool is_taken = pass->is_host || !pass->is_late;  // else the device takes the word
  const u64 go = wait_on_host(&mail->go[FIB_POLLERS - 1][index], pass->timeout_ns);
  if (is_taken) set_go(mail, index, 0);
  host_state.go = fib_one_way(go);
  if (pass->is_host) {
    if (pass->is_late) fib_generate(pass->call[index].input, (int)pass->call[index].inputs, go);
    host_began = now();
    return 0;
  }
  if (!pass->is_late) return 0;
  Step step = {nullptr, nullptr, pass->stream};
  u64 mailbox = pass->mailbox, state = table.driver.state;
  int keyed = 1;
  void* take[] = {&mailbox, &state, &index, &keyed};
  TRY(step.run(table.driver.take, 1, 1, 0, take), "launching the key");
  TRY(fill(step, pass->call[index], true, false), "launching inputs");
  return 0;
}

// Ends an eager call, whose outputs lie at `sources` if given; the digest stops the clock.
Status fib_stop(const FibPass* pass, int index, const u64* sources, char* error, size_t error_size) {
  const u64 taken = now() - host_began;
  FibCall call = pass->call[index];
  for (u32 i = 0; sources && i < call.outputs; ++i) call.output[i].source = sources[i];
  if (pass->is_host) {
    FibMailbox* mail = (FibMailbox*)pass->host_mailbox;
    const u64 found = digest_on_host(call, host_state.seed, host_state.go, 0, true);
    mail->own_ns[index] = taken < ~0u ? (u32)taken : ~0u;
    __atomic_store_n(&mail->stop[index], found, __ATOMIC_RELEASE);
    return 0;
  }
  Step step = {nullptr, nullptr, pass->stream};
  TRY(digest(step, *pass, index, host_state.go, call), "launching a digest");
  return 0;
}

// -- the judge's ----------------------------------------------------------------------------------------------------

// The clock of a pass. Zero before a pass; the loop goes on where it has stopped.
struct FibClock {
  u32 call, phase;  // phase 0: before `start`; 1: waits for `ready`; 2: waits for `stop`
  u64 end;          // when the device had ended the pass
  u64 repeated;     // bits of calls whose stop was written again after it had been read, by the harness's own digest,
                    // or whose words were there before the call could be prepared
  u64 t0[FIB_MAX_CALLS], t1[FIB_MAX_CALLS], stop[FIB_MAX_CALLS];
};

static void note_repeated(const FibMailbox* mail, FibClock* clock, u32 call) {
  if (__atomic_load_n(&mail->stop[call], __ATOMIC_ACQUIRE)) clock->repeated |= 1ull << call;
}

// Prepares and times call after call: `start`, wait for `ready`, a random delay, the clock, `go`, wait for `stop`.
// `patience_ns`: sleeps so long after `go`, for calls that need all cores. Returns 0 at the end, 1 after `slice_ns`
// without an answer: the judge then looks whether the worker lives, and calls again. A stop is removed once it is
// read: a call that writes it itself, before the digest that follows the call, is found by the second one.
// `yields`: leaves the core to others while it waits. `ends_on_device`: waits for the end of the pass as well.
int fib_clock(FibMailbox* mail, FibClock* clock, int calls, const u64* start, const u64* go, const u32* delay_ns,
              u64 patience_ns, int yields, int ends_on_device, u64 slice_ns) {
  u64 since = now();
  for (;;) {
    const u32 k = clock->call;
    if (k == (u32)calls) {
      while (ends_on_device && !__atomic_load_n(&mail->end, __ATOMIC_ACQUIRE)) {
        pause_cpu();
        if (now() - since > slice_ns) return 1;
      }
      clock->end = now();
      for (int i = 0; i < calls; ++i) note_repeated(mail, clock, i);
      return 0;
    }
    if (clock->phase == 0) {
      if (__atomic_load_n(&mail->ready[k], __ATOMIC_ACQUIRE)) clock->repeated |= 1ull << k;
      note_repeated(mail, clock, k);  // nothing has been prepared yet
      __atomic_store_n(&mail->start[k], start[k], __ATOMIC_RELEASE);
      clock->phase = 1;
    }
    if (clock->phase == 1) {
      while (!__atomic_load_n(&mail->ready[k], __ATOMIC_ACQUIRE)) {
        if (yields) sched_yield(); else pause_cpu();
        if (now() - since > slice_ns) return 1;
      }
      if (k > 0) note_repeated(mail, clock, k - 1);  // that call's own digest precedes this preparation
      const u64 until = now() + delay_ns[k];
      while (now() < until) pause_cpu();
      clock->t0[k] = now();
      set_go(mail, k, go[k]);
      clock->phase = 2;
      if (patience_ns) {
        const timespec rest = {(time_t)(patience_ns / 1000000000ull), (long)(patience_ns % 1000000000ull)};
        nanosleep(&rest, nullptr);
      }
    }
    u64 value;
    while (!(value = __atomic_load_n(&mail->stop[k], __ATOMIC_ACQUIRE))) {
      if (yields) sched_yield(); else pause_cpu();
      if (now() - since > slice_ns) return 1;
    }
    clock->t1[k] = now();
    clock->stop[k] = value;
    __atomic_store_n(&mail->stop[k], 0, __ATOMIC_RELEASE);
    clock->phase = 0;
    clock->call = k + 1;
    since = clock->t1[k];
  }
}

// The digests of calls from copies of their outputs, with what their flushes must have found.
// `words`: seed, go and key of each call, on the device; `scratch`: room for calls x (2 x FIB_BLOCKS) words there;
// `digests`: the word that stopped the clock, for each call there; `counts`: a u32 for each call there, zero before.
Status fib_recompute(const FibCall* outputs, int calls, u64 words, u64 pattern, u64 flush_lines, u64 scratch,
                     u64 digests, u64 counts, Stream stream, char* error, size_t error_size) {
  const Driver& d = table.driver;
  FibCall all = *outputs;
  u64 partials = scratch, flushes = scratch + (u64)calls * FIB_BLOCKS * 8;
  int blocks = (int)all.blocks, flush_blocks = (int)d.multiprocessors;
  void* redigest[] = {&all, &words, &partials};
  TRY(d.launch_kernel(d.redigest, all.blocks, calls, 1, kThreads, 1, 1, 0, stream, redigest, nullptr), "digests");
  void* reflush[] = {&flush_lines, &pattern, &words, &calls, &flushes};
  TRY(d.launch_kernel(d.reflush, d.multiprocessors, calls, 1, kFlushThreads, 1, 1, 0, stream, reflush, nullptr),
      "flushes");
  void* rejoin[] = {&partials, &blocks, &flushes, &flush_blocks, &digests};
  TRY(d.launch_kernel(d.rejoin, calls, 1, 1, kThreads, 1, 1, 0, stream, rejoin, nullptr), "digests");
  void* unwritten[] = {&all, &words, &counts};
  TRY(d.launch_kernel(d.unwritten, all.blocks, calls, 1, kThreads, 1, 1, 0, stream, unwritten, nullptr), "poison");
  return 0;
}

// The same on the CPU; returns how many calls still hold poison in their outputs, a bit for each.
u64 fib_recompute_on_host(const FibCall* outputs, int calls, const u64* words, u64* digests) {
  u64 unwritten = 0;
  for (int call = 0; call < calls; ++call) {
    const u64 offset = outputs->stride * call, poison = fib_poison(words[3 * call]);
    const u64 seed = fib_one_way(words[3 * call]), go = fib_one_way(words[3 * call + 1]);
    digests[call] = digest_on_host(*outputs, seed, go, offset, false);
    for (u32 i = 0; i < outputs->outputs; ++i)
      for (u64 k = 0; k + 8 <= outputs->output[i].bytes; k += 8)
        if (!memcmp((const char*)outputs->output[i].source + offset + k, &poison, 8)) unwritten |= 1ull << call;
  }
  return unwritten;
}

// Makes the inputs of a call from its key.
Status fib_refill(const FibCall* call, u64 key, int is_host, Stream stream, char* error, size_t error_size) {
  if (is_host) {
    fib_generate(call->input, (int)call->inputs, key);
    return 0;
  }
  const Driver& d = table.driver;
  FibCall copy = *call;
  void* parameters[] = {&key, &copy};
  TRY(d.launch_kernel(d.refill, blocks_for(filled_bytes(copy), d.multiprocessors * 4), 1, 1, kThreads, 1, 1, 0, stream,
                      parameters, nullptr), "inputs");
  return 0;
}

}  // extern "C"
