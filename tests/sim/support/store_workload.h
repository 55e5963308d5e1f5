// SPDX-License-Identifier: Apache-2.0
// A training program's use of a store, from one seed, beside the model of it: saves (several in
// flight), waits, replaces, deletes (of items, too), pins, taints, verifications, retention on and
// off, loads, readers that come and go or stay, clean reopening; at times on a disk that is almost
// full, or that fails.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/support/store_contents.h"
#include "tests/sim/support/store_machine.h"
#include "tests/sim/support/store_model.h"
#include "tests/sim/support/store_shape.h"

namespace stepwell::sim {

// The step that CheckImage saves, above all of the workload's.
inline constexpr uint64_t kNewStep = 1'000'000;

class Workload {
 public:
  // On a machine whose store, once it is recovered, holds one of the states `legal`.
  Workload(StoreMachine* machine, uint64_t seed, const Shape& shape,
           std::vector<Steps> legal = {{}});
  ~Workload();
  // From here on the disk may fail: every call may end in an error, none may lie.
  void Tolerate() {
    tolerant_ = true;
    model_.Tolerate();
  }

  // One action. False when the machine has stopped, or something is wrong (see problem()).
  bool Act();
  // `count` actions, then a clean close.
  void Run(int count);
  // The live store broke a promise; empty: none.
  const std::string& problem() const { return problem_; }
  // Opens the store if it is not open.
  bool Open();
  // Lets everything go as a process that ends does, without waiting for what Close says.
  void Drop();
  // Another commit, while something else is under way that holds RECLAIM (`reclaims`: or does not,
  // then one that deletes, and the space of what is dead).
  void GoOnBeside(bool reclaims);
  const StoreModel& model() const { return model_; }
  db::Store* store() { return store_.get(); }

 private:
  struct OpenReader {
    std::unique_ptr<db::Store> store;
    std::shared_ptr<db::StepReader> step;
    uint64_t held = 0;
  };

  bool SettleOpened();
  bool SaveFirstSteps();
  uint64_t NextSeed();
  bool OpenReaderThatStays();
  bool SlotIsBehind(uint64_t step, uint64_t held);
  bool CheckReaders();
  bool Squeeze(bool on);
  bool Close();
  bool Save(bool replace);
  std::vector<uint64_t> RetiredWith(uint64_t seed) const;
  bool Delete();
  bool TogglePin();
  bool ToggleTaint();
  bool Verify();
  bool DeleteExtra();
  bool Reclaim();
  bool LinkSegment();
  bool CheckLinks();
  bool WaitAll();
  bool WaitNewest();
  bool CheckOne();
  bool ReadBeside();
  // Checks that `status` is OK. A stopped machine and a failing disk may fail anything; otherwise
  // nothing may fail.
  bool Expect(const Status& status, std::string_view what);

  StoreMachine* const machine_;
  const Shape shape_;
  Prng prng_;
  bool tolerant_ = false;
  bool settled_ = false;  // the model has one state to begin with
  std::optional<Keep> keep_;
  std::unique_ptr<db::Store> store_;
  StoreModel model_;
  db::SaveHandle newest_;
  bool any_ = false;
  bool squeezed_ = false;   // little room on the disk
  uint64_t last_step_ = 0;  // that was saved
  uint64_t next_step_ = 10;
  uint64_t next_seed_ = 0;
  std::vector<OpenReader> readers_;
  bool first_saved_ = false;
  std::map<std::string, std::string> links_;  // other names of segments, and the bytes they had
  std::string problem_;
};

}  // namespace stepwell::sim
