// SPDX-License-Identifier: Apache-2.0
// A writer in another process is killed at random moments; this process opens the store at once.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <random>
#include <set>
#include <thread>

#include "db/layout.h"
#include "tests/db/support/big_state.h"
#include "tests/db/support/process_support.h"

namespace stepwell::db {
namespace {

using ::testing::IsEmpty;

// The test's own randomness; printed, so that a run can be repeated with the same choices.
std::mt19937_64 Random(const char* test) {
  const uint64_t seed = std::random_device{}();
  std::printf("%s: seed %lu\n", test, static_cast<unsigned long>(seed));
  return std::mt19937_64(seed);
}

void SleepMicroseconds(uint64_t count) {
  std::this_thread::sleep_for(std::chrono::microseconds(count));
}

// Returns true if somebody holds the store's lock at this moment.
bool IsLocked(const std::string& store) {
  const int file = open(LockFilePath(store).c_str(), O_RDONLY | O_CLOEXEC);
  struct flock lock {};
  lock.l_type = F_RDLCK;
  const bool asked = fcntl(file, F_OFD_GETLK, &lock) == 0;
  close(file);
  return asked && lock.l_type != F_UNLCK;
}

uint64_t AllocatedBytes(Store* store) { return store->Stats().segment_bytes; }

void ExpectClean(Store* store) {
  const auto report = store->Verify({});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  for (const VerifyProblem& problem : report->problems) ADD_FAILURE() << problem.message;
  EXPECT_THAT(store->recovery().problems, IsEmpty());
}

struct KillCase {
  const char* name;
  const char* disk;
  uint64_t kills;
};

class KillTest : public ::testing::TestWithParam<KillCase> {
 protected:
  StoreOptions Options() const {
    StoreOptions options;
    options.steps_before_index = 0;  // an index at any size
    options.disk =
        std::string_view(GetParam().disk) == "uring" ? io::DiskKind::kUring : io::DiskKind::kPosix;
    return options;
  }

  // Kills a writer that starts with `first`, some time after its handle number `wait_for` returned;
  // adds the steps whose handles had returned.
  void RunAndKill(uint64_t first, uint64_t wait_for, uint64_t microseconds, bool while_opening,
                  std::set<uint64_t>* acknowledged) {
    ChildProcess child(
        {STEPWELL_STORE_CHILD, "save", path_, GetParam().disk, std::to_string(first)});
    uint64_t seen = 0;
    const auto take = [&](const std::string& line) {
      if (line.starts_with("saved ")) ++saved_;
      if (line.starts_with("ack ")) {
        acknowledged->insert(std::stoull(line.substr(4)));
        ++acknowledged_;
        ++seen;
      }
      EXPECT_FALSE(line.starts_with("error")) << line;
    };
    if (!while_opening) {
      ASSERT_EQ(child.Line(), "open");
      while (seen < wait_for) {
        const std::string line = child.Line();
        ASSERT_NE(line, "");
        take(line);
      }
    }
    SleepMicroseconds(microseconds);
    child.Kill();
    for (const std::string& line : child.Rest()) take(line);
  }

