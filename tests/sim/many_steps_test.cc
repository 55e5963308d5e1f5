// SPDX-License-Identifier: Apache-2.0
// A store of very many live steps: it is killed and loses power while steps are saved, deleted by
// thousands and reclaimed; it recovers, is reclaimed to the end, and gives its space back.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "tests/sim/support/soak_seeds.h"
#include "tests/sim/support/store_workload.h"

namespace stepwell::sim {
namespace {

const OpenSpec kManySpec = {.segment_bytes = uint64_t{4} << 20};

// A machine whose writer was killed after so many saves, all of them acknowledged.
class ManySteps {
 public:
  explicit ManySteps(uint64_t count) {
    world_ = SimWorld::Make({count, kUnlimitedBytes});
    StoreMachine machine(world_, count);
    const auto store = machine.Open(kManySpec);
    if (!store.ok()) return;
    for (uint64_t step = 0; step < count; ++step) {
      const uint64_t seed = kTiny | (step * 7919 % 100'003);
      const auto handle = SaveStep(store->get(), step, seed);
      if (!handle.ok() || (step % 64 == 63 && !handle->Wait().ok())) return;
      steps_.emplace_hint(steps_.end(), step, HeldOf(seed));
    }
    if (!(*store)->Wait().ok()) return;
    world_ = world_->CrashImageProcessKill(count);
    good_ = true;
  }

  bool good() const { return good_; }
  std::shared_ptr<SimWorld> world() const { return world_; }
  const Steps& steps() const { return steps_; }

 private:
  std::shared_ptr<SimWorld> world_;
  Steps steps_;
  bool good_ = false;
};

class ManyStepsRun {
 public:
  ManyStepsRun(const ManySteps& base, uint64_t seed)
      : prng_(seed), world_(base.world()->CrashImageProcessKill(seed)), now_(base.steps()) {}

  // Returns what went wrong; empty: nothing.
  std::string Run() {
    const uint64_t bytes_before = world_->UsedBytes();
    if (!Session(/*few_left=*/false) || !Session(/*few_left=*/true)) return problem_;
    StoreMachine machine(world_, prng_.Next());
    const auto store = OpenAndLook(&machine, /*read_only=*/false);
    if (store == nullptr) return problem_;
    if (!Expect(store->Reclaim().status(), "reclaim") || !Matches(store.get())) return problem_;
    const auto report = store->Verify({});
    if (!Expect(report.status(), "verify")) return problem_;
    if (!report->problems.empty()) return "verify: " + report->problems.front().message;
    if (!Expect(store->Close(), "close")) return problem_;
    if (world_->UsedBytes() > bytes_before / 2) {
      return StrCat(now_.size(), " steps need ", world_->UsedBytes(), " bytes of ", bytes_before);
    }
    return "";
  }
  uint64_t images() const { return images_; }

 private:
  bool Expect(const Status& status, std::string_view what) {
    if (status.ok()) return true;
    if (!world_->frozen() && problem_.empty()) problem_ = StrCat(what, ": ", status.ToString());
    return false;
  }

  // Which steps there are, and what some of them hold.
  bool Matches(db::Store* store) {
    const auto listed = store->Steps();
    if (!Expect(listed.status(), "list")) return false;
    const auto is = [&](const Steps& steps) {
      return std::equal(
          listed->begin(), listed->end(), steps.begin(), steps.end(),
          [](const auto& there, const auto& step) { return there.step == step.first; });
    };
    if (after_ && is(*after_)) now_ = std::move(*after_);
    after_.reset();
    if (!is(now_)) {
      problem_ =
          StrCat("there are ", listed->size(), " steps instead of ", now_.size(), ", or others");
      return false;
    }
    for (int i = 0; i < 40; ++i) {
      const auto [step, held] = Any();
      if (!Expect(CheckStep(store, step, held), StrCat("step ", step))) return false;
    }
    return true;
  }
  std::pair<uint64_t, uint64_t> Any() {
    auto at = now_.lower_bound(prng_.Below(now_.rbegin()->first + 1));
    return at == now_.end() ? *now_.begin() : *at;
  }

