// SPDX-License-Identifier: Apache-2.0
// Steps of many processes, read as one: the parts' records of one key become one leaf (DESIGN.md,
// "Many processes").
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "db/log/recovery.h"
#include "db/read/part_stores.h"
#include "db/read/restore.h"
#include "db/store.h"

namespace stepwell::db {

// The whole step; `own` is part 0's share of it. `is_there` tells whether part 0 still has it:
// when not, what a part lacks was deleted.
Result<std::shared_ptr<StepReader>> ReadWithParts(std::shared_ptr<StepReader> own,
                                                  const std::shared_ptr<PartStores>& parts,
                                                  Restorer* restorer, const std::string& root,
                                                  const std::function<bool()>& is_there);

// Returns true if the reader reads, for each part, the share that the snapshot has and keeps.
bool IsReadAs(const StepReader& reader, const StoreSnapshot::Step& step);

// The same where the other parts are on other machines: `others` are their records, by part, which
// the processes there have read. Only chunks of part 0 can be loaded.
std::shared_ptr<StepReader> ReadWithRecords(
    std::shared_ptr<StepReader> own, std::map<uint32_t, std::vector<format::LeafRecord>> others,
    const std::string& root);

// A snapshot of whole steps. `own` takes one of part 0, each time it is called.
using SnapshotOwn = std::function<Result<StoreSnapshot>()>;
Result<std::shared_ptr<const StoreSnapshot>> SnapshotWithParts(PartStores& parts,
                                                               const SnapshotOwn& own);

// The parts' shares of these steps of part 0, which are checked already, and whether they fit
// together: `read` is the store's Read.
using ReadStep = std::function<Result<std::shared_ptr<StepReader>>(uint64_t step)>;
Status VerifyOtherParts(const std::vector<LiveStep>& steps, PartStores& parts, const ReadStep& read,
                        const VerifyOptions& options, VerifyReport* report);

// One leaf of the records that parts have under one key, each with the part's number in its chunks;
// ascending by part, at least one. kDataLoss: they contradict each other.
Result<format::LeafRecord> MergeLeaf(std::vector<format::LeafRecord> records);

}  // namespace stepwell::db
