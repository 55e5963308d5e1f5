// SPDX-License-Identifier: Apache-2.0
// The space of a store and its view together stays bounded under retention, whatever the sizes of
// steps, whoever holds one, and whoever keeps links of one elsewhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/db/support/view_support.h"

namespace stepwell::db::view_tests {
namespace {

constexpr uint64_t kMebi = uint64_t{1} << 20;

class ViewSpaceTest : public ViewTest {
 protected:
  ViewSpaceTest() { options_.keep = {KeepRule::Latest(3)}; }

  static std::vector<LeafSpec> StateOf(uint64_t bytes) {
    return {{"w", {bytes / 4000, 1000}, true, false}};
  }
  void SaveSized(uint64_t step, uint64_t bytes) {
    auto handle = SaveSeeded(store_.get(), step, step, StateOf(bytes));
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
    CatchUp();
  }
  void CatchUp() {
    if (view_ == nullptr) return;
    EXPECT_TRUE(view_->WaitUntilCurrent(kLong).ok());
  }
  // Sums the sizes of all files below, each once.
  uint64_t Space() {
    EXPECT_OK(store_->Reclaim().status());
    CatchUp();
    EXPECT_OK(store_->Reclaim().status());
    std::set<ino_t> seen;
    uint64_t bytes = 0;
    for (const char* folder : {"store/segments", "view"}) {
      std::error_code gone;
      for (const auto& entry : fs::recursive_directory_iterator(dir_ / folder, gone)) {
        struct stat info {};
        if (stat(entry.path().c_str(), &info) != 0 || S_ISDIR(info.st_mode)) continue;
        if (seen.insert(info.st_ino).second) bytes += static_cast<uint64_t>(info.st_blocks) * 512;
      }
    }
    return bytes;
  }

  std::shared_ptr<OrbaxView> view_;
};

TEST_P(ViewSpaceTest, StaysBoundedWhateverTheSizes) {
  const std::vector<std::pair<std::string, std::vector<uint64_t>>> runs = {
      {"small", {200'000}},
      {"large", {3 * kMebi, 9 * kMebi}},
      {"mixed", {200'000, 200'000, 6 * kMebi, kMebi, 100'000}}};
  for (const auto& [name, sizes] : runs) {
    SCOPED_TRACE(name);
    store_ = nullptr;
    view_ = nullptr;
    fs::remove_all(dir_ / "store");
    fs::remove_all(dir_ / "view");
    store_ = OpenStore();
    view_ = MustOpen();
    uint64_t peak = 0;
    uint64_t live = 0;
    for (uint64_t step = 0; step < 45; ++step) {
      SaveSized(step, sizes[step % sizes.size()]);
      if (step % 9 == 8) peak = std::max(peak, Space());
    }
    for (uint64_t step = 42; step < 45; ++step) live += sizes[step % sizes.size()];
    const uint64_t large = *std::max_element(sizes.begin(), sizes.end());
    // Live steps twice where they are copied, the two newest segments, what is reserved, spares.
    EXPECT_LT(peak, 8 * large + 2 * live + 24 * kMebi);
    EXPECT_THAT(Shown(dir_ / "view"), ElementsAre("42", "43", "44"));
    for (uint64_t step = 42; step < 45; ++step) {
      EXPECT_OK(CheckShown(view_->PathOf(step), step, StateOf(sizes[step % sizes.size()])));
    }
  }
}

// A reader that holds a step costs that step, not what came after it.
TEST_P(ViewSpaceTest, AHeldStepCostsItself) {
  store_ = OpenStore();
  view_ = MustOpen();
  for (uint64_t step = 0; step < 6; ++step) SaveSized(step, 3 * kMebi);
  const uint64_t before = Space();
  {
    const Held held(view_->PathOf(4));
    for (uint64_t step = 6; step < 30; ++step) SaveSized(step, 3 * kMebi);
    EXPECT_LT(Space(), before + 16 * kMebi);
    EXPECT_OK(CheckShown(view_->PathOf(4), 4, StateOf(3 * kMebi)));
  }
  while (view_->Stats().held > 0) std::this_thread::yield();
  EXPECT_LT(Space(), before + 8 * kMebi);
}

// Steps that live on in segments whose other steps are gone are moved, since what is shown is never
// punched; the view follows, and lets the old segments go.
TEST_P(ViewSpaceTest, FewSurvivorsDoNotKeepTheRest) {
  options_.keep = {KeepRule::Latest(2), KeepRule::Every(10)};
  store_ = OpenStore();
  for (uint64_t step = 0; step < 20; ++step) SaveSized(step, 700'000);
  view_ = MustOpen();
  for (uint64_t step = 20; step < 80; ++step) SaveSized(step, 700'000);
  const uint64_t live = 10 * 700'000;
  EXPECT_LT(Space(), 3 * live + 24 * kMebi);
  EXPECT_EQ(Shown(dir_ / "view").size(), 10U);
  for (const uint64_t step : {0U, 10U, 70U, 79U}) {
    EXPECT_OK(CheckShown(view_->PathOf(step), step, StateOf(700'000)));
  }
}

// `cp -al` of a step keeps that step's segments, and nothing else; they come back with it.
TEST_P(ViewSpaceTest, LinksElsewhereKeepTheirStepsOnly) {
  store_ = OpenStore();
  view_ = MustOpen();
  for (uint64_t step = 0; step < 6; ++step) SaveSized(step, 3 * kMebi);
  const uint64_t before = Space();
  fs::copy(view_->PathOf(5), dir_ / "kept",
           fs::copy_options::recursive | fs::copy_options::create_hard_links);
  for (uint64_t step = 6; step < 30; ++step) SaveSized(step, 3 * kMebi);
  EXPECT_LT(Space(), before + 12 * kMebi);
  EXPECT_OK(CheckShown(dir_ / "kept", 5, StateOf(3 * kMebi)));
}

// On another file system a view's steps are copies.
TEST_P(ViewSpaceTest, AnotherFileSystemHasCopies) {
  const Mount disk(FsKind::kTmpfs, 64 * kMebi);
  ASSERT_MOUNTED(disk);
  store_ = OpenStore();
  auto view = OpenView(*store_, disk / "view", Options());
  ASSERT_OK(view.status());
  view_ = *view;
  for (uint64_t step = 0; step < 20; ++step) SaveSized(step, 3 * kMebi);
  EXPECT_THAT(Shown(disk / "view"), ElementsAre("17", "18", "19"));
  EXPECT_EQ(LinksOf(disk / "view/19"), 0U);
  EXPECT_OK(CheckShown(disk / "view/19", 19, StateOf(3 * kMebi)));
  EXPECT_EQ(view_->Stats().errors, 0U) << view_->Stats().last_error;
  ASSERT_OK(store_->Close());
}

INSTANTIATE_TEST_SUITE_P(Placings, ViewSpaceTest,
                         ::testing::Values(Placing::kLinks, Placing::kCopies), PlacingName);

}  // namespace
}  // namespace stepwell::db::view_tests
