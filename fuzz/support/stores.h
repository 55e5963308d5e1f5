// SPDX-License-Identifier: Apache-2.0
// The stores that mutation starts from, made once per process by the library itself on the
// simulated machine, and what was ever saved in them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "db/environment.h"
#include "db/store.h"
#include "tests/prng.h"
#include "tests/sim/support/sim_disk.h"

namespace stepwell::fuzz {

inline const std::string kStorePath = "/store";

// Leaf key -> bytes of the array or value ("" for nodes).
using Leaves = std::map<std::string, std::string>;
// The state that one save put into a step.
struct SavedStep {
  Leaves leaves;
  std::string metadata_json;
  std::string metrics_json;
};
struct History {
  // Every state that was saved in each step, the oldest first.
  std::map<uint64_t, std::vector<SavedStep>> saved;
  // The present version of a step: the newest state, and whether it is pinned.
  struct Live {
    SavedStep state;
    bool pinned = false;
  };
  std::map<uint64_t, Live> live;
  // A change of it ended with kOutcomeUnknown.
  std::set<uint64_t> unknown;
};

struct BaseStore {
  std::string name;
  std::shared_ptr<sim::SimWorld> world;  // at rest: nobody has it open; at kStorePath
  History history;
  // STEPWELL names the newest commit. Otherwise its frame or payloads, damaged, cannot be told from
  // what was never finished (db/DESIGN.md, "Limits").
  bool marked = true;
};
// Closed cleanly (raw; with blosc, large arrays), left open by a kill, cut off by a power loss
// before STEPWELL was durable, without a step, cut off afterwards. The same in every process.
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

// Changes of a store, noted in `history` when they succeed or may have.
// Saves a state that follows from `seed` and waits for it.
Status SaveSeeded(db::Store* store, uint64_t step, uint64_t seed, db::IfExists if_exists,
                  History* history);
// Takes the item "config" out of a step (every other seed has it).
Status DeleteConfig(db::Store* store, uint64_t step, History* history);
Status DeleteStep(db::Store* store, uint64_t step, History* history);
Status PinStep(db::Store* store, uint64_t step, bool pinned, History* history);

}  // namespace stepwell::fuzz
