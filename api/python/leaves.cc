// SPDX-License-Identifier: Apache-2.0
#include "api/python/leaves.h"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "api/python/errors.h"
#include "api/python/events.h"
#include "api/python/numpy_api.h"

namespace stepwell::python {
namespace {

namespace nb = nanobind;
using format::PathComponent;

// The second field of a row.
enum class RowTag : long { kNode = 0, kArray = 1, kValue = 2, kJax = 3 };

std::string TextOf(PyObject* object) {
  Py_ssize_t size = 0;
  if (const char* utf8 = PyUnicode_AsUTF8AndSize(object, &size)) {
    return {utf8, static_cast<size_t>(size)};
  }
  PyErr_Clear();  // lone surrogates: pass them as their three bytes
  nb::object bytes = nb::steal(PyUnicode_AsEncodedString(object, "utf-8", "surrogatepass"));
  if (!bytes.is_valid()) nb::raise_python_error();
  return {PyBytes_AS_STRING(bytes.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(bytes.ptr()))};
}

std::string_view BytesOf(PyObject* object) {
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(object, &data, &size) < 0) nb::raise_python_error();
  return {data, static_cast<size_t>(size)};
}

int64_t IntOf(PyObject* object) {
  const long long number = PyLong_AsLongLong(object);
  if (number == -1 && PyErr_Occurred() != nullptr) nb::raise_python_error();
  return number;
}

// A row, with its fields by number.
class Row {
 public:
  explicit Row(PyObject* tuple) : tuple_(tuple) {
    if (!PyTuple_Check(tuple)) throw nb::type_error("a row must be a tuple");
  }
  PyObject* at(Py_ssize_t index) const {
    PyObject* field = PyTuple_GetItem(tuple_, index);  // borrowed, checks the range
    if (field == nullptr) nb::raise_python_error();
    return field;
  }
  int64_t number(Py_ssize_t index) const { return IntOf(at(index)); }
  std::string text(Py_ssize_t index) const {
    PyObject* field = at(index);
    return field == Py_None ? std::string() : TextOf(field);
  }
  bool flag(Py_ssize_t index) const { return at(index) == Py_True; }

