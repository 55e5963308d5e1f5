// SPDX-License-Identifier: Apache-2.0
// Views on the real disk: they follow the store, what they show is readable until they stop showing
// it, and nothing that befalls them reaches a save. What Orbax makes of them:
// tests/python/test_view.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/db/support/stopping_file_system.h"
#include "tests/db/support/view_support.h"

namespace stepwell::db::view_tests {
namespace {

TEST_P(ViewTest, StepsComeAndGoWithTheStore) {
  store_ = OpenStore();
  Save(1);
  const auto view = MustOpen();
  EXPECT_THAT(Now(view.get()), ElementsAre("1"));
  Save(20);
  Save(3);
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "20", "3"));
  for (const uint64_t step : {1U, 20U, 3U}) {
    EXPECT_OK(CheckShown(view->PathOf(step), step));
  }
  EXPECT_EQ(LinksOf(dir_ / "view/20"), Links() ? 1U : 0U);
  EXPECT_THAT(TextOf(dir_ / "view/STEPWELL_VIEW"), HasSubstr(dir_ / "store"));
  Delete(20);
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "3"));
  Save(3, IfExists::kReplace, 33);
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "3"));
  EXPECT_OK(CheckShown(view->PathOf(3), 33));

  const auto stats = store_->Stats().views;
  ASSERT_EQ(stats.size(), 1U);
  EXPECT_EQ(stats[0].path, dir_ / "view");
  EXPECT_EQ(stats[0].shown, 2U);
  EXPECT_EQ(stats[0].made, 4U);
  EXPECT_EQ(stats[0].removed, 2U);
  EXPECT_EQ(stats[0].errors, 0U) << stats[0].last_error;
  // Closing the store shows what was saved last, and leaves it.
  auto handle = SaveSeeded(store_.get(), 4, 4, kState);
  ASSERT_TRUE(handle.ok());
  ASSERT_OK(store_->Close());
  EXPECT_THAT(Shown(dir_ / "view"), ElementsAre("1", "3", "4"));
  EXPECT_FALSE(view->Stats().following);
  EXPECT_EQ(view->WaitUntilCurrent(kLong).status().code(), StatusCode::kFailedPrecondition);
}

TEST_P(ViewTest, AViewThatIsClosedTakesItsStepsAlong) {
  store_ = OpenStore();
  Save(1);
  const auto view = MustOpen();
  EXPECT_THAT(Now(view.get()), ElementsAre("1"));
  ASSERT_OK(view->Close(/*keep=*/false));
  EXPECT_FALSE(fs::exists(dir_ / "view"));
  Save(2);
  const auto again = MustOpen();
  EXPECT_THAT(Now(again.get()), ElementsAre("1", "2"));
  ASSERT_OK(again->Close(/*keep=*/true));
  EXPECT_THAT(Shown(dir_ / "view"), ElementsAre("1", "2"));
}

void SetImmutable(const fs::path& path, bool on) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  int flags = 0;
  ASSERT_EQ(ioctl(descriptor, FS_IOC_GETFLAGS, &flags), 0) << path;
  flags = on ? flags | FS_IMMUTABLE_FL : flags & ~FS_IMMUTABLE_FL;
  ASSERT_EQ(ioctl(descriptor, FS_IOC_SETFLAGS, &flags), 0) << path;
  close(descriptor);
}

TEST_P(ViewTest, WhatCouldNotBeRemovedIsRemovedByTheNextView) {
  store_ = OpenStore();
  Save(1);
  const auto view = MustOpen();
  EXPECT_THAT(Now(view.get()), ElementsAre("1"));
  SetImmutable(dir_ / "view/1/_CHECKPOINT_METADATA", true);
  EXPECT_OK(view->Close(/*keep=*/false));
  const fs::path trash = dir_ / "view/1.removed.orbax-checkpoint-tmp";
  EXPECT_TRUE(fs::exists(trash));
  SetImmutable(trash / "_CHECKPOINT_METADATA", false);
  const auto again = MustOpen();
  ASSERT_NE(again, nullptr);
  EXPECT_FALSE(fs::exists(trash));
  EXPECT_THAT(Now(again.get()), ElementsAre("1"));
  EXPECT_OK(again->Close(/*keep=*/false));
  EXPECT_FALSE(fs::exists(dir_ / "view"));
}

