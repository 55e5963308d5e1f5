// SPDX-License-Identifier: Apache-2.0
#include "db/index/witness.h"

#include <algorithm>
#include <set>

namespace stepwell::db {
namespace {

using format::LossRecord;

uint64_t LastLost(const std::vector<LossRecord>& losses) {
  uint64_t last = 0;
  for (const LossRecord& loss : losses) last = std::max(last, loss.last_commit);
  return last;
}

bool IsLost(uint64_t commit, const std::vector<LossRecord>& losses) {
  return std::any_of(losses.begin(), losses.end(), [commit](const LossRecord& loss) {
    return loss.first_commit <= commit && commit <= loss.last_commit;
  });
}

// All frames behind `applied` are there, each on its own: what they end and pin is known.
Status CheckReaches(const LogState& state, const IndexMark& mark) {
  const uint64_t applied = mark.applied;
  if (!mark.complete) return FailedPreconditionError("the index does not have all steps");
  if (applied < LastLost(state.losses) || applied < state.catalog_commit) {
    return FailedPreconditionError(StrCat("the index is as of commit ", applied));
  }
  if (applied > state.tip_commit) {
    return FailedPreconditionError(
        StrCat("the index is as of commit ", applied, ", the log ends at ", state.tip_commit));
  }
  const auto frame = state.frame_crcs.find(applied);
  if (frame != state.frame_crcs.end() && frame->second != mark.frame_crc) {
    return FailedPreconditionError(StrCat("the index has another frame of commit ", applied));
  }
  return OkStatus();
}

// Steps that one process saved by itself: of others it is the group that knows what was decided.
Status CheckAlone(const LogState& state, const std::vector<IndexedStep>& steps) {
  bool group = !state.undecided.empty();
  for (const IndexedStep& step : steps) group = group || step.of_group;
  for (const auto& [number, step] : state.live) group = group || step.record.group.has_value();
  return group ? FailedPreconditionError("steps of several processes are in the store")
               : OkStatus();
}

}  // namespace

Result<Witnessed> AskIndex(const LogState& state, const std::vector<IndexedStep>& steps,
                           const IndexMark& mark) {
  STEPWELL_RETURN_IF_ERROR(CheckReaches(state, mark));
  STEPWELL_RETURN_IF_ERROR(CheckAlone(state, steps));
  const auto contradicts = [](uint64_t step) {
    return FailedPreconditionError(StrCat("the index and the log contradict at step ", step));
  };
  const uint64_t applied = mark.applied;
  // Steps that frames behind `applied` saved, or ended: as what the log had left of them, too.
  std::set<uint64_t> touched;
  for (const auto& [commit, step] : state.changed) {
    if (commit > applied) touched.insert(step);
  }
  std::set<uint64_t> ended_later;
  for (const DeadCommit& dead : state.dead) {
    if (dead.killer <= applied) continue;
    ended_later.insert(dead.commit);
    if (const auto step = state.changed.find(dead.commit); step != state.changed.end()) {
      touched.insert(step->second);
    }
  }
  const auto pinned_later = [&](uint64_t commit, bool pinned) {
    const auto later = state.lost_pins.find(commit);
    if (later == state.lost_pins.end() || later->second.frame <= applied) return pinned;
    return later->second.pinned;
  };
  Witnessed witnessed;
  std::set<uint64_t> indexed;  // commits
  for (IndexedStep step : steps) {
    indexed.insert(step.commit);
    step.pinned = pinned_later(step.commit, step.pinned);
    const auto live = state.step_of.find(step.commit);
    if (live != state.step_of.end()) {
      const LiveStep& in_log = state.live.at(live->second);
      if (live->second != step.step || in_log.place.crc != step.frame_crc) {
        return contradicts(step.step);
      }
      if (step.commit <= applied && in_log.record.pinned != step.pinned) {
        witnessed.pins.push_back({step.step, step.pinned});
      }
      continue;
    }
    if (state.lost_kills.contains(step.commit) || ended_later.contains(step.commit)) continue;
    if (!IsLost(step.commit, state.losses)) return contradicts(step.step);
    if (touched.contains(step.step)) continue;
    // By a writer to whom the log had an older version.
    if (const auto older = state.live.find(step.step); older != state.live.end()) {
      step.pinned = pinned_later(older->second.record.commit, step.pinned);
    }
    witnessed.lost.push_back(step);
  }
  for (const auto& [number, live] : state.live) {
    const uint64_t commit = live.record.commit;
    if (commit > applied || indexed.contains(commit)) continue;
    if (LossAfter(state.losses, commit) == nullptr) return contradicts(number);
    const bool replaced =
        std::any_of(witnessed.lost.begin(), witnessed.lost.end(),
                    [step = number](const auto& lost) { return lost.step == step; });
    if (!replaced) witnessed.ended.push_back(number);
  }
  return witnessed;
}

}  // namespace stepwell::db
