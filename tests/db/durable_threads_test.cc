// SPDX-License-Identifier: Apache-2.0
// The door for names above the store (db/export/durable.h) beside sweeps of the same directory:
// each save begins with one, and a sweep looks at what other threads and processes make there.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "db/export/durable.h"
#include "io/open_disk.h"
#include "tests/db/support/stopping_file_system.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {
namespace {

namespace fs = std::filesystem;

class DurableThreadsTest : public ::testing::Test {
 protected:
  // Calls of the door, with the file system that they go through.
  using Call = std::function<Status(io::FileSystem*)>;

  Status MakeFolder(io::FileSystem* files) const {
    STEPWELL_ASSIGN_OR_RETURN(const auto folder,
                              DurableFolder::Create(files, dir_ / "out", /*replace=*/true, 0));
    std::ofstream(folder->temporary() + "/made") << "new";
    return folder->Commit("made");
  }
  Status WriteFile(io::FileSystem* files) const {
    return WriteDurably(files, dir_ / "out", "new", 0);
  }
  void CheckMade() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir_.path())) {
      names.push_back(entry.path().filename().string());
    }
    EXPECT_EQ(names, std::vector<std::string>{"out"});
  }

  // A folder that its maker, who died, has begun.
  void Abandon() const {
    const std::string folder = dir_ / "out.orbax-checkpoint-tmp";
    fs::create_directory(folder);
    std::ofstream(folder + "/stepwell-export.lock") << "";
    std::ofstream(folder + "/made") << "old";
  }

  // A sweep between any two operations of the call.
  void SweepAtEachOperation(const Call& call, bool abandoned = false) const {
    for (int wanted = 1;; ++wanted) {
      int operations = 0;
      if (abandoned) Abandon();
      StoppingFileSystem files([&] {
        if (++operations == wanted) Sweep(io::LocalFileSystem(), dir_.path(), /*ours=*/false);
      });
      const Status status = call(&files);
      EXPECT_TRUE(status.ok()) << "before operation " << wanted << ": " << status.ToString();
      CheckMade();
      if (operations < wanted) break;
    }
  }

  // The call again and again, beside threads that sweep.
  void BesideSweepers(const Call& call) const {
    std::atomic<bool> stop{false};
    std::vector<std::thread> sweepers;
    for (int i = 0; i < 2; ++i) {
      sweepers.emplace_back([&] {
        while (!stop) Sweep(io::LocalFileSystem(), dir_.path(), /*ours=*/false);
      });
    }
    for (int round = 0; round < 300; ++round) {
      const Status status = call(io::LocalFileSystem());
      EXPECT_TRUE(status.ok()) << "round " << round << ": " << status.ToString();
    }
    stop = true;
    for (std::thread& sweeper : sweepers) sweeper.join();
    CheckMade();
  }

  const TempDir dir_;
};

TEST_F(DurableThreadsTest, FoldersAreMadeBesideSweeps) {
  const Call call = [this](io::FileSystem* files) { return MakeFolder(files); };
  SweepAtEachOperation(call);
  SweepAtEachOperation(call, /*abandoned=*/true);
  BesideSweepers(call);
}

TEST_F(DurableThreadsTest, FilesAreWrittenBesideSweeps) {
  const Call call = [this](io::FileSystem* files) { return WriteFile(files); };
  SweepAtEachOperation(call);
  BesideSweepers(call);
}

// A claim that is held stays refused.
TEST_F(DurableThreadsTest, AnotherSaveIsRefused) {
  const auto create = [&] {
    return DurableFolder::Create(io::LocalFileSystem(), dir_ / "out", /*replace=*/true, 0);
  };
  auto first = create();
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  EXPECT_EQ(create().status().code(), StatusCode::kUnavailable);
  first->reset();
  EXPECT_TRUE(create().ok());
}

}  // namespace
}  // namespace stepwell::db
