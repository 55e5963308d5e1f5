// SPDX-License-Identifier: Apache-2.0
// Who a store is in its group: shared by the writing and the reading store.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "db/group.h"
#include "format/records.h"
#include "io/result.h"

namespace stepwell::db {

// `tip` is the newest commit number of the store with this id.
GroupStatus MakeGroupStatus(const format::Id128& id, const StoreGroup& part, uint64_t tip,
                            const std::vector<format::StepRecord>& live,
                            const std::vector<format::StepRecord>& undecided);

// Whether a store is the part that it is opened as; `wanted` none: whatever it is.
Status CheckPart(const std::string& path, const format::StoreSlot& slot,
                 const std::optional<StoreGroup>& wanted);

// "run/process_3 is part 3 of the store run".
std::string DescribePart(const std::string& path, const StoreGroup& part);

}  // namespace stepwell::db
