// SPDX-License-Identifier: Apache-2.0
// Power cuts, kills and failures at every operation of an export. In each image the export is there
// whole or not at all, and whole once Export returned; the store is as it must be; the next export
// to the same place comes to its end; what was exported stays while the store reclaims everything.
//
// For longer runs: STEPWELL_SIM_SEED, STEPWELL_SIM_ROUNDS, as README.md here says.
#include <gtest/gtest.h>

#include <cerrno>
#include <iostream>
#include <optional>

#include "tests/db/support/export_support.h"
#include "tests/sim/support/soak_seeds.h"
#include "tests/sim/support/store_checker.h"
#include "tests/sim/support/store_workload.h"

namespace stepwell::sim {
namespace {

constexpr uint64_t kCheckedStep = 1'000'000;  // CheckImage's

struct ExportCase {
  uint64_t seed = 1;
  db::ExportMode mode = db::ExportMode::kLink;
  db::ExportLayout layout = db::ExportLayout::kV1;
};

db::ExportOptions OptionsOf(const ExportCase& what, SimFileSystem* files) {
  db::ExportOptions options;
  options.mode = what.mode;
  options.layout = what.layout;
  options.file_system = files;
  return options;
}

std::string PlaceOf(const ExportCase& what, uint64_t step) {
  return what.layout == db::ExportLayout::kV1 ? "/out/x" : StrCat("/out/x/", step);
}

Status CheckPlace(const std::shared_ptr<SimWorld>& world, const std::string& place, uint64_t seed) {
  SimFileSystem files(world);
  return db::CheckExported(&files, place, seed, SpecsOf(seed));
}

// An export after some actions of a workload; stopped at its operation `stop` (0: never), or with
// an operation that fails.
struct ExportRun {
  ExportRun(const ExportCase& what, uint64_t stop, const std::optional<Fault>& fault = {})
      : world(SimWorld::Make({what.seed, kUnlimitedBytes})),
        files(world),
        machine(world, what.seed),
        workload(&machine, what.seed, UsualShape(what.seed, false)) {
    // Until there is an open store with a step to export.
    for (int i = 0; i < 100 && problem.empty(); ++i) {
      workload.Act();
      problem = workload.problem();
      if (i < 15 || workload.store() == nullptr) continue;
      // Else the fault would meet what is still to be written of saves.
      if (fault) workload.store()->Wait().IgnoreError("of a disk that was full");
      const auto steps = ReadAll(workload.store());
      if (steps.ok() && !steps->empty()) {
        step = steps->rbegin()->first;
        seed = SeedOf(steps->rbegin()->second);
        found = true;
        break;
      }
    }
    if (!found) return;
    world->SetCapacity(kUnlimitedBytes);
    if (!files.CreateDirectory("/out").ok() || !files.SyncDirectory("/").ok()) problem = "mkdir";
    const uint64_t before = world->mutating_ops();
    if (stop > 0) world->FreezeAt(before + stop);
    if (fault) world->AddFault(*fault);
    const auto report = db::Export(*workload.store(), step, "/out/x", OptionsOf(what, &files));
    world->ClearFaults();
    exported = report.ok();
    error = report.status();
    if (!exported && !world->frozen() && !fault) problem = error.ToString();
    operations = world->mutating_ops() - before;
    legal = workload.model().Legal();
  }

