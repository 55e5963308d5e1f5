// SPDX-License-Identifier: Apache-2.0
// What a training program does with a store, from one seed, beside the model of it: saves (several
// in flight), waits, replaces, deletes (of items, too), pins, retention on and off, loads, readers,
// clean reopening; at times on a disk that is almost full.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/db/store_support.h"
#include "tests/sim/store_machine.h"
#include "tests/sim/store_model.h"

namespace stepwell::sim {

// The shape of the state that is saved under a seed.
std::vector<db::LeafSpec> SpecsOf(uint64_t seed);
// What a save under this seed holds: every other one has an item "extra" beside "state".
uint64_t HeldOf(uint64_t seed);
Result<db::SaveHandle> SaveStep(db::Store* store, uint64_t step, uint64_t seed,
                                db::IfExists if_exists = db::IfExists::kError);
Status CheckStep(db::Store* store, uint64_t step, uint64_t held);
// Steps with what they hold as the store shows them; every byte is checked.
Result<Steps> ReadAll(db::Store* store);

class Workload {
 public:
  Workload(StoreMachine* machine, uint64_t seed, bool with_index);
  ~Workload();

  // One action. False when the machine has stopped, or something is wrong (see problem()).
  bool Act();
  // `count` actions, then a clean close.
  void Run(int count);
  // The live store broke a promise; empty: none.
  const std::string& problem() const { return problem_; }
  const StoreModel& model() const { return model_; }
  db::Store* store() { return store_.get(); }

 private:
  bool Open();
  bool Squeeze(bool on);
  bool Close();
  bool Save(bool replace);
  bool Delete();
  bool TogglePin();
  bool DeleteExtra();
  bool Reclaim();
  bool LinkSegment();
  bool CheckLinks();
  bool WaitAll();
  bool WaitNewest();
  bool CheckOne();
  bool ReadBeside();
  // Whether `status` is OK. A stopped machine may fail anything; a running one nothing.
  bool Expect(const Status& status, std::string_view what);

  StoreMachine* const machine_;
  const bool with_index_;
  Prng prng_;
  std::optional<uint64_t> keep_;
  std::unique_ptr<db::Store> store_;
  StoreModel model_;
  db::SaveHandle newest_;
  bool any_ = false;
  bool squeezed_ = false;  // little room on the disk
  uint64_t next_step_ = 10;
  uint64_t next_seed_ = 0;
  std::map<std::string, std::string> links_;  // other names of segments, and the bytes they had
  std::string problem_;
};

}  // namespace stepwell::sim
