// SPDX-License-Identifier: Apache-2.0
#include "db/read/path_lookup.h"

#include <map>
#include <span>
#include <string>
#include <utility>

namespace stepwell::db {
namespace {

using format::LeafKind;
using format::LeafRecord;
using format::PathPattern;
using format::PatternComponent;

using FoundRecords = std::map<std::string, LeafRecord>;
using Levels = std::vector<format::KeyPath>;  // of a path's components, each with all its meanings

// Finds `key`; whether it is there.
Result<bool> Take(StepReader& reader, const std::string& key, FoundRecords* found) {
  if (found->contains(key)) return true;
  STEPWELL_ASSIGN_OR_RETURN(std::optional<LeafRecord> record, reader.Find(key));
  if (!record) return false;
  found->emplace(key, *std::move(record));
  return true;
}

Status Follow(StepReader& reader, const std::string& item, std::span<const format::KeyPath> levels,
              bool below, FoundRecords* found) {
  std::vector<std::string> keys = {format::EncodeItem(item)};
  STEPWELL_ASSIGN_OR_RETURN(const bool root, Take(reader, keys.front(), found));
  if (!root) return OkStatus();
  for (const format::KeyPath& level : levels) {
    std::vector<std::string> next;
    for (const std::string& key : keys) {
      const LeafRecord& node = found->at(key);
      if (node.kind != LeafKind::kNode) continue;
      for (const format::PathComponent& component : level) {
        STEPWELL_ASSIGN_OR_RETURN(const std::string last, format::EncodePath({component}));
        STEPWELL_ASSIGN_OR_RETURN(const bool there, Take(reader, key + last, found));
        if (there) next.push_back(key + last);
      }
    }
    keys = std::move(next);
  }
  if (!below) return OkStatus();
  for (const std::string& key : keys) {
    if (found->at(key).kind != LeafKind::kNode) continue;
    STEPWELL_ASSIGN_OR_RETURN(std::vector<LeafRecord> records, reader.Leaves(key));
    for (LeafRecord& record : records) {
      found->insert_or_assign(found->end(), record.key, std::move(record));
    }
  }
  return OkStatus();
}

}  // namespace

bool IsOnlyState(const format::StepRecord& step) {
  return step.items.size() == 1 && step.items[0].name == "state";
}

Result<std::vector<LeafRecord>> FindAlong(StepReader& reader, const PathPattern& path,
                                          const format::KeyPath& above, bool below) {
  Levels levels;
  for (size_t i = 1; i < above.size(); ++i) levels.push_back({above[i]});
  for (const PatternComponent& component : path.components()) {
    if (component.kind != PatternComponent::Kind::kLiteral) break;
    levels.push_back(format::ComponentsSpelled(component.text));
  }
  below |= path.is_glob();
  const std::span<const format::KeyPath> all = levels;
  FoundRecords found;
  if (!above.empty()) {
    STEPWELL_RETURN_IF_ERROR(Follow(reader, above.front().name, all, below, &found));
  } else {
    const bool only_state = IsOnlyState(reader.step());
    if (levels.empty() && (path.is_glob() || !only_state)) return std::vector<LeafRecord>();
    if (only_state) STEPWELL_RETURN_IF_ERROR(Follow(reader, "state", all, below, &found));
    const std::string* first = levels.empty() ? nullptr : &levels.front().front().name;
    for (const format::ItemRecord& item : reader.step().items) {
      if (first == nullptr || item.name != *first) continue;
      STEPWELL_RETURN_IF_ERROR(Follow(reader, item.name, all.subspan(1), below, &found));
    }
  }
  std::vector<LeafRecord> records;
  records.reserve(found.size());
  for (auto& [key, record] : found) records.push_back(std::move(record));
  return records;
}

}  // namespace stepwell::db
