// SPDX-License-Identifier: Apache-2.0
#include "api/python/lookup.h"

#include <map>
#include <optional>
#include <utility>

#include "format/key.h"

namespace stepwell::python {
namespace {

using format::LeafRecord;
using Found = std::map<std::string, LeafRecord>;

// Whether a container can have such children: spares looking where nothing can be.
bool MayHold(format::ContainerKind container, format::PathComponent::Type type) {
  using Type = format::PathComponent::Type;
  switch (container) {
    case format::ContainerKind::kDict:
      return type == Type::kKey || type == Type::kIntKey;
    case format::ContainerKind::kList:
    case format::ContainerKind::kTuple:
      return type == Type::kIndex;
    case format::ContainerKind::kNamedTuple:
      return type == Type::kAttribute;
    default:
      return true;
  }
}

// Finds `key`; whether it is there.
Result<bool> Take(db::StepReader& reader, const std::string& key, Found* found) {
  if (found->contains(key)) return true;
  STEPWELL_ASSIGN_OR_RETURN(std::optional<LeafRecord> record, reader.Find(key));
  if (!record) return false;
  found->emplace(key, *std::move(record));
  return true;
}

Status Follow(db::StepReader& reader, const Reading& reading, bool below, Found* found) {
  std::vector<std::string> keys = {format::EncodeItem(reading.item)};
  STEPWELL_ASSIGN_OR_RETURN(const bool root, Take(reader, keys.front(), found));
  if (!root) return OkStatus();
  for (const auto& level : reading.levels) {
    std::vector<std::string> next;
    for (const std::string& key : keys) {
      const LeafRecord& node = found->at(key);
      if (node.kind != format::LeafKind::kNode) continue;
      for (const format::PathComponent& component : level) {
        if (!MayHold(node.container, component.type)) continue;
        STEPWELL_ASSIGN_OR_RETURN(const std::string last, format::EncodePath({component}));
        STEPWELL_ASSIGN_OR_RETURN(const bool there, Take(reader, key + last, found));
        if (there) next.push_back(key + last);
      }
    }
    keys = std::move(next);
  }
  if (!below) return OkStatus();
  for (const std::string& key : keys) {
    if (found->at(key).kind != format::LeafKind::kNode) continue;
    STEPWELL_ASSIGN_OR_RETURN(std::vector<LeafRecord> records, reader.Leaves(key));
    for (LeafRecord& record : records) {
      found->insert_or_assign(found->end(), record.key, std::move(record));
    }
  }
  return OkStatus();
}

}  // namespace

Result<std::vector<LeafRecord>> Lookup(db::StepReader& reader, const std::vector<Reading>& readings,
                                       bool below) {
  Found found;
  for (const Reading& reading : readings) {
    STEPWELL_RETURN_IF_ERROR(Follow(reader, reading, below, &found));
  }
  std::vector<LeafRecord> records;
  records.reserve(found.size());
  for (auto& [key, record] : found) records.push_back(std::move(record));
  return records;
}

}  // namespace stepwell::python
