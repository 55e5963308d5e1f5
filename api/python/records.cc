// SPDX-License-Identifier: Apache-2.0
#include "api/python/records.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "api/python/errors.h"
#include "api/python/leaves.h"
#include "api/python/paths.h"
#include "db/read/step_tree.h"
#include "io/buffer.h"

#define STEPWELL_NUMPY_IMPORT  // before anything that includes numpy_api.h
#include "api/python/array_memory.h"

namespace stepwell::python {
namespace {

namespace nb = nanobind;
using format::LeafKind;
using format::LeafRecord;
using format::PathComponent;

std::array<PyArray_Descr*, 64> g_descriptors{};  // by number; one reference each, for ever

PyArray_Descr* Descriptor(const LeafRecord& record) {
  const auto number = static_cast<size_t>(record.dtype);
  if (number >= g_descriptors.size() || g_descriptors[number] == nullptr) {
    ThrowIfError(DataLossError(StrCat("unknown dtype number ", number)));
  }
  return g_descriptors[number];
}

nb::object NameObject(const PathComponent& component) {
  return format::IsNumber(component.type) ? nb::steal(PyLong_FromLongLong(component.number))
                                          : TextObject(component.name);
}

// As a dict has it.
nb::object KeyObject(const PathComponent& component) {
  nb::object name = NameObject(component);
  if (component.type != PathComponent::Type::kLiteral) return name;
  return nb::module_::import_("stepwell._pytree.keys").attr("key_of")(name);
}

nb::object ComponentObject(const PathComponent& component) {
  return nb::make_tuple(static_cast<int>(component.type), NameObject(component));
}

ShapeTuple TupleOf(const std::vector<uint64_t>& numbers) {
  auto tuple = nb::steal<ShapeTuple>(PyTuple_New(static_cast<Py_ssize_t>(numbers.size())));
  for (size_t i = 0; i < numbers.size(); ++i) {
    PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i),
                     PyLong_FromUnsignedLongLong(numbers[i]));
  }
  return tuple;
}

// ValueError for what is not a box of the array.
format::Box BoxOf(const LeafRecord& record, const Extents& start, const Extents& stop) {
  bool fits = record.kind == LeafKind::kArray && start.size() == record.shape.size() &&
              stop.size() == record.shape.size();
  for (size_t i = 0; fits && i < start.size(); ++i) {
    fits = start[i] <= stop[i] && stop[i] <= record.shape[i];
  }
  if (!fits) throw nb::value_error("the box does not fit the array");
  return {start, stop};
}

Extents ExtentsOf(const format::Box& box) {
  Extents extents(box.start.size());
  for (size_t i = 0; i < extents.size(); ++i) extents[i] = box.stop[i] - box.start[i];
  return extents;
}

uint64_t SizeBytes(const LeafRecord& record, const format::Box& box) {
  const auto item_bytes = static_cast<uint64_t>(PyDataType_ELSIZE(Descriptor(record)));
  return ValueOrThrow(format::ElementCount(ExtentsOf(box), item_bytes)) * item_bytes;
}

std::byte* DataOf(const nb::object& array) {
  return static_cast<std::byte*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(array.ptr())));
}

db::LoadStats LoadOrThrow(db::StepReader& reader, const std::vector<db::LoadRequest>& requests) {
  if (requests.empty()) return {};
  std::optional<Result<db::LoadStats>> stats;
  {
    nb::gil_scoped_release release;
    stats.emplace(reader.Load(requests));
  }
  return ValueOrThrow(*std::move(stats));
}

// Whether `inner` lies below `outer` (or is it): an encoded path is a prefix of those below.
bool IsBelow(std::string_view inner, std::string_view outer) {
  return inner.size() >= outer.size() && inner.substr(0, outer.size()) == outer;
}

// Puts leaves, in key order, into the containers that hold them.
class TreeBuilder {
 public:
  // `items`: the outermost container is a dict of the step's items.
  explicit TreeBuilder(bool items) {
    if (items) open_.push_back({"", false, false, nb::dict()});
  }

