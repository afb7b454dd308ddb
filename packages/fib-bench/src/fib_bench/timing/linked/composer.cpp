// Composition, inspection and launch of linked passes, and the judge's clock around them.
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

#include <cstddef>
#include <initializer_list>

#include "passes.h"

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

struct ProgrammaticEdge {  // CUgraphEdgeData
  unsigned char from_port, to_port, type, reserved[5];
};

struct Driver {
  Status (*load)(Module*, const void*);
  Status (*function)(Function*, Module, const char*);
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
  Status (*copy_of)(Node, MemoryCopy*);
  Status (*set_of)(Node, MemorySet*);
  Status (*kernel_attribute)(Node, int, void*);
  Status (*pointer_attribute)(void*, int, u64);
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
  Function head, link, flush, digest, tail, chain, unwritten, write, empty;
  u32 multiprocessors, flush_shared_bytes;
  u64 state, flush_buffer, flush_lines;
};

static union {
  Driver driver;
  char page[4096];
} table __attribute__((aligned(4096)));
static_assert(sizeof(Driver) <= 4096, "one page");

enum { kKernel = 0, kCopy = 1, kSet = 2, kChild = 4, kEmpty = 5 };
enum { kThreads = 256, kFlushThreads = 1024, kMaxDynamicShared = 8, kDeviceUpdatable = 13, kMemoryType = 2 };

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

extern "C" {

u64 fib_sizes(int what) {
  const u64 sizes[] = {sizeof(FibMailbox), sizeof(FibState), sizeof(FibLink), sizeof(FibDigest), sizeof(FibInput),
                       sizeof(FibOutput)};
  return what < 6 ? sizes[what] : 0;
}

// The device memory that holds the links of a pass.
u64 fib_state(void) { return table.driver.state; }

// Where the table lies, for a check from outside.
u64 fib_table(void) { return (u64)&table; }

// Loads the device code and allocates what passes need. `flush_bytes`: three times the L2 cache.
Status fib_open(const void* image, u32 multiprocessors, u32 shared_bytes, u64 flush_bytes, char* error,
                size_t error_size) {
  Driver& d = table.driver;
  if (d.load) return 0;
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) {
    snprintf(error, error_size, "libcuda.so.1 cannot be loaded");
    return -1;
  }
  struct {
    void* slot;
    const char* name;
  } const symbols[] = {
      {&d.load, "cuModuleLoadData"}, {&d.function, "cuModuleGetFunction"}, {&d.set_attribute, "cuFuncSetAttribute"},
      {&d.create, "cuGraphCreate"}, {&d.add_kernel, "cuGraphAddKernelNode_v2"},
      {&d.add_child, "cuGraphAddChildGraphNode"}, {&d.instantiate, "cuGraphInstantiateWithFlags"},
      {&d.upload, "cuGraphUpload"}, {&d.launch, "cuGraphLaunch"}, {&d.destroy, "cuGraphDestroy"},
      {&d.destroy_executable, "cuGraphExecDestroy"}, {&d.nodes, "cuGraphGetNodes"}, {&d.type, "cuGraphNodeGetType"},
      {&d.child, "cuGraphChildGraphNodeGetGraph"}, {&d.copy_of, "cuGraphMemcpyNodeGetParams"},
      {&d.set_of, "cuGraphMemsetNodeGetParams"}, {&d.kernel_attribute, "cuGraphKernelNodeGetAttribute"},
      {&d.pointer_attribute, "cuPointerGetAttribute"}, {&d.register_host, "cuMemHostRegister_v2"},
      {&d.unregister_host, "cuMemHostUnregister"}, {&d.device_pointer, "cuMemHostGetDevicePointer_v2"},
      {&d.synchronise, "cuCtxSynchronize"},
      {&d.reset_lines, "cuCtxResetPersistingL2Cache"}, {&d.launch_kernel, "cuLaunchKernel"}, {&d.error_name, "cuGetErrorName"}, {&d.allocate, "cuMemAlloc_v2"},
      {&d.clear, "cuMemsetD8_v2"}, {&d.copy_in, "cuMemcpyHtoD_v2"}, {&d.copy_out, "cuMemcpyDtoH_v2"},
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
      {&d.head, "fib_head"}, {&d.link, "fib_link"}, {&d.flush, "fib_flush"}, {&d.digest, "fib_digest"},
      {&d.tail, "fib_tail"}, {&d.chain, "fib_chain"}, {&d.unwritten, "fib_unwritten"}, {&d.write, "fib_write"},
      {&d.empty, "fib_empty"},
  };
  for (const auto& kernel : kernels) TRY(d.function(kernel.slot, module, kernel.name), kernel.name);
  TRY(d.set_attribute(d.flush, kMaxDynamicShared, (int)shared_bytes), "shared memory of the flush");
  TRY(d.allocate(&d.state, sizeof(FibState)), "allocating the state of passes");
  TRY(d.clear(d.state, 0, sizeof(FibState)), "clearing the state of passes");
  if (flush_bytes) TRY(d.allocate(&d.flush_buffer, flush_bytes), "allocating the flush buffer");
  d.flush_lines = flush_bytes / FIB_LINE_BYTES;
  d.multiprocessors = multiprocessors;
  d.flush_shared_bytes = shared_bytes;
  if (mprotect(&table, sizeof table, PROT_READ)) {
    snprintf(error, error_size, "the table of driver functions cannot be made read-only");
    return -1;
  }
  return 0;
}

