// SPDX-License-Identifier: Apache-2.0
// One change of the store on its way through the engine.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "db/log/live_steps.h"
#include "db/save/plan.h"
#include "db/save/state.h"
#include "db/stats/instruments.h"
#include "db/store.h"
#include "format/records.h"

namespace stepwell::db {

struct SaveJob {
  enum class Kind {
    kSave,
    kDelete,   // ends `steps`
    kMeta,     // pins, unpins, taints or untaints `steps`, or says what verification found
    kDecide,   // commits or aborts what `decision` names
    kRewrite,  // commits `rewritten` again, under a new number, with other records
    kAccept,   // ends the losses: what is live counts as it is
  };

  // ---- constant once the job was handed to the engine -------------------------------------
  Kind kind = Kind::kSave;
  uint64_t step = 0;
  // Ascending, unique. kDelete, kMeta; kSave: what ends in its commit, as far as it may.
  std::vector<uint64_t> steps;
  bool is_copy = false;     // kSave: SaveRequest's
  format::MetaChange meta;  // kMeta: of each of `steps`, without its commit
  // kMeta: LiveStep::first_commit of `steps`; one that was replaced since, or is not there, is
  // passed over. Empty: whatever they are.
  std::vector<uint64_t> commits;
  std::string taint;                         // kSave: SaveRequest's
  std::optional<format::GroupRecord> group;  // kSave: only prepared
  Decision decision;                         // kDecide
  // kRewrite: what the new commit replaces (kAborted when it is not live any more at the job's
  // turn), and what it has instead: the record with texts and items, and every leaf with the places
  // of its chunks, all of them durable or written. Number, time, texts, pin, taint and what
  // verification found stay.
  std::shared_ptr<const LiveStep> rewritten;
  bool is_move = false;  // kRewrite: of chunks, to give space back
  format::StepRecord record;
  std::shared_ptr<std::vector<format::LeafRecord>> records;  // ascending by key
  std::vector<format::ItemRecord> items;
  std::string metadata_json;
  std::string metrics_json;
  uint64_t ticket = 0;  // kSave: SaveRequest's
  std::shared_ptr<SaveHandle::State> state;
  uint64_t estimated_bytes = 0;  // logical bytes: sizes segments

  // ---- written by the caller (staged) or a worker (held) before the blocks it describes ----
  std::vector<PlannedLeaf> leaves;  // ascending by key
  // A deque: those of what is far away are added while others are under way.
  std::deque<BlockTask> staged_blocks;
  std::vector<BlockTask> held_blocks;
  std::shared_ptr<SaveBase> base;  // null: nothing is shared

  SaveTimes times;  // each by the thread that it names

  // Set by the engine at the first error; callers stop staging. Any thread.
  std::atomic<bool> failed{false};
  // Staged blocks that are encoded and not written yet. Any thread.
  std::atomic<size_t> staged_ahead{0};

  // kSave: its leaves, once its frame is placed.
  std::shared_ptr<const BaseRecords> committed;

  // Written before `state` finishes, read after: kDecide.
  Decided decided;

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

  // The first error counts, but for a write that was not done because another one had failed
  // (kAborted): the error of that one says more, and may come later.
  void Fail(const Status& status) {
    const bool says_more =
        error.code() == StatusCode::kAborted && status.code() != StatusCode::kAborted;
    if (!error.ok() && !says_more) return;
    error = status;
    failed.store(true);
  }
  // The arrays' memory was read for the last time; the trainer may donate it again.
  void ReleaseHolds() {
    for (PlannedLeaf& leaf : leaves) leaf.input.hold.reset();
  }
  // Every block has been written or given up, or there are none.
  bool Ready() const {
    return kind != Kind::kSave ||
           (staging_done && held_planned && staged_arrived == staged_expected &&
            held_arrived == held_started && (!error.ok() || held_started == held_blocks.size()));
  }
};

}  // namespace stepwell::db
