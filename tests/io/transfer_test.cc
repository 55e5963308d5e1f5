// SPDX-License-Identifier: Apache-2.0
// Maps each result of a system call to its meaning, without any system call.
#include "io/transfer.h"

#include <gtest/gtest.h>
#include <limits.h>

#include <cerrno>

#include "tests/io/support/support.h"

namespace stepwell::io {
namespace {

using testing::TestOp;

class FakeFile final : public File {
 public:
  explicit FakeFile(uint32_t alignment_bytes)
      : File("f", std::make_shared<Freeze>()), alignment_bytes_(alignment_bytes) {}
  Result<size_t> ReadAt(uint64_t, MutableBytes) override { return InternalError("unused"); }
  Status WriteAt(uint64_t, ConstBytes) override { return InternalError("unused"); }
  Status Sync() override { return InternalError("unused"); }
  Status Allocate(uint64_t, uint64_t) override { return InternalError("unused"); }
  Status PunchHole(uint64_t, uint64_t) override { return InternalError("unused"); }
  Status Truncate(uint64_t) override { return InternalError("unused"); }
  Result<FileInfo> Info() override { return InternalError("unused"); }
  Result<bool> TryLock(LockKind) override { return InternalError("unused"); }
  Status Unlock() override { return InternalError("unused"); }
  Result<bool> LockedByOther() override { return InternalError("unused"); }
  Alignment alignment() const override { return {alignment_bytes_, alignment_bytes_}; }