// Whoever reads a step and then finds its directory still there has read the step: it goes, or is
// made anew, at once. Meanwhile reclaim goes on under the view.
TEST_P(ViewTest, DirectoriesGoAtOnce) {
  options_.keep = {KeepRule::Latest(3), KeepRule::Every(10)};
  store_ = OpenStore();
  const auto view = MustOpen();
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> checked{0};
  std::thread reader([&] {
    while (!stop) {
      std::error_code gone;
      for (const auto& entry : fs::directory_iterator(dir_ / "view", gone)) {
        if (entry.path().extension() == ".orbax-checkpoint-tmp") continue;  // going, or coming
        const std::string identity = TextOf(entry.path() / kViewStepName);
        if (identity.empty()) continue;
        const Status read = CheckShown(entry.path(), std::stoull(entry.path().filename()));
        if (TextOf(entry.path() / kViewStepName) != identity) continue;
        EXPECT_OK(read.WithContext(entry.path().string()));
        ++checked;
      }
    }
  });
  for (uint64_t step = 1; step <= 60; ++step) Save(step);
  EXPECT_THAT(Now(view.get()), ElementsAre("10", "20", "30", "40", "50", "58", "59", "60"));
  ASSERT_OK(store_->Reclaim().status());
  // Chunks that reclaim has moved are shown at their new place. Those at the old place go.
  EXPECT_EQ(Now(view.get()).size(), 8U);
  ASSERT_OK(store_->Reclaim().status());
  while (checked == 0) std::this_thread::yield();
  stop = true;
  reader.join();
  const StoreStats stats = store_->Stats();
  EXPECT_EQ(stats.space.pinned_by_readers_bytes, 0U);
  EXPECT_LT(stats.segment_bytes, 30 * uint64_t{1} << 20) << "of 60 steps of 0.8 MB eight are live";
  for (const uint64_t step : {10U, 50U, 60U}) EXPECT_OK(CheckShown(view->PathOf(step), step));
}

// A copy that was begun before a step went has the step's bytes, or there is none: what is shown by
// a link is never written to again.
TEST_P(ViewTest, WhatWasOpenedStaysAsItWas) {
  options_.keep = {KeepRule::Latest(2)};
  store_ = OpenStore();
  const auto view = MustOpen();
  struct Opened {
    std::unique_ptr<std::ifstream> file;
    std::string before;
  };
  std::vector<Opened> opened;
  const auto read = [](std::ifstream* file) {
    std::ostringstream text;
    file->clear();
    file->seekg(0);
    text << file->rdbuf();
    return text.str();
  };
  for (uint64_t step = 1; step <= 40; ++step) {
    Save(step);
    EXPECT_FALSE(Now(view.get()).empty());
    for (const auto& entry : fs::directory_iterator(view->PathOf(step) + "/state/d")) {
      auto file = std::make_unique<std::ifstream>(entry.path(), std::ios::binary);
      std::string before = read(file.get());
      opened.push_back({std::move(file), std::move(before)});
    }
  }
  ASSERT_OK(store_->Reclaim().status());
  size_t changed = 0;
  for (const Opened& each : opened) changed += read(each.file.get()) != each.before ? 1 : 0;
  EXPECT_EQ(changed, 0U) << "of " << opened.size();
}

// People keep steps by links (cp -al, rsync --link-dest): theirs are as they were, whatever the
// store does.
TEST_P(ViewTest, LinksToWhatIsShownKeepIt) {
  options_.keep = {KeepRule::Latest(2)};
  store_ = OpenStore();
  const auto view = MustOpen();
  fs::create_directory(dir_ / "kept");
  for (uint64_t step = 1; step <= 30; ++step) {
    Save(step);
    EXPECT_FALSE(Now(view.get()).empty());
    if (step % 7 != 0) continue;
    fs::copy(view->PathOf(step), dir_ / StrCat("kept/", step),
             fs::copy_options::recursive | fs::copy_options::create_hard_links);
  }
  Save(30, IfExists::kReplace, 77);
  EXPECT_THAT(Now(view.get()), ElementsAre("29", "30"));
  ASSERT_OK(store_->Reclaim().status());
  for (const uint64_t step : {7U, 14U, 21U, 28U}) {
    EXPECT_OK(CheckShown(dir_ / StrCat("kept/", step), step));
    const auto report = VerifyExport(io::LocalFileSystem(), dir_ / StrCat("kept/", step), {});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_THAT(report->problems, IsEmpty());
  }
  EXPECT_OK(CheckShown(view->PathOf(30), 77));
  ASSERT_OK(store_->Close());
  store_ = OpenStore();
  for (const uint64_t step : {7U, 28U}) {
    EXPECT_OK(CheckShown(dir_ / StrCat("kept/", step), step));
  }
}

