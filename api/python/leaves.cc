// SPDX-License-Identifier: Apache-2.0
#include "api/python/leaves.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "api/python/bindings.h"
#include "api/python/errors.h"
#include "api/python/events.h"
#include "api/python/numpy_api.h"
#include "api/python/records.h"
#include "format/hash.h"

namespace stepwell::python {
namespace {

namespace nb = nanobind;
using format::PathComponent;

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

void FillComponent(PyObject* component, PathComponent* out) {
  if (!PyTuple_Check(component)) throw nb::type_error("a component must be a tuple");
  PyObject* type = PyTuple_GetItem(component, 0);  // borrowed, checks the range
  PyObject* value = type == nullptr ? nullptr : PyTuple_GetItem(component, 1);
  if (value == nullptr) nb::raise_python_error();
  out->type = static_cast<PathComponent::Type>(IntOf(type));
  if (format::IsNumber(out->type)) {
    out->number = IntOf(value);
  } else {
    out->name = TextOf(value);
  }
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

// Borrows the memory of a bfloat16 array through DLPack, the protocol between array libraries:
// Python's buffers have no word for the type. None where that gives something else.
std::optional<Memory> MemoryOfBfloat16(PyObject* array) {
  using Array = nb::ndarray<nb::ro, nb::device::cpu>;
  Array borrowed;
  if (!nb::try_cast(nb::handle(array), borrowed)) return std::nullopt;
  constexpr int64_t kItemBytes = 2;
  const nb::dlpack::dtype dtype = borrowed.dtype();
  if (dtype.code != uint8_t(nb::dlpack::dtype_code::Bfloat) || dtype.bits != 8 * kItemBytes ||
      dtype.lanes != 1) {
    return std::nullopt;
  }
  Memory memory;
  const size_t rank = borrowed.ndim();
  memory.shape.assign(borrowed.shape_ptr(), borrowed.shape_ptr() + rank);
  for (size_t i = 0; i < rank; ++i) {
    memory.strides_bytes.push_back(kItemBytes * borrowed.stride(i));
  }
  if (borrowed.size() != 0) memory.data = static_cast<const std::byte*>(borrowed.data());
  nb::capsule hold(new Array(std::move(borrowed)),
                   [](void* held) noexcept { delete static_cast<Array*>(held); });
  memory.hold = HoldForEngine(hold.release().ptr());
  return memory;
}

// Borrows the memory of a jax.Array on one CPU device. A buffer is a real external reference to it:
// while it lives, jax copies instead of donating. So is what DLPack borrows. The object that keeps
// it is a capsule and no memoryview, which is two objects that the garbage collector looks at.
Memory MemoryOfJax(PyObject* array, format::DType dtype, const nb::object& to_numpy) {
  if (dtype == format::DType::kBFloat16) {
    if (std::optional<Memory> memory = MemoryOfBfloat16(array)) return *std::move(memory);
  }
  auto buffer = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(array, buffer.get(), PyBUF_STRIDED_RO) != 0) {
    PyErr_Clear();
    const nb::object values = to_numpy(nb::handle(array));
    return MemoryOfArray(values.ptr(), /*hold=*/true);
  }
  Memory memory;
  const size_t rank = static_cast<size_t>(buffer->ndim);
  memory.shape.assign(buffer->shape, buffer->shape + rank);
  memory.strides_bytes.assign(buffer->strides, buffer->strides + rank);
  if (buffer->len != 0) memory.data = static_cast<const std::byte*>(buffer->buf);
  nb::capsule hold(buffer.release(), [](void* held) noexcept {
    const std::unique_ptr<Py_buffer> taken(static_cast<Py_buffer*>(held));
    PyBuffer_Release(taken.get());
  });
  memory.hold = HoldForEngine(hold.release().ptr());
  return memory;
}

void FillFrom(Memory memory, db::LeafInput* leaf) {
  leaf->record.shape = std::move(memory.shape);
  leaf->data = memory.data;
  leaf->strides_bytes = std::move(memory.strides_bytes);
  leaf->hold = std::move(memory.hold);
}

format::DType DTypeOfRow(const Row& row) { return static_cast<format::DType>(row.dtype); }

void FillFromShards(const Row& row, const nb::object& to_numpy, db::LeafInput* leaf) {
  PyObject* shards = row.data.ptr();
  if (!PyList_Check(shards)) throw nb::type_error("a row's shards must be a list");
  const RowDetails none;
  const RowDetails& places = row.details ? *row.details : none;
  using Holds = std::vector<std::shared_ptr<const void>>;
  auto holds = std::make_shared<Holds>();
  const Py_ssize_t count = PyList_GET_SIZE(shards);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* shard = PyList_GET_ITEM(shards, i);
    Memory memory = PyArray_Check(shard) ? MemoryOfArray(shard, /*hold=*/true)
                                         : MemoryOfJax(shard, DTypeOfRow(row), to_numpy);
    if (!places.shard_shape) return FillFrom(std::move(memory), leaf);  // the only one
    holds->push_back(std::move(memory.hold));
    leaf->shards.push_back({places.origins.at(static_cast<size_t>(i)), std::move(memory.shape),
                            memory.data, std::move(memory.strides_bytes)});
  }
  leaf->record.shape = places.shape;
  if (places.shard_shape) leaf->shard_shape = *places.shard_shape;
  leaf->partial = places.partial;
  leaf->hold = std::move(holds);
}

// Shards whose bytes are brought when the engine takes them.
void FillFromFarShards(const Row& row, HostCopies* far, db::LeafInput* leaf) {
  const RowDetails none;
  const RowDetails& places = row.details ? *row.details : none;
  size_t number = 0;
  for (const nb::handle shard : nb::cast<nb::list>(row.data)) {
    db::ShardInput& box = leaf->shards.emplace_back(far->Add(shard));
    box.origin =
        places.shard_shape ? places.origins.at(number++) : format::Shape(box.shape.size(), 0);
  }
  leaf->record.shape = places.shape;
  if (places.shard_shape) leaf->shard_shape = *places.shard_shape;
  leaf->partial = places.partial;
}

std::string TextOfRow(const nb::object& text) {
  return text.is_valid() ? TextOf(text.ptr()) : std::string();
}

void FillFromRow(std::string_view item, const Row& row, const nb::object& to_numpy, HostCopies* far,
                 db::LeafInput* leaf) {
  format::LeafRecord& record = leaf->record;
  record.key = ValueOrThrow(format::LeafKeyOf(item, row.path));
  record.kind = row.tag == RowTag::kNode    ? format::LeafKind::kNode
                : row.tag == RowTag::kValue ? format::LeafKind::kValue
                                            : format::LeafKind::kArray;
  record.value_type = row.value_type;
  switch (row.tag) {
    case RowTag::kNode:
      record.container = row.container;
      record.type_name = TextOfRow(row.type_name);
      record.child_count = row.child_count;
      break;
    case RowTag::kArray:
      FillFrom(MemoryOfArray(row.data.ptr(), /*hold=*/false), leaf);
      break;
    case RowTag::kValue:
      leaf->value = BytesOf(row.data.ptr());
      record.logical_bytes = leaf->value.size();
      break;
    case RowTag::kJax:
      FillFrom(MemoryOfJax(row.data.ptr(), DTypeOfRow(row), to_numpy), leaf);
      break;
    case RowTag::kShards:
      if (row.far) {
        FillFromFarShards(row, far, leaf);
      } else {
        FillFromShards(row, to_numpy, leaf);
      }
  }
  if (record.kind == format::LeafKind::kArray) {
    record.dtype = DTypeOfRow(row);
    record.weak_type = row.weak_type;
    record.prng_impl = TextOfRow(row.prng_impl);
    record.sharding_json = TextOfRow(row.sharding);
    if (row.details) {
      leaf->chunk_bytes_max = row.details->chunk_bytes_max;
      leaf->chunk_axes = row.details->chunk_axes;
    }
  }
  record.variable_types = TextOfRow(row.variable_types);
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

nb::str TextObject(std::string_view text) {
  nb::object object = nb::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogatepass"));
  if (!object.is_valid()) {
    PyErr_Clear();
    object = nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()),
                                            "backslashreplace"));
    if (!object.is_valid()) nb::raise_python_error();
  }
  return nb::borrow<nb::str>(object);
}

