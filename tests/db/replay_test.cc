// SPDX-License-Identifier: Apache-2.0
// A disk that logs and fails, under a real ext4: what each of its images holds, what a store does
// when the kernel says EIO, and that the harness finds a loss when there is one. XFS and thousands
// of images: replay_soak.cc.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <tuple>

#include "tests/db/support/big_state.h"
#include "tests/db/support/replay.h"

namespace stepwell::db {
namespace {

using soak::Replay;
using soak::ReplayTotals;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr uint64_t kBlock = 4096;

// The disk alone, without a file system.
class LogDiskTest : public ::testing::Test {
 protected:
  LogDiskTest()
      : disk_(FsKind::kExt4, std::make_shared<MemoryFile>(kMiB)),
        file_(open(disk_.file_path().c_str(), O_RDWR | O_CLOEXEC)) {}
  ~LogDiskTest() override { close(file_); }
  void SetUp() override { ASSERT_GE(file_, 0) << "no FUSE here (it needs root): " << errno; }

  ssize_t Write(char what, uint64_t block, uint64_t blocks = 1) const {
    const std::string bytes(blocks * kBlock, what);
    return pwrite(file_, bytes.data(), bytes.size(), static_cast<off_t>(block * kBlock));
  }
  // The first bytes of the first blocks; '.' is zero.
  static std::string Blocks(const char* data, uint64_t stride = kBlock) {
    std::string text;
    for (uint64_t i = 0; i < 6; ++i) text += data[i * stride] == 0 ? '.' : data[i * stride];
    return text;
  }
  std::string Image(const Cut& cut) const { return Blocks(disk_.Replay(cut)->data()); }

  LogDisk disk_;
  const int file_;
};

TEST_F(LogDiskTest, AnImageHasWhatWasFlushedAndOfTheRestWhatWasKept) {
  ASSERT_GT(Write('a', 0), 0);
  ASSERT_GT(Write('b', 1), 0);
  const uint64_t unflushed = disk_.now();
  ASSERT_EQ(fsync(file_), 0);
  const uint64_t flushed = disk_.now();
  ASSERT_GT(Write('c', 1), 0);
  ASSERT_GT(Write('d', 2, 2), 0);
  ASSERT_EQ(fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kBlock), 0);
  disk_.Mark("end");
  EXPECT_EQ(Image({.instant = unflushed}), "......");
  EXPECT_EQ(Image({.instant = unflushed, .kept = 1}), "ab....");
  EXPECT_EQ(Image({.instant = flushed - 1}), "......");  // the flush began
  EXPECT_EQ(Image({.instant = flushed}), "ab....");
  EXPECT_EQ(Image({}), "ab....");
  EXPECT_EQ(Image({.kept = 1}), ".cdd..");
  // Some of it, in every combination.
  std::set<std::string> seen, torn;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    seen.insert(Image({.kept = 0.5, .seed = seed}));
    torn.insert(Image({.kept = 0.5, .piece_bytes = kBlock, .seed = seed}));
  }
  EXPECT_EQ(seen.size(), 8U);
  EXPECT_EQ(torn.size(), 16U);
  const auto log = disk_.Log();
  EXPECT_EQ(disk_.Data(log.back()), "end");
}