  void Open(const LeafRecord& node) {
    CloseTo(node.key);
    const bool tuple = node.container == format::ContainerKind::kTuple;
    const bool list = node.container == format::ContainerKind::kList || tuple;
    open_.push_back(
        {node.key, list, tuple, list ? nb::object(nb::list()) : nb::object(nb::dict())});
  }

  void Add(std::string_view key, nb::object value) {
    CloseTo(key);
    Put(key, std::move(value));
  }

  nb::object Finish() {
    while (!open_.empty()) Close();
    return std::move(result_);
  }

 private:
  struct Container {
    std::string_view key;
    bool is_list;
    bool is_tuple;
    nb::object object;
  };

  void CloseTo(std::string_view key) {
    while (!open_.empty() && !IsBelow(key, open_.back().key)) Close();
  }

  void Close() {
    const Container closed = std::move(open_.back());
    open_.pop_back();
    Put(closed.key,
        closed.is_tuple ? nb::steal(PyList_AsTuple(closed.object.ptr())) : closed.object);
  }

  void Put(std::string_view key, nb::object value) {
    if (open_.empty()) {
      result_ = std::move(value);
      return;
    }
    const Container& parent = open_.back();
    if (parent.is_list) {
      if (PyList_Append(parent.object.ptr(), value.ptr()) < 0) nb::raise_python_error();
      return;
    }
    nb::object name;
    if (parent.key.empty()) {
      name = TextObject(ValueOrThrow(format::DecodeLeafKey(key)).item);
    } else {
      const format::KeyPath path = ValueOrThrow(format::DecodePath(key.substr(parent.key.size())));
      name = path.empty() ? nb::object(nb::none()) : KeyObject(path.back());
    }
    if (PyDict_SetItem(parent.object.ptr(), name.ptr(), value.ptr()) < 0) nb::raise_python_error();
  }

  std::vector<Container> open_;  // outermost first
  nb::object result_;
};

void ImportNumPy() {
  if (_import_array() < 0) nb::raise_python_error();
}

// By number; done once by stepwell/_pytree/dtypes.py.
void SetDTypes(const std::map<size_t, nb::object>& dtypes) {
  for (const auto& [number, dtype] : dtypes) {
    if (number >= g_descriptors.size() || !PyArray_DescrCheck(dtype.ptr())) {
      throw nb::value_error("not a dtype");
    }
    g_descriptors[number] = reinterpret_cast<PyArray_Descr*>(nb::object(dtype).release().ptr());
  }
}

// Of every element type of the format, by number.
std::map<size_t, std::string_view> DTypeNames() {
  std::map<size_t, std::string_view> names;
  for (const format::DTypeInfo& info : format::AllDTypes()) {
    names.emplace(static_cast<size_t>(info.dtype), info.name);
  }
  return names;
}

}  // namespace

LeafTable::LeafTable(std::shared_ptr<db::StepReader> reader, std::vector<LeafRecord> records,
                     bool is_part)
    : reader_(std::move(reader)),
      step_(reader_->step().step),
      only_state_(db::IsOnlyState(reader_->step())),
      is_part_(is_part),
      records_(std::move(records)),
      pid_(getpid()) {}

LeafTable::LeafTable(uint64_t step, const nb::dict& encoded) : step_(step), pid_(getpid()) {
  std::set<std::string> items;
  for (const auto [key, value] : encoded) {
    const ConstBytes bytes{reinterpret_cast<const std::byte*>(PyBytes_AsString(value.ptr())),
                           nb::len(value)};
    records_.push_back(ValueOrThrow(format::DecodeLeafValue(
        std::string_view(PyBytes_AsString(key.ptr()), nb::len(key)), bytes)));
    items.insert(ValueOrThrow(format::DecodeLeafKey(records_.back().key)).item);
  }
  std::ranges::sort(records_, {}, &LeafRecord::key);
  only_state_ = items == std::set<std::string>{"state"};
}

LeafTable::~LeafTable() {
  // A forked child owns neither the pin nor the files behind the reader.
  if (pid_ != getpid()) new std::shared_ptr<db::StepReader>(std::move(reader_));
}

