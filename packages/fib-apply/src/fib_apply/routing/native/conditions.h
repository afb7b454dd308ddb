// Conditions of a call: properties that later calls must have too, and their comparison with those of a call.
//
// The GIL protects all state. Python code runs only where a comment says so.

#pragma once

#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/python_variable.h>

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/TensorBase.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <new>
#include <vector>

#ifdef Py_GIL_DISABLED
#error "the tables of this module are protected by the GIL"
#endif

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

constexpr Py_ssize_t kMaxArguments = 64;

PyTypeObject* device_mode = nullptr;  // the torch function mode of a default device
PyObject* is_capturing = nullptr;     // whether a CUDA graph is captured in the current stream

// The keys of plain strided tensors. Sizes and addresses of other tensors may be virtual, or end the process.
const DispatchKeySet plain_keys = DispatchKeySet({
    DispatchKey::CPU, DispatchKey::CUDA, DispatchKey::Meta, DispatchKey::ADInplaceOrView,
    DispatchKey::AutogradCPU, DispatchKey::AutogradCUDA, DispatchKey::AutogradMeta,
    DispatchKey::AutocastCPU, DispatchKey::AutocastCUDA, DispatchKey::Conjugate, DispatchKey::Negative});

// The tensor of an argument, if it is a plain one; else null.
const at::Tensor* plain_tensor(PyObject* value) {
  PyTypeObject* type = Py_TYPE(value);
  if (!THPVariable_CheckTypeExact(type) &&
      !PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(THPVariableClass))) {
    return nullptr;
  }
  const at::Tensor& tensor = THPVariable_Unpack(value);
  if (!tensor.defined() || (tensor.key_set().raw_repr() & ~plain_keys.raw_repr()) != 0) {
    return nullptr;
  }
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return impl->has_symbolic_sizes_strides() || !impl->has_storage() ? nullptr : &tensor;
}

uint64_t mixed(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ULL;
  return hash ^ (hash >> 29);
}

// A hash of the sizes of all tensors and the types of all other arguments. False for a tensor that is not plain.
bool hash_of(PyObject* const* args, Py_ssize_t count, uint64_t* hash) {
  uint64_t found = static_cast<uint64_t>(count);
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (const at::Tensor* tensor = plain_tensor(args[i])) {
      for (int64_t size : tensor->sizes()) {
        found = mixed(found, static_cast<uint64_t>(size));
      }
      found = mixed(found, ~static_cast<uint64_t>(tensor->dim()));
    } else if (PyType_IsSubtype(Py_TYPE(args[i]), reinterpret_cast<PyTypeObject*>(THPVariableClass))) {
      return false;
    } else {
      found = mixed(found, reinterpret_cast<uintptr_t>(Py_TYPE(args[i])));
    }
  }
  *hash = found;
  return true;
}

// Whether a mode is active that may change what functions of torch do. A default device concerns no kernel.
bool has_function_mode() {
  const int64_t length = at::impl::PythonTorchFunctionTLS::stack_len();
  for (int64_t i = 0; i < length; ++i) {
    PyObject* mode = at::impl::PythonTorchFunctionTLS::get_stack_at(i)->ptr(getPyInterpreter());
    if (Py_TYPE(mode) != device_mode) {
      return true;
    }
  }
  return false;
}

// Whether two floats or integers, of one type and no subclass, are the same object or equal.
bool are_equal(PyObject* one, PyObject* other) {
  if (PyFloat_CheckExact(one)) {
    return one == other || PyFloat_AS_DOUBLE(one) == PyFloat_AS_DOUBLE(other);
  }
  return PyObject_RichCompareBool(one, other, Py_EQ) == 1;
}

// What must be equal in one argument.
struct Argument {
  PyTypeObject* type = nullptr;  // a strong reference
  bool is_tensor = false;
  bool requires_grad = false;
  int same = -1;                 // the argument that is the same object; else no earlier tensor may be
  PyObject* number = nullptr;    // a strong reference to the value that a number must have; null for any
  c10::DeviceType device_type = c10::DeviceType::CPU;
  c10::DeviceIndex device_index = -1;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  DispatchKeySet keys;
  int64_t bytes = 0;             // from its first to its last element, those in between included
  size_t dims = 0;
  size_t extents = 0;            // where its sizes begin, with the strides behind them
};

struct Conditions {
  std::vector<Argument> arguments;
  std::vector<int64_t> extents;
  uint64_t hash = 0;
  DispatchKeySet included, excluded;
  c10::ScalarType default_dtype = c10::ScalarType::Undefined;
  uintptr_t alignment_mask = 0;
  Py_ssize_t outputs = 0;
  bool has_grad = false;
  bool checks_grad = false;
  bool checks_capture = false;
  bool checks_device = false;
  bool ignores_sizes = false;    // but not numbers of dimensions
};

bool has_tangent(const at::Tensor& tensor) {
  const c10::AutogradMetaInterface* meta = tensor.unsafeGetTensorImpl()->autograd_meta();
  return meta != nullptr && meta->fw_grad(0, tensor).defined();
}

