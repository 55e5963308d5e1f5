// SPDX-License-Identifier: Apache-2.0
// Views over opens, closings, full disks and threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/db/support/view_support.h"

namespace stepwell::db::view_tests {
namespace {

class ViewClosingTest : public ViewTest {};

TEST_P(ViewClosingTest, SeveralViewsInTheirOwnShapes) {
  store_ = OpenStore();
  const auto one = MustOpen("one");
  ViewOptions options = Options();
  options.checkpoint.layout = ExportLayout::kV0;
  options.checkpoint.step_prefix = "ckpt";
  options.checkpoint.step_digits = 6;
  const auto two = Open("two", options);
  ASSERT_TRUE(two.ok()) << two.status().ToString();
  Save(1);
  Save(12);
  Delete(1);
  Save(7);
  EXPECT_THAT(Now(one.get()), ElementsAre("12", "7"));
  EXPECT_THAT(Now(two->get()), ElementsAre("ckpt_000007", "ckpt_000012"));
  EXPECT_TRUE(fs::exists(dir_ / "one/7/orbax.checkpoint"));
  EXPECT_FALSE(fs::exists(dir_ / "two/ckpt_000007/orbax.checkpoint"));
  EXPECT_EQ(store_->Stats().views.size(), 2U);
  ASSERT_OK(one->Close(/*keep=*/false));
  Save(8);
  EXPECT_THAT(Now(two->get()), ElementsAre("ckpt_000007", "ckpt_000008", "ckpt_000012"));

  // Other options make all of it anew.
  options.checkpoint.step_prefix = "";
  const auto renamed = Open("two", options);
  ASSERT_TRUE(renamed.ok()) << renamed.status().ToString();
  EXPECT_THAT(Now(renamed->get()), ElementsAre("000007", "000008", "000012"));
  EXPECT_TRUE((*two)->closed());
}

TEST_P(ViewClosingTest, TheNextOpenServesThemAgain) {
  const fs::path root = dir_ / "view";
  store_ = OpenStore();
  ViewOptions options = Options();
  options.checkpoint.step_digits = 3;
  options.checkpoint.items = {"state"};
  ASSERT_OK(Open("view", options).status());
  auto given_up = MustOpen("given up");
  auto closed = MustOpen("closed");
  for (uint64_t step = 1; step <= 3; ++step) Save(step);
  EXPECT_THAT(Now(closed.get()), ElementsAre("1", "2", "3"));
  ASSERT_OK(closed->Close(/*keep=*/false));
  ASSERT_OK(store_->Close());
  EXPECT_THAT(Shown(root), ElementsAre("001", "002", "003"));
  fs::remove_all(dir_ / "given up");
  // A writer may have died before its view had seen the end of step 9.
  fs::copy(root / "001", root / "009",
           fs::copy_options::recursive | fs::copy_options::copy_symlinks);

  store_ = OpenStore();
  EXPECT_FALSE(fs::exists(root / "009")) << "before anything is reclaimed";
  Delete(2);
  ASSERT_EQ(store_->Stats().views.size(), 1U);
  auto view = Open("view", options);
  ASSERT_TRUE(view.ok()) << view.status().ToString();
  EXPECT_THAT(Now(view->get()), ElementsAre("001", "003"));
  EXPECT_EQ(store_->Stats().views.size(), 1U);
  EXPECT_FALSE(fs::exists(dir_ / "given up"));
  EXPECT_FALSE(fs::exists(dir_ / "closed"));
  ASSERT_OK(store_->Close());

  // A copy of the store is another store, and leaves the view to this one.
  fs::copy(dir_ / "store", dir_ / "copy", fs::copy_options::recursive);
  const auto copy = OpenStore(/*read_only=*/false, "copy");
  EXPECT_THAT(copy->Stats().views, IsEmpty());
  const uint64_t step = 3;
  ASSERT_OK(copy->Delete({&step, 1}));
  ASSERT_OK(copy->Close());
  EXPECT_THAT(Shown(root), ElementsAre("001", "003"));

  // The file of remembered views may be lost.
  std::ofstream(dir_ / "store/VIEWS") << "{";
  store_ = OpenStore();
  EXPECT_THAT(store_->Stats().views, IsEmpty());
  EXPECT_THAT(Logged(), HasSubstr("its views are not known"));
  view = Open("view", options);
  ASSERT_TRUE(view.ok()) << view.status().ToString();
  EXPECT_THAT(Now(view->get()), ElementsAre("001", "003"));
}

TEST_P(ViewClosingTest, OneThatTheNextOpenServesCanBeForgotten) {
  store_ = OpenStore();
  Save(1);
  EXPECT_THAT(Now(MustOpen().get()), ElementsAre("1"));
  ASSERT_OK(store_->Close());
  store_ = OpenStore();
  ASSERT_EQ(store_->Stats().views.size(), 1U);
  const auto view = MustOpen();
  ASSERT_OK(view->Close(/*keep=*/false));
  EXPECT_FALSE(fs::exists(dir_ / "view"));
  ASSERT_OK(store_->Close());
  store_ = OpenStore();
  EXPECT_THAT(store_->Stats().views, IsEmpty());
}

TEST_P(ViewClosingTest, WhatOrbaxCannotHoldIsNotShownAndHarmsNothing) {
  store_ = OpenStore();
  const auto strict = MustOpen("strict");
  ViewOptions options = Options();
  options.checkpoint.on_unsupported = OnUnsupported::kSkip;
  const auto lax = Open("lax", options);
  ASSERT_TRUE(lax.ok()) << lax.status().ToString();
  Save(1);
  SaveOdd(2);
  Save(3);
  EXPECT_THAT(Now(strict.get()), ElementsAre("1", "3"));
  EXPECT_THAT(Now(lax->get()), ElementsAre("1", "2", "3"));
  EXPECT_EQ(strict->Stats().not_shown, 1U);
  EXPECT_THAT(strict->Stats().last_error, HasSubstr("uint4"));
  EXPECT_THAT(Logged(), HasSubstr("step 2 is not shown"));
  const uint64_t errors = strict->Stats().errors;
  Save(4);
  EXPECT_THAT(Now(strict.get()), ElementsAre("1", "3", "4"));
  EXPECT_EQ(strict->Stats().errors, errors) << "it is not tried again and again";
  Delete(2);
  EXPECT_THAT(Now(strict.get()), ElementsAre("1", "3", "4"));
  EXPECT_EQ(strict->Stats().not_shown, 0U);
}

TEST_P(ViewClosingTest, ClosingEndsWhateverCannotBeShown) {
  const Watchdog watchdog;
  for (const bool closes_store : {false, true}) {
    store_ = OpenStore(/*read_only=*/false, closes_store ? "one" : "two");
    const auto view = MustOpen(closes_store ? "view one" : "view two");
    for (const uint64_t step : {1U, 2U, 3U}) SaveOdd(step);
    EXPECT_THAT(Now(view.get()), IsEmpty());
    EXPECT_EQ(view->Stats().not_shown, 3U);
    SaveOdd(4);  // not refused before the last look
    Save(5);
    ASSERT_OK(closes_store ? store_->Close() : view->Close(/*keep=*/true));
    EXPECT_THAT(Shown(view->path()), ElementsAre("5"));
    EXPECT_EQ(view->Stats().not_shown, 4U);
    EXPECT_EQ(view->Stats().errors, 4U) << "each is tried once";
    ASSERT_OK(store_->Close());
  }
}

TEST_P(ViewClosingTest, ClosingEndsOnAFullDisk) {
  const Watchdog watchdog;
  const Mount disk(FsKind::kTmpfs, 256 << 10);
  ASSERT_MOUNTED(disk);
  store_ = OpenStore();
  const auto view = OpenView(*store_, disk / "view", Options());
  ASSERT_TRUE(view.ok()) << view.status().ToString();
  {
    std::ofstream filler(disk / "filler", std::ios::binary);
    filler << std::string(1 << 20, 'x');
  }
  for (const uint64_t step : {1U, 2U, 3U}) Save(step);
  ASSERT_OK(store_->Close());
  EXPECT_THAT(Shown(disk / "view"), IsEmpty());
  EXPECT_GT((*view)->Stats().errors, 0U);
}

TEST_P(ViewClosingTest, ClosingWithoutKeepingMakesNothingMore) {
  store_ = OpenStore();
  auto reading = OpenStore(/*read_only=*/true);
  ViewOptions options = Options();
  options.poll = std::chrono::hours(1);
  const auto view = OpenView(*reading, dir_ / "view", options);
  ASSERT_TRUE(view.ok()) << view.status().ToString();
  EXPECT_THAT(Now(view->get()), IsEmpty());
  for (const uint64_t step : {1U, 2U, 3U}) Save(step);
  ASSERT_OK((*view)->Close(/*keep=*/false));
  EXPECT_EQ((*view)->Stats().made, 0U);
  EXPECT_FALSE(fs::exists(dir_ / "view"));
}

TEST_P(ViewClosingTest, AViewThatFailsFailsNoSave) {
  store_ = OpenStore();
  const auto view = MustOpen();
  fs::create_directories(dir_ / "view/2/mine");  // in the way
  Save(1);
  Save(2);
  Save(3);
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "3"));
  EXPECT_GT(view->Stats().errors, 0U);
  EXPECT_THAT(view->Stats().last_error, HasSubstr("view/2"));
  fs::remove_all(dir_ / "view/2");
  Save(4);
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "2", "3", "4"));

  // The user deletes the directory.
  fs::remove_all(dir_ / "view");
  Save(5);
  EXPECT_OK(view->WaitUntilCurrent(kLong).status());
  EXPECT_FALSE(fs::exists(dir_ / "view"));
  EXPECT_FALSE(view->Stats().following);
  EXPECT_THAT(Logged(), HasSubstr("was removed"));
  const uint64_t errors = view->Stats().errors;
  Save(6);
  EXPECT_OK(view->WaitUntilCurrent(kLong).status());
  EXPECT_EQ(view->Stats().errors, errors);
  for (uint64_t step = 1; step <= 6; ++step) {
    EXPECT_OK(CheckSeeded(store_.get(), step, step, kState));
  }
  EXPECT_OK(store_->Close());
}