  std::unique_ptr<db::Store> OpenAndLook(StoreMachine* machine, bool read_only) {
    OpenSpec spec = kManySpec;
    spec.read_only = read_only;
    auto store = machine->Open(spec);
    if (!Expect(store.status(), "open")) return nullptr;
    for (const std::string& said : (*store)->recovery().problems) problem_ = said;
    if (!problem_.empty() || !Matches(store->get())) return nullptr;
    return std::move(*store);
  }

  bool SaveOne(db::Store* store) {
    const uint64_t step = prng_.OneIn(4) ? Any().first : now_.rbegin()->first + 1;
    const uint64_t seed = kTiny | prng_.Below(100'003);
    after_ = now_;
    (*after_)[step] = HeldOf(seed);
    const auto handle = SaveStep(store, step, seed, db::IfExists::kReplace);
    return Done(handle.ok() ? handle->Wait() : handle.status(), "save");
  }
  // Deletes steps so that one of each `of` stays.
  bool DeleteMany(db::Store* store, uint64_t of) {
    std::vector<uint64_t> steps;
    after_ = now_;
    for (const auto& [step, held] : now_) {
      if (of == 0 ? prng_.OneIn(100) : !prng_.OneIn(of)) steps.push_back(step);
    }
    for (const uint64_t step : steps) after_->erase(step);
    return Done(store->Delete(steps), "delete");
  }
  bool Done(const Status& status, std::string_view what) {
    if (!Expect(status, what)) return false;
    now_ = std::move(*after_);
    after_.reset();
    return true;
  }

  // Ends with a crash somewhere; the next machine is in world_.
  bool Session(bool few_left) {
    {
      StoreMachine machine(world_, prng_.Next());
      const auto store = OpenAndLook(&machine, false);
      if (store == nullptr) return false;
      if (few_left && !DeleteMany(store.get(), 20 + prng_.Below(200))) return false;
      const uint64_t reach = prng_.Coin() ? 100 : few_left ? 20'000 : 1000;
      world_->FreezeAt(world_->mutating_ops() + 1 + prng_.Below(reach));
      for (int i = 0; i < 30 && !world_->frozen(); ++i) {
        const uint64_t roll = prng_.Below(10);
        if (few_left && i == 0) {
          if (!Expect(store->Reclaim().status(), "reclaim")) break;
        } else if (!(roll < 8 ? SaveOne(store.get()) : DeleteMany(store.get(), 0))) {
          break;
        }
      }
      if (!problem_.empty()) return false;
      world_->FreezeNow();
    }
    world_ = ImageOf(*world_, prng_.Next() % 1'000'000);
    ++images_;
    if (!prng_.Coin()) return true;
    // A reader comes first.
    StoreMachine machine(world_, prng_.Next());
    return OpenAndLook(&machine, true) != nullptr;
  }

  Prng prng_;
  std::shared_ptr<SimWorld> world_;
  Steps now_;
  std::optional<Steps> after_;  // a change that is not acknowledged
  uint64_t images_ = 0;
  std::string problem_;
};

uint64_t RunManySteps(uint64_t count, uint64_t first, uint64_t rounds) {
  const ManySteps base(count);
  EXPECT_TRUE(base.good());
  uint64_t images = 0;
  for (uint64_t seed = first; seed < first + rounds && !testing::Test::HasFailure(); ++seed) {
    ManyStepsRun run(base, seed);
    EXPECT_EQ(run.Run(), "") << count << " steps, seed " << seed;
    images += run.images();
  }
  std::cout << count << " live steps: " << images << " crash images\n";
  return images;
}

TEST(ManyStepsTest, CrashedRecoveredAndReclaimed) { RunManySteps(10'000, 1, 1); }

// For hours, or to replay one seed (README.md).
TEST(ManyStepsTest, Soak) {
  uint64_t first = 1;
  uint64_t rounds = 1;
  if (!SeedsFromOutside(&first, &rounds)) GTEST_SKIP() << "STEPWELL_SIM_SEED is not set";
  RunManySteps(100'000, first, rounds);
}

}  // namespace
}  // namespace stepwell::sim
