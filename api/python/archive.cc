// SPDX-License-Identifier: Apache-2.0
// What Python needs for safetensors files whose arrays it makes itself, under other names or with
// other elements (stepwell/_backend/tensors.py): the plan of an export, and the file's header.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <utility>

#include "api/python/bindings.h"
#include "api/python/errors.h"
#include "api/python/leaves.h"
#include "api/python/tree.h"
#include "db/export/archive/plan.h"
#include "format/archive.h"

namespace stepwell::python {
namespace {

namespace nb = nanobind;
using db::ArchiveArray;
using format::LeafRecord;

// (names, number of the leaf or None, dtype, shape, element)
nb::tuple Planned(const ArchiveArray& array, const LeafRecord* first) {
  nb::list names;
  for (const std::string& name : array.path) names.append(TextObject(name));
  nb::object number = nb::none();
  if (array.leaf != nullptr) number = nb::int_(array.leaf - first);
  nb::list shape;
  for (const uint64_t extent : array.shape) shape.append(extent);
  LeafRecord record;
  record.dtype = array.dtype;
  return nb::make_tuple(nb::tuple(names), number, nb::borrow(DTypeOf(record)), nb::tuple(shape),
                        nb::bytes(array.element.data(), array.element.size()));
}

struct Plan {
  nb::list arrays;
  std::vector<std::pair<std::string, std::string>> metadata;
  ExportReport report;
};

Plan PlanOf(const Tree& tree, const db::ArchiveOptions& options) {
  const std::vector<LeafRecord>& records = tree.leaf_records();
  size_t begin = 0;
  while (begin < records.size() && !records[begin].key.starts_with(options.subtree_key)) ++begin;
  size_t end = begin;
  while (end < records.size() && records[end].key.starts_with(options.subtree_key)) ++end;
  db::ArchivePlan made = ValueOrThrow(db::PlanArchive(
      tree.reader()->step(), std::span(records).subspan(begin, end - begin), options));
  Plan plan;
  for (const ArchiveArray& array : made.arrays) plan.arrays.append(Planned(array, records.data()));
  plan.metadata = std::move(made.metadata);
  plan.report = std::move(made.report);
  return plan;
}

// Tensors in the order of their bytes: name, number of the dtype, shape, size in bytes.
using TensorFields = std::tuple<std::string, size_t, format::Shape, uint64_t>;

nb::bytes Header(const std::vector<TensorFields>& fields,
                 const std::vector<std::pair<std::string, std::string>>& metadata) {
  std::vector<format::SafetensorsTensor> tensors;
  uint64_t end = 0;
  for (const auto& [name, dtype, shape, size_bytes] : fields) {
    tensors.push_back({name, static_cast<format::DType>(dtype), shape, end, end + size_bytes});
    end += size_bytes;
  }
  const std::string header = ValueOrThrow(format::EncodeSafetensorsHeader(tensors, metadata));
  return nb::bytes(header.data(), header.size());
}

}  // namespace

void BindArchive(nb::module_& m) {
  using nb::arg;
  nb::class_<Plan>(m, "ArchivePlan")
      .def_ro("arrays", &Plan::arrays,
              nb::for_getter(nb::sig("def arrays(self) -> list[tuple[tuple[str, ...], int | None, "
                                     "typing.Any, tuple[int, ...], bytes]]")))
      .def_ro("metadata", &Plan::metadata)
      .def_ro("report", &Plan::report);
  m.def("plan_archive", &PlanOf, arg("tree"), arg("options"));
  m.def("safetensors_header", &Header, arg("tensors"), arg("metadata"));
  m.def(
      "safetensors_dtype",
      [](size_t dtype) { return format::SafetensorsDType(static_cast<format::DType>(dtype)); },
      arg("dtype"));
}

}  // namespace stepwell::python
