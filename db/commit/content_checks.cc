// SPDX-License-Identifier: Apache-2.0
#include "db/commit/content_checks.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "format/records.h"

namespace stepwell::db {
namespace {

constexpr size_t kNamedLeavesMax = 3;

}  // namespace

Status CheckFinite(const EngineOptions& options, const SaveJob& job) {
  if (options.on_nonfinite == OnNonfinite::kIgnore || job.is_copy) return OkStatus();
  size_t leaves = 0;
  std::string text;
  for (const PlannedLeaf& leaf : job.leaves) {
    const auto& statistics = leaf.input.record.statistics;
    if (!statistics || statistics->nonfinite == 0) continue;
    if (++leaves > kNamedLeavesMax) continue;
    text += StrCat(text.empty() ? "" : ", ", LeafName(leaf.input.record), " (",
                   statistics->nonfinite, " of ", statistics->elements, ")");
  }
  if (leaves == 0) return OkStatus();
  if (leaves > kNamedLeavesMax) text += StrCat(" and ", leaves - kNamedLeavesMax, " more leaves");
  text = StrCat("step ", job.step, " has elements that are NaN or infinite: ", text);
  if (options.on_nonfinite == OnNonfinite::kError) {
    return InvalidArgumentError(StrCat(text, "; it is not saved, as on_nonfinite asks for"));
  }
  Log(options.log, LogLevel::kWarning, StrCat(options.store_path, ": ", text));
  return OkStatus();
}

uint8_t ChangedSaves(const PlannedLeaf& leaf) {
  if (leaf.base == nullptr || !leaf.changed) return 0;
  constexpr uint8_t kMost = std::numeric_limits<uint8_t>::max();
  const uint8_t before = leaf.base->changed_saves;
  return before == kMost ? kMost : static_cast<uint8_t>(before + 1);
}

void WarnIfStale(const EngineOptions& options, const SaveJob& job) {
  if (job.base == nullptr || job.is_copy) return;
  struct Noticed {
    size_t leaves = 0;
    bool changed = false;
  };
  std::vector<Noticed> items(job.items.size());
  for (const PlannedLeaf& leaf : job.leaves) {
    Noticed& item = items[leaf.item];
    const bool is_new = leaf.base == nullptr && leaf.grid.known();
    item.changed = item.changed || leaf.changed || is_new;
    if (leaf.base != nullptr && leaf.base->changed_saves >= kStaleAfterSaves) ++item.leaves;
  }
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].leaves == 0 || items[i].changed) continue;
    Log(options.log, LogLevel::kWarning,
        StrCat(options.store_path, ": step ", job.step, ": no array of item '", job.items[i].name,
               "' has changed since step ", job.base->step(), ", although ", items[i].leaves,
               items[i].leaves == 1 ? " has" : " have", " changed in each of the last ",
               int{kStaleAfterSaves}, " saves; was an old state saved?"));
  }
}

}  // namespace stepwell::db
