// SPDX-License-Identifier: Apache-2.0
// What an index that was flushed says of frames that the log has lost, both copies (DESIGN.md,
// "Recovery"). Pure: what recovery found, and the index's rows.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "db/index.h"
#include "db/recovery.h"

namespace stepwell::db {

// What is to be done so that the live steps are those that they were, with all frames.
struct Witnessed {
  std::vector<IndexedStep> lost;  // steps that a lost frame committed; pinned as they are to be
  std::vector<uint64_t> ended;    // other live steps that a lost frame deleted, ascending
  std::vector<std::pair<uint64_t, bool>> pins;  // (live step, pinned) that a lost frame changed
};

// For a log with losses. `steps`, `applied` and `complete` are the index's. kFailedPrecondition
// says why it is no witness: it is older than the losses, does not have all, or contradicts the
// log.
Result<Witnessed> AskIndex(const LogState& state, const std::vector<IndexedStep>& steps,
                           uint64_t applied, bool complete);

}  // namespace stepwell::db
