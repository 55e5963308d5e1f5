// SPDX-License-Identifier: Apache-2.0
// Checks the promises of every Disk on real files, for both.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <latch>
#include <string>
#include <thread>

#include "tests/io/support/support.h"

namespace stepwell::io {
namespace {

using testing::AlignedCopy;
using testing::Create;
using testing::OpenKind;
using testing::Pattern;
using testing::PollAll;
using testing::RunOp;
using testing::TempDir;
using testing::TestOp;

constexpr auto kRead = Op::Kind::kRead;
constexpr auto kWrite = Op::Kind::kWrite;
constexpr auto kSync = Op::Kind::kSync;

class DiskTest : public ::testing::TestWithParam<DiskKind> {
 protected:
  void SetUp() override {
    disk_ = OpenKind(GetParam());
    if (disk_ == nullptr) GTEST_SKIP() << "this machine has no io_uring";
  }

  TempDir dir_;
  std::unique_ptr<Disk> disk_;
};

TEST_P(DiskTest, WritesSyncsAndReadsBack) {
  for (const bool direct : {false, true}) {
    const auto file = Create(dir_ / (direct ? "direct" : "buffered"), direct);
    const std::string text = Pattern(1 << 20, 3);
    AlignedBuffer out = AlignedCopy(text);
    TestOp write(kWrite, file.get(), 4096, out.bytes());
    EXPECT_OK(RunOp(disk_.get(), &write));
    EXPECT_EQ(write.transferred_bytes, text.size());
    EXPECT_EQ(write.completions, 1);
    TestOp sync(kSync, file.get());
    EXPECT_OK(RunOp(disk_.get(), &sync));
    AlignedBuffer in(text.size());
    TestOp read(kRead, file.get(), 4096, in.bytes());
    EXPECT_OK(RunOp(disk_.get(), &read));
    EXPECT_EQ(AsText(in.bytes()), text);
  }
}

TEST_P(DiskTest, ReadsAreShortOnlyAtTheEndOfTheFile) {
  for (const bool direct : {false, true}) {
    const auto file = Create(dir_ / (direct ? "direct" : "buffered"), direct);
    AlignedBuffer out = AlignedCopy(Pattern(8192, 4));
    ASSERT_OK(file->WriteAt(0, out.bytes()));
    ASSERT_OK(file->Truncate(5000));
    AlignedBuffer in(16384);
    TestOp read(kRead, file.get(), 0, in.bytes());
    EXPECT_OK(RunOp(disk_.get(), &read));
    EXPECT_EQ(read.transferred_bytes, 5000U);
    EXPECT_EQ(AsText(in.bytes().first(5000)), Pattern(8192, 4).substr(0, 5000));
    TestOp beyond(kRead, file.get(), 1 << 20, in.bytes());
    EXPECT_OK(RunOp(disk_.get(), &beyond));
    EXPECT_EQ(beyond.transferred_bytes, 0U);
  }
}

TEST_P(DiskTest, MisalignedDirectIoFailsCleanly) {
  const auto file = Create(dir_ / "a", /*direct=*/true);
  if (file->alignment().offset_bytes == 1) GTEST_SKIP() << "no direct I/O on this file system";
  AlignedBuffer buffer(8192);
  ASSERT_OK(file->WriteAt(0, buffer.bytes()));
  TestOp read(kRead, file.get(), 1, buffer.bytes().first(4096));
  const Status status = RunOp(disk_.get(), &read);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), StrCat("read ", dir_ / "a", " at byte 1: Invalid argument"));
  EXPECT_FALSE(file->freeze()->frozen());
  TestOp write(kWrite, file.get(), 1, buffer.bytes().first(4096));
  EXPECT_EQ(RunOp(disk_.get(), &write).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(file->freeze()->frozen());
}

TEST_P(DiskTest, FailedWriteFreezesAndLaterOnesAreNotDone) {
  Create(dir_ / "a");
  const auto file = LocalFileSystem()->Open(dir_ / "a", {}).value();  // read only
  AlignedBuffer buffer(4096);
  TestOp write(kWrite, file.get(), 0, buffer.bytes());
  EXPECT_EQ(RunOp(disk_.get(), &write).message(),
            StrCat("write ", dir_ / "a", ": Bad file descriptor"));
  EXPECT_EQ(file->freeze()->first_error().message(), write.status.message());
  TestOp sync(kSync, file.get());
  EXPECT_EQ(RunOp(disk_.get(), &sync).code(), StatusCode::kAborted);
  TestOp read(kRead, file.get(), 0, buffer.bytes());
  EXPECT_OK(RunOp(disk_.get(), &read));
}

TEST_P(DiskTest, FrozenWritesCompleteInPollOnly) {
  const auto freeze = std::make_shared<Freeze>();
  const auto file = Create(dir_ / "a", false, freeze);
  freeze->Trip(ErrnoStatus(EIO, "write elsewhere"));
  AlignedBuffer buffer = AlignedCopy("x");
  TestOp write(kWrite, file.get(), 0, buffer.bytes());
  disk_->Submit(&write);
  EXPECT_EQ(write.completions, 0);
  EXPECT_EQ(disk_->in_flight(), 1U);
  PollAll(disk_.get());
  EXPECT_EQ(write.completions, 1);
  EXPECT_EQ(write.status.code(), StatusCode::kAborted);
  EXPECT_EQ(file->Info().value().size_bytes, 0U);
}

TEST_P(DiskTest, AFullDeviceDoesNotFreeze) {
  FileOpenOptions options;
  options.write = true;
  const auto file = LocalFileSystem()->Open("/dev/full", options).value();
  AlignedBuffer buffer(4096);
  TestOp write(kWrite, file.get(), 0, buffer.bytes());
  EXPECT_EQ(RunOp(disk_.get(), &write).code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(file->freeze()->frozen());
}

TEST_P(DiskTest, TakesMoreOpsThanItsDepth) {
  const auto file = Create(dir_ / "a");
  constexpr size_t kOps = 1000;
  const std::string text = Pattern(kOps * 512, 5);
  AlignedBuffer out = AlignedCopy(text);
  std::vector<std::unique_ptr<TestOp>> ops;
  for (size_t i = 0; i < kOps; ++i) {
    ops.push_back(
        std::make_unique<TestOp>(kWrite, file.get(), i * 512, out.bytes().subspan(i * 512, 512)));
    disk_->Submit(ops.back().get());
  }
  EXPECT_EQ(disk_->in_flight(), kOps);
  PollAll(disk_.get());
  for (const auto& op : ops) {
    EXPECT_OK(op->status);
    EXPECT_EQ(op->completions, 1);
  }
  AlignedBuffer in(text.size());
  EXPECT_EQ(file->ReadAt(0, in.bytes()).value(), text.size());
  EXPECT_EQ(AsText(in.bytes()), text);
}

TEST_P(DiskTest, TakesMoreVectorsThanTheKernel) {
  const auto file = Create(dir_ / "a");
  const std::string text = Pattern(3 * IOV_MAX, 6);
  AlignedBuffer out = AlignedCopy(text);
  std::vector<iovec> vectors;
  for (size_t i = 0; i < text.size(); ++i) vectors.push_back({out.data() + i, 1});
  TestOp write(kWrite, file.get(), 7, vectors);
  EXPECT_OK(RunOp(disk_.get(), &write));
  AlignedBuffer in(text.size());
  for (size_t i = 0; i < vectors.size(); ++i) vectors[i].iov_base = in.data() + i;
  TestOp read(kRead, file.get(), 7, vectors);
  EXPECT_OK(RunOp(disk_.get(), &read));
  EXPECT_EQ(read.transferred_bytes, text.size());
  EXPECT_EQ(AsText(in.bytes()), text);
}

TEST_P(DiskTest, EmptyTransfersComplete) {
  const auto file = Create(dir_ / "a");
  TestOp read(kRead, file.get());
  EXPECT_OK(RunOp(disk_.get(), &read));
  EXPECT_EQ(read.completions, 1);
}

TEST_P(DiskTest, CompletionsMaySubmit) {
  const auto file = Create(dir_ / "a");
  AlignedBuffer buffer = AlignedCopy("chain");
  TestOp sync(kSync, file.get());
  TestOp write(kWrite, file.get(), 0, buffer.bytes());
  write.then = [&] { disk_->Submit(&sync); };
  disk_->Submit(&write);
  PollAll(disk_.get());
  EXPECT_EQ(sync.completions, 1);
  EXPECT_OK(sync.status);
}

TEST_P(DiskTest, PollWithoutWaitReturnsAtOnce) {
  EXPECT_EQ(disk_->Poll(/*wait=*/false), 0U);
  EXPECT_EQ(disk_->in_flight(), 0U);
  EXPECT_GT(disk_->depth(), 0U);
}

TEST_P(DiskTest, PollWithoutWaitFinishesOpsInTheEnd) {
  const auto file = Create(dir_ / "a", /*direct=*/true);
  AlignedBuffer buffer(1 << 20);
  TestOp write(kWrite, file.get(), 0, buffer.bytes());
  disk_->Submit(&write);
  while (write.completions == 0) disk_->Poll(/*wait=*/false);
  EXPECT_OK(write.status);
}

TEST_P(DiskTest, WakeEndsTheNextOrTheCurrentWait) {
  disk_->Wake();
  disk_->Wake();
  EXPECT_EQ(disk_->Poll(/*wait=*/true), 0U);
  for (int i = 0; i < 100; ++i) {
    std::thread waker([&] { disk_->Wake(); });
    EXPECT_EQ(disk_->Poll(/*wait=*/true), 0U);  // before or after the call: it returns
    waker.join();
  }
}

TEST_P(DiskTest, WakeIsNotLostAmongCompletions) {
  const auto file = Create(dir_ / "a");
  AlignedBuffer buffer = AlignedCopy("x");
  constexpr int kRounds = 500;
  std::atomic<int> requests{0};
  std::thread waker([&] {
    for (int i = 0; i < kRounds; ++i) {
      ++requests;
      disk_->Wake();
    }
  });
  int seen = 0;
  while (seen < kRounds) {  // hangs if a wake-up is lost
    TestOp write(kWrite, file.get(), 0, buffer.bytes());
    if (seen % 3 == 0) EXPECT_OK(RunOp(disk_.get(), &write));
    seen = requests;
    if (seen < kRounds) disk_->Poll(/*wait=*/true);
  }
  waker.join();
}

TEST_P(DiskTest, MadeUsedAndDestroyedOnThreeThreads) {
  const auto file = Create(dir_ / "a", /*direct=*/true);
  const std::string text = Pattern(4 << 20, 7);
  AlignedBuffer out = AlignedCopy(text);
  constexpr size_t kPart = 256 << 10;
  std::vector<std::unique_ptr<TestOp>> ops;
  for (size_t at = 0; at < text.size(); at += kPart) {
    ops.push_back(std::make_unique<TestOp>(kWrite, file.get(), at, out.bytes().subspan(at, kPart)));
  }
  TestOp sync(kSync, file.get());
  std::thread user([&] {
    for (const auto& op : ops) disk_->Submit(op.get());
    disk_->Submit(&sync);
    disk_->Poll(/*wait=*/false);  // and ends with nearly all of it in flight
  });
  user.join();
  std::thread([disk = std::move(disk_)]() mutable { disk.reset(); }).join();
  AlignedBuffer in(text.size());
  EXPECT_EQ(file->ReadAt(0, in.bytes()).value(), text.size());
  EXPECT_EQ(AsText(in.bytes()), text) << "the destructor waits for what is in flight";
}

TEST_P(DiskTest, RegisteredBuffersAndFilesGiveTheSameBytes) {
  const auto file = Create(dir_ / "a", /*direct=*/true);
  disk_->RegisterFile(file.get());
  const std::string text = Pattern(256 << 10, 8);
  AlignedBuffer out = AlignedCopy(text);
  const int index = disk_->RegisterBuffer(out.bytes());
  TestOp write(kWrite, file.get(), 0, out.bytes().first(128 << 10));
  write.buffer_index = index;
  EXPECT_OK(RunOp(disk_.get(), &write));
  TestOp rest(kWrite, file.get(), 128 << 10, out.bytes().subspan(128 << 10));
  rest.buffer_index = index;
  EXPECT_OK(RunOp(disk_.get(), &rest));
  TestOp sync(kSync, file.get());
  EXPECT_OK(RunOp(disk_.get(), &sync));
  AlignedBuffer in(512 << 10);
  TestOp read(kRead, file.get(), 0, in.bytes());
  read.buffer_index = disk_->RegisterBuffer(in.bytes());
  EXPECT_OK(RunOp(disk_.get(), &read));
  EXPECT_EQ(read.transferred_bytes, text.size());
  EXPECT_EQ(AsText(in.bytes().first(text.size())), text);
  disk_->UnregisterFile(file.get());
  disk_->UnregisterFile(file.get());
  TestOp again(kRead, file.get(), 0, in.bytes());
  EXPECT_OK(RunOp(disk_.get(), &again));
}

TEST_P(DiskTest, RegisteredFilesMayBeMoreThanTheTable) {
  std::vector<std::unique_ptr<File>> files;
  AlignedBuffer buffer = AlignedCopy("x");
  for (int i = 0; i < 100; ++i) {
    files.push_back(Create(dir_ / StrCat(i)));
    disk_->RegisterFile(files.back().get());
  }
  for (const auto& file : files) {
    TestOp write(kWrite, file.get(), 0, buffer.bytes());
    EXPECT_OK(RunOp(disk_.get(), &write));
    EXPECT_EQ(file->Info().value().size_bytes, 1U);
    disk_->UnregisterFile(file.get());
  }
}

TEST_P(DiskTest, DestructionEndsTheLocksOfRegisteredFiles) {
  auto holder = Create(dir_ / "LOCK");
  const auto other = Create(dir_ / "LOCK");
  EXPECT_TRUE(holder->TryLock(LockKind::kExclusive).value());
  disk_->RegisterFile(holder.get());
  disk_->Poll(/*wait=*/false);
  holder.reset();
  disk_.reset();
  EXPECT_TRUE(other->TryLock(LockKind::kExclusive).value());
}

// A program may close descriptors that are not its own.
TEST_P(DiskTest, ARingThatIsTakenAwayIsAnErrorOfItsOps) {
  if (GetParam() == DiskKind::kPosix) return;  // it has none
  const auto file = Create(dir_ / "a");
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry.path(), gone) != "anon_inode:[io_uring]") continue;
    const int nowhere = open("/dev/null", O_RDONLY | O_CLOEXEC);
    dup2(nowhere, std::stoi(entry.path().filename().string()));
    close(nowhere);
  }
  AlignedBuffer memory(4096);
  for (int i = 0; i < 3; ++i) {
    TestOp write(kWrite, file.get(), 0, memory.bytes());
    EXPECT_FALSE(RunOp(disk_.get(), &write).ok());
  }
  EXPECT_TRUE(file->freeze()->frozen());
  disk_->Wake();
  disk_->Poll(/*wait=*/true);
}

INSTANTIATE_TEST_SUITE_P(Kinds, DiskTest, ::testing::Values(DiskKind::kPosix, DiskKind::kUring),
                         [](const auto& param) {
                           return param.param == DiskKind::kPosix ? "Posix" : "Uring";
                         });

}  // namespace
}  // namespace stepwell::io
