// SPDX-License-Identifier: Apache-2.0
// The same random operations on both disks must end the same.
#include <gtest/gtest.h>

#include <random>

#include "tests/io/support/support.h"

namespace stepwell::io {
namespace {

using testing::Create;
using testing::OpenKind;
using testing::PollAll;
using testing::TempDir;
using testing::TestOp;

constexpr size_t kZoneBytes = 32 << 10;
constexpr size_t kZones = 32;

struct Plan {
  Op::Kind kind;
  uint64_t offset;
  std::vector<size_t> lengths;  // of the vectors
  unsigned fill;
};

// One operation inside `zone`, so that those of one batch never overlap. A batch has only one kind:
// a read near the end of the file would race with a write that moves the end.
Plan RandomPlan(std::mt19937_64* random, Op::Kind kind, size_t zone, size_t unit) {
  const auto below = [random](size_t bound) { return static_cast<size_t>((*random)() % bound); };
  Plan plan;
  plan.kind = kind;
  const size_t units = kZoneBytes / unit;
  size_t at = below(units);
  plan.offset = zone * kZoneBytes + at * unit;
  for (size_t parts = 1 + below(4); parts > 0 && at < units; --parts) {
    const size_t length = 1 + below(units - at);
    plan.lengths.push_back(length * unit);
    at += length;
  }
  plan.fill = static_cast<unsigned>((*random)());
  return plan;
}

// Runs the batch on one disk; a line for each op with all that can be seen of its end.
std::string RunBatch(Disk* disk, File* file, AlignedBuffer* memory, int buffer_index,
                     const std::vector<Plan>& batch) {
  std::vector<std::unique_ptr<TestOp>> ops;
  for (const Plan& plan : batch) {
    std::byte* at = memory->data() + plan.offset;
    std::vector<iovec> vectors;
    for (const size_t length : plan.lengths) {
      const bool is_write = plan.kind == Op::Kind::kWrite;
      for (size_t i = 0; i < length; ++i) {
        at[i] = is_write ? static_cast<std::byte>(plan.fill + i * 7 + (i >> 8)) : std::byte{0xEE};
      }
      vectors.push_back({at, length});
      at += length;
    }
    ops.push_back(std::make_unique<TestOp>(plan.kind, file, plan.offset, std::move(vectors)));
    if (ops.back()->vectors.size() == 1) ops.back()->buffer_index = buffer_index;
    disk->Submit(ops.back().get());
  }
  TestOp sync(Op::Kind::kSync, file);
  disk->Submit(&sync);
  PollAll(disk);
  std::string seen = StrCat(sync.status.ToString(), "\n");
  for (size_t i = 0; i < ops.size(); ++i) {
    size_t length = 0;
    for (const size_t part : batch[i].lengths) length += part;
    seen += StrCat(
        ops[i]->status.ToString(), " ", ops[i]->transferred_bytes, " ",
        std::hash<std::string_view>()(AsText(memory->bytes().subspan(batch[i].offset, length))),
        "\n");
  }
  return seen;
}

class DifferentialTest : public ::testing::TestWithParam<bool> {};

TEST_P(DifferentialTest, RandomOpsEndTheSame) {
  const bool direct = GetParam();
  const std::unique_ptr<Disk> uring = OpenKind(DiskKind::kUring);
  if (uring == nullptr) GTEST_SKIP() << "this machine has no io_uring";
  const std::unique_ptr<Disk> posix = OpenKind(DiskKind::kPosix);
  const TempDir dir;
  const auto uring_file = Create(dir / "uring", direct);
  const auto posix_file = Create(dir / "posix", direct);
  uring->RegisterFile(uring_file.get());
  AlignedBuffer uring_memory(kZones * kZoneBytes);
  AlignedBuffer posix_memory(kZones * kZoneBytes);
  const int buffer_index = uring->RegisterBuffer(uring_memory.bytes());
  const size_t unit = uring_file->alignment().offset_bytes;

  std::mt19937_64 random(20240611);  // one fixed run: a difference can be looked at again
  for (int round = 0; round < 150; ++round) {
    const Op::Kind kind = random() % 2 == 0 ? Op::Kind::kRead : Op::Kind::kWrite;
    std::vector<Plan> batch;
    for (size_t zone = 0; zone < kZones; ++zone) {
      if (random() % 3 == 0) batch.push_back(RandomPlan(&random, kind, zone, unit));
    }
    const std::string expected = RunBatch(posix.get(), posix_file.get(), &posix_memory, -1, batch);
    ASSERT_EQ(RunBatch(uring.get(), uring_file.get(), &uring_memory, buffer_index, batch), expected)
        << "round " << round;
    if (round % 10 == 9) {  // an end of the file inside a block now and then
      const uint64_t size = random() % (kZones * kZoneBytes);
      ASSERT_OK(posix_file->Truncate(size));
      ASSERT_OK(uring_file->Truncate(size));
    }
  }
  EXPECT_EQ(uring_file->Info().value().size_bytes, posix_file->Info().value().size_bytes);
  ASSERT_OK(posix_file->ReadAt(0, posix_memory.bytes()));
  ASSERT_OK(uring_file->ReadAt(0, uring_memory.bytes()));
  const size_t size = uring_file->Info().value().size_bytes;
  EXPECT_EQ(AsText(uring_memory.bytes().first(size)), AsText(posix_memory.bytes().first(size)));
}

INSTANTIATE_TEST_SUITE_P(Modes, DifferentialTest, ::testing::Bool(),
                         [](const auto& param) { return param.param ? "Direct" : "Buffered"; });

}  // namespace
}  // namespace stepwell::io
