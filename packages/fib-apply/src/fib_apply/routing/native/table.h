// Table: the entries of one call variant. It maps the arguments of a call to the entry whose guard lets it through.
//
// It calls no kernel and holds no tensor.

#pragma once

#include "guard.h"

namespace {

PyObject* miss = nullptr;                    // returned by a table without an entry for a call
constexpr Py_ssize_t kMaxAlternatives = 16;  // entries of equal sizes, e.g. for tensors and parameters
constexpr size_t kMaxEntries = 8192;

struct Table {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  std::vector<PyObject*>* entries;  // tuples (Guard, kernel, counter), the oldest first
  std::vector<uint32_t>* slots;     // indices of entries plus 1, by hash; a power of two
  size_t last;                      // the entry that served the last call, tried first
  uint64_t epoch;                   // incremented whenever entries are removed
  bool is_counted;
};

const Conditions& conditions_of(PyObject* entry) {
  return *reinterpret_cast<Guard*>(PyTuple_GET_ITEM(entry, 0))->conditions;
}

void add_slot(std::vector<uint32_t>* slots, uint64_t hash, size_t index) {
  const size_t mask = slots->size() - 1;
  size_t slot = hash & mask;
  while ((*slots)[slot] != 0) {
    slot = (slot + 1) & mask;
  }
  (*slots)[slot] = static_cast<uint32_t>(index + 1);
}

std::vector<uint32_t> indexed(const std::vector<PyObject*>& entries) {
  size_t size = 16;
  while (size < 2 * (entries.size() + 1)) {
    size *= 2;
  }
  std::vector<uint32_t> slots(size, 0);
  for (size_t i = 0; i < entries.size(); ++i) {
    add_slot(&slots, conditions_of(entries[i]).hash, i);
  }
  return slots;
}

// Remove entries, in a state that is whole before any destructor runs.
void keep(Table* table, std::vector<PyObject*>&& kept, const std::vector<PyObject*>& removed) {
  std::vector<uint32_t> slots = indexed(kept);
  table->entries->swap(kept);
  table->slots->swap(slots);
  table->last = 0;
  ++table->epoch;
  for (PyObject* entry : removed) {
    Py_DECREF(entry);  // may run Python code
  }
}

// Whether the guard of an entry passes. The table may be another one afterwards if Python code ran.
int entry_passes(PyObject* entry, PyObject* const* args, Py_ssize_t count) {
  const Conditions& conditions = conditions_of(entry);
  if (!conditions.checks_capture) {
    return passes_without_throwing(conditions, args, count);
  }
  Py_INCREF(entry);
  const int found = passes_without_throwing(conditions, args, count);
  Py_DECREF(entry);
  return found;
}

// A new reference to the entry for a call; null for none, or with an exception.
PyObject* find_entry(Table* table, PyObject* const* args, Py_ssize_t count) {
  if (table->entries->empty()) {
    return nullptr;
  }
  const uint64_t epoch = table->epoch;
  const size_t last = table->last;
  PyObject* entry = (*table->entries)[last];
  int found = entry_passes(entry, args, count);
  if (found != 0 || table->epoch != epoch) {
    return found > 0 && table->epoch == epoch ? Py_NewRef((*table->entries)[last]) : nullptr;
  }
  uint64_t hash = 0;
  if (!hash_of(args, count, &hash)) {
    return nullptr;
  }
  size_t slot = hash & (table->slots->size() - 1);
  while (const uint32_t number = (*table->slots)[slot]) {
    const size_t index = number - 1;
    entry = (*table->entries)[index];
    if (index != last && conditions_of(entry).hash == hash) {
      found = entry_passes(entry, args, count);
      if (found < 0 || table->epoch != epoch) {
        return nullptr;
      }
      if (found > 0) {
        table->last = index;
        return Py_NewRef((*table->entries)[index]);
      }
    }
    slot = (slot + 1) & (table->slots->size() - 1);
  }
  return nullptr;
}

PyObject* find_without_throwing(Table* table, PyObject* const* args, Py_ssize_t count) noexcept {
  try {
    return find_entry(table, args, count);
  } catch (...) {
    return nullptr;
  }
}

// table(*args) -> the kernel, None for the fallback, or MISS; counts the call
PyObject* table_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  if (kwnames != nullptr && PyTuple_GET_SIZE(kwnames) != 0) {
    PyErr_SetString(PyExc_TypeError, "a table takes no keyword arguments");
    return nullptr;
  }
  Table* table = reinterpret_cast<Table*>(self);
  PyObject* entry = find_without_throwing(table, args, PyVectorcall_NARGS(nargsf));
  if (entry == nullptr) {
    return PyErr_Occurred() ? nullptr : Py_NewRef(miss);
  }
  PyObject* kernel = Py_NewRef(PyTuple_GET_ITEM(entry, 1));
  if (table->is_counted) {
    PyObject* count = PyObject_CallNoArgs(PyTuple_GET_ITEM(entry, 2));
    if (count == nullptr) {
      Py_CLEAR(kernel);
    }
    Py_XDECREF(count);
  }
  Py_DECREF(entry);
  return kernel;
}

