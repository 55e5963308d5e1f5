// SPDX-License-Identifier: Apache-2.0
// The committed, visible steps of a store open for writing; where readers of this process meet the
// engine thread. Thread-safe: the one structure of db/ that both sides touch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "db/index.h"
#include "db/recovery.h"
#include "db/store.h"
#include "format/records.h"

namespace stepwell::db {

struct LiveStep {
  format::StepRecord record;  // without metadata texts unless `texts_known`
  bool texts_known = false;
  format::FramePlace place;
  int64_t age_time_ns = 0;   // on the clock of retention, of which only differences count
  std::string metrics_json;  // of steps saved in this session, and where retention asks for it
  // The overlay: the step's leaf records while the index does not have them yet; null afterwards.
  std::shared_ptr<const std::vector<format::LeafRecord>> records;
};

// What a step's frame does not know yet: its pin, and whether it is decided.
inline void TakeState(const format::StepRecord& live, format::StepRecord* record) {
  record->pinned = live.pinned;
  record->group = live.group;
}

// The step's record with its metadata texts, read from the commit frame where need be.
Result<format::StepRecord> RecordWithTexts(const LiveStep& live, SegmentFiles& files);

class LiveSteps {
 public:
  void Load(const LogState& state);

  // A reader's hold on everything that was live when it was made.
  class Pin {
   public:
    Pin(LiveSteps* steps, uint64_t commit) : steps_(steps), commit_(commit) {}
    ~Pin() { steps_->Unpin(commit_); }
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;

   private:
    LiveSteps* const steps_;
    const uint64_t commit_;
  };
  struct Pinned {
    std::shared_ptr<const LiveStep> step;
    std::shared_ptr<Pin> pin;
  };

  std::vector<std::shared_ptr<const LiveStep>> All() const;   // ascending
  std::shared_ptr<const LiveStep> Find(uint64_t step) const;  // null: none
  // Prepared and not decided: live space, seen by nobody. Ascending by commit number.
  std::vector<std::shared_ptr<const LiveStep>> Undecided() const;
  // All() and Undecided(): what space is needed for.
  std::vector<std::shared_ptr<const LiveStep>> Needing() const;
  size_t CountNeeding() const;
  // The step and a pin, in one instant; step is null when there is none.
  Pinned FindAndPin(uint64_t step);

  // Engine thread: one committed change.
  struct Change {
    uint64_t commit = 0;
    std::vector<std::shared_ptr<const LiveStep>> killed;
    std::shared_ptr<const LiveStep> added;
    std::vector<std::pair<uint64_t, bool>> pins;  // (step, pinned)
    std::shared_ptr<const LiveStep> prepared;     // not decided yet
    // Decided: not prepared any more. Committed, it is `added`, too; else dead.
    std::shared_ptr<const LiveStep> decided;
    std::optional<std::vector<format::LossRecord>> losses = {};  // what is left of them
  };
  void Commit(const Change& change);
  // Before there are any commits: the metrics of a step that was loaded without them, by its
  // commit.
  void SetMetrics(uint64_t commit, const std::string& metrics_json);
  // The index has the step with this commit number (or there is no index): drop its overlay.
  void DropOverlay(uint64_t step, uint64_t commit);
  void DropOverlays();
  // What reclaim must leave alone. Dead steps count while a pin (of this process, or `other_pin`)
  // may read them, or while other processes do not know yet that they died: everything after commit
  // `published`. Forgets dead commits that nobody can read any more, so the caller has read the
  // pins of all other processes, under RECLAIM.
  struct Needed {
    std::set<uint64_t> pinned_segments;  // with extents of such dead steps
    uint64_t pinned_bytes = 0;           // their payloads
  };
  Needed NeededBy(std::optional<uint64_t> other_pin, uint64_t published);
  // The steps, and a pin on all of them, in one instant.
  std::pair<std::vector<std::shared_ptr<const LiveStep>>, std::shared_ptr<Pin>> AllAndPin();
  // Called (under this object's mutex, so it only posts) after each commit; null: not any more.
  void OnCommit(const void* owner, std::function<void()> callback);
  // Called (under this object's mutex, so it only posts) when a pin was let go that kept dead
  // steps; null: nobody.
  void OnRelease(std::function<void()> callback);
  uint64_t tip() const;
  std::vector<format::LossRecord> Losses() const;

 private:
  template <typename Edit>
  void EditStep(std::shared_ptr<const LiveStep>* live, Edit edit);
  void Unpin(uint64_t commit);

  mutable std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<const LiveStep>> steps_;  // guarded by mutex_, as all below
  std::map<uint64_t, std::shared_ptr<const LiveStep>> undecided_;  // by commit number
  std::vector<DeadCommit> dead_;
  std::multiset<uint64_t> pins_;
  uint64_t tip_ = 0;
  std::vector<format::LossRecord> losses_;
  std::function<void()> on_release_;
  std::map<const void*, std::function<void()>> on_commit_;
};

}  // namespace stepwell::db
