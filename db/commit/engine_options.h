// SPDX-License-Identifier: Apache-2.0
// The parts of a store that its engine works with. All outlive the engine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "db/commit/retention.h"
#include "db/environment.h"
#include "db/index/keeper.h"
#include "db/log/footprint.h"
#include "db/log/live_steps.h"
#include "db/log/segment_files.h"
#include "db/log/slot_file.h"
#include "db/save/base.h"
#include "db/stats/instruments.h"
#include "format/records.h"
#include "io/buffer.h"
#include "io/disk.h"
#include "io/log.h"

namespace stepwell::db {

struct EngineOptions {
  Environment environment;
  std::string store_path;
  format::StoreSlot slot;              // as recovery found it
  std::shared_ptr<io::Freeze> freeze;  // of the log
  SlotFile* slot_file = nullptr;
  SegmentFiles* files = nullptr;
  LiveSteps* live = nullptr;
  IndexKeeper* index = nullptr;
  NewestBases* bases = nullptr;
  Instruments* instruments = nullptr;
  io::BufferPool* pool = nullptr;
  io::Disk* disk = nullptr;
  std::vector<KeepRule> keep;
  OnNonfinite on_nonfinite = OnNonfinite::kIgnore;
  uint64_t segment_bytes_max = 0;
  uint64_t reclaim_bytes_per_second = 0;
  FootprintCache* footprints = nullptr;
  LogSink log;
  // The slot file is another one, which forked children must let go of, too.
  std::function<void(io::File*)> slots_made_anew;
  // Ends all changes that did not end, as of unknown outcome, without an allocation: see
  // EngineThread::Panic.
  std::function<void()> end_changes;
};

}  // namespace stepwell::db