// find(*args) -> the entry or None
PyObject* table_find(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  PyObject* entry = find_without_throwing(reinterpret_cast<Table*>(self), args, count);
  if (entry != nullptr || PyErr_Occurred()) {
    return entry;
  }
  Py_RETURN_NONE;
}

// The oldest entry of the same sizes, if there are too many of them; else the number of entries.
size_t oldest_alternative(const Table& table, uint64_t hash) {
  size_t oldest = table.entries->size();
  Py_ssize_t count = 0;
  const size_t mask = table.slots->size() - 1;
  for (size_t slot = hash & mask; (*table.slots)[slot] != 0; slot = (slot + 1) & mask) {
    const size_t index = (*table.slots)[slot] - 1;
    if (conditions_of((*table.entries)[index]).hash == hash) {
      ++count;
      oldest = index < oldest ? index : oldest;
    }
  }
  return count < kMaxAlternatives ? table.entries->size() : oldest;
}

void add_entry(Table* table, PyObject* entry) {
  const uint64_t hash = conditions_of(entry).hash;
  const size_t oldest = oldest_alternative(*table, hash);
  const std::vector<PyObject*>& entries = *table->entries;
  if (oldest < entries.size() || entries.size() >= kMaxEntries) {
    const bool is_full = oldest == entries.size();
    std::vector<PyObject*> kept, removed;
    for (size_t i = 0; i < entries.size(); ++i) {
      const bool is_removed = is_full ? i < kMaxEntries / 2 : i == oldest;
      (is_removed ? removed : kept).push_back(entries[i]);
    }
    kept.push_back(entry);
    Py_INCREF(entry);
    keep(table, std::move(kept), removed);
    return;
  }
  if (entries.size() == entries.capacity()) {
    table->entries->reserve(2 * entries.size() + 16);
  }
  if (table->slots->size() < 2 * (entries.size() + 2)) {
    table->entries->push_back(Py_NewRef(entry));
    std::vector<uint32_t> slots = indexed(*table->entries);
    table->slots->swap(slots);
    return;
  }
  table->entries->push_back(Py_NewRef(entry));
  add_slot(table->slots, hash, table->entries->size() - 1);
}

// install((guard, kernel, counter)) -> whether the entry was added: guards of another kind are not
PyObject* table_install(PyObject* self, PyObject* entry) {
  if (!PyTuple_CheckExact(entry) || PyTuple_GET_SIZE(entry) != 3) {
    PyErr_SetString(PyExc_TypeError, "an entry is a tuple of a guard, a kernel and a counter");
    return nullptr;
  }
  if (Py_TYPE(PyTuple_GET_ITEM(entry, 0)) != &guard_type) {
    Py_RETURN_FALSE;
  }
  try {
    add_entry(reinterpret_cast<Table*>(self), entry);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  Py_RETURN_TRUE;
}

PyObject* table_clear_entries(PyObject* self, PyObject* /*none*/) {
  Table* table = reinterpret_cast<Table*>(self);
  try {
    const std::vector<PyObject*> removed = *table->entries;
    keep(table, {}, removed);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  Py_RETURN_NONE;
}

Py_ssize_t table_length(PyObject* self) {
  return static_cast<Py_ssize_t>(reinterpret_cast<Table*>(self)->entries->size());
}

int table_traverse(PyObject* self, visitproc visit, void* arg) {
  const Table* table = reinterpret_cast<Table*>(self);
  if (table->entries != nullptr) {
    for (PyObject* entry : *table->entries) {
      Py_VISIT(entry);
    }
  }
  return 0;
}

int table_clear(PyObject* self) {
  Table* table = reinterpret_cast<Table*>(self);
  if (table->entries != nullptr) {
    std::vector<PyObject*> removed;
    removed.swap(*table->entries);
    table->slots->assign(table->slots->size(), 0);
    table->last = 0;
    ++table->epoch;
    for (PyObject* entry : removed) {
      Py_DECREF(entry);
    }
  }
  return 0;
}

void table_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  table_clear(self);
  Table* table = reinterpret_cast<Table*>(self);
  delete table->entries;
  delete table->slots;
  Py_TYPE(self)->tp_free(self);
}

PyObject* table_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  int is_counted = 0;
  static const char* names[] = {"is_counted", nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$p:Table", const_cast<char**>(names), &is_counted)) {
    return nullptr;
  }
  Table* table = reinterpret_cast<Table*>(type->tp_alloc(type, 0));
  if (table == nullptr) {
    return nullptr;
  }
  table->vectorcall = table_call;
  table->is_counted = is_counted != 0;
  try {
    table->slots = new std::vector<uint32_t>(16, 0);
    table->entries = new std::vector<PyObject*>();
  } catch (const std::bad_alloc&) {
    Py_DECREF(table);
    return PyErr_NoMemory();
  }
  return reinterpret_cast<PyObject*>(table);
}

PyMethodDef table_methods[] = {
    {"find", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(table_find)), METH_FASTCALL,
     "The entry whose guard a call passes, or None."},
    {"install", table_install, METH_O, "Add an entry; False if its guard is not native."},
    {"clear", table_clear_entries, METH_NOARGS, "Remove all entries."},
    {nullptr, nullptr, 0, nullptr}};

PySequenceMethods table_sequence = {};

PyTypeObject table_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

}  // namespace
