// SPDX-License-Identifier: Apache-2.0
// Views in the directory that the store lies in: other programs' files stay as they are, and the
// whole can be moved and copied. What Orbax makes of them: tests/python/test_view_beside.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "db/view/mark.h"
#include "db/view/shown.h"
#include "tests/db/support/view_support.h"

namespace stepwell::db::view_tests {
namespace {

class ViewBesideTest : public ViewTest {
 protected:
  ViewBesideTest() { fs::create_directory(root_); }

  std::unique_ptr<Store> OpenBeside(const std::string& root = "root",
                                    const std::string& name = ".stepwell") {
    return OpenStore(/*read_only=*/false, StrCat(root, "/", name));
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
  // Returns true if the view made the directory of a live step; none if it did not make it.
  static std::optional<bool> LiveOf(const fs::path& path) {
    const auto shown = FindShownStep(path);
    EXPECT_OK(shown.status());
    return shown.ok() && *shown ? std::optional((*shown)->is_live) : std::nullopt;
  }
  static ino_t InodeOf(const fs::path& path) {
    struct stat info {};
    EXPECT_EQ(lstat(path.c_str(), &info), 0) << path;
    return info.st_ino;
  }

  const fs::path root_ = dir_ / "root";
};

TEST_P(ViewBesideTest, StepsAreShownAmongFilesOfOtherPrograms) {
  fs::create_directories(root_ / "2/state");
  std::ofstream(root_ / "2/state/manifest.ocdbt") << "theirs";
  fs::create_directories(root_ / "7.orbax-checkpoint-tmp/state");
  std::ofstream(root_ / "notes") << "mine";
  store_ = OpenBeside();
  for (uint64_t step = 1; step <= 3; ++step) Save(step);
  const auto view = MustShow();
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "3"));
  EXPECT_OK(CheckShown(root_ / "3", 3));
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
  // The view shows the steps whose names the others release.
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

TEST_P(ViewBesideTest, AMovedRootGoesOnWithWhatItShows) {
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
  EXPECT_OK(CheckShown(dir_ / "moved/2", 2));
  EXPECT_THAT(TextOf(dir_ / "moved/2/stepwell-view"), Not(HasSubstr(dir_.path())));
  ASSERT_OK(store_->Close());
  fs::remove_all(dir_ / "moved");
  EXPECT_FALSE(fs::exists(dir_ / "moved"));
}

// A copy may have been made while the view changed the directory.
TEST_P(ViewBesideTest, ACopiedRootIsMadeWholeByTheNextWriter) {
  store_ = OpenBeside();
  Save(1);
  Save(2);
  EXPECT_THAT(Now(MustShow().get()), ElementsAre("1", "2"));
  ASSERT_OK(store_->Close());
  CopyRoot("copy");
  EXPECT_THAT(Shown(dir_ / "copy"), ElementsAre("1", "2"));
  EXPECT_OK(CheckShown(dir_ / "copy/2", 2));
  EXPECT_EQ(LiveOf(dir_ / "copy/2"), true) << "its store was copied along";
  fs::remove(dir_ / "copy/1/state/manifest.ocdbt");
  store_ = OpenBeside("copy");
  EXPECT_THAT(Follows("copy"), ElementsAre("1", "2"));
  Delete(1);
  EXPECT_THAT(Follows("copy"), ElementsAre("2"));
  EXPECT_THAT(Shown(root_), ElementsAre("1", "2"));
}

// A step that somebody copied is theirs, whatever its name, also where the view shows that step and
// where it has shown it before; so is one of another store.
TEST_P(ViewBesideTest, CopiesOfShownStepsAreOthers) {
  store_ = OpenBeside();
  for (const uint64_t step : {1U, 2U, 3U}) Save(step);
  auto view = MustShow();
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "2", "3"));
  fs::copy(root_ / "1", root_ / "1-kept", fs::copy_options::recursive);
  fs::copy(root_ / "1", root_ / "9", fs::copy_options::recursive);
  // Put back in its place.
  for (const char* name : {"1", "3"}) {
    const fs::path backup = dir_ / StrCat("backup-", name);
    fs::copy(root_ / name, backup, fs::copy_options::recursive);
    fs::remove_all(root_ / name);
    fs::copy(backup, root_ / name, fs::copy_options::recursive);
  }
  EXPECT_EQ(LiveOf(root_ / "2"), true);
  for (const char* name : {"1", "1-kept", "9", "3"}) {
    EXPECT_EQ(LiveOf(root_ / name), std::nullopt) << name;
  }
  Delete(3);
  Save(1, IfExists::kReplace, 11);
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "1-kept", "2", "3", "9"));
  EXPECT_EQ(view->Stats().not_shown, 1U) << "1 is taken";
  ASSERT_OK(store_->Close());
  store_ = OpenBeside();
  view = MustShow();
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "1-kept", "2", "3", "9"));
  for (const char* name : {"1", "1-kept", "9"}) EXPECT_OK(CheckShown(root_ / name, 1));
  EXPECT_OK(CheckShown(root_ / "3", 3));
  ASSERT_OK(view->Close(/*keep=*/false));
  EXPECT_FALSE(fs::exists(root_ / "2"));
  for (const char* name : {"1", "1-kept", "3", "9"}) EXPECT_TRUE(fs::exists(root_ / name)) << name;
}

