// SPDX-License-Identifier: Apache-2.0
// RLIMIT_FSIZE smaller than a segment: segments end before it, and only what no segment can hold is
// refused. Each in a forked child.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <functional>

#include "io/open_disk.h"
#include "tests/db/support/big_state.h"
#include "tests/db/support/mount.h"
#include "tests/io/support/end_child.h"

namespace stepwell::db {
namespace {

class FileSizeLimitTest : public ::testing::TestWithParam<io::DiskKind> {
 protected:
  void SetUp() override {
    io::DiskOptions options;
    options.kind = GetParam();
    if (!io::OpenDisk(options).ok()) GTEST_SKIP() << "no io_uring here";
  }
  static void Limit(uint64_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{};
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  // Runs `body` in a forked child and returns its text. The child ends without a limit, because
  // under tests/coverage it writes files then.
  static std::string Run(const std::function<std::string()>& body) {
    return InChild([&] {
      std::string output = body();
      Limit(RLIM_INFINITY);
      return output;
    });
  }
  static Status Save(Store* store, uint64_t step, uint64_t bytes) {
    STEPWELL_ASSIGN_OR_RETURN(const SaveHandle handle, store->Save(BigRequest(step, bytes)));
    return handle.Wait();
  }
  Result<std::unique_ptr<Store>> Open() {
    StoreOptions options;
    options.disk = GetParam();
    options.codec = CodecPolicy::kRaw;
    return Store::Open(path_, options);
  }
  // Counts the steps, each as large as `bytes_of` gives. Also runs in a child: under
  // ThreadSanitizer no process can fork behind threads of its own and start others there.
  std::string Look(uint64_t (*bytes_of)(uint64_t step)) {
    return Run([&]() -> std::string {
      auto store = Open();
      if (!store.ok()) return store.status().ToString();
      const auto steps = StepNumbers(store->get());
      for (const uint64_t step : steps) {
        const Status status = CheckBig(store->get(), step, bytes_of(step));
        if (!status.ok()) return StrCat("step ", step, ": ", status.ToString());
      }
      return StrCat(steps.size(), " steps");
    });
  }

  const TempDir dir_;
  const std::string path_ = dir_ / "run";
};

TEST_P(FileSizeLimitTest, SegmentsEndBeforeTheLimit) {
  constexpr uint64_t kSteps = 24;
  constexpr uint64_t kLarge = 1000;
  EXPECT_EQ(Run([&]() -> std::string {
              Limit(6 * kMiB);
              auto store = Open();
              if (!store.ok()) return store.status().ToString();
              for (uint64_t step = 0; step < kSteps; ++step) {
                if (const Status status = Save(store->get(), step, kMiB); !status.ok()) {
                  return StrCat("step ", step, ": ", status.ToString());
                }
              }
              // One that is larger than a file may be lies in several.
              Status status = Save(store->get(), kLarge, 32 * kMiB);
              if (status.ok()) status = CheckBig(store->get(), kLarge, 32 * kMiB);
              if (status.ok()) status = (*store)->Delete(std::vector<uint64_t>{3, 4, kLarge});
              if (!status.ok()) return status.ToString();
              Limit(100 << 10);  // less than a chunk
              status = Save(store->get(), kSteps, kMiB);
              if (status.code() != StatusCode::kResourceExhausted ||
                  status.message().find("RLIMIT_FSIZE") == std::string::npos) {
                return StrCat("not refused: ", status.ToString());
              }
              status = Save(store->get(), kSteps, 4096);
              if (!status.ok()) return status.ToString();
              return (*store)->Close().ToString();
            }),
            OkStatus().ToString());
  EXPECT_EQ(Look([](uint64_t step) { return step < kSteps ? kMiB : 4096; }),
            StrCat(kSteps - 1, " steps"));
}

// A store with larger segments, one of them not sealed, goes on under a limit.
TEST_P(FileSizeLimitTest, ASegmentThatIsLargerAlready) {
  for (const uint64_t limit : {64 * 1024UL, 300 * 1024UL, 2 * kMiB, 5 * kMiB, 9 * kMiB}) {
    SCOPED_TRACE(limit);
    fs::remove_all(path_);
    EXPECT_EQ(Run([&]() -> std::string {
                auto store = Open();
                if (!store.ok()) return store.status().ToString();
                for (uint64_t step = 0; step < 7; ++step) {
                  if (const Status s = Save(store->get(), step, kMiB); !s.ok()) return s.ToString();
                }
                Limit(limit);
                uint64_t saved = 7;
                for (uint64_t step = 7; step < 40; ++step) {
                  const Status s = Save(store->get(), step, step % 2 == 0 ? kMiB : 4096);
                  if (s.ok()) ++saved;
                  if (!s.ok() && s.code() != StatusCode::kResourceExhausted) return s.ToString();
                  const auto steps = StepNumbers(store->get());
                  if (s.ok() != (std::count(steps.begin(), steps.end(), step) > 0)) {
                    return StrCat("step ", step, " of two minds");
                  }
                }
                if (saved < 20) return StrCat(saved, " steps");
                return "";
              }),
              "");
    const std::string seen =
        Look([](uint64_t step) { return step < 7 || step % 2 == 0 ? kMiB : 4096; });
    EXPECT_THAT(seen, ::testing::EndsWith(" steps"));
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, FileSizeLimitTest,
                         ::testing::Values(io::DiskKind::kPosix, io::DiskKind::kUring),
                         [](const auto& test) {
                           return test.param == io::DiskKind::kPosix ? "Posix" : "Uring";
                         });

}  // namespace
}  // namespace stepwell::db
