// SPDX-License-Identifier: Apache-2.0
// Takes over the log from the writer before, which may have been killed.
#pragma once

#include <cstdint>
#include <string>

#include "db/commit/engine_options.h"
#include "db/log/recovery.h"
#include "db/log/segment_files.h"

namespace stepwell::db {

// The bytes of the newest frame, for a copy of it; empty where there is none any more: behind newer
// catalogs it may have been erased.
std::string TipFrame(SegmentFiles& files, const format::FramePlace& place);

// Seals the segments that the last writer left open behind what they still hold, so that no
// rejected frame is found again, should those that took its number be lost. The space that the
// rejected tail took comes back here, unless `keep_tails`: nothing is cut off while it is not known
// what was lost. Reclaim then removes the segments that hold nothing.
Status SettleAbandoned(const EngineOptions& options, uint64_t epoch, const LogState& state,
                       bool keep_tails);

}  // namespace stepwell::db
