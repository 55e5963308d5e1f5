// SPDX-License-Identifier: Apache-2.0
// Some of what nth_soak.cc does with every number: of every kind a few.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "db/log/recovery.h"
#include "db/log/slot_file.h"
#include "io/open_disk.h"
#include "tests/db/support/nth.h"
#include "tests/db/support/store_support.h"
#include "tests/io/support/end_child.h"

namespace stepwell::db::nth {
namespace {

using Kind = Fault::Kind;
using Until = Fault::Until;

struct Series {
  const char* name;
  Fault fault;
  uint64_t every;  // a prime, so that it is in step with nothing
  uint64_t first = 1;
};

// So that a failure is named by it.
std::ostream& operator<<(std::ostream& out, const Series& series) { return out << series.name; }

class NthTest : public ::testing::TestWithParam<std::tuple<Series, io::DiskKind>> {};

TEST_P(NthTest, LosesNothingThatWasAcknowledged) {
  const TempDir dir;
  const auto& [series, disk] = GetParam();
  Fault fault = series.fault;
  // The two disks have other numbers.
  fault.n = series.first + (disk == io::DiskKind::kPosix ? series.every / 2 : 0);
  uint64_t cases = 0;
  for (; cases < 1000; ++cases, fault.n += series.every) {
    const Outcome outcome = RunCase(dir.path(), disk, fault);
    EXPECT_EQ(outcome.problem, "") << fault.Name() << " n=" << fault.n;
    if (!outcome.reached) break;
  }
  EXPECT_GE(cases, 3U);
}

INSTANTIATE_TEST_SUITE_P(
    Every, NthTest,
    ::testing::Combine(
        ::testing::Values(
            Series{"Kill", {Kind::kKill, "all", 0, Until::kOnce}, 863},
            Series{"DiskEio", {Kind::kError, "disk", EIO, Until::kOnce}, 271},
            Series{"DiskEioFromThere", {Kind::kError, "disk", EIO, Until::kEnd}, 277},
            Series{"DiskFull", {Kind::kError, "disk", ENOSPC, Until::kOnce}, 281},
            Series{"NamesEio", {Kind::kError, "names", EIO, Until::kOnce}, 953},
            Series{"NoDescriptors", {Kind::kError, "names", EMFILE, Until::kEnd}, 967},
            Series{"NoThread", {Kind::kError, "threads", EAGAIN, Until::kOnce}, 7, 2},
            Series{"NoThreads", {Kind::kError, "threads", EAGAIN, Until::kEnd}, 5, 2},
            Series{"NoBuffer", {Kind::kAlloc, "buffers", 0, Until::kOnce}, 3},
            Series{"NoBuffers", {Kind::kAlloc, "buffers", 0, Until::kEnd}, 5},
            Series{"NoMemory", {Kind::kAlloc, "", 0, Until::kOnce}, 16001},
            Series{"NoMemoryForAnOperation", {Kind::kAlloc, "", 0, Until::kOperation}, 18013},
            Series{"NoMemoryFromThere", {Kind::kAlloc, "", 0, Until::kEnd}, 18401}),
        ::testing::Values(io::DiskKind::kUring, io::DiskKind::kPosix)),
    [](const auto& param) {
      return std::string(std::get<0>(param.param).name) +
             (std::get<1>(param.param) == io::DiskKind::kUring ? "Uring" : "Posix");
    });

// Scans the log of a store where the n-th mapping of memory fails; 0: the scan says that there is
// none, 7: all is read.
int ScanWithoutMapping(const std::string& path, uint64_t n) {
  if (!Arm({Fault::Kind::kAlloc, "blocks", 0, Fault::Until::kOnce, n})) return 2;
  const StoresOwn own;
  const auto slot_file = SlotFile::Open(io::LocalFileSystem(), path, /*write=*/false, nullptr);
  if (!slot_file.ok()) return 3;
  const auto slot = (*slot_file)->Read();
  if (!slot.ok()) return 4;
  SegmentFiles files(io::LocalFileSystem(), path);
  const auto state = RecoverByScan(io::LocalFileSystem(), path, *slot, files, {});
  if (state.status().code() == StatusCode::kResourceExhausted) return 0;
  return state.ok() && state->live.contains(1) ? 7 : 5;
}

// A log that has to be scanned, and no memory to scan it.
TEST(NthScanTest, WithoutMemoryItIsNotTakenForEmpty) {
  const TempDir dir;
  const std::string path = dir / "killed";
  {
    auto store = Store::Open(dir / "run", {});
    ASSERT_OK(store.status());
    ASSERT_OK(SaveSeeded(store->get(), 1, 1, SmallState())->Wait());
    CopyLiveStore(dir / "run", path);
  }  // a thread may hold a lock of the sanitizer's when its process forks
  size_t refused = 0;
  for (uint64_t n = 1; n <= 8; ++n) {
    const pid_t pid = fork();
    if (pid == 0) EndChild(ScanWithoutMapping(path, n));
    int status = -1;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFEXITED(status));
    const int code = WEXITSTATUS(status);
    EXPECT_TRUE(code == 0 || code == 7) << n << ": " << code;
    refused += WEXITSTATUS(status) == 0 ? 1 : 0;
  }
  EXPECT_GT(refused, 0U);
}

// Saves where no block can be had from the n-th on. 0: the save failed for want of memory, 7: it is
// there.
int SaveWithoutBlocks(const std::string& path, const std::vector<LeafSpec>& state, uint64_t n) {
  if (!Arm({Fault::Kind::kAlloc, "blocks", 0, Fault::Until::kEnd, n})) return 2;
  const StoresOwn own;
  StoreOptions options;
  options.codec = CodecPolicy::kBlosc;
  auto store = Store::Open(path, options);
  if (!store.ok()) return 3;
  const auto handle = SaveSeeded(store->get(), 1, 1, state);
  const Status saved = handle.ok() ? handle->Wait() : handle.status();
  if (!(*store)->Close().ok()) return 4;
  if (saved.ok()) return 7;
  return saved.code() == StatusCode::kResourceExhausted ? 0 : 5;
}

// Blocks for what is encoded are taken by the engine, which never waits for memory.
TEST(NthBlockTest, ASaveWithoutBlocksFailsAlone) {
  const TempDir dir;
  size_t failed = 0;
  for (const bool hold : {true, false}) {
    const std::vector<LeafSpec> state = {{"w", {1500, 1000}, hold, true}};
    for (uint64_t n = 1; n <= 6; ++n) {
      const std::string path = dir / StrCat(hold, n);
      const pid_t pid = fork();
      if (pid == 0) EndChild(SaveWithoutBlocks(path, state, n));
      int status = -1;
      ASSERT_EQ(waitpid(pid, &status, 0), pid);
      ASSERT_TRUE(WIFEXITED(status));
      const int code = WEXITSTATUS(status);
      EXPECT_TRUE(code == 0 || code == 7) << n << ": " << code;
      failed += code == 0 ? 1 : 0;
      // In a child, too: no process of ThreadSanitizer's can fork behind threads of its own and
      // start others there.
      EXPECT_EQ(InChild([&]() -> std::string {
                  auto store = Store::Open(path, {});
                  if (!store.ok()) return store.status().ToString();
                  return StrCat(StepNumbers(store->get()).size(), " steps");
                }),
                code == 0 ? "0 steps" : "1 steps");
    }
  }
  EXPECT_GT(failed, 2U);
}

}  // namespace
}  // namespace stepwell::db::nth
