// SPDX-License-Identifier: Apache-2.0
// Power cuts, kills and failures at every operation of the door for names above the store
// (db/export/durable.h). In each image the old or the new is there, whole, and the new once the
// call has returned; an error other than that of unknown outcome means that nothing has changed; a
// sweep and the next call leave nothing behind.
#include "db/export/durable.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "db/layout.h"
#include "tests/sim/support/sim_disk.h"

namespace stepwell::sim {
namespace {

using Tree = std::map<std::string, std::string>;  // by path

void Put(SimFileSystem* files, const std::string& path, std::string_view text) {
  const auto file = files->Open(path, {.write = true, .create = true});
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->WriteAt(0, AsBytes(text)).ok());
}

void PutSynced(SimFileSystem* files, const std::string& path, std::string_view text) {
  Put(files, path, text);
  const auto file = files->Open(path, {.write = true});
  ASSERT_TRUE(file.ok() && (*file)->Sync().ok());
  ASSERT_TRUE(files->SyncDirectory(db::ParentOf(path)).ok());
}

std::string LongText(char letter) { return std::string(3000, letter); }

Tree ContentsOf(const SimWorld& world, bool with_leftovers) {
  Tree contents;
  for (const auto& [path, size] : world.Files()) {
    const bool left = path.find("tmp") != std::string::npos;
    if (!left || with_leftovers) contents[path] = world.Contents(path).value_or("?");
  }
  return contents;
}

// A call of the door, and the states before and after it.
struct DoorCase {
  std::string name;
  std::function<Status(SimFileSystem*)> call;
  Tree before;
  Tree after;
};

Tree Checkpoint(const std::string& path, char letter) {
  return {{path + "/a", LongText(letter)}, {path + "/items/b", std::string(1, letter)}};
}

Status MakeFolder(SimFileSystem* files, bool replace) {
  auto folder = db::DurableFolder::Create(files, "/out/x", replace, 0);
  STEPWELL_RETURN_IF_ERROR(folder.status());
  const std::string made = (*folder)->temporary() + "/made";
  for (const std::string& name : {made, made + "/items"}) {
    STEPWELL_RETURN_IF_ERROR(files->CreateDirectory(name));
  }
  for (const auto& [path, text] : Checkpoint(made, 'n')) {
    STEPWELL_ASSIGN_OR_RETURN(const auto file, files->Open(path, {.write = true, .create = true}));
    STEPWELL_RETURN_IF_ERROR(file->WriteAt(0, AsBytes(text)));
  }
  return (*folder)->Commit("made");
}

std::vector<DoorCase> DoorCases() {
  const Tree old = Checkpoint("/out/x", 'o');
  const Tree made = Checkpoint("/out/x", 'n');
  const Tree file = {{"/out/f", "old"}};
  return {
      {"make", [](SimFileSystem* files) { return MakeFolder(files, false); }, {}, made},
      {"replace", [](SimFileSystem* files) { return MakeFolder(files, true); }, old, made},
      {"replace a file",
       [](SimFileSystem* files) { return MakeFolder(files, true); },
       {{"/out/x", "a file"}},
       made},
      {"remove", [](SimFileSystem* files) { return db::RemoveDurably(files, "/out/x"); }, old, {}},
      {"write",
       [](SimFileSystem* files) { return db::WriteDurably(files, "/out/f", LongText('n'), 0600); },
       file,
       {{"/out/f", LongText('n')}}},
      {"move", [](SimFileSystem* files) { return db::MoveDurably(files, "/out/x", "/to/y"); }, old,
       Checkpoint("/to/y", 'o')}};
}

std::shared_ptr<SimWorld> PreparedWorld(const DoorCase& what, uint64_t seed) {
  auto world = SimWorld::Make({seed, kUnlimitedBytes});
  SimFileSystem files(world);
  for (const char* folder : {"/out", "/to"}) EXPECT_TRUE(files.CreateDirectory(folder).ok());
  EXPECT_TRUE(files.SyncDirectory("/").ok());
  for (const auto& [path, text] : what.before) {
    std::string parent = db::ParentOf(path);
    for (const std::string& folder : {db::ParentOf(parent), parent}) {
      if (!files.Stat(folder).ok()) {
        EXPECT_TRUE(files.CreateDirectory(folder).ok());
      }
      EXPECT_TRUE(files.SyncDirectory(db::ParentOf(folder)).ok());
    }
    PutSynced(&files, path, text);
  }
  EXPECT_TRUE(world->AllDurable());
  return world;
}

std::vector<std::shared_ptr<SimWorld>> DoorImagesOf(const SimWorld& world, uint64_t seed) {
  std::vector<std::shared_ptr<SimWorld>> images;
  for (uint64_t i = 0; i < 6; ++i) images.push_back(world.Crash({seed * 6 + i, {}, {}}));
  images.push_back(world.CrashImageProcessKill(seed));
  return images;
}

// A later session sweeps, calls again where that is possible, and leaves nothing.
void CallAgain(const DoorCase& what, const std::shared_ptr<SimWorld>& image, const Tree& there) {
  SimFileSystem files(image);
  for (const char* folder : {"/out", "/to"}) {
    db::Sweep(&files, folder, true);
    const auto names = files.List(folder);
    ASSERT_TRUE(names.ok());
    for (const std::string& name : *names) EXPECT_EQ(name.find("tmp"), std::string::npos) << name;
  }
  EXPECT_EQ(ContentsOf(*image, true), there) << "after the sweep";
  if (there == what.after) return;
  const Status again = what.call(&files);
  EXPECT_TRUE(again.ok()) << again.ToString();
  EXPECT_EQ(ContentsOf(*image, true), what.after) << "after the next call";
}

void CheckDoorImage(const DoorCase& what, const std::shared_ptr<SimWorld>& image, bool done,
                    bool not_done) {
  const Tree there = ContentsOf(*image, false);
  EXPECT_TRUE((there == what.before && !done) || (there == what.after && !not_done))
      << (done       ? "done"
          : not_done ? "not done"
                     : "under way")
      << ", but there are " << there.size() << " files";
  if (!::testing::Test::HasFailure()) CallAgain(what, image, there);
}

TEST(DurableTest, AStopAtEveryOperation) {
  uint64_t images = 0;
  for (const DoorCase& what : DoorCases()) {
    const auto whole = PreparedWorld(what, 1);
    const uint64_t before = whole->mutating_ops();
    SimFileSystem all(whole);
    ASSERT_TRUE(what.call(&all).ok()) << what.name;
    ASSERT_EQ(ContentsOf(*whole, true), what.after) << what.name;
    const uint64_t operations = whole->mutating_ops() - before;
    for (uint64_t stop = 1; stop <= operations + 1; ++stop) {
      for (uint64_t seed = 1; seed <= 4; ++seed) {
        const auto world = PreparedWorld(what, seed);
        world->FreezeAt(world->mutating_ops() + stop);
        SimFileSystem files(world);
        const bool done = what.call(&files).ok();
        for (const auto& image : DoorImagesOf(*world, seed * 100 + stop)) {
          SCOPED_TRACE(StrCat(what.name, ", stop ", stop, " of ", operations, ", seed ", seed));
          CheckDoorImage(what, image, done, false);
          ++images;
          if (HasFailure()) return;
        }
      }
    }
  }
  EXPECT_GE(images, 1500U);
}

TEST(DurableTest, AFailureAtEveryOperation) {
  uint64_t unknown = 0;
  const std::vector<OpKind> kinds = {OpKind::kCreate, OpKind::kWrite,         OpKind::kSync,
                                     OpKind::kRename, OpKind::kSyncDirectory, OpKind::kRemove};
  for (const DoorCase& what : DoorCases()) {
    for (const OpKind kind : kinds) {
      for (uint64_t nth = 1; nth <= 12; ++nth) {
        for (const bool forever : {false, true}) {
          const auto world = PreparedWorld(what, nth);
          world->AddFault({.kind = kind, .nth = nth, .forever = forever});
          SimFileSystem files(world);
          const Status status = what.call(&files);
          SCOPED_TRACE(StrCat(what.name, ", ", NameOf(kind), " ", nth, forever ? " forever" : "",
                              ": ", status.ToString()));
          world->ClearFaults();
          const bool is_unknown = status.code() == StatusCode::kOutcomeUnknown;
          unknown += is_unknown ? 1 : 0;
          const bool not_done = !status.ok() && !is_unknown;
          // The caller sees at once the new contents, or the former ones.
          const Tree live = ContentsOf(*world, false);
          EXPECT_TRUE(live == (status.ok() ? what.after : what.before) || is_unknown);
          for (const auto& image : DoorImagesOf(*world, nth)) {
            CheckDoorImage(what, image, status.ok(), not_done);
            if (HasFailure()) return;
          }
        }
      }
    }
  }
  EXPECT_GT(unknown, 10U);
}

TEST(DurableTest, OneFolderAtATime) {
  const DoorCase what = DoorCases()[1];
  const auto world = PreparedWorld(what, 1);
  SimFileSystem files(world);
  const auto first = db::DurableFolder::Create(&files, "/out/x", true, 0);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(db::DurableFolder::Create(&files, "/out/x", true, 0).status().code(),
            StatusCode::kUnavailable);
  // It lives, so nobody takes its directory for a dead one's.
  db::Sweep(&files, "/out", true);
  EXPECT_TRUE(files.Stat((*first)->temporary()).ok());
}

TEST(DurableTest, NothingIsReplacedUnasked) {
  const DoorCase what = DoorCases()[1];
  const auto world = PreparedWorld(what, 1);
  SimFileSystem files(world);
  EXPECT_EQ(MakeFolder(&files, false).code(), StatusCode::kAlreadyExists);
  ASSERT_TRUE(files.CreateDirectory("/to/y").ok());
  EXPECT_EQ(db::MoveDurably(&files, "/out/x", "/to/y").code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(db::RemoveDurably(&files, "/out/none").code(), StatusCode::kNotFound);
  EXPECT_EQ(ContentsOf(*world, true), what.before);
}

}  // namespace
}  // namespace stepwell::sim
