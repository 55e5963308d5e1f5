// SPDX-License-Identifier: Apache-2.0
// Forked children of a writer, and processes that may not use io_uring or lock memory.
#include <gmock/gmock.h>
#include <sys/mman.h>

#include "tests/db/support/big_state.h"
#include "tests/db/support/process_support.h"

namespace {
// A child leaves the store's memory alone on purpose: what it ends with is not a leak.
bool g_in_forked_child = false;
}  // namespace

// Asked by LeakSanitizer, where there is one, when a process ends.
extern "C" [[gnu::visibility("default")]] int __lsan_is_turned_off();
extern "C" int __lsan_is_turned_off() { return g_in_forked_child ? 1 : 0; }

namespace stepwell::db {
namespace {

using ::testing::HasSubstr;

class ForkTest : public ::testing::TestWithParam<io::DiskKind> {
 protected:
  StoreOptions Options() const {
    StoreOptions options;
    options.disk = GetParam();
    return options;
  }
  const char* DiskName() const { return GetParam() == io::DiskKind::kUring ? "uring" : "posix"; }

  TempDir dir_;
  const std::string path_ = dir_ / "run";
};

// The child's results, in memory that both processes share.
struct ChildSaw {
  StatusCode codes[8];
  char message[512];
};

// AddressSanitizer's allocator is not made for a child that allocates: a lock that another thread
// held at the fork stays held, and the child hangs now and then. Ours would hang each time.
#if defined(STEPWELL_ASAN)
constexpr int kForks = 8;
#else
constexpr int kForks = 1;
#endif
constexpr unsigned kChildSeconds = 30;

TEST_P(ForkTest, TheChildIsRefusedAndTheParentGoesOn) {
  auto store = Store::Open(path_, Options());
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  ASSERT_OK(SaveSeeded(store->get(), 0, 0, KillState(0))->Wait());
  StoreOptions read_only = Options();
  read_only.read_only = true;
  auto reader = Store::Open(path_, read_only);
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  EXPECT_OK(CheckSeeded(reader->get(), 0, 0, KillState(0)));
  void* shared =
      mmap(nullptr, sizeof(ChildSaw), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* saw = static_cast<ChildSaw*>(shared);
  uint64_t step = 1;
  int status = 0;
  for (int attempt = 0; attempt < kForks; ++attempt) {
    // Saves are under way while the child is made.
    std::vector<SaveHandle> handles;
    for (const uint64_t end = step + 3; step < end; ++step) {
      auto handle = SaveSeeded(store->get(), step, step, KillState(step));
      ASSERT_TRUE(handle.ok()) << handle.status().ToString();
      handles.push_back(*handle);
    }
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      g_in_forked_child = true;
      alarm(kChildSeconds);
      const std::vector<uint64_t> zero{0};
      const Status saved = SaveSeeded(store->get(), 999, 9, KillState(9)).status();
      saw->codes[0] = saved.code();
      saw->codes[1] = (*store)->Wait().code();
      saw->codes[2] = (*store)->Steps().status().code();
      saw->codes[3] = (*store)->Read(0).status().code();
      saw->codes[4] = (*store)->Delete(zero).code();
      saw->codes[5] = (*store)->Verify({}).status().code();
      saw->codes[6] = (*reader)->Read(0).status().code();
      saw->codes[7] = (*store)->Close().code();
      saved.message().copy(saw->message, sizeof(saw->message) - 1);
      // The destructors of a child that ends as programs do.
      handles.clear();
      store->reset();
      reader->reset();
      std::exit(41);
    }
    ASSERT_GT(child, 0);
    for (const SaveHandle& handle : handles) EXPECT_OK(handle.Wait());
    ASSERT_OK(SaveSeeded(store->get(), step, step, KillState(step))->Wait());
    ++step;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGALRM) break;
  }
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 41);
  for (const StatusCode code : saw->codes) EXPECT_EQ(code, StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(saw->message), HasSubstr("fork"));
  munmap(shared, sizeof(ChildSaw));
  ASSERT_OK(SaveSeeded(store->get(), step, step, KillState(step))->Wait());
  ASSERT_OK((*store)->Close());
  auto again = Store::Open(path_, Options());
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  for (uint64_t saved = 0; saved <= step; ++saved) {
    EXPECT_OK(CheckSeeded(again->get(), saved, saved, KillState(saved)));
  }
}

