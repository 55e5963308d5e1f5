// SPDX-License-Identifier: Apache-2.0
// Parts that the writing and the reading store share: step readers, verification, helpful errors.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "db/log/recovery.h"
#include "db/read/restore.h"
#include "db/store.h"

namespace stepwell::db {

using LeafSource = std::function<Result<std::vector<format::LeafRecord>>(const format::KeyRange&)>;

// Takes the error of a read of a step and returns the one to report. Runs on the caller's thread,
// and may read.
using ReadErrorExplainer = std::function<Status(Status)>;

// A StepReader whose reads other code of this room can take part in.
class RestoringReader : public StepReader {
 public:
  // The restorer under Load, which lives as long as this. Null: none reads all of the step.
  virtual Restorer* restorer() = 0;
};
// Null for other readers, too.
Restorer* RestorerOf(StepReader& reader);

// A StepReader over a source of leaf records. `keep` is held while the reader lives (pins, files).
std::shared_ptr<StepReader> MakeStepReader(format::StepRecord step, LeafSource leaves,
                                           Restorer* restorer, const std::string& store_path,
                                           ReadErrorExplainer explain,
                                           std::shared_ptr<const void> keep);

// For a step that is not erased while it is read: a segment that is gone is damage.
Status ExplainPinned(Status error);

// "run1 has no step 5; the nearest are 4 and 8".
Status StepNotFound(const std::string& store_path, uint64_t step,
                    const std::vector<uint64_t>& steps);

// What a check of one step after the other knows.
struct StepChecks {
  uint64_t done_bytes = 0;   // stored bytes of the steps that are done
  uint64_t total_bytes = 0;  // of all
  GoodChunks good;
};
// Checks the payloads of a step's leaves, and adds what it has read, and what is wrong, to the
// report. `place`: where a leaf's record is, for problems that are not in a chunk.
Status VerifyLeaves(const format::StepRecord& step, std::span<const format::LeafRecord> leaves,
                    const format::FramePlace& place, SegmentFiles& files, Restorer& restorer,
                    const VerifyOptions& options, StepChecks* checks, VerifyReport* report);

// Checks commit frames, record blocks and payloads of the given steps, from the log alone.
Result<VerifyReport> VerifySteps(const std::vector<LiveStep>& steps, SegmentFiles& files,
                                 Restorer& restorer, const VerifyOptions& options);

}  // namespace stepwell::db