  std::shared_ptr<SimWorld> world;
  SimFileSystem files;
  StoreMachine machine;
  Workload workload;
  std::string problem;
  bool found = false;
  uint64_t step = 0;
  uint64_t seed = 0;
  bool exported = false;
  Status error;
  uint64_t operations = 0;
  std::vector<Steps> legal;
};

struct Counts {
  uint64_t images = 0;
  uint64_t whole = 0;
  uint64_t leftovers = 0;
};

// The store after recovery takes back all that it can; the export does not change.
void GoOn(const std::shared_ptr<SimWorld>& image, const ExportCase& what, const std::string& place,
          uint64_t seed, bool there, uint64_t newest_seed) {
  SimFileSystem files(image);
  StoreMachine machine(image, seed + 1);
  const auto store = machine.Open({});
  ASSERT_OK(store.status());
  const std::string again = PlaceOf(what, kCheckedStep);
  const Status status =
      db::Export(**store, kCheckedStep, "/out/x", OptionsOf(what, &files)).status();
  if (there && again == place) {
    EXPECT_EQ(status.code(), StatusCode::kAlreadyExists) << status.ToString();
  } else {
    ASSERT_OK(status);
    ASSERT_OK(CheckPlace(image, again, newest_seed));
  }
  const auto steps = ReadAll(store->get());
  ASSERT_OK(steps.status());
  for (const auto& [step, held] : *steps) {
    if (held & kPinned) {
      ASSERT_OK((*store)->SetPinned({&step, 1}, false));
    }
    ASSERT_OK((*store)->Delete({&step, 1}));
  }
  for (uint64_t step = kCheckedStep + 1; step < kCheckedStep + 9; ++step) {
    ASSERT_OK(SaveStep(store->get(), step, step % 997)->Wait());
  }
  ASSERT_OK((*store)->Reclaim().status());
  for (uint64_t step = kCheckedStep + 9; step < kCheckedStep + 12; ++step) {
    ASSERT_OK(SaveStep(store->get(), step, step % 997)->Wait());
  }
  if (there) ASSERT_OK(CheckPlace(image, place, seed));
  if (!there || again != place) ASSERT_OK(CheckPlace(image, again, newest_seed));
  ASSERT_OK((*store)->Close());
}

void CheckOne(const ExportRun& run, const ExportCase& what, uint64_t image_seed, Counts* counts) {
  const auto image = ImageOf(*run.world, image_seed);
  SimFileSystem files(image);
  const std::string place = PlaceOf(what, run.step);
  const bool there = files.Stat(place).ok();
  ++counts->images;
  counts->whole += there ? 1 : 0;
  counts->leftovers += files.Stat(place + ".orbax-checkpoint-tmp").ok() ? 1 : 0;
  EXPECT_TRUE(there || !run.exported) << "an export that was reported is gone";
  if (there) ASSERT_OK(CheckPlace(image, place, run.seed));
  ASSERT_EQ(CheckImage(image, run.legal, {image_seed, false, 0}), "");
  ASSERT_NO_FATAL_FAILURE(GoOn(image, what, place, run.seed, there, image_seed % 1000));
  const auto names = files.List(what.layout == db::ExportLayout::kV1 ? "/out" : "/out/x");
  ASSERT_OK(names.status());
  const bool other_leftover = what.layout == db::ExportLayout::kV0;  // of another step
  for (const std::string& name : *names) {
    EXPECT_TRUE(other_leftover || name.find("tmp") == std::string::npos) << name;
  }
}

// Stops it at every `stride`-th operation.
void StopEverywhere(const ExportCase& what, uint64_t stride, uint64_t images, Counts* counts) {
  const ExportRun whole(what, 0);
  ASSERT_EQ(whole.problem, "");
  if (!whole.found) return;
  for (uint64_t stop = 1; stop <= whole.operations + 1; stop += stride) {
    const ExportRun run(what, stop);
    ASSERT_EQ(run.problem, "") << "stop " << stop;
    for (uint64_t i = 0; i < images; ++i) {
      SCOPED_TRACE(StrCat("seed ", what.seed, " stop ", stop, " of ", whole.operations, " image ",
                          stop * images + i));
      CheckOne(run, what, stop * images + i, counts);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

std::vector<ExportCase> CasesOf(uint64_t seed) {
  return {{seed, db::ExportMode::kLink, db::ExportLayout::kV1},
          {seed, db::ExportMode::kCopy, db::ExportLayout::kV0},
          {seed, db::ExportMode::kReflink, db::ExportLayout::kV1}};
}

TEST(ExportCrashTest, AStopAtEveryOperation) {
  Counts counts;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    StopEverywhere(CasesOf(seed)[seed - 1], 1, 2, &counts);  // each mode once
    if (HasFailure()) return;
  }
  std::cout << counts.images << " crash images, " << counts.whole << " with a whole export, "
            << counts.leftovers << " with a part of one\n";
  EXPECT_GE(counts.images, 200U);
  EXPECT_GE(counts.whole, 8U);
  EXPECT_GE(counts.leftovers, 40U);
}

std::vector<Fault> FaultsOfExports() {
  using Effect = Fault::Effect;
  std::vector<Fault> faults;
  const auto add = [&](OpKind kind, int os_error, Effect effect = Effect::kFail) {
    faults.push_back({.kind = kind, .os_error = os_error, .effect = effect});
  };
  for (const int os_error : {EIO, ENOMEM}) add(OpKind::kRead, os_error);
  add(OpKind::kRead, EIO, Effect::kShort);
  for (const int os_error : {EIO, EMFILE}) add(OpKind::kOpen, os_error);
  add(OpKind::kLook, EIO);
  for (const int os_error : {EIO, ENOSPC}) add(OpKind::kWrite, os_error);
  for (const OpKind kind : {OpKind::kAllocate, OpKind::kCreate, OpKind::kRename, OpKind::kLink}) {
    add(kind, ENOSPC);
  }
  add(OpKind::kRemove, EIO);
  for (const OpKind kind : {OpKind::kSync, OpKind::kSyncDirectory}) {
    add(kind, EIO);
    add(kind, EIO, Effect::kDoAndFail);
  }
  return faults;
}

// Checks what a failed export left: nothing under its name, or all of it. The store goes on, in the
// same process and after a crash, and so does the next export.
void CheckFailed(ExportRun* run, const ExportCase& what, bool may_freeze, uint64_t image,
                 Counts* counts) {
  const std::string place = PlaceOf(what, run->step);
  const bool there = run->files.Stat(place).ok();
  ++counts->images;
  counts->whole += there ? 1 : 0;
  EXPECT_TRUE(there || !run->exported) << "an export that was reported is not there";
  if (there) ASSERT_OK(CheckPlace(run->world, place, run->seed));
  const auto crashed = ImageOf(*run->world, image);
  const bool left = SimFileSystem(crashed).Stat(place).ok();
  EXPECT_TRUE(left || !run->exported) << "an export that was reported is gone";
  if (left) ASSERT_OK(CheckPlace(crashed, place, run->seed));
  ASSERT_EQ(CheckImage(crashed, run->legal, {image, false, 0}), "");
  db::Store* store = run->workload.store();
  std::unique_ptr<db::Store> reopened;
  // Links want whole segments, so the log is written to, and freezes as with every failed write.
  const auto handle = SaveStep(store, kCheckedStep, 7);
  Status saved = handle.ok() ? handle->Wait() : handle.status();
  if (saved.code() == StatusCode::kFailedPrecondition && may_freeze) {
    run->workload.Drop();
    auto opened = run->machine.Open({});
    ASSERT_OK(opened.status());
    reopened = std::move(*opened);
    store = reopened.get();
    saved = SaveStep(store, kCheckedStep, 7)->Wait();
  }
  ASSERT_OK(saved);
  ASSERT_OK(CheckStep(store, kCheckedStep, HeldOf(7)));
  const auto steps = ReadAll(store);
  ASSERT_OK(steps.status());
  if (steps->contains(run->step)) {  // else retention has dropped it
    const Status again =
        db::Export(*store, run->step, "/out/x", OptionsOf(what, &run->files)).status();
    if (!there || again.code() != StatusCode::kAlreadyExists) ASSERT_OK(again);
    ASSERT_OK(CheckPlace(run->world, place, run->seed));
  }
  // Its bytes are its own from here on.
  ASSERT_OK(store->Reclaim().status());
  if (there) ASSERT_OK(CheckPlace(run->world, place, run->seed));
}

// The n-th operation of each kind fails, once or from there on.
void FailEverywhere(const ExportCase& what, uint64_t stride, Counts* counts) {
  for (Fault fault : FaultsOfExports()) {
    Prng prng(what.seed * 31 + static_cast<uint64_t>(*fault.kind));
    for (fault.nth = 1 + prng.Below(stride);; fault.nth += stride) {
      fault.forever = prng.OneIn(3);
      ExportRun run(what, 0, fault);
      ASSERT_EQ(run.problem, "");
      if (!run.found || run.world->faults_struck() == 0) break;
      SCOPED_TRACE(StrCat("seed ", what.seed, ", ", NameOf(*fault.kind), " ", fault.nth,
                          fault.forever ? " and all later ones" : "", " failed, errno ",
                          fault.os_error, ", effect ", static_cast<int>(fault.effect), ": ",
                          run.error.ToString()));
      const bool may_freeze = fault.kind == OpKind::kWrite || fault.kind == OpKind::kSync ||
                              fault.kind == OpKind::kSyncDirectory;
      CheckFailed(&run, what, may_freeze, prng.Below(1'000'000), counts);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(ExportCrashTest, AFaultAtEveryOperation) {
  Counts counts;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    FailEverywhere(CasesOf(seed)[seed - 1], 5, &counts);
    if (HasFailure()) return;
  }
  std::cout << counts.images << " exports with a fault, " << counts.whole << " of them whole\n";
  EXPECT_GE(counts.images, 50U);
  EXPECT_GE(counts.whole, 3U);
}

TEST(ExportCrashTest, Soak) {
  uint64_t first = 1;
  uint64_t rounds = 1;
  if (!SeedsFromOutside(&first, &rounds)) GTEST_SKIP() << "STEPWELL_SIM_SEED is not set";
  Counts counts;
  for (uint64_t seed = first; seed < first + rounds; ++seed) {
    for (const ExportCase& what : CasesOf(seed)) {
      StopEverywhere(what, 1, 3, &counts);
      if (!HasFailure()) FailEverywhere(what, 3, &counts);
      if (HasFailure()) {
        std::cout << "replay with STEPWELL_SIM_SEED=" << seed << " STEPWELL_SIM_ROUNDS=1\n";
        return;
      }
    }
  }
  std::cout << counts.images << " crash images, " << counts.whole << " with a whole export, "
            << counts.leftovers << " with a part of one\n";
}

}  // namespace
}  // namespace stepwell::sim
