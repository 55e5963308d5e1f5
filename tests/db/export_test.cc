// SPDX-License-Identifier: Apache-2.0
// Exports on the real disk: they stay as they are, do the store no harm, appear whole or not at
// all. What Orbax and TensorStore make of them: tests/python/test_export.py.
#include "db/export/export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "db/export/orbax/folder.h"
#include "db/layout.h"
#include "tests/db/support/export_support.h"

namespace stepwell::db {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<LeafSpec> State() {
  return {{"a", {7}}, {"b", {300, 1000}}, {"c", {}}, {"d", {0, 3}}, {"e", {400000}, true, true}};
}

class ExportTest : public ::testing::Test {
 protected:
  ExportTest() {
    options_.segment_bytes = 4 << 20;
    store_ = OpenStore();
  }
  std::unique_ptr<Store> OpenStore(bool read_only = false) {
    StoreOptions options = options_;
    options.read_only = read_only;
    auto store = Store::Open(dir_ / "store", options);
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return store.ok() ? std::move(*store) : nullptr;
  }
  void Save(uint64_t step) {
    auto handle = SaveSeeded(store_.get(), step, step, State());
    ASSERT_TRUE(handle.ok()) << handle.status().ToString();
    ASSERT_OK(handle->Wait());
  }
  Result<ExportReport> Run(uint64_t step, ExportMode mode, const std::string& name = "x") {
    ExportOptions options;
    options.mode = mode;
    return Export(*store_, step, dir_ / name, options);
  }

  TempDir dir_{"/var/tmp"};
  StoreOptions options_;
  std::unique_ptr<Store> store_;
};

class ExportModeTest : public ExportTest, public ::testing::WithParamInterface<ExportMode> {};

TEST_P(ExportModeTest, ItStaysWhileTheStoreGoesOn) {
  Save(1);
  Save(2);
  const auto report = Run(1, GetParam());
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->mode, GetParam());
  EXPECT_EQ(report->leaves, 6U);
  const auto before = FilesBelow(dir_ / "x");
  EXPECT_TRUE(before.contains("state/manifest.ocdbt"));
  const uint64_t steps[] = {1, 2};
  ASSERT_OK(store_->Delete(steps));
  for (uint64_t step = 3; step < 20; ++step) Save(step);
  const uint64_t more[] = {3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17};
  ASSERT_OK(store_->Delete(more));
  ASSERT_OK(store_->Reclaim().status());
  for (uint64_t step = 30; step < 34; ++step) Save(step);
  EXPECT_TRUE(FilesBelow(dir_ / "x") == before);