// A directory is one that the store beside shows, one that it has left, or neither.
TEST_P(ViewBesideTest, TheStoreBesideSaysWhatADirectoryIs) {
  store_ = OpenBeside();
  for (const uint64_t step : {1U, 2U, 3U}) Save(step);
  auto view = MustShow();
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "2", "3"));
  const auto shown = FindShownStep(root_ / "2/");
  ASSERT_OK(shown.status());
  ASSERT_TRUE(shown->has_value());
  EXPECT_EQ((*shown)->step, 2U);
  EXPECT_EQ((*shown)->commit, PlaceOf(store_.get(), 2).commit);
  EXPECT_EQ((*shown)->store_path, root_ / ".stepwell");
  // A link to it, a copy in another root with a store of its own, or without one; what is none.
  fs::create_directory(dir_ / "other");
  fs::create_directory_symlink(root_ / "2", dir_ / "other/2");
  fs::copy(root_ / "3", dir_ / "other/3", fs::copy_options::recursive);
  EXPECT_EQ(LiveOf(dir_ / "other/2"), std::nullopt);
  EXPECT_EQ(LiveOf(dir_ / "other/3"), std::nullopt);
  const auto other = OpenBeside("other");
  ASSERT_OK(SaveSeeded(other.get(), 3, 33, kState)->Wait());
  EXPECT_EQ(LiveOf(dir_ / "other/3"), std::nullopt);
  fs::create_directory(root_ / "7");
  ASSERT_EQ(mkfifo((root_ / "7/stepwell-view").c_str(), 0600), 0);
  fs::create_directory(root_ / "8");
  fs::create_symlink(root_ / "2/stepwell-view", root_ / "8/stepwell-view");
  for (const char* name : {"7", "8", "9", ".stepwell", ""}) {
    EXPECT_EQ(LiveOf(root_ / name), std::nullopt) << name;
  }
  // Reached over a link to the root it is itself.
  fs::create_directory_symlink(root_, dir_ / "link");
  EXPECT_EQ(LiveOf(dir_ / "link/2"), true);
  // A view that has not followed yet.
  ASSERT_OK(view->Close(/*keep=*/true));
  Delete(1);
  Save(3, IfExists::kReplace, 33);
  EXPECT_EQ(LiveOf(root_ / "1"), false);
  EXPECT_EQ(LiveOf(root_ / "2"), true);
  EXPECT_EQ(LiveOf(root_ / "3"), false);
}

// Each store has steps of its own names, and touches nothing of the other's.
TEST_P(ViewBesideTest, SeveralStoresShareADirectory) {
  store_ = OpenBeside();
  const auto other = OpenBeside("root", ".stepwell-ckpt0");
  ViewOptions options = Options();
  options.beside = true;
  options.checkpoint.step_prefix = "ckpt";
  options.checkpoint.step_prefix_verbatim = true;
  auto view = MustShow();
  auto others = OpenView(*other, root_, options);
  ASSERT_OK(others.status());
  for (const uint64_t step : {1U, 2U, 3U}) {
    Save(step);
    ASSERT_OK(SaveSeeded(other.get(), step, 10 * step, kState)->Wait());
  }
  const std::vector<std::string> all = {"1", "2", "3", "ckpt1", "ckpt2", "ckpt3"};
  EXPECT_TRUE((*others)->WaitUntilCurrent(kLong).ok());
  EXPECT_EQ(Now(view.get()), all);
  EXPECT_OK(CheckShown(root_ / "2", 2));
  EXPECT_OK(CheckShown(root_ / "ckpt2", 20));
  EXPECT_EQ(FindShownStep(root_ / "ckpt2").value()->store_path, root_ / ".stepwell-ckpt0");
  Delete(1);
  EXPECT_TRUE((*others)->WaitUntilCurrent(kLong).ok());
  EXPECT_THAT(Now(view.get()), ElementsAre("2", "3", "ckpt1", "ckpt2", "ckpt3"));
  // Each view leaves alone what the other makes or removes. An open removes its own.
  ASSERT_OK(store_->Close());
  for (const char* name : {"5", "ckpt5", "6.removed", "ckpt6.removed"}) {
    const fs::path left = root_ / StrCat(name, ".orbax-checkpoint-tmp");
    fs::create_directories(left / "state");
    std::ofstream(left / "stepwell-export.lock") << "";
  }
  store_ = OpenBeside();
  EXPECT_THAT(Follows("root"), ElementsAre("2", "3", "ckpt1", "ckpt2", "ckpt3"));
  EXPECT_FALSE(fs::exists(root_ / "5.orbax-checkpoint-tmp"));
  EXPECT_FALSE(fs::exists(root_ / "6.removed.orbax-checkpoint-tmp"));
  EXPECT_TRUE(fs::exists(root_ / "ckpt5.orbax-checkpoint-tmp"));
  EXPECT_TRUE(fs::exists(root_ / "ckpt6.removed.orbax-checkpoint-tmp"));
  ASSERT_OK((*others)->Close(/*keep=*/false));
  EXPECT_THAT(Shown(root_), ElementsAre("2", "3"));
}

