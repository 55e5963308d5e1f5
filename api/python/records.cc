// SPDX-License-Identifier: Apache-2.0
#include "api/python/records.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <map>
#include <string_view>
#include <utility>

#include "api/python/bindings.h"
#include "api/python/errors.h"
#include "api/python/leaves.h"
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

nb::object NameObject(const PathComponent& component) {
  return format::IsNumber(component.type) ? nb::steal(PyLong_FromLongLong(component.number))
                                          : TextObject(component.name);
}

ShapeTuple TupleOf(const std::vector<uint64_t>& numbers) {
  auto tuple = nb::steal<ShapeTuple>(PyTuple_New(static_cast<Py_ssize_t>(numbers.size())));
  for (size_t i = 0; i < numbers.size(); ++i) {
    PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i),
                     PyLong_FromUnsignedLongLong(numbers[i]));
  }
  return tuple;
}

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

// Maps the number of every element type of the format to its name.
std::map<size_t, std::string_view> DTypeNames() {
  std::map<size_t, std::string_view> names;
  for (const format::DTypeInfo& info : format::AllDTypes()) {
    names.emplace(static_cast<size_t>(info.dtype), info.name);
  }
  return names;
}

}  // namespace

nb::object KeyObject(const PathComponent& component) {
  nb::object name = NameObject(component);
  if (component.type != PathComponent::Type::kLiteral) return name;
  return nb::module_::import_("stepwell._pytree.keys").attr("key_of")(name);
}

nb::object ComponentObject(const PathComponent& component) {
  return nb::make_tuple(static_cast<int>(component.type), NameObject(component));
}

PyObject* DTypeOf(const LeafRecord& record) {
  const auto number = static_cast<size_t>(record.dtype);
  if (number >= g_descriptors.size() || g_descriptors[number] == nullptr) {
    ThrowIfError(DataLossError(StrCat("unknown dtype number ", number)));
  }
  return reinterpret_cast<PyObject*>(g_descriptors[number]);
}

Record RecordOf(const LeafRecord& record) {
  return {.kind = record.kind,
          .value_type = record.value_type,
          .container = record.container,
          .type_name = TextObject(record.type_name),
          .dtype = record.kind == LeafKind::kArray ? nb::borrow(DTypeOf(record)) : nb::none(),
          .shape = TupleOf(record.shape),
          .weak_type = record.weak_type,
          .prng_impl = TextObject(record.prng_impl),
          .sharding = TextObject(record.sharding_json),
          .chunk_shape = TupleOf(record.chunk_shape),
          .logical_bytes = record.logical_bytes,
          .shard_shape = TupleOf(record.shard_shape),
          .statistics = record.statistics,
          .variable_types = TextObject(record.variable_types)};
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
  using format::LeafStatistics;
  nb::enum_<format::ChangedCount>(m, "ChangedCount")
      .value("UNKNOWN", format::ChangedCount::kUnknown)
      .value("AT_MOST", format::ChangedCount::kAtMost)
      .value("EXACT", format::ChangedCount::kExact);
  nb::class_<LeafStatistics>(m, "LeafStatistics")
      .def_ro("elements", &LeafStatistics::elements)
      .def_ro("nonfinite", &LeafStatistics::nonfinite)
      .def_prop_ro("has_range", &LeafStatistics::has_range)
      .def_ro("min", &LeafStatistics::min)
      .def_ro("max", &LeafStatistics::max)
      .def_ro("sum", &LeafStatistics::sum)
      .def_prop_ro("norm", &LeafStatistics::norm)
      .def_ro("changed", &LeafStatistics::changed)
      .def_ro("changed_count", &LeafStatistics::changed_count);
  nb::class_<Record>(m, "Record")
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
      .def_ro("statistics", &Record::statistics)
      .def_ro("variable_types", &Record::variable_types);
}

}  // namespace stepwell::python
