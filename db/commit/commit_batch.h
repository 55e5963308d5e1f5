// SPDX-License-Identifier: Apache-2.0
// Changes that share one flush. Engine thread only.
#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <vector>

#include "db/commit/log_end.h"
#include "db/commit/save_job.h"
#include "db/log/live_steps.h"
#include "db/stats/instruments.h"
#include "io/disk.h"

namespace stepwell::db {

class Committer;

// A job whose chain frame is placed.
struct BatchEntry {
  std::shared_ptr<SaveJob> job;
  format::FramePlace place;
  LiveSteps::Change change;
};

struct BatchFrame final : FrameWrite {
  Committer* committer = nullptr;
  void OnComplete() override;
};

struct BatchSync final : io::Op {
  Committer* committer = nullptr;
  Segment* segment = nullptr;
  int64_t submitted_ns = 0;
  void OnComplete() override;
};

// By number, not by address: the same run submits the same operations.
struct OlderSegment {
  bool operator()(const Segment* a, const Segment* b) const { return a->id < b->id; }
};

struct CommitBatch {
  std::vector<BatchEntry> entries;
  // Jobs with nothing to say that an entry, or an earlier batch, does not say already.
  std::vector<std::shared_ptr<SaveJob>> repeated;
  std::vector<std::unique_ptr<BatchFrame>> frames;
  std::vector<std::unique_ptr<BatchSync>> sync_ops;
  std::set<Segment*, OlderSegment> touched;
  size_t writes_left = 0;
  size_t syncs_left = 0;
  BatchTimes times;
  Status error;
  bool reached_disk = false;  // some frame, or a part of one: recovery may find it
};

}  // namespace stepwell::db
