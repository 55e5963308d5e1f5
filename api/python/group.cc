// SPDX-License-Identifier: Apache-2.0
#include "api/python/group.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstring>

namespace stepwell::python {

namespace nb = nanobind;

nb::bytes BytesOfId(const format::Id128& id) { return nb::bytes(id.data(), id.size()); }

format::Id128 IdFromPython(const nb::bytes& bytes) {
  format::Id128 id{};
  if (bytes.size() != id.size()) throw nb::value_error("an id has 16 bytes");
  std::memcpy(id.data(), bytes.data(), id.size());
  return id;
}

std::optional<db::StoreGroup> GroupFromPython(const std::optional<GroupPair>& group) {
  if (!group) return std::nullopt;
  return db::StoreGroup{IdFromPython(group->first), group->second};
}

std::optional<db::GroupSave> GroupSaveFromPython(const std::optional<GroupSavePair>& group) {
  if (!group) return std::nullopt;
  return db::GroupSave{IdFromPython(group->first), group->second};
}

nb::object SaveOfStep(const format::StepRecord& step) {
  if (!step.group) return nb::none();
  return nb::make_tuple(BytesOfId(step.group->save_id), nb::cast(step.group->parts));
}

}  // namespace stepwell::python
