// SPDX-License-Identifier: Apache-2.0
// The stores that mutation starts from, made once per process by the library itself on the
// simulated machine, and what was ever saved in them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "db/environment.h"
#include "db/store.h"
#include "tests/prng.h"
#include "tests/sim/support/sim_disk.h"

namespace stepwell::fuzz {

inline const std::string kStorePath = "/store";

// What one save put into a step: leaf key -> bytes of the array or value ("" for nodes).
using SavedState = std::map<std::string, std::string>;
// Every state that was saved in each step, the oldest first.
using History = std::map<uint64_t, std::vector<SavedState>>;

struct BaseStore {
  std::string name;
  std::shared_ptr<sim::SimWorld> world;  // at rest: nobody has it open; at kStorePath
  History history;
};
// Closed cleanly (raw; with blosc, large arrays), left open by a kill, cut off by a power loss,
// without a step. The same in every process.
const std::vector<BaseStore>& BaseStores();

// One process on a simulated machine. Outlives what it opens.
class Machine {
 public:
  explicit Machine(std::shared_ptr<sim::SimWorld> world, bool with_index = false)
      : world_(std::move(world)), files_(world_), with_index_(with_index) {}
  Result<std::unique_ptr<db::Store>> Open(db::StoreOptions options);
  io::FileSystem* files() { return &files_; }

 private:
  const std::shared_ptr<sim::SimWorld> world_;
  sim::SimFileSystem files_;
  sim::SimClock clock_;
  Prng prng_{1};
  const bool with_index_;
};

// The state that SaveSeeded saves.
SavedState SeededState(uint64_t step, uint64_t seed);
// Saves a state that follows from `seed` and waits for it; on success `history` has it.
Status SaveSeeded(db::Store* store, uint64_t step, uint64_t seed, db::IfExists if_exists,
                  History* history);
// Takes the item "config" out of a step (every other seed has it); `history` has what is left.
Status DeleteConfig(db::Store* store, uint64_t step, History* history);

}  // namespace stepwell::fuzz