  TempDir dir_;
  const std::string path_ = dir_ / "run";
  uint64_t saved_ = 0;
  uint64_t acknowledged_ = 0;
};

TEST_P(KillTest, EveryAcknowledgedStepIsThereAndLostSpaceComesBack) {
  std::mt19937_64 random = Random(GetParam().name);
  std::set<uint64_t> expected;  // steps that must be there
  uint64_t next = 0;
  uint64_t most_bytes = 0;
  uint64_t unacknowledged = 0;
  const uint64_t kills = InAStorm(GetParam().kills);
  for (uint64_t kill = 0; kill < kills; ++kill) {
    SCOPED_TRACE(StrCat("kill ", kill));
    const bool while_opening = kill % 8 == 7;
    RunAndKill(next, random() % 4, random() % 20000, while_opening, &expected);
    auto store = Store::Open(path_, Options());
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    const std::vector<uint64_t> steps = StepNumbers(store->get());
    const std::set<uint64_t> found(steps.begin(), steps.end());
    for (const uint64_t step : expected) {
      EXPECT_TRUE(found.contains(step)) << "step " << step << " was acknowledged and is gone";
    }
    // Those that were not acknowledged may be there, but then wholly.
    for (const uint64_t step : found) {
      EXPECT_OK(CheckSeeded(store->get(), step, step, KillState(step)));
      if (!expected.contains(step)) ++unacknowledged;
      next = std::max(next, step + 1);
    }
    ExpectClean(store->get());
    // On in the same store: a step of this process, and all but the last two are deleted.
    const auto handle = SaveSeeded(store->get(), next, next, KillState(next));
    ASSERT_TRUE(handle.ok()) << handle.status().ToString();
    ASSERT_OK(handle->Wait());
    expected = {next++};
    std::vector<uint64_t> old = steps;
    if (!old.empty()) {
      expected.insert(old.back());
      old.pop_back();
    }
    ASSERT_OK((*store)->Delete(old));
    ASSERT_OK((*store)->Close());
    StoreOptions read_only = Options();
    read_only.read_only = true;
    const auto reader = Store::Open(path_, read_only);
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    EXPECT_EQ(StepNumbers(reader->get()).size(), expected.size());
    most_bytes = std::max(most_bytes, AllocatedBytes(reader->get()));
    if (HasFatalFailure()) return;
  }
  std::printf(
      "%s: %lu kills, %lu saves, %lu acknowledged, %lu of the others survived whole, at most "
      "%lu KiB of segments after a session\n",
      GetParam().name, static_cast<unsigned long>(kills), static_cast<unsigned long>(saved_),
      static_cast<unsigned long>(acknowledged_), static_cast<unsigned long>(unacknowledged),
      static_cast<unsigned long>(most_bytes >> 10));
  EXPECT_GT(acknowledged_, kills / 2);
  // Two live steps of up to 2.4 MB; the segments they are in (16 MiB at most, with the dead steps
  // of the same session); and the segments back to the second-newest catalog, which are kept.
  EXPECT_LE(most_bytes, uint64_t{64} << 20);
}

INSTANTIATE_TEST_SUITE_P(Disks, KillTest,
                         ::testing::Values(KillCase{"Uring", "uring", 32},
                                           KillCase{"Posix", "posix", 16}),
                         [](const auto& param) { return param.param.name; });

// The kernel goes on with the writes of a killed process. None may land in what the next writer
// put where they were going: the blocks of lost steps are free again as soon as it opens.
TEST(KillInFlightTest, NoOldWriteLandsInNewData) {
  constexpr uint64_t kStepBytes = uint64_t{32} << 20;
  constexpr uint64_t kNewBytes = uint64_t{16} << 20;
  constexpr uint64_t kInFlightMin = uint64_t{64} << 20;
  const uint64_t kills = InAStorm(12);
  TempDir dir;
  const std::string path = dir / "run";
  std::mt19937_64 random = Random("KillInFlight");
  StoreOptions options;
  options.disk = io::DiskKind::kUring;
  options.codec = CodecPolicy::kRaw;
  uint64_t next = 0;
  uint64_t counted = 0;
  uint64_t locked = 0;
  std::vector<uint64_t> live;
  // Goes on until one was seen to leave the lock with writes that were still landing.
  for (uint64_t kill = 0; counted < kills || locked == 0; ++kill) {
    ASSERT_LT(kill, 2 * kills + 100) << "only " << counted << " kills had 64 MiB in flight";
    SCOPED_TRACE(StrCat("kill ", kill));
    uint64_t saved = 0;
    uint64_t acknowledged = 0;
    {
      ChildProcess child({STEPWELL_STORE_CHILD, "big", path, "uring", std::to_string(next),
                          std::to_string(kStepBytes)});
      const auto take = [&](const std::string& line) {
        EXPECT_FALSE(line.starts_with("error")) << line;
        if (line.starts_with("saved ")) ++saved;
        if (line.starts_with("ack ")) ++acknowledged;
      };
      while (saved < 3) {
        const std::string line = child.Line();
        ASSERT_NE(line, "");
        take(line);
      }
      SleepMicroseconds(random() % 8000);
      child.Kill();
      if (IsLocked(path)) ++locked;
      for (const std::string& line : child.Rest()) take(line);
    }
    if ((saved - acknowledged) * kStepBytes >= kInFlightMin) ++counted;

    auto store = Store::Open(path, options);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    // New data at once, before anything is looked at.
    const uint64_t mine = next + saved + 1;
    auto handle = (*store)->Save(BigRequest(mine, kNewBytes));
    ASSERT_TRUE(handle.ok()) << handle.status().ToString();
    ASSERT_OK(handle->Wait());
    ExpectClean(store->get());
    const std::vector<uint64_t> steps = StepNumbers(store->get());
    // The last save of this process counts, too, once everything that was in flight then has
    // landed.
    for (const uint64_t step : live) {
      EXPECT_EQ(std::count(steps.begin(), steps.end(), step), 1) << step;
    }
    if (kill % 10 == 0) {
      EXPECT_OK(CheckBig(store->get(), mine, kNewBytes));
    }
    EXPECT_GE(steps.size(), live.size() + acknowledged + 1);
    std::vector<uint64_t> old = steps;
    std::erase(old, mine);
    ASSERT_OK((*store)->Delete(old));
    ASSERT_OK((*store)->Close());
    live = {mine};
    next = mine + 1;
    if (::testing::Test::HasFailure()) return;
  }
  std::printf(
      "KillInFlight: %lu kills with 64 MiB or more in flight, %lu left the lock with writes that "
      "were "
      "still landing\n",
      static_cast<unsigned long>(counted), static_cast<unsigned long>(locked));
  EXPECT_GT(locked, 0) << "no write outlived its process: this run has shown nothing";
}

}  // namespace
}  // namespace stepwell::db