PathComponent ComponentFromPython(nb::handle component) {
  PathComponent out;
  FillComponent(component.ptr(), &out);
  return out;
}

std::string EncodedPath(const nb::tuple& path) {
  format::KeyPath components;
  const Py_ssize_t count = PyTuple_GET_SIZE(path.ptr());
  components.reserve(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    FillComponent(PyTuple_GET_ITEM(path.ptr(), i), &components.emplace_back());
  }
  return ValueOrThrow(format::EncodePath(components));
}

SavedArrays::~SavedArrays() {
  for (const Entry& entry : entries_) Py_DECREF(entry.reference);
}

void SavedArrays::Add(const format::Hash128& key, PyObject* array, uint64_t since) {
  if (PyObject* reference = PyWeakref_NewRef(array, nullptr)) {
    entries_.push_back({key, reference, since});
  } else {
    PyErr_Clear();  // then it is read again
  }
}

uint64_t SavedArrays::Cursor::SavedSince(const format::Hash128& key, PyObject* array) {
  if (arrays_ == nullptr) return 0;
  const std::vector<Entry>& entries = arrays_->entries_;
  if (next_ >= entries.size() || entries[next_].key != key) {
    if (places_.empty()) {
      for (size_t i = 0; i < entries.size(); ++i) places_.emplace(entries[i].key, i);
    }
    const auto it = places_.find(key);
    if (it == places_.end()) return 0;
    next_ = it->second;
  }
  const Entry& entry = entries[next_++];
  return PyWeakref_GetObject(entry.reference) == array ? entry.since : 0;
}

