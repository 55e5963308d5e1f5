// SPDX-License-Identifier: Apache-2.0
#include "db/group.h"

#include <algorithm>

#include "db/layout.h"

namespace stepwell::db {

std::string PartPath(const std::string& root, uint32_t part) {
  return part == 0 ? root : StrCat(root, "/process_", part);
}

GroupStatus MakeGroupStatus(const format::Id128& id, const StoreGroup& part, uint64_t tip,
                            const std::vector<format::StepRecord>& live,
                            std::vector<format::StepRecord> undecided) {
  GroupStatus status;
  status.group_id = part.part == 0 ? id : part.group_id;
  status.part = part.part;
  if (part.part == 0) status.decision_number = tip;
  for (const format::StepRecord& step : live) {
    if (part.part != 0 && step.group)
      status.decision_number = std::max(status.decision_number, step.group->decision_number);
  }
  status.prepared = std::move(undecided);
  return status;
}

Status CheckPart(const std::string& path, const format::StoreSlot& slot,
                 const std::optional<StoreGroup>& wanted) {
  if (!wanted) return OkStatus();
  if (wanted->part != slot.part) {
    if (slot.part != 0) {
      return FailedPreconditionError(StrCat(DescribePart(path, {slot.group_id, slot.part}),
                                            ", not part ", wanted->part, " of a store"));
    }
    return FailedPreconditionError(
        StrCat(path, " is a store of its own, not part ", wanted->part, " of another"));
  }
  const format::Id128& group_id = slot.part == 0 ? slot.store_id : slot.group_id;
  if (wanted->group_id != group_id && (slot.part != 0 || wanted->group_id != format::Id128{})) {
    return FailedPreconditionError(StrCat(path, " is part ", slot.part,
                                          " of another store than the one it is opened for; was "
                                          "it copied, or its root made anew?"));
  }
  return OkStatus();
}

std::string DescribePart(const std::string& path, const StoreGroup& part) {
  return StrCat(path, " is part ", part.part, " of the store ", ParentOf(path));
}

}  // namespace stepwell::db