TEST_P(ViewTest, AReaderThatHoldsAStepKeepsIt) {
  options_.keep = {KeepRule::Latest(2)};
  store_ = OpenStore();
  const auto view = MustOpen();
  Save(1);
  Save(2);
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "2"));
  {
    const Held held(view->PathOf(1));
    for (uint64_t step = 3; step < 20; ++step) Save(step);
    ASSERT_OK(store_->Reclaim().status());
    EXPECT_THAT(Now(view.get()), ElementsAre("1", "18", "19"));
    EXPECT_OK(CheckShown(view->PathOf(1), 1));
    EXPECT_EQ(view->Stats().held, 1U);
    // Its directory is all that is kept: not what was live when it died.
    ASSERT_OK(store_->Reclaim().status());  // the view may have let that go after the last pass
    EXPECT_EQ(store_->Stats().space.pinned_by_readers_bytes, 0U);
  }
  while (view->Stats().held > 0) std::this_thread::yield();
  EXPECT_THAT(Now(view.get()), ElementsAre("18", "19"));
  ASSERT_OK(store_->Reclaim().status());
  EXPECT_EQ(store_->Stats().space.pinned_by_readers_bytes, 0U);

  // The old one stays while it is held, then the new one takes its place.
  {
    const Held held(view->PathOf(19));
    Save(19, IfExists::kReplace, 77);
    ASSERT_OK(store_->Reclaim().status());
    EXPECT_THAT(Now(view.get()), ElementsAre("18", "19"));
    EXPECT_OK(CheckShown(view->PathOf(19), 19));
  }
  while (view->Stats().held > 0) std::this_thread::yield();
  EXPECT_THAT(Now(view.get()), ElementsAre("18", "19"));
  EXPECT_OK(CheckShown(view->PathOf(19), 77));
}

TEST_P(ViewTest, StepsThatReclaimMovesAreShownAtTheirNewPlace) {
  store_ = OpenStore();
  for (uint64_t step = 1; step <= 16; ++step) Save(step);
  const auto view = MustOpen();
  EXPECT_EQ(Now(view.get()).size(), 16U);
  const Place before = PlaceOf(store_.get(), 2);
  // A second name, so that punching cannot help.
  fs::create_hard_link(SegmentPath(dir_ / "store", before.segment), dir_ / "link");
  for (uint64_t step = 1; step <= 10; ++step) {
    if (step != 2) Delete(step);
  }
  ASSERT_OK(store_->Reclaim().status());
  const Place after = PlaceOf(store_.get(), 2);
  ASSERT_NE(after.commit, before.commit) << "it was to be moved";
  EXPECT_THAT(Now(view.get()), ElementsAre("11", "12", "13", "14", "15", "16", "2"));
  EXPECT_OK(CheckShown(view->PathOf(2), 2));
  EXPECT_FALSE(fs::exists(SegmentPath(dir_ / "store", before.segment)));
}

