// SPDX-License-Identifier: Apache-2.0
// The life of a store and of its branches on one machine, from one seed: each has a process of its
// own, which goes on by itself (store_workload.h). Branches are made, of branches, too, and removed
// as Python does it; a power cut or a kill ends each session, and may come at any operation.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/support/store_machine.h"
#include "tests/sim/support/store_model.h"
#include "tests/sim/support/store_shape.h"
#include "tests/sim/support/store_workload.h"

namespace stepwell::sim {

class BranchFamily {
 public:
  BranchFamily(uint64_t seed, bool faults);
  ~BranchFamily();

  // Each returns what went wrong; empty: nothing.
  std::string RunSession(uint64_t actions);
  std::string Act();
  std::string MakeBranch();
  // Checks an image that a crash now may leave. All stores go on beside each other on it.
  std::string CheckAnImage();

  SimWorld& world() { return *world_; }
  size_t branches_made() const { return made_; }

 private:
  struct Member {
    std::string path;
    std::vector<Steps> legal = {{}};  // while no process has it
    bool acknowledged = true;         // else it may be there, whole, or not
    bool removed = false;             // a power cut may bring back parts of it
    std::unique_ptr<StoreMachine> machine;
    std::unique_ptr<Workload> workload;
  };

  std::vector<Steps> LegalOf(const Member& member) const;
  Member* AnyMember();
  void Start(Member* member);
  std::string ProblemOf(const Member& member) const;
  Status Fork(Member* from, const std::string& path, uint64_t last, bool strike, Member* made);
  Status Cut(StoreMachine* machine, const std::string& path, uint64_t last,
             const std::vector<Steps>& legal, Member* made);
  void RemoveBranch();
  std::string EndSession();
  std::string Check(const std::shared_ptr<SimWorld>& image);
  std::string GoOn(const std::shared_ptr<SimWorld>& image, const Member& member, uint64_t seed,
                   Steps* steps);

  const uint64_t seed_;
  const bool faults_;
  Prng prng_;
  Shape shape_;
  std::shared_ptr<SimWorld> world_;
  std::vector<std::unique_ptr<Member>> members_;  // the trunk first
  uint64_t number_ = 0;                           // of the last branch
  size_t made_ = 0;
};

struct BranchHistoryOptions {
  uint64_t seed = 1;
  bool faults = false;
};

// Counts its images in CheckedImages(), and adds the branches that it made.
std::string RunBranchHistory(const BranchHistoryOptions& options, uint64_t* branches);

}  // namespace stepwell::sim