// A trainer is killed; its data loader, which was forked from it, lives on.
TEST_P(ForkTest, AnOrphanDoesNotKeepTheLock) {
  uint64_t next = 0;
  for (int round = 0; round < 10; ++round) {
    ChildProcess trainer({STEPWELL_STORE_CHILD, "fork", path_, DiskName(), std::to_string(next)});
    ASSERT_EQ(trainer.Line(), "open");
    const std::string line = trainer.Line();
    ASSERT_TRUE(line.starts_with("fork ")) << line;
    const pid_t orphan = std::stoi(line.substr(5));
    uint64_t acknowledged = 0;
    while (acknowledged < 3) {
      const std::string said = trainer.Line();
      ASSERT_NE(said, "");
      ASSERT_FALSE(said.starts_with("error")) << said;
      if (said.starts_with("ack ")) ++acknowledged;
    }
    trainer.Kill();
    EXPECT_EQ(kill(orphan, 0), 0) << "the orphan ought to be alive";
    auto store = Store::Open(path_, Options());
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    kill(orphan, SIGKILL);
    ASSERT_TRUE(store.ok());
    const auto steps = StepNumbers(store->get());
    EXPECT_GE(steps.size(), next + 3);
    for (const uint64_t step : steps) {
      EXPECT_OK(CheckSeeded(store->get(), step, step, KillState(step)));
    }
    next = steps.empty() ? 0 : steps.back() + 1;
    ASSERT_OK(SaveSeeded(store->get(), next, next, KillState(next))->Wait());
    ++next;
    ASSERT_OK((*store)->Close());
  }
}

INSTANTIATE_TEST_SUITE_P(Disks, ForkTest,
                         ::testing::Values(io::DiskKind::kUring, io::DiskKind::kPosix),
                         [](const auto& param) {
                           return param.param == io::DiskKind::kUring ? "Uring" : "Posix";
                         });

class LimitedTest : public ::testing::Test {
 protected:
  // Runs a whole session in a limited process; returns how it describes its disk.
  std::string Run(const std::string& limit) {
    EXPECT_EQ(getuid(), 0U) << "this test drops privileges, so it must have them";
    std::filesystem::permissions(dir_.path(), std::filesystem::perms::all);
    // Not STEPWELL_DISK: the machine decides.
    unsetenv("STEPWELL_DISK");
    ChildProcess child({STEPWELL_STORE_CHILD, "limited", dir_ / "run", limit});
    std::string disk;
    std::string last;
    for (const std::string& line : child.Rest()) {
      EXPECT_FALSE(line.starts_with("error")) << line;
      if (line.starts_with("disk ")) disk = line.substr(5);
      if (line.find("io_uring") != std::string::npos && line.starts_with("log ")) {
        said_.push_back(line);
      }
      last = line;
    }
    EXPECT_EQ(last, "done");
    EXPECT_EQ(child.Wait(), 0);
    return disk;
  }

  TempDir dir_;
  std::vector<std::string> said_;  // log lines about io_uring
};

TEST_F(LimitedTest, WhereIoUringIsForbiddenPosixWorksAndOneLineSaysSo) {
  EXPECT_THAT(Run("seccomp"), HasSubstr("posix"));
  ASSERT_EQ(said_.size(), 1U);
  EXPECT_THAT(said_[0], HasSubstr("io_uring is not available here (Operation not permitted); "
                                  "using posix I/O"));
}

// New kernels do not count rings as locked memory: there io_uring is used, without registered
// buffers. Where they do, posix is, and one line says so.
TEST_F(LimitedTest, WithoutLockedMemoryItWorks) {
  const std::string disk = Run("memlock");
  if (disk.find("posix") != std::string::npos) {
    ASSERT_EQ(said_.size(), 1U);
    EXPECT_THAT(said_[0], HasSubstr("using posix I/O"));
  } else {
    EXPECT_THAT(disk, HasSubstr("uring"));
    EXPECT_TRUE(said_.empty());
  }
  std::printf("without locked memory: %s\n", disk.c_str());
}

}  // namespace
}  // namespace stepwell::db
