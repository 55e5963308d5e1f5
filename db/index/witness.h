// SPDX-License-Identifier: Apache-2.0
// What an index that was flushed says of frames that the log has lost, both copies (DESIGN.md,
// "Recovery"). Pure: what recovery found, and the index's rows.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "db/index/index.h"
#include "db/log/recovery.h"

namespace stepwell::db {

// What is to be done so that the live steps are those that they were, with all frames.
struct Witnessed {
  std::vector<IndexedStep> lost;  // steps that a lost frame committed; pinned as they are to be
  std::vector<uint64_t> ended;    // other live steps that a lost frame deleted, ascending
  std::vector<StepPin> pins;      // of live steps, that a lost frame changed
};

// What an index is as of.
struct IndexMark {
  uint64_t applied = 0;    // through this commit
  uint32_t frame_crc = 0;  // of its frame
  bool complete = false;
};

// For a log with losses. `steps` and `mark` are the index's. kFailedPrecondition says
// why it is not a witness: it is older than the losses, does not have all, or contradicts the log.
Result<Witnessed> AskIndex(const LogState& state, const std::vector<IndexedStep>& steps,
                           const IndexMark& mark);

}  // namespace stepwell::db
