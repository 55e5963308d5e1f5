// SPDX-License-Identifier: Apache-2.0
// Steps of many processes, read as one: the parts' stores are opened for reading, and their
// records of one key become one leaf (DESIGN.md, "Many processes").
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "db/environment.h"
#include "db/recovery.h"
#include "db/restore.h"
#include "db/segment_files.h"
#include "db/store.h"

namespace stepwell::db {

class ReaderStore;

// What a part has of the steps of its group, and what keeps it.
struct PartShares {
  struct Share {
    uint64_t commit = 0;
    uint64_t stored_bytes = 0;
  };
  std::map<format::Id128, Share> by_save;         // decided or still prepared
  std::vector<std::shared_ptr<const void>> pins;  // empty: nothing keeps them
};

// The other parts of a store's group, opened when they are needed and kept. Thread-safe; readers of
// steps share it, so that it outlives the store. Part 0 has one.
class GroupParts {
 public:
  // `files` are part 0's, and learn where the other parts' segments are. They outlive this.
  GroupParts(std::string root, Environment environment, SegmentFiles* files);
  ~GroupParts();
  // Lets go of the parts' stores; readers that have one keep it.
  void Close();

  // A part's share of a step: pinned, as every reader is.
  Result<std::shared_ptr<StepReader>> Read(uint32_t part, const format::StepRecord& step);
  // What a part has now of the steps of its group, pinned; `step` is one that it has a share of.
  Result<PartShares> Shares(uint32_t part, const format::StepRecord& step);
  // Checks a part's share, and adds what is wrong to the report.
  Status Verify(uint32_t part, const format::StepRecord& step, const VerifyOptions& options,
                VerifyReport* report);

 private:
  Result<std::shared_ptr<ReaderStore>> Get(uint32_t part, const format::StepRecord& step);
  void Forget(uint32_t part);

  const std::string root_;
  const Environment environment_;
  SegmentFiles* const files_;
  std::mutex mutex_;
  std::map<uint32_t, std::shared_ptr<ReaderStore>> stores_;  // guarded by mutex_
};

// The whole step; `own` is part 0's share of it. `is_there` tells whether part 0 still has it:
// when not, what a part lacks was deleted.
Result<std::shared_ptr<StepReader>> ReadWithParts(std::shared_ptr<StepReader> own,
                                                  const std::shared_ptr<GroupParts>& parts,
                                                  Restorer* restorer, const std::string& root,
                                                  const std::function<bool()>& is_there);

// Whether the reader's share of each part is the one that the snapshot has, and so keeps.
bool IsReadAs(const StepReader& reader, const StoreSnapshot::Step& step);

// The same where the other parts are on other machines: `others` are their records, by part, which
// the processes there have read. Only chunks of part 0 can be loaded.
std::shared_ptr<StepReader> ReadWithRecords(
    std::shared_ptr<StepReader> own, std::map<uint32_t, std::vector<format::LeafRecord>> others,
    const std::string& root);

// A snapshot of whole steps. `own` takes one of part 0, each time it is called.
using SnapshotOwn = std::function<Result<StoreSnapshot>()>;
Result<std::shared_ptr<const StoreSnapshot>> SnapshotWithParts(GroupParts& parts,
                                                               const SnapshotOwn& own);

// The parts' shares of these steps of part 0, which are checked already, and whether they fit
// together: `read` is the store's Read.
using ReadStep = std::function<Result<std::shared_ptr<StepReader>>(uint64_t step)>;
Status VerifyOtherParts(const std::vector<LogStep>& steps, GroupParts& parts, const ReadStep& read,
                        const VerifyOptions& options, VerifyReport* report);

// One leaf of the records that parts have under one key, each with the part's number in its chunks;
// ascending by part, at least one. kDataLoss: they contradict each other.
Result<format::LeafRecord> MergeLeaf(std::vector<format::LeafRecord> records);

}  // namespace stepwell::db
