// Guard: the conditions of one call as a Python object. Calling it tells whether a call meets them.

#pragma once

#include "conditions.h"

namespace {

struct Guard {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  Conditions* conditions;
};

PyObject* guard_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  if (kwnames != nullptr && PyTuple_GET_SIZE(kwnames) != 0) {
    PyErr_SetString(PyExc_TypeError, "a guard takes no keyword arguments");
    return nullptr;
  }
  Guard* guard = reinterpret_cast<Guard*>(self);
  const int found = passes_without_throwing(*guard->conditions, args, PyVectorcall_NARGS(nargsf));
  return found < 0 ? nullptr : PyBool_FromLong(found);
}

void guard_dealloc(PyObject* self) {
  Guard* guard = reinterpret_cast<Guard*>(self);
  if (guard->conditions != nullptr) {
    for (const Argument& argument : guard->conditions->arguments) {
      Py_XDECREF(reinterpret_cast<PyObject*>(argument.type));
      Py_XDECREF(argument.number);
    }
    delete guard->conditions;
  }
  Py_TYPE(self)->tp_free(self);
}

PyTypeObject guard_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

// The bytes from the first to the last element of a tensor.
int64_t extent_of(const c10::TensorImpl& impl) {
  if (impl.numel() == 0) {
    return 0;
  }
  int64_t last = 0;
  for (size_t i = 0; i < impl.sizes().size(); ++i) {
    last += (impl.sizes()[i] - 1) * impl.strides()[i];
  }
  return (last + 1) * static_cast<int64_t>(impl.itemsize());
}

// Whether an argument can be described; fills it in.
bool describe(Conditions* conditions, PyObject* const* args, Py_ssize_t index, bool compares_numbers) {
  PyObject* value = args[index];
  Argument& argument = conditions->arguments[index];
  argument.type = Py_TYPE(value);
  Py_INCREF(reinterpret_cast<PyObject*>(argument.type));
  const at::Tensor* tensor = plain_tensor(value);
  if (tensor == nullptr) {
    if (PyType_IsSubtype(argument.type, reinterpret_cast<PyTypeObject*>(THPVariableClass))) {
      return false;
    }
    if (compares_numbers && (PyFloat_CheckExact(value) || PyLong_CheckExact(value) || PyBool_Check(value))) {
      argument.number = Py_NewRef(value);
    }
    return true;
  }
  if (has_tangent(*tensor)) {
    return false;
  }
  argument.is_tensor = true;
  for (Py_ssize_t other = 0; other < index && argument.same < 0; ++other) {
    argument.same = args[other] == value ? static_cast<int>(other) : -1;
  }
  const c10::TensorImpl* impl = tensor->unsafeGetTensorImpl();
  argument.keys = impl->key_set();
  argument.device_type = impl->device().type();
  argument.device_index = impl->device().index();
  argument.dtype = c10::typeMetaToScalarType(impl->dtype());
  argument.requires_grad = impl->requires_grad();
  argument.bytes = extent_of(*impl);
  argument.dims = impl->sizes().size();
  argument.extents = conditions->extents.size();
  conditions->extents.insert(conditions->extents.end(), impl->sizes().begin(), impl->sizes().end());
  conditions->extents.insert(conditions->extents.end(), impl->strides().begin(), impl->strides().end());
  conditions->checks_grad |= argument.requires_grad;
  return true;
}

bool describe_call(Conditions* conditions, PyObject* const* args, Py_ssize_t count, bool compares_numbers) {
  if (!hash_of(args, count, &conditions->hash) || has_function_mode()) {
    return false;
  }
  conditions->arguments.resize(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!describe(conditions, args, i, compares_numbers)) {
      return false;
    }
  }
  conditions->arguments.shrink_to_fit();
  conditions->extents.shrink_to_fit();
  const c10::impl::LocalDispatchKeySet local = c10::impl::tls_local_dispatch_key_set();
  conditions->included = local.included_;
  conditions->excluded = local.excluded_;
  conditions->default_dtype = c10::get_default_dtype_as_scalartype();
  return true;
}

// make_guard(args, outputs, alignment, has_grad, compares_numbers, checks_capture, checks_device, ignores_sizes=False)
// -> Guard or None
PyObject* make_guard(PyObject* /*module*/, PyObject* values) {
  PyObject* args = nullptr;
  Py_ssize_t outputs = 0;
  Py_ssize_t alignment = 0;
  int has_grad = 0, compares_numbers = 0, checks_capture = 0, checks_device = 0, ignores_sizes = 0;
  if (!PyArg_ParseTuple(values, "O!nnpppp|p:make_guard", &PyTuple_Type, &args, &outputs, &alignment, &has_grad,
                        &compares_numbers, &checks_capture, &checks_device, &ignores_sizes)) {
    return nullptr;
  }
  const Py_ssize_t count = PyTuple_GET_SIZE(args);
  if (outputs < 0 || outputs > count || alignment < 1 || (alignment & (alignment - 1)) != 0) {
    PyErr_SetString(PyExc_ValueError, "outputs must be among the arguments, and alignment a power of two");
    return nullptr;
  }
  if (outputs > 0 && ignores_sizes) {
    PyErr_SetString(PyExc_ValueError, "outputs of unknown sizes may overlap with other arguments");
    return nullptr;
  }
  if (count > kMaxArguments) {
    Py_RETURN_NONE;
  }
  Guard* guard = reinterpret_cast<Guard*>(guard_type.tp_alloc(&guard_type, 0));
  if (guard == nullptr) {
    return nullptr;
  }
  guard->vectorcall = guard_call;
  bool is_described = false;
  try {
    guard->conditions = new Conditions();
    is_described = describe_call(guard->conditions, &PyTuple_GET_ITEM(args, 0), count, compares_numbers != 0);
  } catch (...) {
    is_described = false;
  }
  if (!is_described) {
    Py_DECREF(guard);
    Py_RETURN_NONE;
  }
  Conditions& conditions = *guard->conditions;
  conditions.alignment_mask = static_cast<uintptr_t>(alignment) - 1;
  conditions.outputs = outputs;
  conditions.has_grad = has_grad != 0;
  conditions.checks_capture = checks_capture != 0;
  conditions.checks_device = checks_device != 0;
  conditions.ignores_sizes = ignores_sizes != 0;
  return reinterpret_cast<PyObject*>(guard);
}

}  // namespace
