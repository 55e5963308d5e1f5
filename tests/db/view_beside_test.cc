// SPDX-License-Identifier: Apache-2.0
// Views in the directory that the store lies in: other programs' files stay as they are, and the
// whole can be moved and copied. What Orbax makes of them: tests/python/test_view_beside.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/db/support/view_support.h"

namespace stepwell::db::view_tests {
namespace {

class ViewBesideTest : public ViewTest {
 protected:
  ViewBesideTest() { fs::create_directory(root_); }

  std::unique_ptr<Store> OpenBeside(const std::string& root = "root") {
    return OpenStore(/*read_only=*/false, root + "/.stepwell");
  }
  Result<std::shared_ptr<OrbaxView>> Show(const std::string& root = "root") {
    ViewOptions options = Options();
    options.beside = true;
    return Open(root, options);
  }
  std::shared_ptr<OrbaxView> MustShow(const std::string& root = "root") {
    auto view = Show(root);
    EXPECT_TRUE(view.ok()) << view.status().ToString();
    return view.ok() ? *view : nullptr;
  }
  // The view that opening the store brought back, once it has caught up.
  std::vector<std::string> Follows(const std::string& root) {
    const auto view = MustShow(root);  // gives that one
    if (view == nullptr) return {};
    EXPECT_EQ(store_->Stats().views.size(), 1U);
    return Now(view.get());
  }
  void CopyRoot(const std::string& to) {
    fs::copy(root_, dir_ / to, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  }
  static ino_t InodeOf(const fs::path& path) {
    struct stat info {};
    EXPECT_EQ(lstat(path.c_str(), &info), 0) << path;
    return info.st_ino;
  }

  const fs::path root_ = dir_ / "root";
};

TEST_F(ViewBesideTest, StepsAreShownAmongFilesOfOtherPrograms) {
  fs::create_directories(root_ / "2/state");
  std::ofstream(root_ / "2/state/manifest.ocdbt") << "theirs";
  fs::create_directories(root_ / "7.orbax-checkpoint-tmp/state");
  std::ofstream(root_ / "notes") << "mine";
  store_ = OpenBeside();
  for (uint64_t step = 1; step <= 3; ++step) Save(step);
  const auto view = MustShow();
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "3"));
  for (const auto& entry : fs::directory_iterator(root_ / "3/state/d")) {
    if (!entry.is_symlink()) continue;
    EXPECT_EQ(fs::read_symlink(entry.path()).parent_path(), "../../../.stepwell/segments");
  }
  EXPECT_EQ(ReadViewed(root_ / "3", PlaceOf(store_.get(), 3)), LeafData(kState[0], 3));
  // Once for the step, however often it is looked at.
  Save(7);
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "3"));
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "3"));
  ViewStats stats = view->Stats();
  EXPECT_EQ(stats.not_shown, 2U);
  EXPECT_EQ(stats.errors, 2U);
  EXPECT_THAT(Logged(), HasSubstr("step 2 is not shown: " + (root_ / "2").string() + " is there"));
  // Neither deleting the step nor closing the view touches theirs.
  Delete(2);
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "3"));
  EXPECT_EQ(view->Stats().not_shown, 1U);
  Save(2);
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "3"));
  EXPECT_EQ(view->Stats().not_shown, 2U);
  EXPECT_EQ(TextOf(root_ / "2/state/manifest.ocdbt"), "theirs");
  // What they give up is shown.
  fs::remove_all(root_ / "2");
  fs::remove_all(root_ / "7.orbax-checkpoint-tmp");
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "2", "3", "7"));
  EXPECT_EQ(view->Stats().not_shown, 0U);
  ASSERT_OK(view->Close(/*keep=*/false));
  EXPECT_EQ(TextOf(root_ / "notes"), "mine");
  EXPECT_FALSE(fs::exists(root_ / "STEPWELL_VIEW"));
  EXPECT_FALSE(fs::exists(root_ / "1"));
  EXPECT_TRUE(fs::exists(root_ / ".stepwell/STEPWELL"));
}

TEST_F(ViewBesideTest, AMovedRootGoesOnWithWhatItShows) {
  store_ = OpenBeside();
  Save(1);
  EXPECT_THAT(Now(MustShow().get()), ElementsAre("1"));
  ASSERT_OK(store_->Close());
  const ino_t before = InodeOf(root_ / "1");
  fs::rename(root_, dir_ / "moved");
  EXPECT_THAT(Shown(dir_ / "moved"), ElementsAre("1"));
  store_ = OpenBeside("moved");
  Save(2);
  EXPECT_THAT(Follows("moved"), ElementsAre("1", "2"));
  EXPECT_EQ(InodeOf(dir_ / "moved/1"), before) << "it need not be made again";
  Delete(1);
  EXPECT_THAT(Follows("moved"), ElementsAre("2"));
  EXPECT_EQ(ReadViewed(dir_ / "moved/2", PlaceOf(store_.get(), 2)), LeafData(kState[0], 2));
  EXPECT_THAT(TextOf(dir_ / "moved/STEPWELL_VIEW"), Not(HasSubstr(dir_.path())));
  ASSERT_OK(store_->Close());
  fs::remove_all(dir_ / "moved");
  EXPECT_FALSE(fs::exists(dir_ / "moved"));
}

