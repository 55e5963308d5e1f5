// SPDX-License-Identifier: Apache-2.0
// Another process runs between any two operations of reclaim: it opens the store and pins a step,
// reads one that it has pinned for long, lets one go. And reclaim runs between any two operations
// of a reader. What a reader has open it reads, bit for bit, whatever comes.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "tests/sim/support/soak_seeds.h"
#include "tests/sim/support/store_checker.h"
#include "tests/sim/support/store_workload.h"

namespace stepwell::sim {
namespace {

const std::string kReclaimLock = kStorePath + "/RECLAIM";

struct SceneShape {
  uint64_t seed = 1;
  uint64_t segment_bytes = uint64_t{24} << 10;
  bool can_punch = true;
};

std::string ToText(const SceneShape& shape) {
  return StrCat("seed ", shape.seed, ", segments of ", shape.segment_bytes >> 10, " KiB",
                shape.can_punch ? "" : ", no holes");
}

// A writer with much that is dead, and a process that reads, some of it since long ago.
class Scene {
 public:
  explicit Scene(const SceneShape& shape)
      : world_(SimWorld::Make({shape.seed, kUnlimitedBytes})),
        prng_(shape.seed * 977 + shape.segment_bytes),
        writer_(world_, shape.seed),
        other_(world_, shape.seed + 1) {
    world_->SetCanPunch(shape.can_punch);
    auto store = writer_.Open({.segment_bytes = shape.segment_bytes});
    if (!Expect(store.status(), "open")) return;
    store_ = std::move(*store);
    const uint64_t small_percent = 25 * prng_.Below(4);
    const uint64_t rounds = 2 + prng_.Below(3);
    for (uint64_t round = 0; round < rounds && problem_.empty(); ++round) {
      for (uint64_t i = 3 + prng_.Below(4); i > 0; --i) {
        Save(next_step_++, prng_.Below(100) < small_percent ? kTiny : 0);
      }
      if (!prng_.OneIn(4)) OpenAnother();
      for (uint64_t i = 1 + prng_.Below(3); i > 0; --i) EndOne();
    }
  }

  SimWorld& world() { return *world_; }
  const std::string& problem() const { return problem_; }
  Prng& prng() { return prng_; }
  const Steps& steps() const { return steps_; }
  db::Store* store() { return store_.get(); }

  void Save(uint64_t step, uint64_t kind) {
    const uint64_t seed = kind | prng_.Below(997);
    const auto handle = SaveStep(store_.get(), step, seed, db::IfExists::kReplace);
    Expect(handle.ok() ? handle->Wait() : handle.status(), "save");
    steps_[step] = HeldOf(seed);
  }
  void Delete(uint64_t step) {
    Expect(store_->Delete({&step, 1}), "delete");
    steps_.erase(step);
  }
  // Replaced or deleted.
  void EndOne() {
    const uint64_t step = AnyStep();
    if (steps_.size() < 3 || prng_.OneIn(3)) return Save(step, 0);
    Delete(step);
  }
  uint64_t AnyStep() {
    return std::next(steps_.begin(), static_cast<std::ptrdiff_t>(prng_.Below(steps_.size())))
        ->first;
  }
  void Reclaim() {
    const auto report = store_->Reclaim();
    if (!Expect(report.status(), "reclaim")) return;
    moved_bytes_ += report->bytes_moved;
    punched_bytes_ += report->bytes_punched;
    segments_removed_ += report->segments_removed;
  }
  uint64_t moved_bytes() const { return moved_bytes_; }
  uint64_t punched_bytes() const { return punched_bytes_; }
  uint64_t segments_removed() const { return segments_removed_; }

