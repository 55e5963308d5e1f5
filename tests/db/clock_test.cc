// SPDX-License-Identifier: Apache-2.0
// Machines whose clock is wrong, or is set.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>

#include "db/environment.h"
#include "db/index/env.h"
#include "db/layout.h"
#include "format/frame.h"
#include "tests/db/support/damage_support.h"

namespace stepwell::db {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kHour = 3600 * kSecond;
constexpr int64_t kYear = 365 * 24 * kHour;

class SetClock final : public io::Clock {
 public:
  int64_t WallNanos() override { return wall; }
  int64_t MonotonicNanos() override { return monotonic; }
  void Pass(int64_t nanos) {
    wall += nanos;
    monotonic += nanos;
  }

  std::atomic<int64_t> wall{50 * kYear};
  std::atomic<int64_t> monotonic{kHour};
};

class ClockTest : public ::testing::Test {
 protected:
  void Open() {
    StoreOptions options;
    options.keep = {KeepRule::Within(std::chrono::hours(1))};
    auto environment = MakeEnvironment(options);
    ASSERT_TRUE(environment.ok()) << environment.status().ToString();
    environment->clock = &clock_;
    auto store = OpenStore(dir_ / "run", options, std::move(*environment));
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    store_ = std::move(*store);
  }
  void Save(uint64_t step) {
    ASSERT_OK(SaveSeeded(store_.get(), step, step, SmallState())->Wait());
  }
  void Close() {
    ASSERT_OK(store_->Close());
    store_.reset();
  }

  TempDir dir_;
  SetClock clock_;
  std::unique_ptr<Store> store_;
};

TEST_F(ClockTest, ADurationIsOfTimeThatPassed) {
  Open();
  for (uint64_t step = 0; step < 4; ++step) {
    Save(step);
    clock_.Pass(kHour / 2);
  }
  EXPECT_THAT(StepNumbers(store_.get()), ElementsAre(1, 2, 3));
  Close();
  Open();
  clock_.Pass(5 * kHour);
  Save(4);  // as old as they were when the last one was saved
  EXPECT_THAT(StepNumbers(store_.get()), ElementsAre(1, 2, 3, 4));
  clock_.Pass(kHour / 2);
  Save(5);
  EXPECT_THAT(StepNumbers(store_.get()), ElementsAre(2, 3, 4, 5));
  clock_.Pass(2 * kHour);
  Save(6);
  EXPECT_THAT(StepNumbers(store_.get()), ElementsAre(6));
}

TEST_F(ClockTest, AClockThatIsSetDeletesNothing) {
  Open();
  for (uint64_t step = 0; step < 3; ++step) Save(step);
  clock_.wall += 10 * kYear;
  Save(3);
  EXPECT_THAT(StepNumbers(store_.get()), ElementsAre(0, 1, 2, 3));
  clock_.wall -= 20 * kYear;
  Save(4);
  EXPECT_THAT(StepNumbers(store_.get()), ElementsAre(0, 1, 2, 3, 4));
  clock_.Pass(2 * kHour);
  Save(5);
  EXPECT_THAT(StepNumbers(store_.get()), ElementsAre(5));
}

TEST_F(ClockTest, AClockThatIsWrongWhenTheMachineStartsDeletesNothing) {
  Open();
  for (uint64_t step = 0; step < 3; ++step) Save(step);
  Close();
  clock_.wall += 30 * kYear;
  clock_.monotonic = 1;
  Open();
  Save(3);
  EXPECT_THAT(StepNumbers(store_.get()), ElementsAre(0, 1, 2, 3));
}

TEST_F(ClockTest, BeforeTheEpoch) {
  clock_.wall = -kYear;
  Open();
  Save(0);
  Save(1);
  Close();
  Open();
  EXPECT_THAT(StepNumbers(store_.get()), ElementsAre(0, 1));
  EXPECT_OK(CheckSeeded(store_.get(), 1, 1, SmallState()));
}

// RocksDB asserts that the time is not before 1970.
TEST(IndexClockTest, IsNeverBeforeTheEpoch) {
  class Early final : public rocksdb::SystemClockWrapper {
   public:
    using SystemClockWrapper::SystemClockWrapper;
    const char* Name() const override { return "Early"; }
    uint64_t NowMicros() override { return static_cast<uint64_t>(seconds * 1'000'000); }
    rocksdb::Status GetCurrentTime(int64_t* now) override {
      *now = seconds;
      return rocksdb::Status::OK();
    }
    int64_t seconds = -100;
  };
  const auto early = std::make_shared<Early>(rocksdb::SystemClock::Default());
  UnhurriedClock clock(early);
  int64_t now = -1;
  EXPECT_TRUE(clock.GetCurrentTime(&now).ok());
  EXPECT_EQ(now, 0);
  EXPECT_EQ(clock.NowMicros(), 0U);
  early->seconds = 100;
  EXPECT_TRUE(clock.GetCurrentTime(&now).ok());
  EXPECT_EQ(now, 100);
  EXPECT_EQ(clock.NowMicros(), 100'000'000U);
}

}  // namespace
}  // namespace stepwell::db
