// SPDX-License-Identifier: Apache-2.0
// The committed, visible steps of a store open for writing; where readers of this process meet the
// engine thread. Thread-safe: the one structure of db/ that both sides touch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "db/log/pins.h"
#include "db/log/recovery.h"
#include "db/store.h"
#include "format/records.h"
#include "io/mutex.h"

namespace stepwell::db {

// Takes over the state that a step's frame does not know yet: its pin, its taint, what verification
// found, and whether it is decided.
inline void TakeState(const format::StepRecord& live, format::StepRecord* record) {
  record->pinned = live.pinned;
  record->taint = live.taint;
  record->verified = live.verified;
  record->group = live.group;
}

// LiveStep::age_time_ns of a step of an earlier session: as old as when that ended with `newest`,
// and never newer than what this one commits. The times are any numbers, as the log may be.
int64_t AgeTimeOf(const format::StepRecord& step, const format::StepRecord& newest);

// The step's metadata and metrics, read from its commit frame.
StepTexts TextsInLog(const LiveStep& live, SegmentFiles& files);

// Returns an iterator to the `last` highest entries of a map by step.
template <typename Steps>
auto LastOf(const Steps& steps, size_t last) {
  return steps.size() > last ? std::prev(steps.end(), static_cast<ptrdiff_t>(last)) : steps.begin();
}
inline bool IsTainted(const LiveStep& live) { return !live.record.taint.empty(); }
inline bool IsTainted(const std::shared_ptr<const LiveStep>& live) { return IsTainted(*live); }
template <typename Steps>
std::vector<uint64_t> LastNumbers(const Steps& steps, size_t last, bool with_tainted) {
  std::vector<uint64_t> numbers;
  numbers.reserve(std::min(last, steps.size()));
  for (auto it = steps.end(); it != steps.begin() && numbers.size() < last;) {
    if (--it; with_tainted || !IsTainted(it->second)) numbers.push_back(it->first);
  }
  std::reverse(numbers.begin(), numbers.end());
  return numbers;
}
// The newest step of a map by step: the highest that is not tainted; end(): there is none.
template <typename Steps>
auto NewestOf(const Steps& steps) {
  for (auto it = steps.end(); it != steps.begin();) {
    if (!IsTainted((--it)->second)) return it;
  }
  return steps.end();
}

class LiveSteps {
 public:
  using List = std::vector<std::shared_ptr<const LiveStep>>;

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

  std::optional<uint64_t> HighestStep() const;  // tainted or not
  std::optional<uint64_t> NewestStep() const;
  std::vector<uint64_t> Numbers(size_t last, bool with_tainted) const;  // the highest, ascending
  List All() const;                                                     // ascending
  std::shared_ptr<const LiveStep> Find(uint64_t step) const;            // null: none
  // Prepared and not decided: live space, not visible. Ascending by commit number.
  List Undecided() const;
  // All() and Undecided(): what space is needed for.
  List Needing() const;
  size_t CountNeeding() const;
  // The step and a pin, in one instant; step is null when there is none.
  Pinned FindAndPin(uint64_t step);
  Pinned FindNewestAndPin();
  Pinned FindNewestCommitAndPin();  // of the highest commit number, not step number