 private:
  const uint32_t alignment_bytes_;
};

std::byte* Memory() {
  alignas(4096) static std::byte memory[64 << 10];
  return memory;
}

TEST(TransferTest, ShortTransfersGoOnAcrossVectors) {
  for (const Op::Kind kind : {Op::Kind::kRead, Op::Kind::kWrite}) {
    FakeFile file(1);
    TestOp op(kind, &file, 100, {{Memory(), 10}, {Memory() + 50, 0}, {Memory() + 100, 20}});
    Transfer transfer(&op);
    EXPECT_FALSE(transfer.EndBeforeCall());
    EXPECT_EQ(transfer.offset_bytes(), 100U);
    EXPECT_FALSE(transfer.Step(4));
    EXPECT_EQ(transfer.offset_bytes(), 104U);
    EXPECT_EQ(transfer.vectors()[0].iov_base, Memory() + 4);
    EXPECT_EQ(transfer.vectors()[0].iov_len, 6U);
    EXPECT_FALSE(transfer.Step(6));
    EXPECT_EQ(transfer.vectors()[0].iov_base, Memory() + 100);
    EXPECT_FALSE(transfer.Step(19));
    EXPECT_FALSE(transfer.EndBeforeCall());
    EXPECT_TRUE(transfer.Step(1));
    EXPECT_OK(op.status);
    EXPECT_EQ(op.transferred_bytes, 30U);
  }
}

TEST(TransferTest, InterruptedCallsAreMadeAgain) {
  for (const Op::Kind kind : {Op::Kind::kRead, Op::Kind::kWrite, Op::Kind::kSync}) {
    FakeFile file(1);
    TestOp op(kind, &file, 0, {{Memory(), 10}});
    Transfer transfer(&op);
    for (const int os_error : {EINTR, EAGAIN, ECANCELED}) EXPECT_FALSE(transfer.Step(-os_error));
    EXPECT_EQ(transfer.offset_bytes(), 0U);
    EXPECT_TRUE(transfer.Step(kind == Op::Kind::kSync ? 0 : 10));
    EXPECT_OK(op.status);
    EXPECT_FALSE(file.freeze()->frozen());
  }
}

TEST(TransferTest, ReadEndsAtTheEndOfTheFile) {
  FakeFile file(1);
  TestOp op(Op::Kind::kRead, &file, 0, {{Memory(), 10}});
  Transfer transfer(&op);
  EXPECT_FALSE(transfer.Step(3));
  EXPECT_TRUE(transfer.Step(0));
  EXPECT_OK(op.status);
  EXPECT_EQ(op.transferred_bytes, 3U);
}

TEST(TransferTest, DirectReadThatStopsInsideABlockIsAtTheEnd) {
  FakeFile file(512);
  TestOp op(Op::Kind::kRead, &file, 4096, {{Memory(), 8192}});
  Transfer transfer(&op);
  EXPECT_FALSE(transfer.Step(1024));  // on a block's edge: perhaps there is more
  EXPECT_TRUE(transfer.Step(700));
  EXPECT_OK(op.status);
  EXPECT_EQ(op.transferred_bytes, 1724U);
}

TEST(TransferTest, DirectWriteGoesOnAtABlocksEdge) {
  FakeFile file(512);
  TestOp op(Op::Kind::kWrite, &file, 4096, {{Memory(), 4096}});
  Transfer transfer(&op);
  EXPECT_FALSE(transfer.Step(1000));
  EXPECT_EQ(transfer.offset_bytes(), 4096U + 512);
  EXPECT_EQ(transfer.vectors()[0].iov_base, Memory() + 512);
  EXPECT_TRUE(transfer.Step(4096 - 512));
  EXPECT_OK(op.status);
  EXPECT_EQ(op.transferred_bytes, 4096U);
}

TEST(TransferTest, WriteThatGetsNowhereFailsAndFreezes) {
  for (const int64_t moved : {0, 511}) {
    FakeFile file(512);
    TestOp op(Op::Kind::kWrite, &file, 0, {{Memory(), 4096}});
    Transfer transfer(&op);
    EXPECT_TRUE(transfer.Step(moved));
    EXPECT_EQ(op.status.code(), StatusCode::kIoError);
    EXPECT_TRUE(file.freeze()->frozen());
  }
}

TEST(TransferTest, WhichFailuresFreeze) {
  struct Case {
    Op::Kind kind;
    int os_error;
    bool freezes;
  };
  for (const Case& c : {Case{Op::Kind::kRead, EIO, false}, Case{Op::Kind::kWrite, EIO, true},
                        Case{Op::Kind::kSync, EIO, true}, Case{Op::Kind::kWrite, ENOSPC, false},
                        Case{Op::Kind::kWrite, EFBIG, false}, Case{Op::Kind::kSync, ENOSPC, true},
                        Case{Op::Kind::kWrite, EINVAL, true}}) {
    FakeFile file(1);
    TestOp op(c.kind, &file, 0, {{Memory(), 10}});
    Transfer transfer(&op);
    EXPECT_TRUE(transfer.Step(-c.os_error));
    EXPECT_EQ(op.status.os_error(), c.os_error);
    EXPECT_EQ(file.freeze()->frozen(), c.freezes) << op.status.ToString();
  }
}

TEST(TransferTest, RestOfAWriteIsNotBegunAfterTheFreeze) {
  FakeFile file(1);
  TestOp op(Op::Kind::kWrite, &file, 0, {{Memory(), 10}});
  Transfer transfer(&op);
  EXPECT_FALSE(transfer.Step(4));
  file.freeze()->Trip(InternalError("elsewhere"));
  EXPECT_TRUE(transfer.EndBeforeCall());
  EXPECT_EQ(op.status.code(), StatusCode::kAborted);
  EXPECT_EQ(op.transferred_bytes, 4U);
}

TEST(TransferTest, MoreVectorsThanTheKernelTakesGoInParts) {
  FakeFile file(1);
  std::vector<iovec> vectors(IOV_MAX + 5, iovec{Memory(), 1});
  TestOp op(Op::Kind::kWrite, &file, 0, vectors);
  Transfer transfer(&op);
  EXPECT_EQ(transfer.vectors().size(), size_t{IOV_MAX});
  EXPECT_FALSE(transfer.Step(IOV_MAX));
  EXPECT_EQ(transfer.vectors().size(), 5U);
  EXPECT_TRUE(transfer.Step(5));
  EXPECT_OK(op.status);
}

TEST(TransferTest, NothingToMoveIsDoneAtOnce) {
  FakeFile file(1);
  TestOp op(Op::Kind::kWrite, &file);
  EXPECT_TRUE(Transfer(&op).EndBeforeCall());
  EXPECT_OK(op.status);
}

}  // namespace
}  // namespace stepwell::io