TEST_F(LogDiskTest, ItFailsOnDemand) {
  ASSERT_GT(Write('a', 0, 6), 0);
  disk_.SetFault({.ops = Bit(DiskOp::kWrite), .skip = 1, .times = 2});
  EXPECT_GT(Write('b', 0), 0);
  EXPECT_LT(Write('b', 1), 0);
  EXPECT_EQ(errno, EIO);
  EXPECT_LT(Write('b', 2), 0);
  EXPECT_GT(Write('b', 3), 0);
  EXPECT_EQ(disk_.failed(), 2U);
  std::string bytes(6 * kBlock, 'x');
  ASSERT_EQ(pread(file_, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  EXPECT_EQ(Blocks(bytes.data()), "baabaa");
  // A change that failed and was not done is on no image. A failed flush may have flushed or not.
  disk_.SetFault({.ops = Bit(DiskOp::kFlush)});
  EXPECT_NE(fsync(file_), 0);
  EXPECT_NE(fsync(file_), 0);
  EXPECT_EQ(Image({}), "......");
  disk_.SetFault({.ops = Bit(DiskOp::kFlush), .done = true});
  EXPECT_NE(fsync(file_), 0);
  EXPECT_EQ(Image({}), "baabaa");
  EXPECT_EQ(Image({.kept = 1}), "baabaa");
  disk_.SetFault({.ops = Bit(DiskOp::kWrite), .done = true});
  EXPECT_LT(Write('c', 5), 0);
  EXPECT_EQ(Image({.kept = 1}), "baabac");
  // A place that cannot be read.
  disk_.SetFault({.ops = Bit(DiskOp::kRead), .offset_begin = kBlock, .offset_end = kBlock + 1});
  EXPECT_EQ(pread(file_, bytes.data(), kBlock, 0), static_cast<ssize_t>(kBlock));
  EXPECT_LT(pread(file_, bytes.data(), kBlock, kBlock), 0);
  disk_.SetFault({});
  EXPECT_EQ(pread(file_, bytes.data(), kBlock, kBlock), static_cast<ssize_t>(kBlock));
}

class ReplayTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(replay_.Begin()) << "the test cannot mount a disk of its own here (it needs root, "
                                    "/dev/fuse and loop devices): "
                                 << strerror(errno);
  }
  // The instants at which somebody was told that a change is done.
  std::vector<uint64_t> Acknowledged() {
    std::vector<uint64_t> instants;
    for (const LogEntry& entry : replay_.disk().Log()) {
      if (entry.op == DiskOp::kMark && replay_.disk().Data(entry).starts_with("ack ")) {
        instants.push_back(entry.begin);
      }
    }
    return instants;
  }

  ReplayTotals totals_;
  Replay replay_{STEPWELL_REPLAY_SOAK, FsKind::kExt4, /*seed=*/7, &totals_};
};

TEST_F(ReplayTest, EachImageHasWhatWasAcknowledgedByThen) {
  ASSERT_OK(replay_.Session(10));
  ASSERT_OK(replay_.Session(5));
  EXPECT_GE(totals_.acknowledged, 15U);
  const std::vector<uint64_t> told = Acknowledged();
  for (size_t i = 0; i < told.size(); i += 5) ASSERT_OK(replay_.CheckImage({.instant = told[i]}));
  for (int i = 0; i < 6; ++i) ASSERT_OK(replay_.CheckImage(replay_.RandomCut()));
  ASSERT_OK(replay_.CheckRecovery(replay_.RandomCut(), 2));
  ASSERT_OK(replay_.CheckSickRecovery(replay_.RandomCut(), replay_.RandomFault()));
  EXPECT_GE(totals_.images, 11U);
  EXPECT_GE(totals_.steps, totals_.images);
}

// The harness sees a loss where there is one: were it blind, all else here would prove nothing.
TEST_F(ReplayTest, ADiskThatDoesNotFlushIsFoundOut) {
  ASSERT_OK(replay_.Session(3));
  replay_.disk().LieAboutFlushes();
  ASSERT_OK(replay_.Session(6));  // nothing is seen while the power stays on
  const Status lost = replay_.CheckImage({.instant = Acknowledged().back()});
  EXPECT_THAT(lost.message(), HasSubstr("legal is"));
  EXPECT_OK(replay_.CheckImage({.instant = Acknowledged().back(), .kept = 1}));
}

TEST_F(ReplayTest, AReplayThatLeavesOutWhatWasFlushedIsFoundOut) {
  ASSERT_OK(replay_.Session(6));
  const uint64_t told = Acknowledged().back();
  std::map<std::string, uint64_t> begins;
  std::string number;
  for (const LogEntry& entry : replay_.disk().Log()) {
    if (entry.op != DiskOp::kMark) continue;
    std::istringstream words{std::string(replay_.disk().Data(entry))};
    std::string what;
    if (entry.begin <= told) words >> what >> number;  // at last of the acknowledgement
    if (what == "begin") begins[number] = entry.begin;
  }
  EXPECT_OK(replay_.CheckImage({.instant = told}));
  const auto image = replay_.disk().Replay({.instant = begins[number]});
  EXPECT_THAT(replay_.CheckImageFor(*image, told).message(), HasSubstr("legal is"));
}