// A copy may have been made while the view changed the directory.
TEST_F(ViewBesideTest, ACopiedRootIsMadeWholeByTheNextWriter) {
  store_ = OpenBeside();
  Save(1);
  Save(2);
  EXPECT_THAT(Now(MustShow().get()), ElementsAre("1", "2"));
  const Place place = PlaceOf(store_.get(), 2);
  ASSERT_OK(store_->Close());
  CopyRoot("copy");
  EXPECT_THAT(Shown(dir_ / "copy"), ElementsAre("1", "2"));
  EXPECT_EQ(ReadViewed(dir_ / "copy/2", place), LeafData(kState[0], 2));
  for (const auto& entry : fs::directory_iterator(dir_ / "copy/2/state/d")) {
    if (!entry.is_symlink()) continue;
    EXPECT_EQ(fs::canonical(entry.path()).parent_path(),
              fs::path(dir_ / "copy/.stepwell/segments"));
  }
  fs::remove(dir_ / "copy/1/state/manifest.ocdbt");
  store_ = OpenBeside("copy");
  EXPECT_THAT(Follows("copy"), ElementsAre("1", "2"));
  Delete(1);
  EXPECT_THAT(Follows("copy"), ElementsAre("2"));
  EXPECT_THAT(Shown(root_), ElementsAre("1", "2"));
}

// A step that somebody copied, with its data, is theirs; so is one of another store.
TEST_F(ViewBesideTest, CopiesOfShownStepsAreOthers) {
  store_ = OpenBeside();
  Save(1);
  Save(2);
  auto view = MustShow();
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "2"));
  ASSERT_OK(view->Close(/*keep=*/true));
  fs::copy(root_ / "1", root_ / "1-kept", fs::copy_options::recursive);
  fs::copy(root_ / "1", root_ / "9", fs::copy_options::recursive);
  std::string text = TextOf(root_ / "1/stepwell-view");
  const size_t at = text.find("store-id ") + 9;
  text[at] = text[at] == '0' ? '1' : '0';
  std::ofstream(root_ / "1/stepwell-view") << text;
  view = MustShow();
  ASSERT_TRUE(view->WaitUntilCurrent(kLong).ok());
  for (const char* name : {"1", "1-kept", "2", "9"}) EXPECT_TRUE(fs::exists(root_ / name)) << name;
  EXPECT_EQ(view->Stats().not_shown, 1U) << "another store's 1 has its name";
  ASSERT_OK(view->Close(/*keep=*/false));
  EXPECT_FALSE(fs::exists(root_ / "2"));
  for (const char* name : {"1", "1-kept", "9"}) EXPECT_TRUE(fs::exists(root_ / name)) << name;
}

TEST_F(ViewBesideTest, OnlyTheDirectoryOfTheStoreIsTaken) {
  store_ = OpenBeside();
  const auto refused = [&](const std::string& path, bool beside) {
    ViewOptions options = Options();
    options.beside = beside;
    EXPECT_EQ(Open(path, options).status().code(), StatusCode::kInvalidArgument) << path;
  };
  refused("other", true);
  refused("root/.stepwell", true);
  refused("root/1", true);
  refused("", true);
  refused("root", false);
  const auto view = MustShow();
  EXPECT_EQ(MustShow(), view) << "it is the one that is there";
  refused("root", false);
  ASSERT_OK(store_->Close());
  store_ = OpenStore();
  refused("", true);
  EXPECT_FALSE(fs::exists(dir_ / "other"));
}

TEST_F(ViewBesideTest, StepsThatOthersRemoveAreNotCounted) {
  store_ = OpenBeside();
  Save(1);
  Save(2);
  const auto view = MustShow();
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "2"));
  fs::remove_all(root_ / "1");
  EXPECT_THAT(Now(view.get()), ElementsAre("2"));
  EXPECT_EQ(view->Stats().shown, 1U);
  EXPECT_EQ(view->Stats().errors, 0U);
  // Deleting it is no error, and saving it again shows it.
  Delete(1);
  EXPECT_THAT(Now(view.get()), ElementsAre("2"));
  Save(1);
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "2"));
  fs::remove_all(root_ / "1");
  EXPECT_THAT(Now(view.get()), ElementsAre("2"));
  Save(1, IfExists::kReplace, 11);
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "2"));
  EXPECT_EQ(view->Stats().shown, 2U);
  EXPECT_EQ(view->Stats().errors, 0U) << view->Stats().last_error;
}

TEST_F(ViewBesideTest, WhatAPowerCutLeftOfAStepIsMadeAnew) {
  store_ = OpenBeside();
  Save(1);
  EXPECT_THAT(Now(MustShow().get()), ElementsAre("1"));
  ASSERT_OK(store_->Close());
  std::ofstream(root_ / "1/stepwell-view", std::ios::trunc) << "";
  std::ofstream(root_ / "STEPWELL_VIEW", std::ios::trunc) << "";
  fs::remove(root_ / "1/state/manifest.ocdbt");
  store_ = OpenBeside();
  EXPECT_THAT(Follows("root"), ElementsAre("1"));
  EXPECT_THAT(TextOf(root_ / "STEPWELL_VIEW"), HasSubstr("store .stepwell"));
}

}  // namespace
}  // namespace stepwell::db::view_tests
