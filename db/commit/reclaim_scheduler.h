// SPDX-License-Identifier: Apache-2.0
// When reclaim runs, and over which segments (DESIGN.md, "Reclaim"). The passes themselves run on
// the reclaim worker: unlinking and punching are slow.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "db/commit/evacuator.h"
#include "db/commit/reclaim.h"
#include "format/records.h"
#include "io/status.h"

namespace stepwell::db {

class Engine;
struct EngineOptions;

// Owned by the engine, which outlives it. On the engine thread where nothing else is said.
class ReclaimScheduler {
 public:
  struct Counters {
    std::atomic<uint64_t> bytes_pinned{0};  // dead, but a reader may need them: of the last pass
    std::atomic<uint64_t> bytes_linked{0};  // dead, but with another link: of the last pass
  };

  ReclaimScheduler(Engine* engine, const EngineOptions* options);

  // The engine has started: passes may begin.
  void Begin(const format::Id128& store_id);
  // Something may be dead in this segment.
  void Suspect(uint64_t segment) { suspects_.insert(segment); }
  void NoteDead(const std::vector<format::SegmentExtent>& extents);
  // Recovery needs less than before.
  void GuardMoved() { guard_moved_ = true; }
  // A full disk may have room again.
  void RoomMayHaveCome() { space_asked_ = false; }
  // Cheap when nothing died: looks at suspects only. With `again_left`, at what earlier passes
  // left, too.
  void Schedule(bool again_left);
  void AfterCommit();
  // A reader of this process let go what only it kept.
  void PinReleased();
  // On a full disk: whether a pass is under way that may change that. One is begun, without waiting
  // for segments to settle, where none was since there was room.
  bool WaitForSpace();
  // Gives back everything that can be given back now, then calls `done`.
  void ReclaimAll(std::function<void(const Status&)> done);
  // Calls `done` once nothing of reclaim is under way.
  void WhenIdle(std::function<void()> done);
  // What comes next when a pass, the moves after it, or what waiters wait for are done.
  void Continue();
  bool has_waiters() const { return !waiters_.empty(); }
  // After a panic.
  void EndWaiters(const Status& status);

  void MoveEnded(const Status& status, const std::set<uint64_t>& segments);
  Evacuator& evacuator() { return evacuator_; }
  const Evacuator& evacuator() const { return evacuator_; }

  // Any thread: passes end at the next segment, moves at the next block.
  void Stop();
  const Counters& counters() const { return counters_; }

 private:
  bool IsSettled(uint64_t segment);
  void StartPass(bool thorough);
  void PassDone(ReclaimResult result);
  void Finish(const Status& status);
  Status Roll();

  Engine* const engine_;
  const EngineOptions* const options_;
  Evacuator evacuator_;
  std::unique_ptr<Reclaimer> reclaimer_;
  // Segments in which something died: not looked at since, or looked at and left.
  std::set<uint64_t> suspects_;
  std::set<uint64_t> left_;
  std::map<uint64_t, uint64_t> first_death_;  // of those: the newest segment when it was noticed
  bool pass_running_ = false;
  bool pass_again_ = false;
  bool guard_moved_ = false;
  bool space_asked_ = false;  // by a full disk, since something was placed, or died, last
  int64_t last_pass_ns_ = 0;
  std::vector<std::function<void(const Status&)>> waiters_;
  int rounds_ = 0;         // of the waiters
  bool progress_ = false;  // in the last round
  std::vector<std::function<void()>> idle_waiters_;
  Counters counters_;
  std::atomic<bool> stop_{false};
};

}  // namespace stepwell::db