TEST_F(ReplayTest, NothingIsLostWhenTheDiskFails) {
  ASSERT_OK(replay_.Session(4));
  for (int i = 0; i < 4; ++i) ASSERT_OK(replay_.FailingSession(replay_.RandomFault(), 5));
  for (int i = 0; i < 3; ++i) ASSERT_OK(replay_.CheckImage(replay_.RandomCut()));
  EXPECT_GT(totals_.faults, 0U);
}

// Whoever mounted it is killed: it cleans up nothing itself.
TEST(LogDiskProcess, NothingStaysMountedWhenItsUserIsKilled) {
  const TempDir directory;
  const auto mounts = [&] {
    std::ifstream file("/proc/self/mounts");
    const std::string text(std::istreambuf_iterator<char>(file), {});
    int count = 0;
    for (size_t at = 0; (at = text.find(directory.path(), at)) != std::string::npos; ++at) ++count;
    return count;
  };
  setenv("TMPDIR", directory.path().c_str(), 1);
  ChildProcess user({STEPWELL_REPLAY_SOAK, "how=cut", "fs=ext4"});
  unsetenv("TMPDIR");
  for (int i = 0; i < 3000 && mounts() < 2; ++i) usleep(10000);
  ASSERT_EQ(mounts(), 2);
  user.Kill();
  for (int i = 0; i < 3000 && mounts() > 0; ++i) usleep(10000);
  EXPECT_EQ(mounts(), 0);
  for (int i = 0; i < 3000 && !fs::is_empty(directory.path()); ++i) usleep(10000);
  EXPECT_TRUE(fs::is_empty(directory.path()));
}

struct FailCase {
  const char* name;
  Fault fault;
};
void PrintTo(const FailCase& fail_case, std::ostream* out) { *out << fail_case.name; }

class FailingDiskTest : public ::testing::TestWithParam<std::tuple<FailCase, io::DiskKind>> {
 protected:
  FailingDiskTest() : disk_(FsKind::kExt4, FormattedDisk(FsKind::kExt4, 64 * kMiB)) {
    options_.disk = std::get<1>(GetParam());
  }
  void SetUp() override {
    ASSERT_LOG_DISK(disk_);
    Open();
  }
  void Open() {
    auto store = Store::Open(disk_.mount_point() + "/store", options_);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    store_ = std::move(*store);
  }
  Status Save(uint64_t step) {
    const auto handle = SaveSeeded(store_.get(), step, step, KillState(step));
    Status status = handle.ok() ? handle->Wait() : handle.status();
    if (status.ok()) acknowledged_.push_back(step);
    if (status.code() == StatusCode::kOutcomeUnknown) unknown_.push_back(step);
    return status;
  }
  void OpenOnHealthyDisk() {
    store_->Close().IgnoreError("it is frozen");
    store_ = nullptr;
    disk_.SetFault({});
    ASSERT_TRUE(disk_.Unmount()) << strerror(errno);
    ASSERT_LOG_DISK(disk_);
    Open();
  }
  // Every acknowledged step is there. Any other step had an unknown outcome.
  void ExpectAll() {
    std::vector<uint64_t> steps = StepNumbers(store_.get());
    for (const uint64_t step : steps)
      EXPECT_OK(CheckSeeded(store_.get(), step, step, KillState(step)));
    for (const uint64_t step : unknown_) {
      steps.erase(std::remove(steps.begin(), steps.end(), step), steps.end());
    }
    EXPECT_EQ(steps, acknowledged_);
    const auto report = store_->Verify({});
    ASSERT_OK(report.status());
    for (const VerifyProblem& problem : report->problems) ADD_FAILURE() << problem.message;
  }

  LogDisk disk_;
  StoreOptions options_;
  std::unique_ptr<Store> store_;
  std::vector<uint64_t> acknowledged_, unknown_;
};

