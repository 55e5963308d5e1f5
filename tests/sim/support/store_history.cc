// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/support/store_history.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "tests/sim/support/store_checker.h"
#include "tests/sim/support/store_faults.h"
#include "tests/sim/support/store_workload.h"

namespace stepwell::sim {
namespace {

class History {
 public:
  explicit History(const HistoryOptions& options)
      : options_(options),
        prng_(options.seed),
        shape_(ShapeOf(options.seed)),
        world_(SimWorld::Make({options.seed, kUnlimitedBytes})) {
    shape_.with_index = options.with_index;
  }

  std::string Run() {
    const uint64_t sessions = 1 + prng_.Below(4);
    std::string problem;
    for (uint64_t session = 0; session < sessions && problem.empty(); ++session) {
      problem = RunSession();
      if (problem.empty() && options_.faults) problem = RecoverOnAFailingDisk();
      if (!problem.empty()) problem = StrCat("session ", session, ": ", problem);
    }
    if (problem.empty() && options_.faults) problem = Check(*world_, legal_);
    return problem.empty() ? problem : StrCat(problem, "\nshape: ", ToText(shape_));
  }

 private:
  // Leaves the machine as the end of the session left it, and what it may hold in legal_.
  std::string RunSession() {
    StoreMachine machine(world_, prng_.Next());
    Workload workload(&machine, prng_.Next(), shape_, std::move(legal_));
    // On a healthy disk it opens, whatever was before.
    if (!workload.Open()) return StrCat("open: ", workload.problem(), "\nlog: ", machine.log());
    if (options_.faults) workload.Tolerate();
    const uint64_t actions = 10 + prng_.Below(40);
    for (uint64_t i = 0; i < actions; ++i) {
      if (options_.faults && prng_.OneIn(12)) PlanFaults(world_.get(), &prng_);
      const bool done = workload.Act();
      if (!workload.problem().empty() || (!done && (!options_.faults || world_->frozen()))) break;
      if (!done && prng_.OneIn(3)) {
        workload.Drop();
        if (prng_.Coin()) world_->ClearFaults();
      }
      if (prng_.OneIn(options_.faults ? 16 : 8)) {
        // The machine goes on; only what is acknowledged by now must be in the image.
        if (std::string problem = CheckAnImage(workload.model().Legal()); !problem.empty()) {
          return StrCat("after action ", i, ": ", problem);
        }
      }
      if (i == actions / 2 && prng_.Coin()) {
        world_->FreezeAt(world_->mutating_ops() + prng_.Below(400));
      }
    }
    const bool ends = workload.problem().empty() && prng_.OneIn(4);
    if (ends) workload.Drop();
    legal_ = workload.model().Legal();
    for (int i = 0; i < 2 && workload.problem().empty(); ++i) {
      if (std::string problem = CheckAnImage(legal_); !problem.empty()) {
        return StrCat("at the end: ", problem);
      }
    }
    if (!workload.problem().empty()) {
      return StrCat(workload.problem(), "\nlog: ", machine.log());
    }
    // Without a crash the next process finds the same page cache.
    const bool crashes = !ends || world_->frozen() || prng_.Coin();
    auto next = crashes ? ImageOf(*world_, prng_.Next() % 1'000'000) : world_;
    workload.Drop();
    world_ = std::move(next);
    world_->FreezeAt(0);
    world_->ClearFaults();
    world_->SetCapacity(kUnlimitedBytes);
    return "";
  }

  std::string CheckAnImage(std::vector<Steps> legal) {
    auto image = ImageOf(*world_, prng_.Next() % 1'000'000);
    if (options_.faults && prng_.Coin()) {
      const std::string problem = RecoverFailing(&image, &legal, prng_.Next());
      if (!problem.empty()) return problem;
    }
    return Check(*image, legal);
  }

  std::string Check(const SimWorld& image, const std::vector<Steps>& legal) {
    const uint64_t seed = prng_.Next() % 1'000'000;
    return CheckImage(image.CrashImageProcessKill(seed), legal,
                      {seed, shape_.with_index, prng_.OneIn(3) ? 1 : 0});
  }

  std::string RecoverOnAFailingDisk() {
    if (prng_.Coin()) return "";
    return RecoverFailing(&world_, &legal_, prng_.Next());
  }

  const HistoryOptions options_;
  Prng prng_;
  Shape shape_;
  std::shared_ptr<SimWorld> world_;
  std::vector<Steps> legal_ = {{}};
};

}  // namespace

std::string RunHistory(const HistoryOptions& options) { return History(options).Run(); }

}  // namespace stepwell::sim
