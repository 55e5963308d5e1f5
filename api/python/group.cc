// SPDX-License-Identifier: Apache-2.0
#include "api/python/group.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <utility>
#include <vector>

#include "api/python/bindings.h"
#include "api/python/leaves.h"

namespace stepwell::python {
namespace {

namespace nb = nanobind;

format::Id128 IdOf(const nb::bytes& bytes) {
  format::Id128 id{};
  if (bytes.size() != id.size()) throw nb::value_error("an id has 16 bytes");
  std::memcpy(id.data(), bytes.data(), id.size());
  return id;
}

}  // namespace

nb::bytes BytesOfId(const format::Id128& id) { return nb::bytes(id.data(), id.size()); }

std::optional<db::GroupSave> SaveOfStep(const format::StepRecord& step) {
  if (!step.group) return std::nullopt;
  return db::GroupSave{step.group->save_id, step.group->parts};
}

void BindGroup(nb::module_& m) {
  using db::StoreGroup;
  using nb::arg;
  nb::class_<StoreGroup>(m, "StoreGroup")
      .def(
          "__init__",
          [](StoreGroup* self, const nb::bytes& group_id, uint32_t part) {
            new (self) StoreGroup{IdOf(group_id), part};
          },
          nb::kw_only(), arg("group_id"), arg("part"));
  using db::GroupSave;
  nb::class_<GroupSave>(m, "GroupSave")
      .def(
          "__init__",
          [](GroupSave* self, const nb::bytes& save_id, std::vector<uint32_t> parts) {
            new (self) GroupSave{IdOf(save_id), std::move(parts)};
          },
          nb::kw_only(), arg("save_id"), arg("parts"))
      .def_prop_ro("save_id", [](const GroupSave& save) { return BytesOfId(save.save_id); })
      .def_ro("parts", &GroupSave::parts);
  using db::Decision;
  nb::class_<Decision>(m, "Decision")
      .def(
          "__init__",
          [](Decision* self, uint64_t step, const nb::bytes& save_id, bool commit,
             std::vector<uint64_t> dead, uint64_t decision_number, bool wait) {
            new (self)
                Decision{step, IdOf(save_id), commit, std::move(dead), decision_number, wait};
          },
          nb::kw_only(), arg("step"), arg("save_id"), arg("commit"),
          arg("dead") = std::vector<uint64_t>(), arg("decision_number"), arg("wait") = true);
  using db::Decided;
  nb::class_<Decided>(m, "Decided")
      .def_ro("dead", &Decided::dead)
      .def_ro("decision_number", &Decided::decision_number);
  using format::StepRecord;
  nb::class_<StepRecord>(m, "StepRecord")
      .def_ro("step", &StepRecord::step)
      .def_ro("commit", &StepRecord::commit)
      .def_ro("time_ns", &StepRecord::time_ns)
      .def_ro("save_ns", &StepRecord::save_ns)
      .def_ro("pinned", &StepRecord::pinned)
      .def_prop_ro("taint", [](const StepRecord& record) { return TextObject(record.taint); })
      .def_ro("verified", &StepRecord::verified)
      .def_ro("leaf_count", &StepRecord::leaf_count)
      .def_ro("chunk_count", &StepRecord::chunk_count)
      .def_ro("logical_bytes", &StepRecord::logical_bytes)
      .def_ro("stored_bytes", &StepRecord::stored_bytes)
      .def_prop_ro(
          "owned_bytes",
          [](const StepRecord& record) { return record.stored_bytes - record.referenced_bytes; })
      .def_ro("items", &StepRecord::items)
      .def_prop_ro("group", &SaveOfStep);
  using db::GroupStatus;
  nb::class_<GroupStatus>(m, "GroupStatus")
      .def_ro("part", &GroupStatus::part)
      .def_ro("decision_number", &GroupStatus::decision_number)
      .def_ro("prepared", &GroupStatus::prepared);
}

}  // namespace stepwell::python