  // The other process does something; at once, as long as it need not wait for RECLAIM.
  void Act() {
    const uint64_t roll = prng_.Below(10);
    const bool waits = world_->HasLocks(kReclaimLock);
    if (readers_.empty()) return waits ? void() : OpenAnother();
    if (roll < 4 && !waits) return OpenAnother();
    const size_t which = prng_.Below(readers_.size());
    if (roll < 6) {
      readers_.erase(readers_.begin() + static_cast<std::ptrdiff_t>(which));
    } else if (roll < 8 && !waits) {
      PinAnother(&readers_[which]);
    } else {
      Check(readers_[which]);
    }
  }
  bool CanAct() const { return !readers_.empty() || !world_->HasLocks(kReclaimLock); }
  void OpenAnother() {
    auto store = other_.Open({.read_only = true});
    if (!Expect(store.status(), "open for reading")) return;
    const auto seen = ReadAll(store->get());
    if (!Expect(seen.status(), "reading all")) return;
    if (*seen != steps_) {
      problem_ = StrCat("a reader sees ", sim::ToText(*seen), ", not ", sim::ToText(steps_));
    }
    if (steps_.empty()) return;
    Reader& reader = readers_.emplace_back();
    reader.store = std::move(*store);
    PinAnother(&reader);
  }
  void CheckReaders() {
    for (const Reader& reader : readers_) Check(reader);
  }
  // Checks the steps, for the writer and after a crash; then without readers.
  void CheckEnd(uint64_t image) {
    CheckReaders();
    CheckStore();
    for (uint64_t i = 2; i > 0; --i) Save(next_step_++, 0);
    EndOne();
    Reclaim();
    CheckReaders();
    CheckStore();
    if (image > 0 && problem_.empty()) {
      problem_ = CheckImage(ImageOf(*world_, image), {steps_}, {image, false, 0});
    }
    readers_.clear();
    Reclaim();
    CheckStore();
    Expect(store_->Close(), "close");
  }
  // A reader from its open to the last byte. What ends while it is on its way it need not find.
  void ReadOnTheWay(uint64_t step, uint64_t held, const bool& struck) {
    const auto store = other_.Open({.read_only = true});
    if (!Expect(store.status(), "open for reading")) return;
    const auto reader = (*store)->Read(step);
    if (struck && reader.status().code() == StatusCode::kNotFound) return;
    if (!Expect(reader.status(), "read")) return;
    Expect(CheckStep(reader->get(), held), "a step that was open when it was deleted");
  }

 private:
  struct Reader {
    std::unique_ptr<db::Store> store;
    std::shared_ptr<db::StepReader> step;
    uint64_t held = 0;
  };

  bool Expect(const Status& status, std::string_view what) {
    if (status.ok()) return true;
    if (problem_.empty()) {
      problem_ = StrCat(what, ": ", status.ToString(), "\nlog: ", writer_.log(), other_.log());
    }
    return false;
  }
  void PinAnother(Reader* reader) {
    const uint64_t step = AnyStep();
    auto opened = reader->store->Read(step);
    if (!Expect(opened.status(), StrCat("step ", step, " for a reader"))) return;
    reader->step = std::move(*opened);
    reader->held = steps_[step];
    Check(*reader);
  }
  void Check(const Reader& reader) {
    if (reader.step == nullptr) return;
    Expect(CheckStep(reader.step.get(), reader.held),
           StrCat("step ", reader.step->step().step, ", which a reader has open"));
  }
  void CheckStore() {
    const auto seen = ReadAll(store_.get());
    if (!Expect(seen.status(), "reading")) return;
    if (*seen != steps_) {
      problem_ = StrCat("the writer has ", sim::ToText(*seen), ", not ", sim::ToText(steps_));
    }
    const auto report = store_->Verify({});
    if (!Expect(report.status(), "verify")) return;
    if (!report->problems.empty()) problem_ = "verify: " + report->problems.front().message;
    for (auto& [step, held] : steps_) held |= kVerified;
  }