std::vector<db::ItemInput> ItemsFromPython(const nb::list& items, nb::object to_numpy,
                                           HostCopies* far, const SavedArrays* before,
                                           SavedArrays* saved) {
  SavedArrays::Cursor cursor(before);
  std::vector<db::ItemInput> inputs;
  for (nb::handle entry : items) {
    const auto& item = nb::cast<const ItemRows&>(entry);
    db::ItemInput& input = inputs.emplace_back();
    input.name = TextOf(item.name.ptr());
    input.kind = item.kind;
    input.leaves.reserve(nb::len(item.rows));
    for (nb::handle entry_of_row : item.rows) {
      const Row& row = nb::cast<const Row&>(entry_of_row);
      db::LeafInput& leaf = input.leaves.emplace_back();
      FillFromRow(input.name, row, to_numpy, far, &leaf);
      PyObject* const array = row.tag == RowTag::kJax ? row.data.ptr() : row.source.ptr();
      if (array == nullptr) continue;
      const format::Hash128 key = format::HashOf(AsBytes(leaf.record.key));
      leaf.unchanged_since = cursor.SavedSince(key, array);
      saved->Add(key, array, leaf.unchanged_since == 0 ? saved->ticket() : leaf.unchanged_since);
    }
  }
  return inputs;
}

namespace {

nb::object PathObject(const Row& row) {
  nb::list components;
  for (const PathComponent& component : ValueOrThrow(format::DecodePath(row.path))) {
    components.append(ComponentObject(component));
  }
  return nb::tuple(components);
}

void BindText(nb::class_<Row>& rows, const char* name, nb::object Row::*text) {
  rows.def_prop_rw(
      name,
      [text](const Row& row) {
        return (row.*text).is_valid() ? nb::borrow<nb::str>(row.*text) : nb::str("");
      },
      [text](Row& row, nb::str value) { row.*text = std::move(value); });
}

template <typename Value, typename... Extra>
void BindDetail(nb::class_<Row>& rows, const char* name, Value RowDetails::*detail,
                const Extra&... extra) {
  rows.def_prop_rw(
      name, [detail](const Row& row) { return row.details ? (*row.details).*detail : Value(); },
      [detail](Row& row, Value value) {
        if (!row.details) row.details = std::make_unique<RowDetails>();
        (*row.details).*detail = std::move(value);
      },
      extra...);
}

}  // namespace