TEST_P(ViewTest, ARebuildRemovesWhatIsStaleAndKeepsWhatIsGood) {
  store_ = OpenStore();
  for (uint64_t step = 1; step <= 3; ++step) Save(step);
  auto view = MustOpen();
  EXPECT_EQ(Now(view.get()).size(), 3U);
  ASSERT_OK(view->Close(/*keep=*/true));
  Delete(2);
  // A killed process leaves this.
  const fs::path root = dir_ / "view";
  fs::copy(root / "1", root / "9", fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  fs::create_directories(root / "5.orbax-checkpoint-tmp/state");
  std::ofstream(root / "5.orbax-checkpoint-tmp/stepwell-export.lock") << "";
  fs::create_directories(root / "6.removed.orbax-checkpoint-tmp/state");
  // Directories that are not Stepwell's.
  fs::create_directories(root / "77/state");
  fs::create_directories(root / "8.orbax-checkpoint-tmp/state");
  std::ofstream(root / "notes") << "mine";
  struct stat one {};
  ASSERT_EQ(stat((root / "1").c_str(), &one), 0);

  view = MustOpen();
  EXPECT_FALSE(fs::exists(root / "2")) << "before anything else happens";
  EXPECT_FALSE(fs::exists(root / "9"));
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "3"));
  struct stat same {};
  ASSERT_EQ(stat((root / "1").c_str(), &same), 0);
  EXPECT_EQ(one.st_ino, same.st_ino) << "it need not be made again";
  EXPECT_FALSE(fs::exists(root / "5.orbax-checkpoint-tmp"));
  EXPECT_FALSE(fs::exists(root / "6.removed.orbax-checkpoint-tmp"));
  EXPECT_TRUE(fs::exists(root / "77/state"));
  EXPECT_TRUE(fs::exists(root / "8.orbax-checkpoint-tmp/state"));
  EXPECT_EQ(TextOf(root / "notes"), "mine");
  ASSERT_OK(view->Close(/*keep=*/true));

  // After a power cut what was not synced may be anything.
  std::string identity = TextOf(root / "1/stepwell-view");
  const size_t boot = identity.find("\nboot ");
  ASSERT_NE(boot, std::string::npos);
  identity.replace(boot, 8, "\nboot xy");
  std::ofstream(root / "1/stepwell-view") << identity;
  std::ofstream(root / "1/commit_success.txt", std::ios::trunc) << "";
  fs::remove(root / "1/state/manifest.ocdbt");
  view = MustOpen();
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "3"));
}