// Older versions claimed the directory by a file.
TEST_P(ViewBesideTest, TheMarkOfAnOlderVersionGoes) {
  store_ = OpenBeside();
  Save(1);
  EXPECT_THAT(Now(MustShow().get()), ElementsAre("1"));
  const std::string id = IdText(store_->id());
  ASSERT_OK(store_->Close());
  EXPECT_FALSE(fs::exists(root_ / "STEPWELL_VIEW"));
  std::ofstream(root_ / "STEPWELL_VIEW") << "stepwell view 1\nstore-id " << id << "\nstore x\n";
  store_ = OpenBeside();
  EXPECT_FALSE(fs::exists(root_ / "STEPWELL_VIEW"));
  ASSERT_OK(store_->Close());
  // A mark of another store, as `cp -rL run/* .` brings it.
  const std::string theirs = "stepwell view 1\nstore-id 00\nstore x\n";
  std::ofstream(root_ / "STEPWELL_VIEW") << theirs;
  store_ = OpenBeside();
  EXPECT_THAT(Follows("root"), ElementsAre("1"));
  EXPECT_EQ(TextOf(root_ / "STEPWELL_VIEW"), theirs);
}

// The store and its view go on where they were moved to, and touch nothing of what takes the name.
TEST_P(ViewBesideTest, ARootThatIsRenamedIsFollowed) {
  options_.keep = {KeepRule::Latest(2)};
  store_ = OpenBeside();
  Save(1);
  const auto view = MustShow();
  EXPECT_THAT(Now(view.get()), ElementsAre("1"));
  fs::rename(root_, dir_ / "old");
  fs::create_directories(root_ / "1/state");
  std::ofstream(root_ / "1/stepwell-view") << "theirs";
  const auto other = OpenBeside();
  ASSERT_OK(SaveSeeded(other.get(), 2, 22, kState)->Wait());
  for (const uint64_t step : {2U, 3U}) Save(step);
  EXPECT_TRUE(view->WaitUntilCurrent(kLong).ok());
  EXPECT_THAT(Shown(dir_ / "old"), ElementsAre("2", "3"));
  EXPECT_OK(CheckShown(dir_ / "old/3", 3));
  EXPECT_EQ(view->Stats().errors, 0U) << view->Stats().last_error;
  EXPECT_TRUE(view->Stats().following);
  EXPECT_EQ(TextOf(root_ / "1/stepwell-view"), "theirs");
  EXPECT_FALSE(fs::exists(root_ / "2"));
  ASSERT_OK(store_->Close());
  store_ = OpenBeside("old");
  EXPECT_THAT(Follows("old"), ElementsAre("2", "3"));
  // A root that is removed ends its view.
  std::error_code busy;  // what works there may still make a file
  do fs::remove_all(dir_ / "old", busy);
  while (busy);
  EXPECT_FALSE(SaveSeeded(store_.get(), 4, 4, kState)->Wait().ok());
}

TEST_P(ViewBesideTest, OnlyTheDirectoryOfTheStoreIsTaken) {
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
  const auto reading = OpenStore(/*read_only=*/true, "root/.stepwell");
  ViewOptions beside = Options();
  beside.beside = true;
  EXPECT_EQ(OpenView(*reading, root_, beside).status().code(), StatusCode::kFailedPrecondition);
  ASSERT_OK(store_->Close());
  store_ = OpenStore();
  refused("", true);
  EXPECT_FALSE(fs::exists(dir_ / "other"));
}

TEST_P(ViewBesideTest, StepsThatOthersRemoveAreNotCounted) {
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

TEST_P(ViewBesideTest, WhatAPowerCutLeftOfAStepIsMadeAnew) {
  store_ = OpenBeside();
  Save(1);
  EXPECT_THAT(Now(MustShow().get()), ElementsAre("1"));
  ASSERT_OK(store_->Close());
  std::ofstream(root_ / "1/stepwell-view", std::ios::trunc) << "";
  fs::create_directories(root_ / "notes");
  std::ofstream(root_ / "notes/stepwell-view") << "";
  fs::remove(root_ / "1/state/manifest.ocdbt");
  store_ = OpenBeside();
  {
    const auto view = MustShow();
    EXPECT_TRUE(view->WaitUntilCurrent(kLong).ok());
  }
  EXPECT_OK(CheckShown(root_ / "1", 1));
  EXPECT_TRUE(fs::exists(root_ / "notes")) << "no name that the view gives";
}

INSTANTIATE_TEST_SUITE_P(Placings, ViewBesideTest,
                         ::testing::Values(Placing::kLinks, Placing::kCopies), PlacingName);

}  // namespace
}  // namespace stepwell::db::view_tests
