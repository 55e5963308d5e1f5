// SPDX-License-Identifier: Apache-2.0
// A store of small segments, and what must hold of its space in every state.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/db/support/store_support.h"

namespace stepwell::db {

namespace fs = std::filesystem;

inline const std::vector<LeafSpec> kState = {{"w", {200, 1000}, true, false},
                                             {"b", {1000}, false, false}};

// Sums the bytes that the file system has allocated to the files below a directory (directories
// apart).
inline uint64_t DiskUse(const std::string& path) {
  uint64_t bytes = 0;
  std::error_code gone;  // files come and go beside a store that is open
  for (fs::recursive_directory_iterator entry(path, gone), end; entry != end;
       entry.increment(gone)) {
    struct stat info {};
    if (lstat(entry->path().c_str(), &info) == 0 && S_ISREG(info.st_mode)) {
      bytes += static_cast<uint64_t>(info.st_blocks) * 512;
    }
  }
  return bytes;
}

// The parts of the account add up to its total, the total is what the file system says, and the
// live part is the payloads of the live steps: all to the byte.
inline void CheckSpaceAt(Store* store, const std::string& path) {
  constexpr int kTriesMax = 1000;  // reclaim and index go on in the background
  for (int i = 0; i < kTriesMax; ++i) {
    const uint64_t before = DiskUse(path);
    const auto steps = store->Steps();
    const SpaceStats space = store->Stats().space;
    ASSERT_TRUE(steps.ok()) << steps.status().ToString();
    ASSERT_EQ(space.live_bytes + space.padding_bytes + space.overhead_bytes + space.dead_bytes +
                  space.reserved_bytes + space.index_bytes + space.other_bytes,
              space.total_bytes);
    // A file that is made and removed in between leaves the use as it was. An account that is wrong
    // stays wrong.
    const bool may_have_moved = space.total_bytes != before && i + 1 < kTriesMax;
    if (DiskUse(path) != before || may_have_moved) {
      std::this_thread::yield();
      continue;
    }
    EXPECT_EQ(space.total_bytes, before);
    uint64_t live = 0;
    for (const auto& step : *steps) {
      for (const auto& extent : step.extents) live += extent.stored_bytes;
    }
    EXPECT_EQ(space.live_bytes, live);
    return;
  }
  ADD_FAILURE() << "the files never stand still";
}

class ReclaimTest : public ::testing::Test {
 protected:
  ReclaimTest() : path_(dir_ / "run") {}
  explicit ReclaimTest(std::string path) : path_(std::move(path)) {}

  StoreOptions Options() {
    StoreOptions options;
    options.steps_before_index = 0;  // an index at any size
    options.codec = CodecPolicy::kRaw;
    options.segment_bytes = 4 << 20;  // about four steps
    options.log = [this](LogLevel, std::string_view text) {
      const std::lock_guard lock(log_mutex_);
      log_ += StrCat(text, "\n");
    };
    return options;
  }
  std::unique_ptr<Store> Open(const StoreOptions& options) {
    auto store = Store::Open(path_, options);
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return store.ok() ? std::move(*store) : nullptr;
  }
  static void Save(Store* store, uint64_t step) {
    const auto handle = SaveSeeded(store, step, step, kState);
    ASSERT_TRUE(handle.ok()) << handle.status().ToString();
    ASSERT_OK(handle->Wait());
  }
  void Check(Store* store) const {
    for (const uint64_t step : StepNumbers(store))
      EXPECT_OK(CheckSeeded(store, step, step, kState));
    const auto report = store->Verify({});
    ASSERT_TRUE(report.ok());
    for (const auto& problem : report->problems) ADD_FAILURE() << problem.message;
    CheckSpace(store);
  }
  // Through a reader that was opened before.
  static void CheckRead(StepReader* reader) {
    const auto leaves = reader->Leaves("");
    ASSERT_TRUE(leaves.ok()) << leaves.status().ToString();
    std::vector<float> out(200 * 1000);
    LoadRequest load;
    for (const auto& leaf : *leaves) {
      if (leaf.key == KeyOf("state", "w")) load.leaf = &leaf;
    }
    ASSERT_NE(load.leaf, nullptr);
    load.box = format::WholeArray(load.leaf->shape);
    load.out = reinterpret_cast<std::byte*>(out.data());
    const auto stats = reader->Load({&load, 1});
    ASSERT_TRUE(stats.ok()) << stats.status().ToString();
    EXPECT_EQ(out, LeafData(kState[0], reader->step().step));
  }
  // Every allocated byte of the store's files is in one part of the account, to the byte.
  void CheckSpace(Store* store) const { CheckSpaceAt(store, path_); }

  static std::string Bytes(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    std::stringstream out;
    out << in.rdbuf();
    return out.str();
  }

  TempDir dir_;
  const std::string path_;
  std::mutex log_mutex_;
  std::string log_;
};

}  // namespace stepwell::db