  // Engine thread: one committed change.
  struct Change {
    uint64_t commit = 0;
    std::vector<std::shared_ptr<const LiveStep>> killed;
    std::shared_ptr<const LiveStep> added;
    std::vector<StepMeta> metas;
    std::shared_ptr<const LiveStep> prepared;  // not decided yet
    // Decided: not prepared any more. Committed, it is `added`, too; else dead.
    std::shared_ptr<const LiveStep> decided;
    std::optional<std::vector<format::LossRecord>> losses = {};  // the remaining ones
    // The texts of `added` for the index, where they are at hand.
    std::shared_ptr<const StepTexts> texts = {};
  };
  void Commit(const Change& change);
  // Before there are any commits: the metrics of a step that was loaded without them; none when
  // they cannot be read.
  void SetMetrics(const format::StepRecord& step, const std::optional<std::string>& metrics_json);
  // The commits that need one segment.
  struct SegmentUse {
    // Steps, also undecided ones, that together need all that is needed: of those that own nothing
    // here and refer to the same payloads, one.
    List live;
    bool referenced = false;         // several steps may need the same payload
    std::vector<DeadCommit> pinned;  // dead, but a reader may be reading them
    // Something here died after commit `published`, or a reader may be reading anything.
    bool blocked = false;
  };
  struct Use {
    std::map<uint64_t, SegmentUse> segments;  // of those asked for, where there is anything
    uint64_t pinned_bytes = 0;                // payloads of dead steps, in all segments
    std::vector<uint64_t> forgotten;          // commits that no reader can see any more
    bool known = true;                        // false: some live step does not say where it is
  };
  // Returns the uses as of one instant. Other processes may come to read what was live at commit
  // `published` or later. `others` are their pins, read before this call, under RECLAIM.
  Use UseOf(const std::set<uint64_t>& segments, const ReaderPins& others, uint64_t published);
  // Returns true if a live step has something in the segment.
  bool HasLive(uint64_t segment) const;
  // Returns true if a step that owns nothing in the segment refers to exactly these payloads there.
  bool HasReferrer(uint64_t segment, const format::Hash128& places) const;
  // Payload bytes of live and undecided steps in segments from `first` on. What several refer
  // to counts once, and where they refer to different payloads of a segment perhaps not wholly.
  uint64_t StoredBytesFrom(uint64_t first) const;
  // The steps, and a pin on all of them, in one instant.
  std::pair<List, std::shared_ptr<Pin>> AllAndPin();
  // Called (under this object's mutex, so it only posts) after each commit; null: not any more.
  void OnCommit(const void* owner, std::function<void()> callback);
  // Called (under this object's mutex, so it only posts) when a pin was let go that kept dead
  // steps; null: none.
  void OnRelease(std::function<void()> callback);
  uint64_t tip() const;
  std::vector<format::LossRecord> Losses() const;

 private:
  void Unpin(uint64_t commit) STEPWELL_EXCLUDES(mutex_);
  void Insert(const std::shared_ptr<const LiveStep>& live) STEPWELL_REQUIRES(mutex_);
  void Erase(uint64_t step) STEPWELL_REQUIRES(mutex_);
  void Bury(const LiveStep& live, uint64_t killer) STEPWELL_REQUIRES(mutex_);
  void Count(const LiveStep& live, bool added) STEPWELL_REQUIRES(mutex_);
  void SortDead(const ReaderPins& others, uint64_t published, std::vector<uint64_t>* forgotten)
      STEPWELL_REQUIRES(mutex_);
  void Forget(std::map<uint64_t, DeadCommit>::iterator dead, std::vector<uint64_t>* forgotten)
      STEPWELL_REQUIRES(mutex_);

  // The steps that own nothing in a segment and refer to the same payloads there.
  struct Referrers {
    uint64_t stored_bytes = 0;  // of each
    std::set<uint64_t> steps;
  };
  // The commits that live in a segment; not the undecided ones, which are few.
  struct Residents {
    std::set<uint64_t> steps;                        // those that own something
    std::map<format::Hash128, Referrers> referrers;  // the others, by SegmentExtent::places
    uint64_t owned_bytes = 0;                        // payloads, of the undecided, too
    size_t referring = 0;       // steps, also undecided, that refer to something
    std::set<uint64_t> pinned;  // keys of pinned_dead_
  };

  mutable io::Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<const LiveStep>> steps_ STEPWELL_GUARDED_BY(mutex_);
  // By commit number.
  std::map<uint64_t, std::shared_ptr<const LiveStep>> undecided_ STEPWELL_GUARDED_BY(mutex_);
  std::map<uint64_t, Residents> residents_ STEPWELL_GUARDED_BY(mutex_);  // by segment
  // Steps without extents: where they are is unknown.
  uint64_t placeless_ STEPWELL_GUARDED_BY(mutex_) = 0;
  // By killer; not looked at since they died.
  std::deque<DeadCommit> dead_ STEPWELL_GUARDED_BY(mutex_);
  std::map<uint64_t, DeadCommit> pinned_dead_ STEPWELL_GUARDED_BY(mutex_);  // by commit number
  uint64_t pinned_bytes_ STEPWELL_GUARDED_BY(mutex_) = 0;                   // their payloads
  // When pinned_dead_ was made, ascending.
  std::vector<uint64_t> seen_pins_ STEPWELL_GUARDED_BY(mutex_);
  std::multiset<uint64_t> pins_ STEPWELL_GUARDED_BY(mutex_);
  uint64_t tip_ STEPWELL_GUARDED_BY(mutex_) = 0;
  std::vector<format::LossRecord> losses_ STEPWELL_GUARDED_BY(mutex_);
  std::function<void()> on_release_ STEPWELL_GUARDED_BY(mutex_);
  std::map<const void*, std::function<void()>> on_commit_ STEPWELL_GUARDED_BY(mutex_);
};

}  // namespace stepwell::db
