// SPDX-License-Identifier: Apache-2.0
#include "api/python/tree.h"

#include <cstring>
#include <string_view>
#include <utility>

#include "api/python/array_memory.h"
#include "api/python/errors.h"
#include "api/python/gil.h"
#include "api/python/leaves.h"
#include "format/grid.h"
#include "format/key.h"

namespace stepwell::python {
namespace {

namespace nb = nanobind;
using format::LeafKind;
using format::LeafRecord;

PyArray_Descr* Descriptor(const LeafRecord& record) {
  return reinterpret_cast<PyArray_Descr*>(DTypeOf(record));
}

Extents ExtentsOf(const format::Box& box) {
  Extents extents(box.start.size());
  for (size_t i = 0; i < extents.size(); ++i) extents[i] = box.stop[i] - box.start[i];
  return extents;
}

std::byte* DataOf(const nb::object& array) {
  return static_cast<std::byte*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(array.ptr())));
}

db::LoadStats LoadOrThrow(db::StepReader& reader, const std::vector<db::LoadRequest>& requests) {
  if (requests.empty()) return {};
  std::optional<Result<db::LoadStats>> stats;
  {
    GilReleased release;
    stats.emplace(reader.Load(requests));
  }
  return ValueOrThrow(*std::move(stats));
}

// Returns true if `inner` is `outer` or lies below it. An encoded path is a prefix of those below
// it.
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

double DoubleOf(std::string_view bytes, size_t at) {
  double number = 0;
  if (bytes.size() < at + sizeof number) ThrowIfError(DataLossError("a float is cut off"));
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

// From here on Python's own conversions may refuse (4300 digits).
constexpr size_t kIntTextMax = 500;

}  // namespace

format::Box BoxOf(const LeafRecord& record, const Extents& start, const Extents& stop) {
  bool fits = record.kind == LeafKind::kArray && start.size() == record.shape.size() &&
              stop.size() == record.shape.size();
  for (size_t i = 0; fits && i < start.size(); ++i) {
    fits = start[i] <= stop[i] && stop[i] <= record.shape[i];
  }
  if (!fits) throw nb::value_error("the box does not fit the array");
  return {start, stop};
}

uint64_t BoxBytes(const LeafRecord& record, const format::Box& box) {
  const auto item_bytes = static_cast<uint64_t>(PyDataType_ELSIZE(Descriptor(record)));
  return ValueOrThrow(format::ElementCount(ExtentsOf(box), item_bytes)) * item_bytes;
}

nb::object ValueObject(format::ValueType type, nb::bytes data) {
  const std::string_view bytes(data.c_str(), data.size());
  switch (type) {
    case format::ValueType::kNone:
      return nb::none();
    case format::ValueType::kBool:
      return nb::bool_(bytes != std::string_view("\0", 1));
    case format::ValueType::kInt: {
      const nb::str text = TextObject(bytes);
      nb::object number = bytes.size() < kIntTextMax
                              ? nb::steal(PyNumber_Long(text.ptr()))
                              : nb::steal(PyNumber_Long(
                                    nb::module_::import_("decimal").attr("Decimal")(text).ptr()));
      if (!number.is_valid()) nb::raise_python_error();
      return number;
    }
    case format::ValueType::kFloat:
      return nb::float_(DoubleOf(bytes, 0));
    case format::ValueType::kComplex:
      return nb::steal(PyComplex_FromDoubles(DoubleOf(bytes, 0), DoubleOf(bytes, sizeof(double))));
    case format::ValueType::kStr:
      return TextObject(bytes);
    default:
      return data;
  }
}

Loaded Tree::ReadBoxes(const std::vector<Wanted>& boxes) {
  ArrayMemory memory;
  for (const auto& [leaf, start, stop, numa_node] : boxes) {
    const LeafRecord& record = records_.at(leaf);
    if (record.kind != LeafKind::kArray) continue;
    memory.Expect(start ? BoxBytes(record, BoxOf(record, *start, *stop)) : record.logical_bytes,
                  numa_node);
  }
  nb::list objects;
  std::vector<db::LoadRequest> requests;
  requests.reserve(boxes.size());
  for (const auto& [leaf, start, stop, numa_node] : boxes) {
    const LeafRecord& record = records_.at(leaf);
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
  return {objects, LoadOrThrow(*reader_, requests)};
}

nb::list Tree::ReadValues(const std::vector<size_t>& leaves, db::LoadStats* stats) {
  std::vector<Wanted> wanted;
  wanted.reserve(leaves.size());
  for (size_t leaf : leaves) wanted.push_back({.leaf = leaf});
  Loaded loaded = ReadBoxes(wanted);
  *stats = loaded.stats;
  auto values = nb::borrow<nb::list>(loaded.value);
  for (size_t i = 0; i < leaves.size(); ++i) {
    const LeafRecord& record = records_[leaves[i]];
    if (record.kind == LeafKind::kValue) {
      values[i] = ValueObject(record.value_type, nb::borrow<nb::bytes>(values[i]));
    } else if (record.value_type == format::ValueType::kNumpyScalar) {
      values[i] = values[i][nb::make_tuple()];
    }
  }
  return values;
}

Loaded Tree::Load(Place number) {
  Loaded loaded;
  const nb::list values = ReadValues(LeavesBelow(number), &loaded.stats);
  loaded.value = Build(number, values);
  return loaded;
}

Loaded Tree::LoadLeaves(const std::vector<size_t>& leaves) {
  nb::dict texts = ByText(leaves, std::nullopt);
  Loaded loaded;
  const nb::list values = ReadValues(leaves, &loaded.stats);
  nb::dict by_text;
  size_t next = 0;
  for (const auto& [text, leaf] : texts) by_text[text] = values[next++];
  loaded.value = std::move(by_text);
  return loaded;
}

nb::object Tree::Build(Place number, const nb::list& values) const {
  TreeBuilder builder(number == kStep);
  const auto [begin, end] = RangeOf(number);
  size_t next = 0;
  for (size_t i = begin; i < end; ++i) {
    if (records_[i].kind == LeafKind::kNode) {
      builder.Open(records_[i]);
    } else {
      builder.Add(records_[i].key, values[next++]);
    }
  }
  return builder.Finish();
}

}  // namespace stepwell::python
