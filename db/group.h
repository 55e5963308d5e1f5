// SPDX-License-Identifier: Apache-2.0
// Steps that many processes save together, each into a store of its own (DESIGN.md, "Many
// processes"). What callers say and hear; store.h has the calls.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "format/records.h"
#include "io/result.h"

namespace stepwell::db {

// Which part of a group a store is. Part 0 is the root, a store like any other; its id is the
// group's. Part k > 0 lies in PartPath(root, k).
struct StoreGroup {
  format::Id128 group_id{};  // part 0: left zero, or its own id
  uint32_t part = 0;
};

// "root/process_3": where part 3 of the group of `root` lies; part 0 is the root itself.
std::string PartPath(const std::string& root, uint32_t part);

// Returns true if part 0 has this step together with other parts.
inline bool HasOtherParts(const format::StepRecord& step) {
  return step.group && step.group->part == 0 && step.group->parts.size() > 1;
}

// Makes a save the part of a step: prepared, which is durable, and not visible until Decide. It
// replaces nothing yet and retention does not count it.
struct GroupSave {
  format::Id128 save_id{};      // the same on all parts, new for each attempt
  std::vector<uint32_t> parts;  // ids of all parts of the step, ascending, with 0
};

// The decision on a prepared step.
struct Decision {
  uint64_t step = 0;
  format::Id128 save_id{};
  bool commit = false;  // else it is aborted: what it wrote is dead space
  // Only for a commit. On part 0: other steps that end in it, as in SaveRequest::retire. On other
  // parts: what Decide returned on part 0.
  std::vector<uint64_t> dead;
  uint64_t decision_number = 0;
  // Parts other than 0: whether to wait until it is durable. On part 0 it always is: that is the
  // step's commit.
  bool wait = true;
};

struct Decided {
  // Steps that ended with it, ascending: those that were retired, and the step's own number
  // where another step of it was replaced. The other parts are told; those that are not of this
  // step delete them.
  std::vector<uint64_t> dead;
  uint64_t decision_number = 0;  // for the other parts
};

// The state of a store in its group, for the process that decides about what a crash left.
struct GroupStatus {
  format::Id128 group_id{};
  uint32_t part = 0;
  // Part 0: the number of its newest commit. Others: the highest decision number that they
  // have. A part with a higher one than part 0's was written after this state of part 0.
  uint64_t decision_number = 0;
  // Not decided, in the order in which they were prepared.
  std::vector<format::StepRecord> prepared;
};

// `tip` is the newest commit number of the store with this id.
GroupStatus MakeGroupStatus(const format::Id128& id, const StoreGroup& part, uint64_t tip,
                            const std::vector<format::StepRecord>& live,
                            std::vector<format::StepRecord> undecided);

// Checks that a store is the part that it is opened as. Without `wanted` any part passes.
Status CheckPart(const std::string& path, const format::StoreSlot& slot,
                 const std::optional<StoreGroup>& wanted);

// "run/process_3 is part 3 of the store run".
std::string DescribePart(const std::string& path, const StoreGroup& part);

}  // namespace stepwell::db
