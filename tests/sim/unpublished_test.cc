// SPDX-License-Identifier: Apache-2.0
// Power cuts, kills and failures at every operation of a single checkpoint. It is built without
// syncs in the temporary directory of a DurableFolder: a store, and an export of its step. Commit
// syncs both, and renames. Each image has the new checkpoint whole, or what it replaces; the new
// one once Commit has returned.
#include <gtest/gtest.h>

#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "db/export/durable.h"
#include "db/layout.h"
#include "io/unsynced.h"
#include "tests/db/support/export_support.h"
#include "tests/sim/support/store_contents.h"
#include "tests/sim/support/store_machine.h"

namespace stepwell::sim {
namespace {

constexpr uint64_t kStep = 0;
const std::string kPlace = "/out/x";
const std::string kInner = "/state/.stepwell";  // the store in it

// WithoutSyncs owns what it stands before.
std::unique_ptr<io::FileSystem> Unsynced(const std::shared_ptr<SimWorld>& world) {
  return io::WithoutSyncs(std::make_shared<SimFileSystem>(world));
}

// A checkpoint of the contents `seed` at kPlace, as api/python/stepwell/compat/_single.py makes it.
// `synced`: false is a planted bug, nothing is synced before the name.
Status MakeCheckpoint(const std::shared_ptr<SimWorld>& world, uint64_t seed, bool replace,
                      bool synced = true) {
  SimFileSystem files(world);
  STEPWELL_ASSIGN_OR_RETURN(const auto folder,
                            db::DurableFolder::Create(&files, kPlace, replace, 0));
  const std::string store_path = folder->temporary() + "/store";
  const std::string made = folder->temporary() + "/export";
  const std::unique_ptr<io::FileSystem> unsynced = Unsynced(world);
  StoreMachine machine(world, seed, unsynced.get());
  OpenSpec spec;
  spec.path = store_path;
  spec.unpublished = true;
  {
    STEPWELL_ASSIGN_OR_RETURN(const auto store, machine.Open(spec));
    STEPWELL_ASSIGN_OR_RETURN(const db::SaveHandle handle, SaveStep(store.get(), kStep, seed));
    STEPWELL_RETURN_IF_ERROR(handle.Wait());
    db::ExportOptions options;
    options.mode = db::ExportMode::kLink;
    options.layout = db::ExportLayout::kV1;
    options.file_system = store->export_file_system();
    STEPWELL_RETURN_IF_ERROR(db::Export(*store, kStep, made, options).status());
    STEPWELL_RETURN_IF_ERROR(store->Close());
  }
  STEPWELL_RETURN_IF_ERROR(files.Rename(store_path, made + kInner));
  if (synced) return folder->Commit("export");
  STEPWELL_RETURN_IF_ERROR(files.Rename(made, kPlace));
  return files.SyncDirectory("/out");
}

std::shared_ptr<SimWorld> World(uint64_t seed, bool whole_sync) {
  auto world = SimWorld::Make({seed, kUnlimitedBytes});
  world->SetCanSyncWhole(whole_sync);
  SimFileSystem files(world);
  EXPECT_TRUE(files.CreateDirectory("/out").ok());
  EXPECT_TRUE(files.SyncDirectory("/").ok());
  return world;
}

bool IsWhole(const std::shared_ptr<SimWorld>& world, uint64_t seed) {
  SimFileSystem files(world);
  if (!db::CheckExported(&files, kPlace, seed, SpecsOf(seed)).ok()) return false;
  StoreMachine machine(world, seed);
  OpenSpec spec;
  spec.path = kPlace + kInner;
  spec.read_only = true;
  const auto store = machine.Open(spec);
  return store.ok() && CheckStep(store->get(), kStep, HeldOf(seed)).ok();
}

struct Counts {
  uint64_t worlds = 0;
  uint64_t images = 0;
  uint64_t old = 0;
  uint64_t made = 0;
};

// `seeds`: of what was there before (0: nothing) and of what is made. Every other kind of image, in
// turn.
void CheckImages(const SimWorld& world, std::pair<uint64_t, uint64_t> seeds, bool done,
                 bool not_done, Counts* counts) {
  for (uint64_t i = counts->worlds++ % 2; i < 7; i += 2) {
    const auto image = ImageOf(world, i);
    SimFileSystem files(image);
    const bool is_new = IsWhole(image, seeds.second);
    const bool is_old = seeds.first == 0 ? !files.Stat(kPlace).ok() : IsWhole(image, seeds.first);
    ++counts->images;
    counts->old += is_old ? 1 : 0;
    counts->made += is_new ? 1 : 0;
    EXPECT_TRUE((is_old && !done) || (is_new && !not_done)) << "image " << i;
    db::Sweep(&files, "/out", true);
    const auto names = files.List("/out");
    ASSERT_TRUE(names.ok());
    for (const std::string& name : *names) EXPECT_EQ(name, "x");
    ASSERT_OK(MakeCheckpoint(image, 9, true));
    EXPECT_TRUE(IsWhole(image, 9));
    if (::testing::Test::HasFailure()) return;
  }
}

std::shared_ptr<SimWorld> Prepared(uint64_t old_seed, uint64_t stop_seed, bool whole_sync) {
  auto world = World(stop_seed, whole_sync);
  if (old_seed != 0) {
    EXPECT_TRUE(MakeCheckpoint(world, old_seed, false).ok());
  }
  return world;
}

void StopEverywhere(uint64_t old_seed, bool whole_sync, Counts* counts) {
  constexpr uint64_t kSeed = 5;
  const auto whole = Prepared(old_seed, 1, whole_sync);
  const uint64_t before = whole->mutating_ops();
  ASSERT_OK(MakeCheckpoint(whole, kSeed, true));
  ASSERT_TRUE(IsWhole(whole, kSeed));
  const uint64_t operations = whole->mutating_ops() - before;
  for (uint64_t stop = 1; stop <= operations + 1; ++stop) {
    const auto world = Prepared(old_seed, stop, whole_sync);
    world->FreezeAt(world->mutating_ops() + stop);
    const bool done = MakeCheckpoint(world, kSeed, true).ok();
    SCOPED_TRACE(StrCat("stop ", stop, " of ", operations, ", whole_sync ", whole_sync));
    CheckImages(*world, {old_seed, kSeed}, done, false, counts);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(UnpublishedTest, AStopAtEveryOperation) {
  Counts counts;
  for (const bool whole_sync : {true, false}) {
    for (const uint64_t old_seed : {uint64_t{0}, uint64_t{4}}) {
      StopEverywhere(old_seed, whole_sync, &counts);
      if (HasFailure()) return;
    }
  }
  std::cout << counts.images << " images, " << counts.old << " with the old, " << counts.made
            << " with the new\n";
  EXPECT_GE(counts.images, 1000U);
  EXPECT_GE(counts.made, 50U);
}

TEST(UnpublishedTest, AFailureAtEveryOperation) {
  Counts counts;
  uint64_t failures = 0;
  for (const OpKind kind : {OpKind::kWrite, OpKind::kSync, OpKind::kCreate, OpKind::kRename,
                            OpKind::kSyncDirectory, OpKind::kAllocate, OpKind::kLink}) {
    for (uint64_t nth = 1; nth <= 24; nth += kind == OpKind::kWrite ? 1 : 3) {
      for (const bool whole_sync : {true, false}) {
        const auto world = Prepared(4, nth, whole_sync);
        world->AddFault({.kind = kind, .nth = nth});
        const Status status = MakeCheckpoint(world, 5, true);
        world->ClearFaults();
        SCOPED_TRACE(
            StrCat(NameOf(kind), " ", nth, ", whole_sync ", whole_sync, ": ", status.ToString()));
        failures += status.ok() ? 0 : 1;
        const bool not_done = !status.ok() && status.code() != StatusCode::kOutcomeUnknown;
        CheckImages(*world, {4, 5}, status.ok(), not_done, &counts);
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GE(failures, 20U);
}

// The sync of the whole file system tells of other programs' files, too: then each file tells.
TEST(UnpublishedTest, AnotherProgramsFailureIsNotOurs) {
  Counts counts;
  uint64_t ours = 0;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    const auto world = Prepared(4, seed, true);
    world->AddFault({.kind = OpKind::kSync, .path_contains = "/"});
    const Status status = MakeCheckpoint(world, 5, true);
    ASSERT_EQ(world->faults_struck(), 1U);
    world->ClearFaults();
    SCOPED_TRACE(StrCat("seed ", seed, ": ", status.ToString()));
    ours += status.ok() ? 0 : 1;
    CheckImages(*world, {4, 5}, status.ok(), !status.ok(), &counts);
    if (HasFailure()) return;
  }
  EXPECT_GT(ours, 0U);
  EXPECT_LT(ours, 50U);
}

// The store itself syncs nothing, so that all depends on Commit; and this test sees it.
TEST(UnpublishedTest, NothingButCommitSyncs) {
  const auto world = World(1, true);
  uint64_t syncs = world->count(OpKind::kSync);
  uint64_t directories = world->count(OpKind::kSyncDirectory);
  ASSERT_OK(MakeCheckpoint(world, 5, false));
  EXPECT_EQ(world->count(OpKind::kSync) - syncs, 1U);
  EXPECT_EQ(world->count(OpKind::kSyncDirectory) - directories, 2U);  // the claim's, the name's
  syncs = world->count(OpKind::kSync);
  directories = world->count(OpKind::kSyncDirectory);
  ASSERT_OK(MakeCheckpoint(world, 4, true));
  EXPECT_EQ(world->count(OpKind::kSync) - syncs, 1U);
  EXPECT_EQ(world->count(OpKind::kSyncDirectory) - directories, 4U);  // two as the old one goes
}

TEST(UnpublishedTest, AMissingSyncIsSeen) {
  const auto world = World(1, true);
  ASSERT_OK(MakeCheckpoint(world, 5, false, /*synced=*/false));
  uint64_t whole = 0;
  for (uint64_t i = 0; i < 7; ++i) whole += IsWhole(ImageOf(*world, i), 5) ? 1 : 0;
  EXPECT_LT(whole, 7U);
}

}  // namespace
}  // namespace stepwell::sim