std::vector<Record> LeafTable::Records() const {
  std::vector<python::Record> found;
  found.reserve(records_.size());
  std::vector<size_t> open;  // nodes that hold the current record, outermost first
  for (size_t index = 0; index < records_.size(); ++index) {
    const LeafRecord& record = records_[index];
    const format::LeafKey key = ValueOrThrow(format::DecodeLeafKey(record.key));
    while (!open.empty() && !IsBelow(record.key, records_[open.back()].key)) open.pop_back();
    python::Record& out = found.emplace_back();
    if (!open.empty()) out.parent = static_cast<Py_ssize_t>(open.back());
    out.component = key.path.empty() ? nb::none() : ComponentObject(key.path.back());
    out.item = TextObject(key.item);
    out.depth = key.path.size();
    out.kind = record.kind;
    out.value_type = record.value_type;
    out.container = record.container;
    out.type_name = TextObject(record.type_name);
    out.dtype = record.kind == LeafKind::kArray
                    ? nb::borrow(reinterpret_cast<PyObject*>(Descriptor(record)))
                    : nb::none();
    out.shape = TupleOf(record.shape);
    out.weak_type = record.weak_type;
    out.prng_impl = TextObject(record.prng_impl);
    out.sharding = TextObject(record.sharding_json);
    out.chunk_shape = TupleOf(record.chunk_shape);
    out.logical_bytes = record.logical_bytes;
    out.shard_shape = TupleOf(record.shard_shape);
    out.variable_types = TextObject(record.variable_types);
    if (record.kind == LeafKind::kNode) open.push_back(index);
  }
  return found;
}

nb::dict LeafTable::EncodedRecords() const {
  nb::dict encoded;
  for (const LeafRecord& record : records_) {
    const std::string value = format::EncodeLeafValue(record);
    encoded[nb::bytes(record.key.data(), record.key.size())] =
        nb::bytes(value.data(), value.size());
  }
  return encoded;
}

const LeafRecord& LeafTable::RecordAt(size_t index) const {
  if (index >= records_.size()) throw nb::index_error("no such record");
  return records_[index];
}

nb::tuple LeafTable::ReadBoxes(const std::vector<Wanted>& boxes) {
  db::LoadStats stats;
  nb::list objects = ReadRecords(boxes, &stats);
  return nb::make_tuple(objects, stats);
}

// Arrays as ndarrays, values as bytes.
nb::list LeafTable::ReadRecords(const std::vector<Wanted>& boxes, db::LoadStats* stats) {
  ArrayMemory memory;
  for (const auto& [leaf, start, stop, numa_node] : boxes) {
    const LeafRecord& record = RecordAt(leaf);
    if (record.kind != LeafKind::kArray) continue;
    memory.Expect(start ? SizeBytes(record, BoxOf(record, *start, *stop)) : record.logical_bytes,
                  numa_node);
  }
  nb::list objects;
  std::vector<db::LoadRequest> requests;
  requests.reserve(boxes.size());
  for (const auto& [leaf, start, stop, numa_node] : boxes) {
    const LeafRecord& record = RecordAt(leaf);
    db::LoadRequest request;
    request.leaf = &record;
    if (record.kind == LeafKind::kArray) {
      request.box = start ? BoxOf(record, *start, *stop) : format::WholeArray(record.shape);
      nb::object array = memory.NewArray(Descriptor(record), ExtentsOf(request.box), numa_node);
      objects.append(array);
      if (PyArray_SIZE(reinterpret_cast<PyArrayObject*>(array.ptr())) == 0) continue;
      request.out = DataOf(array);
    } else if (record.chunk_count == 0) {
      objects.append(nb::bytes(record.inline_value.data(), record.inline_value.size()));
      continue;
    } else {
      nb::object bytes = nb::steal(
          PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(record.logical_bytes)));
      if (!bytes.is_valid()) nb::raise_python_error();
      objects.append(bytes);
      request.out = reinterpret_cast<std::byte*>(PyBytes_AS_STRING(bytes.ptr()));
    }
    requests.push_back(std::move(request));
  }
  *stats = LoadOrThrow(*reader_, requests);
  return objects;
}

