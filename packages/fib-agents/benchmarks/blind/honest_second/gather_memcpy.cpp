// class: C++ with memcpy and prefetching
#include <cstdint>
#include <cstring>
#include <future>
#include <vector>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

using tvm::ffi::TensorView;

void run(TensorView pages, TensorView indptr, TensorView indices, TensorView out) {
  const size_t bytes = static_cast<size_t>(pages.size(1) * pages.size(2)) * 2;
  const char* from = static_cast<const char*>(pages.data_ptr());
  char* to = static_cast<char*>(out.data_ptr());
  const int32_t* index = static_cast<const int32_t*>(indices.data_ptr());
  const int64_t used = indices.size(0), count = pages.size(0);
  auto copy = [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (index[i] < 0 || index[i] >= count) TVM_FFI_THROW(IndexError) << "page " << index[i] << " of " << count;
      if (i + 1 < end) __builtin_prefetch(from + static_cast<size_t>(index[i + 1]) * bytes);
      std::memcpy(to + static_cast<size_t>(i) * bytes, from + static_cast<size_t>(index[i]) * bytes, bytes);
    }
  };
  if (used < 4096) return copy(0, used);
  std::vector<std::future<void>> parts;
  const int64_t workers = 4;
  for (int64_t w = 0; w < workers; ++w)
    parts.push_back(std::async(std::launch::async, copy, used * w / workers, used * (w + 1) / workers));
  for (auto& part : parts) part.get();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
