// SPDX-License-Identifier: Apache-2.0
// When reclaim runs, and over which segments (DESIGN.md, "Reclaim"). The passes themselves run on
// the reclaim worker: unlinking and punching are slow.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "db/commit/evacuator.h"
#include "db/commit/reclaim.h"
#include "db/log/live_steps.h"
#include "format/records.h"
#include "io/status.h"

namespace stepwell::db {

class Engine;
class ReclaimScheduler;
struct EngineOptions;

// Owned by the engine, which outlives it. On the engine thread where nothing else is said.
class ReclaimScheduler {
 public:
  ReclaimScheduler(Engine* engine, const EngineOptions* options);

  // The engine has started: passes may begin.
  void Begin(const format::Id128& store_id);
  // Something ended that lies there, as LiveSteps knows already.
  void AddSuspects(const std::vector<format::SegmentExtent>& extents);
  // A save failed that had written there.
  void SaveFailed(const std::vector<format::SegmentExtent>& extents);
  // Where saves failed, and what they wrote lies above the guard: nothing but a commit would move
  // it, and none may ever come. So two segments are begun.
  void AfterFailedSaves();
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
  // Begins the next pass or round, or ends the waiters, once passes and moves are done.
  void Continue();
  bool has_waiters() const { return !waiters_.empty(); }
  // After a panic.
  void EndWaiters(const Status& status);

  void MoveEnded(const Status& status, const std::set<uint64_t>& segments);
  Evacuator& evacuator() { return evacuator_; }
  const Evacuator& evacuator() const { return evacuator_; }

  // Any thread: passes end at the next segment, moves at the next block.
  void Stop();

 private:
  // Takes over what became needless in the log since the last call.
  void TakeSuspects();
  bool IsSettled(uint64_t segment);
  Status RollPastSuspects();
  void GrowBallast();
  void StartPass(bool thorough);
  void PassDone(ReclaimResult result);
  void Finish(const Status& status);

  Engine* const engine_;
  const EngineOptions* const options_;
  Evacuator evacuator_;
  std::unique_ptr<Reclaimer> reclaimer_;
  // Segments in which something died: not looked at since, or looked at and left.
  std::set<uint64_t> suspects_;
  std::set<uint64_t> left_;
  // The newest segment when the first thing died in one of those that no pass has looked at.
  std::map<uint64_t, uint64_t> first_death_;
  bool pass_running_ = false;
  bool pass_again_ = false;
  bool guard_moved_ = false;  // recovery needs less than when the last pass began
  bool save_failed_ = false;  // since AfterFailedSaves looked last
  bool space_asked_ = false;  // by a full disk, since something was placed, or died, last
  int64_t last_pass_ns_ = 0;
  std::vector<std::function<void(const Status&)>> waiters_;
  int rounds_ = 0;         // of the waiters
  bool progress_ = false;  // in the last round
  std::vector<std::function<void()>> idle_waiters_;
  std::atomic<bool> stop_{false};
};

}  // namespace stepwell::db