size_t LeafTable::EndOf(std::optional<size_t> index) const {
  if (!index) return records_.size();
  size_t end = *index;
  while (end < records_.size() && IsBelow(records_[end].key, RecordAt(*index).key)) ++end;
  return end;
}

std::vector<size_t> LeafTable::LeavesBelow(std::optional<size_t> index) const {
  std::vector<size_t> leaves;
  const size_t end = EndOf(index);
  for (size_t i = index.value_or(0); i < end; ++i) {
    if (records_[i].kind != LeafKind::kNode) leaves.push_back(i);
  }
  return leaves;
}

nb::object LeafTable::Build(std::optional<size_t> index, nb::list values) const {
  TreeBuilder builder(!index);
  const size_t end = EndOf(index);
  size_t next = 0;
  for (size_t i = index.value_or(0); i < end; ++i) {
    if (records_[i].kind == LeafKind::kNode) {
      builder.Open(records_[i]);
    } else {
      builder.Add(records_[i].key, values[next++]);
    }
  }
  return builder.Finish();
}

nb::tuple LeafTable::Load(std::optional<size_t> index, nb::callable decode_value) {
  std::vector<Wanted> wanted;
  const std::vector<size_t> leaves = LeavesBelow(index);
  wanted.reserve(leaves.size());
  for (size_t leaf : leaves) wanted.push_back({.leaf = leaf});
  db::LoadStats stats;
  nb::list values = ReadRecords(wanted, &stats);
  for (size_t i = 0; i < leaves.size(); ++i) {
    const LeafRecord& record = records_[leaves[i]];
    if (record.kind == LeafKind::kValue) {
      values[i] = decode_value(static_cast<int>(record.value_type), values[i]);
    } else if (record.value_type == format::ValueType::kNumpyScalar) {
      values[i] = values[i][nb::make_tuple()];
    }
  }
  return nb::make_tuple(Build(index, std::move(values)), stats);
}

std::vector<nb::bytes> LeafTable::Keys() const {
  std::vector<nb::bytes> keys;
  keys.reserve(records_.size());
  for (const LeafRecord& record : records_) keys.emplace_back(record.key.data(), record.key.size());
  return keys;
}

std::map<size_t, std::vector<format::PieceRecord>> LeafTable::Pieces() const {
  std::map<size_t, std::vector<format::PieceRecord>> found;
  for (size_t index = 0; index < records_.size(); ++index) {
    if (records_[index].partial) found.emplace(index, records_[index].pieces);
  }
  return found;
}

std::vector<std::string> LeafTable::Shardings() const {
  std::set<std::string> shardings;
  const std::string* last = nullptr;
  for (const LeafRecord& record : records_) {
    if (record.sharding_json.empty()) continue;
    if (last == nullptr || *last != record.sharding_json) shardings.insert(record.sharding_json);
    last = &record.sharding_json;
  }
  return {shardings.begin(), shardings.end()};
}

bool LeafTable::HasKeys() const {
  return std::any_of(records_.begin(), records_.end(),
                     [](const LeafRecord& record) { return !record.prng_impl.empty(); });
}

nb::tuple LeafTable::Resolve(nb::handle path, std::optional<int64_t> below) {
  const format::PathPattern pattern = PatternFromPython(path);
  if (!tree_) tree_ = ValueOrThrow(db::StepTree::Make(step_, records_, only_state_, is_part_));
  std::optional<size_t> start;
  if (below) start = *below < 0 ? db::StepTree::kRoot : static_cast<size_t>(*below);
  const Result<db::PathSelection> selection = tree_->Resolve(pattern, start);
  ThrowIfPathError(selection.status());
  if (selection->is_glob) return nb::make_tuple(nb::none(), selection->numbers);
  const size_t number = selection->numbers.front();
  return nb::make_tuple(number == db::StepTree::kRoot ? int64_t{-1} : static_cast<int64_t>(number),
                        nb::list());
}