constexpr uint32_t kWrites = Bit(DiskOp::kWrite) | Bit(DiskOp::kDiscard);

class FailingWritesTest : public FailingDiskTest {};

TEST_P(FailingWritesTest, FreezeTheStoreAndLoseNothing) {
  for (uint64_t step = 0; step < 4; ++step) ASSERT_OK(Save(step));
  const Fault& fault = std::get<0>(GetParam()).fault;
  disk_.SetFault(fault);
  Status first;
  uint64_t step = 4;
  for (; step < 12 && first.ok(); ++step) first = Save(step);
  EXPECT_GT(disk_.failed(), 0U);
  // One that fails once may have been ext4's or RocksDB's.
  if (fault.times == UINT64_MAX) {
    EXPECT_FALSE(first.ok());
  }
  if (!first.ok()) {
    EXPECT_THAT(first.message(), AnyOf(HasSubstr("Input/output error"), HasSubstr("Read-only")));
    const Status next = Save(step);
    EXPECT_THAT(next.code(), AnyOf(StatusCode::kFailedPrecondition, StatusCode::kPermissionDenied))
        << next.ToString();
    for (const uint64_t there : acknowledged_) {
      EXPECT_OK(CheckSeeded(store_.get(), there, there, KillState(there)));
    }
  }
  OpenOnHealthyDisk();
  ExpectAll();
  ASSERT_OK(Save(100));
  OpenOnHealthyDisk();
  ExpectAll();
}

class FailingReadsTest : public FailingDiskTest {};

TEST_P(FailingReadsTest, AreErrorsAndNoWrongValues) {
  for (uint64_t step = 0; step < 4; ++step) ASSERT_OK(Save(step));
  disk_.SetFault(std::get<0>(GetParam()).fault);
  int refused = 0;
  for (int round = 0; round < 3; ++round) {
    for (const uint64_t step : acknowledged_) {
      const Status status = CheckSeeded(store_.get(), step, step, KillState(step));
      EXPECT_NE(status.code(), StatusCode::kInternal) << status.ToString();
      if (!status.ok()) ++refused;
    }
  }
  // One that fails once may be the index's: then the log answers.
  if (std::get<0>(GetParam()).fault.times == UINT64_MAX) {
    EXPECT_GT(refused, 0);
  }
  EXPECT_GT(disk_.failed(), 0U);
  disk_.SetFault({});
  ExpectAll();
  ASSERT_OK(Save(50));  // a failed read freezes nothing
  ExpectAll();
  OpenOnHealthyDisk();
  ExpectAll();
}

std::string CaseName(const ::testing::TestParamInfo<std::tuple<FailCase, io::DiskKind>>& info) {
  return std::string(std::get<0>(info.param).name) +
         (std::get<1>(info.param) == io::DiskKind::kUring ? "Uring" : "Posix");
}

INSTANTIATE_TEST_SUITE_P(
    All, FailingWritesTest,
    ::testing::Combine(
        ::testing::Values(FailCase{"WritesForEver", {.ops = kWrites}},
                          FailCase{"AWrite", {.ops = kWrites, .times = 1}},
                          FailCase{"AWriteThatLands", {.ops = kWrites, .times = 1, .done = true}},
                          FailCase{"FlushesForEver", {.ops = Bit(DiskOp::kFlush)}},
                          FailCase{"AFlush", {.ops = Bit(DiskOp::kFlush), .times = 1}},
                          FailCase{"FlushesThatFlush", {.ops = Bit(DiskOp::kFlush), .done = true}}),
        ::testing::Values(io::DiskKind::kUring, io::DiskKind::kPosix)),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    All, FailingReadsTest,
    ::testing::Combine(::testing::Values(FailCase{"ForEver", {.ops = Bit(DiskOp::kRead)}},
                                         FailCase{"Once", {.ops = Bit(DiskOp::kRead), .times = 1}}),
                       ::testing::Values(io::DiskKind::kUring, io::DiskKind::kPosix)),
    CaseName);

}  // namespace
}  // namespace stepwell::db