  fs::remove_all(dir_ / "x");
  ASSERT_OK(store_->Reclaim().status());
  const auto verified = store_->Verify({});
  ASSERT_TRUE(verified.ok()) << verified.status().ToString();
  EXPECT_TRUE(verified->problems.empty());
  ASSERT_OK(store_->Close());
  store_ = OpenStore();
  for (const uint64_t step : {18U, 19U, 30U, 33U}) {
    EXPECT_OK(CheckSeeded(store_.get(), step, step, State()));
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, ExportModeTest,
                         ::testing::Values(ExportMode::kLink, ExportMode::kCopy));

TEST_F(ExportTest, AutoLinksOnOneFileSystemAndCopiesAcrossTwo) {
  Save(1);
  auto linked = Run(1, ExportMode::kAuto);
  ASSERT_TRUE(linked.ok()) << linked.status().ToString();
  EXPECT_EQ(linked->mode, ExportMode::kLink);
  EXPECT_LT(linked->written_bytes, 100'000U);
  EXPECT_GE(linked->apparent_bytes, linked->step_bytes);

  const TempDir other("/dev/shm");
  ExportOptions options;
  auto copied = Export(*store_, 1, other / "x", options);
  ASSERT_TRUE(copied.ok()) << copied.status().ToString();
  EXPECT_EQ(copied->mode, ExportMode::kCopy);
  options.mode = ExportMode::kLink;
  const Status refused = Export(*store_, 1, other / "y", options).status();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("another file system"));
  EXPECT_FALSE(fs::exists(other / "y"));
  EXPECT_FALSE(fs::exists(other / "y.orbax-checkpoint-tmp"));
}

TEST_F(ExportTest, AutoDoesNotLinkWhenModesDiffer) {
  Save(1);
  ExportOptions options;
  options.file_mode = 0640;
  const auto report = Export(*store_, 1, dir_ / "x", options);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_NE(report->mode, ExportMode::kLink);
  struct stat status {};
  ASSERT_EQ(stat((dir_ / "x/state/_METADATA").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640U);
}

TEST_F(ExportTest, LinkedSegmentsAreSealedAndReadOnlyAndGetNoNewSteps) {
  Save(1);
  const auto report = Run(1, ExportMode::kLink);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  for (const auto& entry : fs::directory_iterator(dir_ / "x/state/d")) {
    struct stat status {};
    ASSERT_EQ(stat(entry.path().c_str(), &status), 0);
    if (entry.path().filename() == "nodes") continue;
    EXPECT_EQ(status.st_nlink, 2U) << entry.path();
    EXPECT_EQ(status.st_mode & 0222, 0U) << entry.path();
  }
  const auto before = FilesBelow(dir_ / "x");
  Save(2);
  EXPECT_TRUE(FilesBelow(dir_ / "x") == before);
}

// An export of another process beside the writer, which goes on appending to the newest segment and
// then seals it.
TEST_F(ExportTest, ALinkBesideAWriterNeverChanges) {
  auto reader = OpenStore(/*read_only=*/true);
  std::map<std::string, std::map<std::string, std::string>> exports;
  for (uint64_t step = 1; step <= 12; ++step) {
    Save(step);
    const std::string name = StrCat("x", step);
    ExportOptions options;
    options.mode = ExportMode::kLink;
    ASSERT_OK(Export(*reader, step, dir_ / name, options).status());
    exports[name] = FilesBelow(dir_ / name);
  }
  const auto check = [&] {
    for (const auto& [name, files] : exports) {
      EXPECT_TRUE(FilesBelow(dir_ / name) == files) << name;
      EXPECT_OK(
          CheckExported(io::LocalFileSystem(), dir_ / name, std::stoull(name.substr(1)), State()));
    }
  };
  Save(20);
  check();
  ASSERT_OK(store_->Close());
  check();
  store_ = OpenStore();
  for (const uint64_t step : {1U, 2U, 12U, 20U}) {
    EXPECT_OK(CheckSeeded(store_.get(), step, step, State()));
  }
  check();
}

// Segments that are sealed are linked all the same.
TEST_F(ExportTest, ALinkBesideAWriterCopiesNoMoreThanItMust) {
  Save(1);
  for (uint64_t step = 2; step <= 6; ++step) Save(step);
  auto reader = OpenStore(/*read_only=*/true);
  ExportOptions options;
  options.mode = ExportMode::kLink;
  const auto first = Export(*reader, 1, dir_ / "x", options);
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  EXPECT_EQ(first->mode, ExportMode::kLink);
  EXPECT_FALSE(fs::exists(dir_ / "x/state/d/chunks"));
  EXPECT_LT(first->written_bytes, 100'000U);
  const auto newest = Export(*reader, 6, dir_ / "y", options);
  ASSERT_TRUE(newest.ok()) << newest.status().ToString();
  EXPECT_TRUE(fs::exists(dir_ / "y/state/d/chunks"));
  EXPECT_LE(newest->written_bytes, newest->step_bytes + 200'000U);
}

// After a crash what lies behind the newest frame is cut off; an export may have links to it, of
// steps that were deleted since.
TEST_F(ExportTest, RecoveryCutsNothingOffALinkedSegment) {
  Save(1);
  for (const bool linked : {false, true}) {
    const std::string crashed = dir_ / (linked ? "crashed-linked" : "crashed");
    CopyLiveStore(dir_ / "store", crashed);
    std::string newest;
    for (const auto& entry : fs::directory_iterator(crashed + "/segments")) {
      newest = std::max(newest, entry.path().string());
    }
    const uintmax_t bytes = fs::file_size(newest);
    std::ofstream(newest, std::ios::app) << std::string(8192, 'x');
    const std::string second_name = crashed + ".seg";
    if (linked) fs::create_hard_link(newest, second_name);
    auto store = Store::Open(crashed, options_);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    EXPECT_OK(CheckSeeded(store->get(), 1, 1, State()));
    std::string tail(8192, ' ');
    std::ifstream file(newest, std::ios::binary);
    file.seekg(static_cast<std::streamoff>(bytes));
    file.read(tail.data(), 8192);
    EXPECT_EQ(tail == std::string(8192, 'x'), linked);
  }
}

TEST_F(ExportTest, TheDestinationMustBeFree) {
  Save(1);
  ASSERT_OK(Run(1, ExportMode::kCopy).status());
  const Status twice = Run(1, ExportMode::kCopy).status();
  EXPECT_EQ(twice.code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(twice.message(), HasSubstr(dir_ / "x"));
  EXPECT_EQ(Run(1, ExportMode::kCopy, "no/such").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Run(9, ExportMode::kCopy, "y").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(Run(1, ExportMode::kCopy, "store/x").status().code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(fs::exists(dir_ / "y"));
}

TEST_F(ExportTest, WhatADeadExportLeftIsReplacedAndWhatIsNotOursIsNamed) {
  Save(1);
  const std::string temporary = dir_ / "x.orbax-checkpoint-tmp";
  fs::create_directories(temporary + "/state/d");
  std::ofstream(temporary + "/stepwell-export.lock");
  std::ofstream(temporary + "/state/d/chunks") << "old";
  ASSERT_OK(Run(1, ExportMode::kCopy).status());
  EXPECT_FALSE(fs::exists(temporary));
  EXPECT_FALSE(fs::exists(dir_ / "x/stepwell-export.lock"));

  fs::create_directories(dir_ / "y.orbax-checkpoint-tmp/state");
  const Status status = Run(1, ExportMode::kCopy, "y").status();
  EXPECT_EQ(status.code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(status.message(), HasSubstr("y.orbax-checkpoint-tmp"));
  EXPECT_TRUE(fs::exists(dir_ / "y.orbax-checkpoint-tmp/state"));

  auto other = ExportFolder::Create(io::LocalFileSystem(), dir_ / "z", {});
  ASSERT_TRUE(other.ok()) << other.status().ToString();
  EXPECT_EQ(Run(1, ExportMode::kCopy, "z").status().code(), StatusCode::kUnavailable);
  other->reset();
  EXPECT_OK(Run(1, ExportMode::kCopy, "z").status());
}

TEST_F(ExportTest, CancellingLeavesNothing) {
  Save(1);
  ExportOptions options;
  options.mode = ExportMode::kCopy;
  options.progress = [](uint64_t done, uint64_t) { return done == 0; };
  EXPECT_EQ(Export(*store_, 1, dir_ / "x", options).status().code(), StatusCode::kCancelled);
  EXPECT_FALSE(fs::exists(dir_ / "x"));
  EXPECT_FALSE(fs::exists(dir_ / "x.orbax-checkpoint-tmp"));
}

TEST_F(ExportTest, AManagersRootIsMadeAndFilled) {
  Save(1);
  Save(12);
  ExportOptions options;
  options.layout = ExportLayout::kV0;
  options.step_prefix = "ckpt";
  options.step_digits = 4;
  options.unnamed_default = true;
  for (const uint64_t step : {1U, 12U}) {
    ASSERT_OK(Export(*store_, step, dir_ / "root", options).status());
  }
  EXPECT_TRUE(fs::exists(dir_ / "root/ckpt_0001/default/_METADATA"));
  EXPECT_TRUE(fs::exists(dir_ / "root/ckpt_0012/default/commit_success.txt"));
}

}  // namespace
}  // namespace stepwell::db