Status fib_map_mailbox(void* host, u64* device, char* error, size_t error_size) {
  TRY(table.driver.register_host(host, 4096, 2 /* device map */), "registering the mailbox");
  TRY(table.driver.device_pointer(device, host, 0), "mapping the mailbox");
  TRY(table.driver.clear(table.driver.state, 0, sizeof(FibState)), "clearing the state of passes");  // counts from 1
  return 0;
}

Status fib_unmap_mailbox(void* host) { return table.driver.unregister_host(host); }

static bool is_on_device(u64 address) {
  int kind = 0;  // 2: device memory
  return table.driver.pointer_attribute(&kind, kMemoryType, address) == 0 && kind == 2;
}

// Refuses what could outlast a call or run elsewhere than on the device. Counts the nodes that do something.
Status fib_inspect(Graph graph, u64* work, char* error, size_t error_size) {
  const Driver& d = table.driver;
  size_t count = 0;
  TRY(d.nodes(graph, nullptr, &count), "listing the captured nodes");
  if (count > 4096) {
    snprintf(error, error_size, "the call consists of %zu nodes (at most 4096 can be timed)", count);
    return -1;
  }
  Node nodes[4096];
  TRY(d.nodes(graph, nodes, &count), "listing the captured nodes");
  for (size_t i = 0; i < count; ++i) {
    int type = -1;
    TRY(d.type(nodes[i], &type), "asking for the type of a node");
    const char* problem = nullptr;
    if (type == kKernel) {
      struct { int updatable; char rest[60]; void* handle; } value = {};
      if (d.kernel_attribute(nodes[i], kDeviceUpdatable, &value) == 0 && value.updatable)
        problem = "a kernel node that the device may update";
      ++*work;
    } else if (type == kCopy) {
      MemoryCopy copy;
      TRY(d.copy_of(nodes[i], &copy), "asking for a copy's addresses");
      for (const auto* side : {&copy.from, &copy.to})
        if (side->kind == 1 || (side->kind != 3 && !is_on_device(side->device))) problem = "a copy from or to the host";
      ++*work;
    } else if (type == kSet) {
      MemorySet set;
      TRY(d.set_of(nodes[i], &set), "asking for an address that is set");
      if (!is_on_device(set.target)) problem = "a node that sets memory of the host";
      ++*work;
    } else if (type == kChild) {
      Graph inner;
      TRY(d.child(nodes[i], &inner), "asking for a child graph");
      if (const Status status = fib_inspect(inner, work, error, error_size)) return status;
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

struct FibPass {
  u64 mailbox, timeout_ns, flush_ns;
  u32 calls, slots, kind, padding;
  const Graph* graphs;       // one for each slot; kind 0
  const FibLink* links;      // one for each slot
  const FibDigest* digests;  // one for each call
};

enum { kSolution = 0, kWrite = 1, kNothing = 2 };

static Status add(Graph graph, Node* last, Function function, u32 blocks, u32 threads, u32 shared, void** parameters) {
  KernelNode node = {function, {blocks, 1, 1}, {threads, 1, 1}, shared, parameters, nullptr, nullptr, nullptr};
  Node added;
  const Status status = table.driver.add_kernel(&added, graph, last, *last ? 1 : 0, &node);
  *last = added;
  return status;
}

static u32 link_blocks(const FibLink& link) {
  u64 bytes = 0;
  for (u32 i = 0; i < link.inputs; ++i) bytes += link.input[i].bytes;
  for (u32 i = 0; i < link.outputs; ++i) bytes += link.output[i].bytes / 4;
  const u64 blocks = bytes / (256 * 16 * 8) + 1, most = (u64)table.driver.multiprocessors * 8;
  return (u32)(blocks < most ? blocks : most);
}

static u32 write_blocks(const FibDigest& digest) {
  u64 bytes = 0;
  for (u32 i = 0; i < digest.outputs; ++i) bytes += digest.output[i].bytes;
  const u64 blocks = bytes / (kThreads * 16) + 1, most = (u64)table.driver.multiprocessors * 8;
  return (u32)(blocks < most ? blocks : most);
}

// Head; for each call: link, flush, call, digest; tail. Returns a graph that can be launched again and again.
Status fib_compose(const FibPass* pass, Executable* made, char* error, size_t error_size) {
  const Driver& d = table.driver;
  Graph graph;
  TRY(d.create(&graph, 0), "creating a pass");
  for (u32 call = 0; call < pass->calls; ++call)
    for (u32 i = 0; i < pass->digests[call].outputs; ++i)
      if (!is_on_device(pass->digests[call].output[i].source)) {
        snprintf(error, error_size, "output %u of a captured call is not in memory of the device", i);
        d.destroy(graph);
        return -1;
      }
  Node last = nullptr;
  u64 mailbox = pass->mailbox, state = d.state, buffer = d.flush_buffer, lines = d.flush_lines;
  u64 partials = state + offsetof(FibState, partials), timeout = pass->timeout_ns, flush_ns = pass->flush_ns;
  void* head[] = {&mailbox, &state, &timeout};
  TRY(add(graph, &last, d.head, 1, kThreads, 0, head), "composing the head");
  u32 blocks = 0;
  for (int call = 0; call < (int)pass->calls; ++call) {
    FibLink link = pass->links[call % pass->slots];
    FibDigest digest = pass->digests[call];
    void* links[] = {&state, &call, &blocks, &link};
    TRY(add(graph, &last, d.link, link_blocks(link), kThreads, 0, links), "composing a link");
    void* flush[] = {&state, &call, &buffer, &lines, &flush_ns};
    TRY(add(graph, &last, d.flush, d.multiprocessors, kFlushThreads, d.flush_shared_bytes, flush), "composing a flush");
    Node added;
    void* write[] = {&digest};
    if (pass->kind == kSolution) {
      TRY(d.add_child(&added, graph, &last, 1, pass->graphs[call % pass->slots]), "composing a call");
      last = added;
    } else if (pass->kind == kWrite) {
      TRY(add(graph, &last, d.write, write_blocks(digest), kThreads, 0, write), "composing a known call");
    } else {
      TRY(add(graph, &last, d.empty, 1, 32, 0, nullptr), "composing an empty call");
    }
    blocks = digest.blocks;
    void* digests[] = {&state, &digest, &partials};
    TRY(add(graph, &last, d.digest, digest.blocks, kThreads, 0, digests), "composing a digest");
  }
  int calls = (int)pass->calls;
  void* tail[] = {&mailbox, &state, &calls, &blocks};
  TRY(add(graph, &last, d.tail, 1, kThreads, 0, tail), "composing the tail");
  const Status status = d.instantiate(made, graph, 0);
  d.destroy(graph);
  if (status) return fail(error, error_size, "instantiating a pass", status);
  TRY(d.upload(*made, nullptr), "uploading a pass");
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

// -- the judge's ----------------------------------------------------------------------------------------------------

static u64 now(void) {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC_RAW, &time);
  return (u64)time.tv_sec * 1000000000ull + (u64)time.tv_nsec;
}

static void pause_cpu(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Waits until the device stands before a pass; 0 when it does.
Status fib_wait_armed(FibMailbox* mail, u64 pass, u64 timeout_ns) {
  const u64 begin = now();
  while (__atomic_load_n(&mail->armed, __ATOMIC_ACQUIRE) != pass) {
    if (now() - begin > timeout_ns) return -1;
    sched_yield();
  }
  return 0;
}

// Starts the clock, sends the nonce, stops the clock on the digest. Nanoseconds, or 0 where it does not come.
u64 fib_time_pass(FibMailbox* mail, u64 pass, const u64* nonce, u64 timeout_ns) {
  for (int i = 0; i < 4; ++i) __atomic_store_n(&mail->nonce[i], nonce[i], __ATOMIC_RELAXED);
  const u64 begin = now();
  __atomic_store_n(&mail->go, pass, __ATOMIC_RELEASE);
  while (__atomic_load_n(&mail->done, __ATOMIC_ACQUIRE) != pass) {
    pause_cpu();
    if (now() - begin > timeout_ns) return 0;
  }
  return now() - begin;
}

// Recomputes the links of a pass from the outputs in all slots, and waits for the last digest.
// `partials`: room for calls x blocks x 16 bytes. `counts`: a u32 for each call, zero before.
Status fib_recompute(const u64* nonce, const FibDigest* digest, int calls, u64 partials, u64 counts, u64* last,
                     Stream stream, char* error, size_t error_size) {
  const Driver& d = table.driver;
  u64 state = d.state;
  TRY(d.copy_in(state + offsetof(FibState, nonce), nonce, 4 * sizeof(u64)), "the nonce");
  FibDigest all = *digest;
  int blocks = (int)all.blocks;
  void* digests[] = {&state, &all, &partials};
  TRY(d.launch_kernel(d.digest, all.blocks, calls, 1, kThreads, 1, 1, 0, stream, digests, nullptr), "digests");
  void* chain[] = {&state, &partials, &calls, &blocks};
  TRY(d.launch_kernel(d.chain, 1, 1, 1, kThreads, 1, 1, 0, stream, chain, nullptr), "links");
  void* unwritten[] = {&state, &all, &counts};
  TRY(d.launch_kernel(d.unwritten, all.blocks, calls, 1, kThreads, 1, 1, 0, stream, unwritten, nullptr), "poison");
  TRY(d.synchronise(), "recomputing a pass");
  TRY(d.copy_out(last, state + offsetof(FibState, chain) + 16 * (u64)calls, 16), "the last digest");
  return 0;
}

// Makes the inputs of one call of a pass anew, from the same candidates.
Status fib_relink(int call, const FibLink* link, Stream stream, char* error, size_t error_size) {
  const Driver& d = table.driver;
  FibLink copy = *link;
  u64 state = d.state;
  int blocks = 0;
  void* parameters[] = {&state, &call, &blocks, &copy};
  TRY(d.launch_kernel(d.link, link_blocks(copy), 1, 1, kThreads, 1, 1, 0, stream, parameters, nullptr), "a link");
  return 0;
}

}  // extern "C"
