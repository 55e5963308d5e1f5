// SPDX-License-Identifier: Apache-2.0
// Three stores of a group on one machine, from one seed: steps are prepared, decided and aborted,
// segments begin and are reclaimed beside undecided steps. And the check of what a crash leaves.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/db/support/group_support.h"
#include "tests/sim/support/store_machine.h"

namespace stepwell::sim {

inline constexpr uint32_t kParts = 3;
inline constexpr uint64_t kGroupKeep = 3;  // steps that retention leaves

std::string SavesText(const db::Saves& saves);
Result<db::SaveHandle> PreparePart(db::Store* store, uint64_t step, uint64_t save);

// The stores of one process.
struct GroupStores {
  std::vector<std::unique_ptr<db::Store>> parts;
  bool statistics = false;  // of all parts, in every other session

  Status Open(StoreMachine* machine);
  Status OpenOne(StoreMachine* machine, uint32_t part);
  std::vector<db::Store*> Pointers() const;
};

// Reads the steps that part 0 shows, and checks every byte. Wrong bytes are kInternal.
Result<db::Saves> ReadSaves(db::Store* root);

// A program of several processes, which does one thing after the other.
class GroupWorkload {
 public:
  GroupWorkload(StoreMachine* machine, uint64_t seed) : machine_(machine), prng_(seed) {
    machine->world().SetCanPunch(seed % 3 != 0);
  }

  void Run(int actions);
  // From now on an operation may fail: the first error ends the run, and is not a problem.
  void Tolerate() { tolerant_ = true; }
  const std::string& problem() const { return problem_; }
  // The states that part 0 may show. The second is not acknowledged.
  std::vector<db::Saves> Legal() const;
  // Saves that each part has acknowledged as prepared, and that nothing has begun to decide.
  std::vector<std::set<uint64_t>> Undecided() const;

 private:
  struct Open {
    uint64_t step = 0;
    uint64_t save = 0;
    std::vector<std::optional<db::SaveHandle>> handles{kParts};
    bool deciding = false;
  };

  bool Expect(const Status& status, std::string_view what);
  bool Prepare();
  bool Decide(Open& open);
  bool Reopen();
  bool Act();

  StoreMachine* const machine_;
  Prng prng_;
  GroupStores stores_;
  std::deque<Open> open_;
  db::Saves visible_;
  std::optional<db::Saves> in_doubt_;
  uint64_t next_step_ = 1;
  uint64_t next_save_ = 1;
  bool tolerant_ = false;
  std::string problem_;
};

struct GroupExpected {
  std::vector<db::Saves> legal;
  std::vector<std::set<uint64_t>> undecided;  // by part; these must be there
};

inline const std::string kListFailed = "a list failed";
// Checks that every save that a part promised to keep is prepared, or decided. Returns those that
// are neither.
std::string CheckKept(const GroupStores& stores, const GroupExpected& expected);

// An image is opened (after so many more crashes), read through part 0, settled, takes another step
// and is opened again. Returns what went wrong; empty: nothing.
std::string CheckGroupImage(const std::shared_ptr<SimWorld>& image, GroupExpected expected,
                            uint64_t seed, int crashes);

}  // namespace stepwell::sim