template <bool kComparesSizes>
bool equals(const Argument& expected, const int64_t* extents, PyObject* value) {
  if (Py_TYPE(value) != expected.type) {
    return false;
  }
  if (!expected.is_tensor) {
    return expected.number == nullptr || are_equal(expected.number, value);
  }
  const at::Tensor& tensor = THPVariable_Unpack(value);
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (impl->key_set() != expected.keys || impl->has_symbolic_sizes_strides() || !impl->has_storage()) {
    return false;
  }
  const c10::IntArrayRef sizes = impl->sizes(), strides = impl->strides();
  if (sizes.size() != expected.dims) {
    return false;
  }
  for (size_t i = 0; kComparesSizes && i < expected.dims; ++i) {
    if (sizes[i] != extents[i] || strides[i] != extents[expected.dims + i]) {
      return false;
    }
  }
  const c10::Device device = impl->device();
  if (device.type() != expected.device_type || device.index() != expected.device_index) {
    return false;
  }
  return c10::typeMetaToScalarType(impl->dtype()) == expected.dtype &&
      impl->requires_grad() == expected.requires_grad && !has_tangent(tensor);
}

template <bool kComparesSizes>
bool all_equal(const Conditions& expected, PyObject* const* args) {
  for (const Argument& argument : expected.arguments) {
    const int64_t* extents = expected.extents.data() + argument.extents;
    if (!equals<kComparesSizes>(argument, extents, args[&argument - expected.arguments.data()])) {
      return false;
    }
  }
  return true;
}

// Whether no tensor is passed twice, unless it was when the guard was made.
bool has_equal_duplicates(const Conditions& expected, PyObject* const* args) {
  const size_t count = expected.arguments.size();
  for (size_t i = 1; i < count; ++i) {
    const Argument& argument = expected.arguments[i];
    if (!argument.is_tensor) {
      continue;
    }
    if (argument.same >= 0) {
      if (args[i] != args[argument.same]) {
        return false;
      }
      continue;
    }
    for (size_t j = 0; j < i; ++j) {
      if (args[i] == args[j]) {
        return false;
      }
    }
  }
  return true;
}

// Whether addresses are aligned, and no output overlaps another argument.
bool has_valid_addresses(const Conditions& expected, PyObject* const* args) {
  const Py_ssize_t count = static_cast<Py_ssize_t>(expected.arguments.size());
  uintptr_t addresses[kMaxArguments];
  uintptr_t all = 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    addresses[i] = 0;
    if (expected.arguments[i].is_tensor) {
      addresses[i] = reinterpret_cast<uintptr_t>(THPVariable_Unpack(args[i]).const_data_ptr());
      all |= addresses[i];
    }
  }
  if (all & expected.alignment_mask) {
    return false;
  }
  for (Py_ssize_t i = count - expected.outputs; i < count; ++i) {
    for (Py_ssize_t j = 0; j < i; ++j) {
      if (expected.arguments[j].is_tensor && addresses[i] < addresses[j] + expected.arguments[j].bytes &&
          addresses[j] < addresses[i] + expected.arguments[i].bytes) {
        return false;
      }
    }
  }
  return true;
}

// Whether a call passes. Python code runs only if `checks_capture` is set, and last. 1, 0, or -1 with an exception.
int passes(const Conditions& expected, PyObject* const* args, Py_ssize_t count) {
  if (count != static_cast<Py_ssize_t>(expected.arguments.size())) {
    return 0;
  }
  const c10::impl::LocalDispatchKeySet local = c10::impl::tls_local_dispatch_key_set();
  if (local.included_ != expected.included || local.excluded_ != expected.excluded || has_function_mode() ||
      c10::get_default_dtype_as_scalartype() != expected.default_dtype) {
    return 0;
  }
  if (!(expected.ignores_sizes ? all_equal<false>(expected, args) : all_equal<true>(expected, args))) {
    return 0;
  }
  if (expected.checks_grad && c10::GradMode::is_enabled() != expected.has_grad) {
    return 0;
  }
  if (!has_equal_duplicates(expected, args)) {
    return 0;
  }
  if ((expected.alignment_mask || expected.outputs) && !has_valid_addresses(expected, args)) {
    return 0;
  }
  if (expected.checks_device) {
    for (const Argument& argument : expected.arguments) {
      if (argument.is_tensor) {
        const auto* devices = c10::impl::getDeviceGuardImpl(argument.device_type);
        if (devices->getDevice().index() != argument.device_index) {
          return 0;
        }
        break;
      }
    }
  }
  if (expected.checks_capture) {
    PyObject* found = PyObject_CallNoArgs(is_capturing);
    if (found == nullptr) {
      return -1;
    }
    const int is_true = PyObject_IsTrue(found);
    Py_DECREF(found);
    return is_true < 0 ? -1 : !is_true;
  }
  return 1;
}

int passes_without_throwing(const Conditions& expected, PyObject* const* args, Py_ssize_t count) noexcept {
  try {
    return passes(expected, args, count);
  } catch (...) {  // e.g. a tensor without memory
    return 0;
  }
}

}  // namespace