  const std::shared_ptr<SimWorld> world_;
  Prng prng_;
  StoreMachine writer_;
  StoreMachine other_;
  std::unique_ptr<db::Store> store_;
  Steps steps_;
  uint64_t next_step_ = 10;
  std::vector<Reader> readers_;
  uint64_t moved_bytes_ = 0;
  uint64_t punched_bytes_ = 0;
  uint64_t segments_removed_ = 0;
  std::string problem_;
};

struct SceneCounts {
  uint64_t strikes = 0;
  uint64_t moved = 0;  // scenes in which reclaim did this
  uint64_t punched = 0;
  uint64_t removed = 0;
};

// The other process acts before the n-th operation of reclaim, and a few times behind it. False:
// there is no n-th one.
bool StrikeReclaim(const SceneShape& shape, uint64_t nth, SceneCounts* counts) {
  Scene scene(shape);
  bool struck = false;
  uint64_t op = 0;
  Prng prng(shape.seed ^ (nth << 20));
  scene.world().SetHook([&](OpKind) {
    ++op;
    const bool now = struck ? prng.OneIn(16) : op >= nth && scene.CanAct();
    if (!now || !scene.problem().empty()) return;
    struck = true;
    scene.Act();
  });
  if (scene.problem().empty()) scene.Reclaim();
  scene.world().SetHook(nullptr);
  counts->strikes += struck ? 1 : 0;
  counts->moved += scene.moved_bytes() > 0 ? 1 : 0;
  counts->punched += scene.punched_bytes() > 0 ? 1 : 0;
  counts->removed += scene.segments_removed() > 0 ? 1 : 0;
  if (scene.problem().empty()) scene.CheckEnd(nth % 4 == 0 ? 1 + prng.Below(1'000'000) : 0);
  EXPECT_EQ(scene.problem(), "") << ToText(shape) << ": a reader before operation " << nth
                                 << " of reclaim";
  return struck && scene.problem().empty();
}

// The step that a reader opens is deleted, and all that is dead is reclaimed, before the n-th
// operation of the reader.
bool StrikeReader(const SceneShape& shape, uint64_t nth, SceneCounts* counts) {
  Scene scene(shape);
  const uint64_t step = scene.AnyStep();
  const uint64_t held = scene.steps().at(step);
  bool struck = false;
  uint64_t op = 0;
  scene.world().SetHook([&](OpKind) {
    if (++op < nth || struck || scene.world().HasLocks(kReclaimLock)) return;
    struck = true;
    scene.Delete(step);
    scene.Reclaim();
  });
  if (scene.problem().empty()) scene.ReadOnTheWay(step, held, struck);
  scene.world().SetHook(nullptr);
  counts->strikes += struck ? 1 : 0;
  EXPECT_EQ(scene.problem(), "") << ToText(shape) << ": reclaim before operation " << nth
                                 << " of a reader";
  return struck && scene.problem().empty();
}

using Strike = bool (*)(const SceneShape& shape, uint64_t nth, SceneCounts* counts);

void StrikeEverywhere(Strike strike, uint64_t seed, uint64_t stride, SceneCounts* counts) {
  static constexpr uint64_t kKiB[] = {24, 48, 192, 1024};
  for (const uint64_t size : kKiB) {
    for (const bool can_punch : {true, false}) {
      const SceneShape shape{seed, size << 10, can_punch};
      uint64_t nth = 1 + (seed + size) % stride;
      while (strike(shape, nth, counts)) nth += stride;
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(ReclaimReadersTest, AReaderBetweenAnyTwoActionsOfReclaim) {
  SceneCounts counts;
  for (uint64_t seed = 1; seed <= 4 && !HasFailure(); ++seed) {
    StrikeEverywhere(StrikeReclaim, seed, 59, &counts);
  }
  std::cout << counts.strikes << " strikes; moved in " << counts.moved << ", punched in "
            << counts.punched << ", removed in " << counts.removed << "\n";
  EXPECT_GE(counts.strikes, 80U);
  EXPECT_GE(counts.moved, 10U);
  EXPECT_GE(counts.punched, 10U);
  EXPECT_GE(counts.removed, 10U);
}

TEST(ReclaimReadersTest, AReclaimBetweenAnyTwoActionsOfAReader) {
  SceneCounts counts;
  for (uint64_t seed = 1; seed <= 4 && !HasFailure(); ++seed) {
    StrikeEverywhere(StrikeReader, seed, 11, &counts);
  }
  std::cout << counts.strikes << " strikes\n";
  EXPECT_GE(counts.strikes, 100U);
}

// For hours, or to replay one seed (README.md).
TEST(ReclaimReadersTest, Soak) {
  uint64_t first = 1;
  uint64_t rounds = 1;
  if (!SeedsFromOutside(&first, &rounds)) GTEST_SKIP() << "STEPWELL_SIM_SEED is not set";
  SceneCounts counts;
  const ImageCounts before = CheckedImages();
  for (uint64_t seed = first; seed < first + rounds && !HasFailure(); ++seed) {
    StrikeEverywhere(StrikeReclaim, seed, 5, &counts);
    if (!HasFailure()) StrikeEverywhere(StrikeReader, seed, 5, &counts);
  }
  std::cout << counts.strikes << " strikes, " << CheckedImages().images - before.images
            << " crash images\n";
}

}  // namespace
}  // namespace stepwell::sim
