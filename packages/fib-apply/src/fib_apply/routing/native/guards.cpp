// The native module of guards and tables; `native/module.py` builds and loads it.

#include "table.h"

namespace {

void define_types() {
  static bool is_defined = false;
  if (is_defined) {
    return;
  }
  is_defined = true;
  guard_type.tp_name = "fib_apply_native.Guard";
  guard_type.tp_doc = "A condition that lets a call through if it equals an earlier one in everything that matters.";
  guard_type.tp_basicsize = sizeof(Guard);
  guard_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION;
  guard_type.tp_vectorcall_offset = offsetof(Guard, vectorcall);
  guard_type.tp_call = PyVectorcall_Call;
  guard_type.tp_dealloc = guard_dealloc;
  table_sequence.sq_length = table_length;
  table_type.tp_name = "fib_apply_native.Table";
  table_type.tp_doc = "Entries of one call variant. Calling it returns the kernel for a call, None or MISS.";
  table_type.tp_basicsize = sizeof(Table);
  table_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC;
  table_type.tp_vectorcall_offset = offsetof(Table, vectorcall);
  table_type.tp_call = PyVectorcall_Call;
  table_type.tp_new = table_new;
  table_type.tp_dealloc = table_dealloc;
  table_type.tp_traverse = table_traverse;
  table_type.tp_clear = table_clear;
  table_type.tp_methods = table_methods;
  table_type.tp_as_sequence = &table_sequence;
}

// configure(device_mode, is_capturing): what the module needs of torch's Python code
PyObject* configure(PyObject* /*module*/, PyObject* values) {
  PyObject* mode = nullptr;
  PyObject* capturing = nullptr;
  if (!PyArg_ParseTuple(values, "O!O:configure", &PyType_Type, &mode, &capturing)) {
    return nullptr;
  }
  PyObject* old_mode = reinterpret_cast<PyObject*>(device_mode);
  PyObject* old_capturing = is_capturing;
  device_mode = reinterpret_cast<PyTypeObject*>(Py_NewRef(mode));
  is_capturing = Py_NewRef(capturing);
  Py_XDECREF(old_mode);
  Py_XDECREF(old_capturing);
  Py_RETURN_NONE;
}

int run_module(PyObject* module) {
  if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
    PyErr_SetString(PyExc_ImportError, "fib_apply_native works in the main interpreter only");
    return -1;
  }
  if (THPVariableClass == nullptr || ParameterClass == nullptr) {
    PyErr_SetString(PyExc_ImportError, "torch must be imported first");
    return -1;
  }
  define_types();
  if (PyType_Ready(&guard_type) < 0 || PyType_Ready(&table_type) < 0) {
    return -1;
  }
  if (miss == nullptr) {
    miss = PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type));
  }
  if (miss == nullptr || PyModule_AddObjectRef(module, "MISS", miss) < 0 ||
      PyModule_AddObjectRef(module, "Guard", reinterpret_cast<PyObject*>(&guard_type)) < 0) {
    return -1;
  }
  return PyModule_AddObjectRef(module, "Table", reinterpret_cast<PyObject*>(&table_type));
}

PyMethodDef module_methods[] = {
    {"make_guard", make_guard, METH_VARARGS, "A guard for calls that equal one; None if it cannot be described."},
    {"configure", configure, METH_VARARGS, "Set what the module needs of torch's Python code."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, reinterpret_cast<void*>(run_module)},
#ifdef Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, nullptr}};

PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, "fib_apply_native", "Native guards.", 0, module_methods, module_slots, nullptr, nullptr,
    nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_fib_apply_native() {
  return PyModuleDef_Init(&module_definition);
}
