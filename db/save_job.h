// SPDX-License-Identifier: Apache-2.0
// One save (or delete) on its way through the engine.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "db/save_plan.h"
#include "db/save_state.h"
#include "db/store.h"
#include "format/records.h"

namespace stepwell::db {

struct SaveJob {
  // ---- constant once the job was handed to the engine -------------------------------------
  uint64_t step = 0;
  bool is_delete = false;
  std::vector<uint64_t> delete_steps;  // is_delete
  std::vector<format::ItemRecord> items;
  std::string metadata_json;
  std::string metrics_json;
  std::shared_ptr<SaveHandle::State> state;
  uint64_t estimated_bytes = 0;  // logical bytes: sizes segments

  // ---- written by the caller (staged) or a worker (held) before the blocks it describes ----
  std::vector<PlannedLeaf> leaves;  // ascending by key
  std::vector<BlockTask> staged_blocks;
  std::vector<BlockTask> held_blocks;

  // Set by the engine at the first error; callers stop staging. Any thread.
  std::atomic<bool> failed{false};

  // ---- engine thread only ------------------------------------------------------------------
  Status error;
  bool staging_done = false;
  bool held_planned = false;
  size_t staged_expected = 0;
  size_t staged_arrived = 0;
  size_t held_started = 0;
  size_t held_arrived = 0;
  size_t held_encoding = 0;  // blocks whose source memory is still being read
  std::map<uint64_t, format::SegmentExtent> extents;

  bool Ready() const {
    return is_delete ||
           (staging_done && held_planned && staged_arrived == staged_expected &&
            held_arrived == held_started && (!error.ok() || held_started == held_blocks.size()));
  }
};

}  // namespace stepwell::db