 private:
  PyObject* tuple_;
};

void FillComponent(const Row& component, PathComponent* out) {
  out->type = static_cast<PathComponent::Type>(component.number(0));
  switch (out->type) {
    case PathComponent::Type::kIntKey:
    case PathComponent::Type::kIndex:
      out->number = component.number(1);
      break;
    default:
      out->name = TextOf(component.at(1));
  }
}

format::KeyPath PathOf(PyObject* components) {
  if (!PyTuple_Check(components)) throw nb::type_error("a path must be a tuple");
  format::KeyPath path;
  const Py_ssize_t count = PyTuple_GET_SIZE(components);
  path.reserve(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    FillComponent(Row(PyTuple_GET_ITEM(components, i)), &path.emplace_back());
  }
  return path;
}

void FillFromArray(PyArrayObject* array, db::LeafInput* leaf) {
  const size_t rank = static_cast<size_t>(PyArray_NDIM(array));
  const npy_intp* dims = PyArray_DIMS(array);
  const npy_intp* strides = PyArray_STRIDES(array);
  leaf->record.shape.assign(dims, dims + rank);
  leaf->strides_bytes.assign(strides, strides + rank);
  leaf->data =
      PyArray_SIZE(array) == 0 ? nullptr : static_cast<const std::byte*>(PyArray_DATA(array));
}

void HoldArray(PyObject* object, db::LeafInput* leaf) {
  Py_INCREF(object);
  leaf->hold = HoldForEngine(object);
}

PyArrayObject* AsArray(PyObject* object) {
  if (!PyArray_Check(object)) throw nb::type_error("a row's array must be a NumPy array");
  return reinterpret_cast<PyArrayObject*>(object);
}

// (path, kJax, array, dtype, weak_type, sharding). The memoryview is a real external reference of
// the buffer: while it lives, jax copies instead of donating.
void FillFromJax(PyObject* array, const nb::object& to_numpy, db::LeafInput* leaf) {
  PyObject* view = PyMemoryView_FromObject(array);
  if (view == nullptr) {
    PyErr_Clear();
    nb::object copy = to_numpy(nb::handle(array));
    FillFromArray(AsArray(copy.ptr()), leaf);
    HoldArray(copy.ptr(), leaf);
    return;
  }
  leaf->hold = HoldForEngine(view);
  const Py_buffer* buffer = PyMemoryView_GET_BUFFER(view);
  const size_t rank = static_cast<size_t>(buffer->ndim);
  leaf->record.shape.assign(buffer->shape, buffer->shape + rank);
  leaf->strides_bytes.assign(buffer->strides, buffer->strides + rank);
  leaf->data = buffer->len == 0 ? nullptr : static_cast<const std::byte*>(buffer->buf);
}

db::LeafInput LeafFromRow(std::string_view item, const Row& row, const nb::object& to_numpy) {
  db::LeafInput leaf;
  format::LeafRecord& record = leaf.record;
  record.key = ValueOrThrow(format::EncodeLeafKey(item, PathOf(row.at(0))));
  switch (static_cast<RowTag>(row.number(1))) {
    case RowTag::kNode:  // (path, tag, container, type_name, child_count)
      record.kind = format::LeafKind::kNode;
      record.container = static_cast<format::ContainerKind>(row.number(2));
      record.type_name = row.text(3);
      record.child_count = static_cast<uint64_t>(row.number(4));
      break;
    case RowTag::kArray: {
      // (path, tag, array, dtype, value_type, hold, weak_type, prng_impl, sharding, shard_shape)
      record.kind = format::LeafKind::kArray;
      PyObject* array = row.at(2);
      FillFromArray(AsArray(array), &leaf);
      record.dtype = static_cast<format::DType>(row.number(3));
      record.value_type = static_cast<format::ValueType>(row.number(4));
      if (row.flag(5)) HoldArray(array, &leaf);
      record.weak_type = row.flag(6);
      record.prng_impl = row.text(7);
      record.sharding_json = row.text(8);
      if (PyObject* shard = row.at(9); shard != Py_None) {
        const Py_ssize_t rank = PyTuple_Size(shard);
        if (rank < 0) nb::raise_python_error();
        for (Py_ssize_t i = 0; i < rank; ++i) {
          leaf.shard_shape.push_back(static_cast<uint64_t>(IntOf(PyTuple_GET_ITEM(shard, i))));
        }
      }
      break;
    }
    case RowTag::kValue:  // (path, tag, value_type, bytes)
      record.kind = format::LeafKind::kValue;
      record.value_type = static_cast<format::ValueType>(row.number(2));
      leaf.value = BytesOf(row.at(3));
      record.logical_bytes = leaf.value.size();
      break;
    case RowTag::kJax:
      record.kind = format::LeafKind::kArray;
      record.value_type = format::ValueType::kJaxArray;
      FillFromJax(row.at(2), to_numpy, &leaf);
      record.dtype = static_cast<format::DType>(row.number(3));
      record.weak_type = row.flag(4);
      record.sharding_json = row.text(5);
      break;
    default:
      throw nb::value_error("unknown row tag");
  }
  return leaf;
}

}  // namespace

PathComponent ComponentFromPython(nb::handle component) {
  PathComponent out;
  FillComponent(Row(component.ptr()), &out);
  return out;
}

std::vector<db::ItemInput> ItemsFromPython(nb::list items, nb::object to_numpy) {
  std::vector<db::ItemInput> inputs;
  for (nb::handle entry : items) {
    const Row pair(entry.ptr());
    db::ItemInput& input = inputs.emplace_back();
    input.name = pair.text(0);
    PyObject* rows = pair.at(1);
    if (!PyList_Check(rows)) throw nb::type_error("an item's rows must be a list");
    const Py_ssize_t count = PyList_GET_SIZE(rows);
    input.leaves.reserve(static_cast<size_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
      input.leaves.push_back(LeafFromRow(input.name, Row(PyList_GET_ITEM(rows, i)), to_numpy));
    }
  }
  return inputs;
}

}  // namespace stepwell::python