TEST_P(ViewClosingTest, AFullDiskOfTheViewHarmsNothing) {
  const Mount disk(FsKind::kTmpfs, 4 << 20);
  ASSERT_MOUNTED(disk);
  store_ = OpenStore();
  Save(1);
  const auto view = OpenView(*store_, disk / "view", Options());
  ASSERT_TRUE(view.ok()) << view.status().ToString();
  EXPECT_THAT(Now(view->get()), ElementsAre("1"));
  {
    std::ofstream filler(disk / "filler", std::ios::binary);
    filler << std::string(5 << 20, 'x');
  }
  Save(2);
  Save(3);
  EXPECT_THAT(Now(view->get()), ElementsAre("1"));
  EXPECT_GT((*view)->Stats().errors, 0U);
  Delete(1);
  const std::vector<std::string> without = Now(view->get());
  EXPECT_EQ(std::count(without.begin(), without.end(), "1"), 0) << "removing needs no room";
  fs::remove(disk / "filler");
  Save(4);
  EXPECT_THAT(Now(view->get()), ElementsAre("2", "3", "4"));
  for (const uint64_t step : {2U, 3U, 4U}) EXPECT_OK(CheckSeeded(store_.get(), step, step, kState));
  EXPECT_OK(store_->Close());
}

TEST_P(ViewClosingTest, SavesAndDeletesOfSeveralThreads) {
  store_ = OpenStore();
  const auto one = MustOpen("one");
  const auto two = MustOpen("two");
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 3; ++thread) {
    threads.emplace_back([this, thread] {
      for (uint64_t i = 0; i < 12; ++i) {
        const uint64_t step = 100 * thread + i;
        Save(step);
        if (i % 3 != 0) Delete(step);
        if (i % 6 == 0) Save(step, IfExists::kReplace, step + 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // A step that is moved later is made anew while it is looked at.
  ASSERT_OK(store_->Reclaim().status());
  const std::vector<std::string> wanted = {"0",   "100", "103", "106", "109", "200",
                                           "203", "206", "209", "3",   "6",   "9"};
  EXPECT_EQ(Now(one.get()), wanted);
  EXPECT_EQ(Now(two.get()), wanted);
  for (const std::string& name : wanted) {
    const uint64_t step = std::stoull(name);
    const uint64_t seed = step + (step % 100 % 6 == 0 ? 1 : 0);
    EXPECT_OK(CheckShown(one->PathOf(step), seed));
  }
}

TEST_P(ViewClosingTest, AnotherProcessCanMirrorTheStore) {
  options_.keep = {KeepRule::Latest(3)};
  store_ = OpenStore();
  Save(1);
  auto reading = OpenStore(/*read_only=*/true);
  ViewOptions options = Options();
  options.poll = milliseconds(1);
  auto view = OpenView(*reading, dir_ / "view", options);
  ASSERT_TRUE(view.ok()) << view.status().ToString();
  EXPECT_THAT(Now(view->get()), ElementsAre("1"));
  for (uint64_t step = 2; step < 30; ++step) {
    Save(step);
    // Without being asked: all that it does not show yet keeps space, so it must look by itself.
    while (!fs::exists((*view)->PathOf(step))) std::this_thread::yield();
  }
  EXPECT_THAT(Now(view->get()), ElementsAre("27", "28", "29"));
  EXPECT_OK(CheckShown((*view)->PathOf(27), 27));
  EXPECT_EQ((*view)->Stats().errors, 0U) << (*view)->Stats().last_error;
  ASSERT_OK(store_->Reclaim().status());
  EXPECT_EQ(store_->Stats().space.pinned_by_readers_bytes, 0U);
  ASSERT_OK(reading->Close());
  EXPECT_FALSE(fs::exists(dir_ / "view")) << "a closed view follows no deletes";
}

INSTANTIATE_TEST_SUITE_P(Placings, ViewClosingTest,
                         ::testing::Values(Placing::kLinks, Placing::kCopies), PlacingName);

}  // namespace
}  // namespace stepwell::db::view_tests