TEST_P(ViewTest, OnlyDirectoriesOfThisStoreAreTaken) {
  store_ = OpenStore();
  Save(1);
  const auto view = MustOpen();
  EXPECT_THAT(Now(view.get()), ElementsAre("1"));
  EXPECT_EQ(MustOpen(), view) << "it is the one that is there";
  const auto reading = OpenStore(/*read_only=*/true);
  EXPECT_EQ(OpenView(*reading, dir_ / "view", Options()).status().code(), StatusCode::kUnavailable);

  const auto other = OpenStore(/*read_only=*/false, "other");
  const Status served = OpenView(*other, dir_ / "view", Options()).status();
  EXPECT_EQ(served.code(), StatusCode::kUnavailable);
  ASSERT_OK(view->Close(/*keep=*/true));
  const Status others = OpenView(*other, dir_ / "view", Options()).status();
  EXPECT_EQ(others.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(others.message(), HasSubstr(dir_ / "store"));
  EXPECT_THAT(Shown(dir_ / "view"), ElementsAre("1"));

  fs::create_directory(dir_ / "foreign");
  std::ofstream(dir_ / "foreign/thesis.tex") << "x";
  const Status foreign = Open("foreign", Options()).status();
  EXPECT_EQ(foreign.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(foreign.message(), HasSubstr("thesis.tex"));
  EXPECT_EQ(Open("store/segments/view", Options()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenView(*store_, dir_.path(), Options()).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(Open("no/where", Options()).status().code(), StatusCode::kInvalidArgument);
  ViewOptions bad = Options();
  bad.checkpoint.step_prefix = "a/b";
  EXPECT_EQ(Open("bad", bad).status().code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(fs::exists(dir_ / "bad"));
}

// The cost of one step must not grow with the number of those that are there.
TEST_P(ViewTest, AStepIsMadeWithoutALookAtTheOthers) {
  class CountingFileSystem final : public StoppingFileSystem {
   public:
    CountingFileSystem() : StoppingFileSystem([] {}) {}
    Result<std::vector<std::string>> List(const std::string& path) override {
      ++looks;
      return StoppingFileSystem::List(path);
    }
    Status Remove(const std::string& path) override {
      ++removed;  // ext4 keeps its inode from the next files for minutes
      return StoppingFileSystem::Remove(path);
    }
    int looks = 0;
    int removed = 0;
  };
  store_ = OpenStore();
  for (uint64_t step = 1; step <= 4; ++step) Save(step);
  CountingFileSystem files;
  ExportOptions options;
  options.file_system = &files;
  const auto folder =
      ViewFolder::Open(*store_, dir_ / "view", options, /*beside=*/false, /*before=*/"");
  ASSERT_TRUE(folder.ok()) << folder.status().ToString();
  const auto snapshot = store_->Snapshot();
  ASSERT_OK(snapshot.status());
  const int looks = files.looks;
  for (const StoreSnapshot::Step& step : (*snapshot)->steps) {
    const auto made = (*folder)->Make(*store_, step, /*replace=*/false, [] { return true; });
    ASSERT_TRUE(made.ok() && *made) << made.status().ToString();
    EXPECT_OK(CheckShown(dir_ / StrCat("view/", step.step), step.step));
  }
  EXPECT_EQ(files.looks, looks);
  EXPECT_LE(files.removed, 1);  // what could not be cloned, once
  EXPECT_THAT(Shown(dir_ / "view"), ElementsAre("1", "2", "3", "4"));
}

// A power cut may leave only the names of files that were not synced.
TEST_P(ViewTest, AStepWhoseMarkIsEmptyAfterAPowerCutIsMadeAnew) {
  store_ = OpenStore();
  Save(1);
  auto view = MustOpen();
  EXPECT_THAT(Now(view.get()), ElementsAre("1"));
  ASSERT_OK(view->Close(/*keep=*/true));
  fs::copy(dir_ / "view/1", dir_ / "view/2.orbax-checkpoint-tmp", fs::copy_options::recursive);
  std::ofstream(dir_ / "view/1/stepwell-view", std::ios::trunc) << "";
  std::ofstream(dir_ / "view/2.orbax-checkpoint-tmp/stepwell-view", std::ios::trunc) << "";
  Save(2);
  view = MustOpen();
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "2"));
  for (uint64_t step = 1; step <= 2; ++step) EXPECT_OK(CheckShown(view->PathOf(step), step));
  EXPECT_EQ(store_->Stats().views.at(0).errors, 0U);
}

TEST_P(ViewTest, AViewIsServedAgainAfterAPowerCut) {
  Mount disk(FsKind::kExt4, 32 * kMiB);
  ASSERT_MOUNTED(disk);
  store_ = OpenStore();
  Save(1);
  auto view = OpenView(*store_, disk / "view", Options());
  ASSERT_TRUE(view.ok()) << view.status().ToString();
  EXPECT_THAT(Now(view->get()), ElementsAre("1"));
  {
    // The names come to the disk with anything that is synced there, the bytes do not.
    const int other = open((disk / "other").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_EQ(fsync(other), 0);
    close(other);
  }
  ASSERT_TRUE(disk.CutPower());
  ASSERT_OK(store_->Close());
  view->reset();
  ASSERT_TRUE(disk.Again());
  EXPECT_TRUE(fs::exists(disk / "view/STEPWELL_VIEW"));
  store_ = OpenStore();
  view = OpenView(*store_, disk / "view", Options());
  ASSERT_TRUE(view.ok()) << view.status().ToString();
  EXPECT_THAT(Now(view->get()), ElementsAre("1"));
  ASSERT_OK(store_->Close());
}

TEST_P(ViewTest, AMarkThatWasCutOffIsTakenOver) {
  store_ = OpenStore();
  const auto view = MustOpen();
  const std::string mark = TextOf(dir_ / "view/STEPWELL_VIEW");
  ASSERT_OK(view->Close(/*keep=*/false));
  for (const std::string& text : {std::string(), mark.substr(0, 20), std::string(512, '\0'),
                                  mark.substr(0, 100) + std::string(50, '\0')}) {
    fs::create_directory(dir_ / "view");
    std::ofstream(dir_ / "view/STEPWELL_VIEW") << text;
    std::ofstream(dir_ / "view/thesis.tex") << "text";
    EXPECT_EQ(Open("view", Options()).status().code(), StatusCode::kFailedPrecondition);
    fs::remove(dir_ / "view/thesis.tex");
    const auto again = MustOpen();
    ASSERT_NE(again, nullptr);
    EXPECT_EQ(TextOf(dir_ / "view/STEPWELL_VIEW"), mark);
    ASSERT_OK(again->Close(/*keep=*/false));
  }
  fs::create_directory(dir_ / "view");
  std::ofstream(dir_ / "view/STEPWELL_VIEW") << "stepwell view 2\n";
  EXPECT_EQ(Open("view", Options()).status().code(), StatusCode::kFailedPrecondition);
}

INSTANTIATE_TEST_SUITE_P(Placings, ViewTest, ::testing::Values(Placing::kLinks, Placing::kCopies),
                         PlacingName);

}  // namespace
}  // namespace stepwell::db::view_tests