void BindRecords(nb::module_& m) {
  using nb::arg;
  ImportNumPy();
  m.def("dtype_names", &DTypeNames);
  m.def("set_dtypes", &SetDTypes, arg("dtypes"));
  m.def("memory_near", &MemoryNear, arg("size_bytes"), arg("numa_node"));
  m.def("numa_node_of_pci_device", &io::NumaNodeOfPciDevice, arg("bus_id"));

  using db::LoadStats;
  nb::class_<LoadStats>(m, "LoadStats")
      .def(nb::init<>())
      .def_ro("bytes_read", &LoadStats::bytes_read)
      .def_ro("bytes_needed", &LoadStats::bytes_needed)
      .def_ro("bytes_out", &LoadStats::bytes_out)
      .def_ro("reads", &LoadStats::reads)
      .def_ro("chunks", &LoadStats::chunks)
      .def("__add__", [](LoadStats a, const LoadStats& b) { return a += b; });
  nb::class_<Wanted>(m, "Wanted")
      .def(nb::init<size_t, std::optional<Extents>, std::optional<Extents>, int>(), arg("leaf"),
           arg("start").none() = nb::none(), arg("stop").none() = nb::none(), arg("numa_node") = -1)
      .def_ro("leaf", &Wanted::leaf)
      .def_ro("start", &Wanted::start)
      .def_ro("stop", &Wanted::stop)
      .def_ro("numa_node", &Wanted::numa_node);
  nb::class_<Record>(m, "Record")
      .def_ro("parent", &Record::parent)
      .def_ro("component", &Record::component,
              nb::for_getter(nb::sig("def component(self) -> tuple[int, typing.Any] | None")))
      .def_ro("item", &Record::item)
      .def_ro("depth", &Record::depth)
      .def_ro("kind", &Record::kind)
      .def_ro("value_type", &Record::value_type)
      .def_ro("container", &Record::container)
      .def_ro("type_name", &Record::type_name)
      .def_ro("dtype", &Record::dtype, nb::for_getter(nb::sig("def dtype(self) -> typing.Any")))
      .def_ro("shape", &Record::shape)
      .def_ro("weak_type", &Record::weak_type)
      .def_ro("prng_impl", &Record::prng_impl)
      .def_ro("sharding", &Record::sharding)
      .def_ro("chunk_shape", &Record::chunk_shape)
      .def_ro("logical_bytes", &Record::logical_bytes)
      .def_ro("shard_shape", &Record::shard_shape)
      .def_ro("variable_types", &Record::variable_types);

  using format::PieceRecord;
  nb::class_<PieceRecord>(m, "PieceRecord")
      .def_ro("origin", &PieceRecord::origin)
      .def_ro("shape", &PieceRecord::shape);

  nb::class_<LeafTable>(m, "LeafTable")
      .def(nb::init<uint64_t, const nb::dict&>(), arg("step"), arg("records"),
           nb::sig("def __init__(self, step: int, records: dict[bytes, bytes]) -> None"))
      .def("__len__", &LeafTable::size)
      .def("records", &LeafTable::Records)
      .def("encoded_records", &LeafTable::EncodedRecords,
           nb::sig("def encoded_records(self) -> dict[bytes, bytes]"))
      .def("read_boxes", &LeafTable::ReadBoxes, arg("boxes"),
           nb::sig("def read_boxes(self, boxes: list[Wanted]) -> "
                   "tuple[list[typing.Any], LoadStats]"))
      .def("leaves_below", &LeafTable::LeavesBelow, arg("index").none())
      .def("build", &LeafTable::Build, arg("index").none(), arg("values"),
           nb::sig("def build(self, index: int | None, values: list[object]) -> object"))
      .def("keys", &LeafTable::Keys)
      .def("pieces", &LeafTable::Pieces)
      .def("shardings", &LeafTable::Shardings)
      .def("has_keys", &LeafTable::HasKeys)
      .def("resolve", &LeafTable::Resolve, arg("path").none(), arg("below").none() = nb::none(),
           nb::sig("def resolve(self, path: str | tuple[typing.Hashable, ...] | None, "
                   "below: int | None = None) -> tuple[int | None, list[int]]"))
      .def("load", &LeafTable::Load, arg("index").none(), arg("decode_value"),
           nb::sig("def load(self, index: int | None, decode_value: object) "
                   "-> tuple[typing.Any, LoadStats]"));
}

}  // namespace stepwell::python
