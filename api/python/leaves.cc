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
enum class RowTag : long { kNode = 0, kArray = 1, kValue = 2, kJax = 3, kShards = 4 };

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
  // A last field that only some rows have.
  std::string text_if_there(Py_ssize_t index) const {
    return index < PyTuple_GET_SIZE(tuple_) ? text(index) : std::string();
  }

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

// Array memory, and what keeps it as it is.
struct Memory {
  const std::byte* data = nullptr;  // null for no elements
  format::Shape shape;
  std::vector<int64_t> strides_bytes;
  std::shared_ptr<const void> hold;
};

Memory MemoryOfArray(PyObject* object, bool hold) {
  if (!PyArray_Check(object)) throw nb::type_error("a row's array must be a NumPy array");
  auto* array = reinterpret_cast<PyArrayObject*>(object);
  const size_t rank = static_cast<size_t>(PyArray_NDIM(array));
  const npy_intp* dims = PyArray_DIMS(array);
  const npy_intp* strides = PyArray_STRIDES(array);
  Memory memory;
  memory.shape.assign(dims, dims + rank);
  memory.strides_bytes.assign(strides, strides + rank);
  if (PyArray_SIZE(array) != 0) memory.data = static_cast<const std::byte*>(PyArray_DATA(array));
  if (hold) {
    Py_INCREF(object);
    memory.hold = HoldForEngine(object);
  }
  return memory;
}

// Of a jax.Array on one CPU device. The memoryview is a real external reference of the buffer:
// while it lives, jax copies instead of donating.
Memory MemoryOfJax(PyObject* array, const nb::object& to_numpy) {
  PyObject* view = PyMemoryView_FromObject(array);
  if (view == nullptr) {
    PyErr_Clear();
    const nb::object values = to_numpy(nb::handle(array));
    return MemoryOfArray(values.ptr(), /*hold=*/true);
  }
  Memory memory;
  memory.hold = HoldForEngine(view);
  const Py_buffer* buffer = PyMemoryView_GET_BUFFER(view);
  const size_t rank = static_cast<size_t>(buffer->ndim);
  memory.shape.assign(buffer->shape, buffer->shape + rank);
  memory.strides_bytes.assign(buffer->strides, buffer->strides + rank);
  if (buffer->len != 0) memory.data = static_cast<const std::byte*>(buffer->buf);
  return memory;
}

void FillFrom(Memory memory, db::LeafInput* leaf) {
  leaf->record.shape = std::move(memory.shape);
  leaf->data = memory.data;
  leaf->strides_bytes = std::move(memory.strides_bytes);
  leaf->hold = std::move(memory.hold);
}

format::Shape ShapeOf(PyObject* tuple) {
  const Row row(tuple);
  format::Shape shape(static_cast<size_t>(PyTuple_GET_SIZE(tuple)));
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    shape[axis] = static_cast<uint64_t>(row.number(static_cast<Py_ssize_t>(axis)));
  }
  return shape;
}

// (path, kShards, shards, …, shape, shard_shape, origins, partial)
void FillFromShards(const Row& row, const nb::object& to_numpy, db::LeafInput* leaf) {
  PyObject* shards = row.at(2);
  if (!PyList_Check(shards)) throw nb::type_error("a row's shards must be a list");
  const Row origins(row.at(10));
  using Holds = std::vector<std::shared_ptr<const void>>;
  auto holds = std::make_shared<Holds>();
  const Py_ssize_t count = PyList_GET_SIZE(shards);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* shard = PyList_GET_ITEM(shards, i);
    Memory memory =
        PyArray_Check(shard) ? MemoryOfArray(shard, /*hold=*/true) : MemoryOfJax(shard, to_numpy);
    if (row.at(9) == Py_None) return FillFrom(std::move(memory), leaf);  // the only one
    holds->push_back(std::move(memory.hold));
    leaf->shards.push_back({ShapeOf(origins.at(i)), std::move(memory.shape), memory.data,
                            std::move(memory.strides_bytes)});
  }
  leaf->record.shape = ShapeOf(row.at(8));
  if (PyObject* shard_shape = row.at(9); shard_shape != Py_None) {
    leaf->shard_shape = ShapeOf(shard_shape);
  }
  leaf->partial = row.flag(11);
  leaf->hold = std::move(holds);
}

