// SPDX-License-Identifier: Apache-2.0
// The states that a store may have after a crash: an in-memory map that knows nothing of the
// engine.
//
// Changes are committed in the order in which they were asked for. So after a crash the store holds
// all of them up to the last acknowledged one, and then any prefix of those in flight; each wholly
// or not at all.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "db/store.h"

namespace stepwell::sim {

// step -> what it holds: the seed of its state, with these flags.
using Steps = std::map<uint64_t, uint64_t>;
inline constexpr uint64_t kPinned = uint64_t{1} << 62;
inline constexpr uint64_t kHasExtra = uint64_t{1} << 61;  // the item that may be deleted
inline constexpr uint64_t kTainted = uint64_t{1} << 58;
inline constexpr uint64_t kVerified = uint64_t{1} << 57;
inline constexpr uint64_t SeedOf(uint64_t held) {
  return held & ~(kPinned | kHasExtra | kTainted | kVerified);
}
// The reason for which a step is tainted. Not of its seed: a replacement that is under way may
// fail, and what was there is then what is tainted.
inline std::string TaintOf(uint64_t step) { return StrCat("taint of ", step); }
// The step that a trainer resumes from; none where all are tainted.
std::optional<uint64_t> NewestIn(const Steps& steps);

// The step that KeepRule::LastVerified keeps.
std::optional<uint64_t> LastVerifiedIn(const Steps& steps);

std::string ToText(const Steps& steps);

// The rules of retention.
struct Keep {
  uint64_t latest = 0;
  bool last_verified = false;
};

class StoreModel {
 public:
  // From here on errors come from reads, too: a change that ended in one may be there or not,
  // whatever became of later ones.
  void Tolerate() { tolerant_ = true; }
  // A save or replacement that was accepted; `keep` as the store was opened, `retire` as it was
  // asked for.
  void Saved(uint64_t step, uint64_t held, std::optional<Keep> keep, db::SaveHandle handle,
             std::vector<uint64_t> retire = {});
  // Changes that have returned.
  void Deleted(uint64_t step, const Status& status);
  void PinSet(uint64_t step, bool pinned, const Status& status);
  void TaintSet(uint64_t step, bool tainted, const Status& status);
  void ExtraDeleted(uint64_t step, const Status& status);
  // All steps, in one change, or one.
  void Verified(std::optional<uint64_t> step, const Status& status);
  // After recovery, or a reopening: this is what is there, nothing is in flight.
  void Settle(Steps steps);
  // Before recovery: what is there is one of these.
  void Begin(std::vector<Steps> legal);

  // Once everything in flight is committed.
  Steps Newest() const;
  // Every state that a crash now may leave, the oldest first. Where no change has failed, the first
  // is also what is visible.
  std::vector<Steps> Legal() const;

 private:
  enum class Outcome { kInFlight, kUnknown, kApplied, kRefused };
  enum class Kind {
    kSave,
    kDelete,
    kPin,
    kUnpin,
    kTaint,
    kUntaint,
    kDeleteExtra,
    kVerify,
    kVerifyAll,
  };
  struct Change {
    Kind kind = Kind::kSave;
    uint64_t step = 0;
    uint64_t held = 0;
    std::optional<Keep> keep;
    db::SaveHandle handle;  // saves only
    Outcome outcome = Outcome::kInFlight;
    std::vector<uint64_t> retire = {};  // saves only
  };
  static Outcome OutcomeOf(const Status& status);
  static Outcome OutcomeOf(const Change& change);
  static void Apply(const Change& change, Steps* steps);

  bool tolerant_ = false;
  std::vector<Steps> bases_ = {{}};
  std::vector<Change> changes_;  // after one of bases_, in order
};

}  // namespace stepwell::sim