void BindRows(nb::module_& m) {
  using Type = PathComponent::Type;
  nb::enum_<Type>(m, "ComponentType", nb::is_arithmetic())
      .value("INT_KEY", Type::kIntKey)
      .value("INDEX", Type::kIndex)
      .value("KEY", Type::kKey)
      .value("ATTRIBUTE", Type::kAttribute)
      .value("LITERAL", Type::kLiteral);
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

  using nb::arg;
  nb::class_<Row> rows(m, "Row");
  rows.def(
          "__init__",
          [](Row* self, const nb::tuple& path, RowTag tag, nb::object data, int dtype,
             format::ValueType value_type) {
            new (self) Row{.path = EncodedPath(path),
                           .data = std::move(data),
                           .dtype = dtype,
                           .tag = tag,
                           .value_type = value_type};
          },
          arg("path"), arg("tag"), arg("data").none() = nb::none(), arg("dtype") = 0,
          arg("value_type") = format::ValueType::kNone,
          nb::sig("def __init__(self, path: tuple[tuple[int, typing.Any], ...], tag: RowTag, "
                  "data: typing.Any = None, dtype: int = 0, "
                  "value_type: ValueType = ...) -> None"))
      .def_prop_ro("path", &PathObject,
                   nb::for_getter(nb::sig("def path(self) -> tuple[tuple[int, typing.Any], ...]")))
      .def_ro("tag", &Row::tag)
      .def_rw("data", &Row::data, nb::for_getter(nb::sig("def data(self) -> typing.Any")),
              nb::for_setter(nb::sig("def data(self, value: typing.Any) -> None")))
      .def_ro("dtype", &Row::dtype)
      .def_ro("value_type", &Row::value_type)
      .def_rw("container", &Row::container)
      .def_rw("child_count", &Row::child_count)
      .def_rw("weak_type", &Row::weak_type)
      .def_rw("far", &Row::far);
  BindText(rows, "type_name", &Row::type_name);
  BindText(rows, "prng_impl", &Row::prng_impl);
  BindText(rows, "sharding", &Row::sharding);
  BindText(rows, "variable_types", &Row::variable_types);
  rows.def_prop_rw(
      "source", [](const Row& row) { return row.source.is_valid() ? row.source : nb::none(); },
      [](Row& row, nb::object source) { row.source = std::move(source); },
      nb::for_getter(nb::sig("def source(self) -> typing.Any")),
      nb::for_setter(nb::sig("def source(self, source: typing.Any, /) -> None")));
  BindDetail(rows, "shape", &RowDetails::shape);
  BindDetail(rows, "shard_shape", &RowDetails::shard_shape, nb::for_setter(arg("value").none()));
  BindDetail(rows, "origins", &RowDetails::origins);
  BindDetail(rows, "partial", &RowDetails::partial);
  BindDetail(rows, "chunk_bytes_max", &RowDetails::chunk_bytes_max);
  BindDetail(rows, "chunk_axes", &RowDetails::chunk_axes);

  nb::enum_<format::ItemKind>(m, "ItemKind")
      .value("TREE", format::ItemKind::kTree)
      .value("JSON", format::ItemKind::kJson)
      .value("FILES", format::ItemKind::kFiles);
  nb::class_<ItemRows>(m, "ItemRows")
      .def(
          "__init__",
          [](ItemRows* self, nb::str name, nb::list of, format::ItemKind kind) {
            new (self) ItemRows{std::move(name), std::move(of), kind};
          },
          arg("name"), arg("rows"), arg("kind") = format::ItemKind::kTree,
          nb::sig("def __init__(self, name: str, rows: list[Row], kind: ItemKind = ...) -> None"))
      .def_ro("name", &ItemRows::name)
      .def_ro("rows", &ItemRows::rows, nb::for_getter(nb::sig("def rows(self) -> list[Row]")));
}

}  // namespace stepwell::python