db::LeafInput LeafFromRow(std::string_view item, const Row& row, const nb::object& to_numpy) {
  db::LeafInput leaf;
  format::LeafRecord& record = leaf.record;
  record.key = ValueOrThrow(format::EncodeLeafKey(item, PathOf(row.at(0))));
  Py_ssize_t field_count = 0;  // behind these, perhaps, the types of Variables around the value
  switch (static_cast<RowTag>(row.number(1))) {
    case RowTag::kNode:  // (path, tag, container, type_name, child_count)
      record.kind = format::LeafKind::kNode;
      record.container = static_cast<format::ContainerKind>(row.number(2));
      record.type_name = row.text(3);
      record.child_count = static_cast<uint64_t>(row.number(4));
      field_count = 5;
      break;
    case RowTag::kArray:  // (path, tag, array, dtype, value_type)
      record.kind = format::LeafKind::kArray;
      FillFrom(MemoryOfArray(row.at(2), /*hold=*/false), &leaf);
      record.dtype = static_cast<format::DType>(row.number(3));
      record.value_type = static_cast<format::ValueType>(row.number(4));
      field_count = 5;
      break;
    case RowTag::kValue:  // (path, tag, value_type, bytes)
      record.kind = format::LeafKind::kValue;
      record.value_type = static_cast<format::ValueType>(row.number(2));
      leaf.value = BytesOf(row.at(3));
      record.logical_bytes = leaf.value.size();
      field_count = 4;
      break;
    case RowTag::kJax:  // (path, tag, array, dtype, weak_type, sharding)
      record.kind = format::LeafKind::kArray;
      record.value_type = format::ValueType::kJaxArray;
      FillFrom(MemoryOfJax(row.at(2), to_numpy), &leaf);
      record.dtype = static_cast<format::DType>(row.number(3));
      record.weak_type = row.flag(4);
      record.sharding_json = row.text(5);
      field_count = 6;
      break;
    case RowTag::kShards:
      // (path, tag, shards, dtype, value_type, weak_type, prng_impl, sharding, shape, shard_shape,
      // origins, partial)
      record.kind = format::LeafKind::kArray;
      FillFromShards(row, to_numpy, &leaf);
      record.dtype = static_cast<format::DType>(row.number(3));
      record.value_type = static_cast<format::ValueType>(row.number(4));
      record.weak_type = row.flag(5);
      record.prng_impl = row.text(6);
      record.sharding_json = row.text(7);
      field_count = 12;
      break;
    default:
      throw nb::value_error("unknown row tag");
  }
  record.variable_types = row.text_if_there(field_count);
  return leaf;
}

}  // namespace

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

nb::object TextObject(std::string_view text) {
  nb::object object = nb::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogatepass"));
  if (!object.is_valid()) {
    PyErr_Clear();
    object = nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()),
                                            "backslashreplace"));
  }
  return object;
}

PathComponent ComponentFromPython(nb::handle component) {
  PathComponent out;
  FillComponent(Row(component.ptr()), &out);
  return out;
}

std::vector<db::ItemInput> ItemsFromPython(nb::list items, nb::object to_numpy, nb::list wishes) {
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
  for (nb::handle entry : wishes) {
    const Row wish(entry.ptr());
    db::LeafInput& leaf = inputs.at(static_cast<size_t>(wish.number(0)))
                              .leaves.at(static_cast<size_t>(wish.number(1)));
    leaf.chunk_bytes_max = static_cast<uint64_t>(wish.number(2));
    for (const uint64_t axis : ShapeOf(wish.at(3))) {
      leaf.chunk_axes.push_back(static_cast<uint32_t>(axis));
    }
  }
  return inputs;
}

void BindRows(nb::module_& m) {
  using Type = PathComponent::Type;
  nb::enum_<Type>(m, "ComponentType", nb::is_arithmetic())
      .value("INT_KEY", Type::kIntKey)
      .value("INDEX", Type::kIndex)
      .value("KEY", Type::kKey)
      .value("ATTRIBUTE", Type::kAttribute);
  nb::enum_<RowTag>(m, "RowTag", nb::is_arithmetic())
      .value("NODE", RowTag::kNode)
      .value("ARRAY", RowTag::kArray)
      .value("VALUE", RowTag::kValue)
      .value("JAX", RowTag::kJax)
      .value("SHARDS", RowTag::kShards);
  nb::enum_<format::LeafKind>(m, "LeafKind", nb::is_arithmetic())
      .value("ARRAY", format::LeafKind::kArray)
      .value("VALUE", format::LeafKind::kValue)
      .value("NODE", format::LeafKind::kNode);
  nb::enum_<format::ContainerKind>(m, "ContainerKind", nb::is_arithmetic())
      .value("NOT_CONTAINER", format::ContainerKind::kNotContainer)
      .value("DICT", format::ContainerKind::kDict)
      .value("LIST", format::ContainerKind::kList)
      .value("TUPLE", format::ContainerKind::kTuple)
      .value("NAMEDTUPLE", format::ContainerKind::kNamedTuple)
      .value("OBJECT", format::ContainerKind::kObject);
  nb::enum_<format::ValueType>(m, "ValueType", nb::is_arithmetic())
      .value("NONE", format::ValueType::kNone)
      .value("NUMPY", format::ValueType::kNumpyArray)
      .value("JAX", format::ValueType::kJaxArray)
      .value("NUMPY_SCALAR", format::ValueType::kNumpyScalar)
      .value("PRNG_KEY", format::ValueType::kPrngKey)
      .value("INT", format::ValueType::kInt)
      .value("FLOAT", format::ValueType::kFloat)
      .value("BOOL", format::ValueType::kBool)
      .value("STR", format::ValueType::kStr)
      .value("BYTES", format::ValueType::kBytes)
      .value("COMPLEX", format::ValueType::kComplex);
}

}  // namespace stepwell::python
