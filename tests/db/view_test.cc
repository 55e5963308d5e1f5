// SPDX-License-Identifier: Apache-2.0
// Views on the real disk: they follow the store, what they show is readable until they stop showing
// it, and nothing that befalls them reaches a save. What Orbax makes of them:
// tests/python/test_view.py.
#include "db/view/view.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "db/layout.h"
#include "tests/db/mount.h"
#include "tests/db/store_support.h"

namespace stepwell::db {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr milliseconds kLong{60'000};
const std::vector<LeafSpec> kState = {{"w", {200, 1000}, true, false}, {"b", {1000}, false, false}};

std::string TextOf(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// Names of the checkpoints in a view; each is whole and all its links are good.
std::vector<std::string> Shown(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (!fs::exists(entry.path() / kViewStepName)) continue;
    EXPECT_TRUE(fs::exists(entry.path() / "commit_success.txt")) << entry.path();
    EXPECT_TRUE(fs::exists(entry.path() / "state/manifest.ocdbt")) << entry.path();
    size_t links = 0;
    for (const auto& file : fs::directory_iterator(entry.path() / "state/d")) {
      links += file.is_symlink() ? 1 : 0;
      EXPECT_TRUE(fs::exists(file.path())) << file.path();
    }
    EXPECT_GT(links, 0U) << entry.path();
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Where a step has the only chunk of its leaf "w", which is stored raw.
struct Place {
  uint64_t commit = 0;
  uint64_t segment = 0;
  uint64_t offset_bytes = 0;
};

Place PlaceOf(Store* store, uint64_t step) {
  const auto reader = store->Read(step);
  EXPECT_TRUE(reader.ok()) << reader.status().ToString();
  if (!reader.ok()) return {};
  const auto leaf = (*reader)->Find(KeyOf("state", "w"));
  EXPECT_TRUE(leaf.ok() && leaf->has_value() && (*leaf)->chunks.size() == 1);
  const format::ChunkRecord& chunk = (*leaf)->chunks.front();
  return {(*reader)->step().commit, chunk.segment, chunk.offset_bytes};
}

// Leaf "w" as the view has it; empty when it is not there (any more).
std::vector<float> ReadViewed(const fs::path& checkpoint, const Place& place) {
  std::vector<float> data(200 * 1000);
  char name[40];
  std::snprintf(name, sizeof(name), "segment-%010llu",
                static_cast<unsigned long long>(place.segment));
  std::ifstream file(checkpoint / "state/d" / name, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(place.offset_bytes));
  file.read(reinterpret_cast<char*>(data.data()),
            static_cast<std::streamsize>(data.size() * sizeof(float)));
  if (!file) data.clear();
  return data;
}

// Ends the test program where a call never returns.
class Watchdog {
 public:
  Watchdog() {
    thread_ = std::thread([this] {
      std::unique_lock lock(mutex_);
      if (ended_.wait_for(lock, kLong, [this] { return done_; })) return;
      std::cerr << "a call has not returned after a minute\n";
      std::_Exit(1);
    });
  }
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
      ended_.notify_all();
    }
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  std::thread thread_;
};

// A reader's hold, as any program takes it.
class Held {
 public:
  explicit Held(const fs::path& checkpoint)
      : descriptor_(open((checkpoint / kViewStepName).c_str(), O_RDONLY | O_CLOEXEC)) {
    EXPECT_EQ(flock(descriptor_, LOCK_SH), 0);
  }
  ~Held() { close(descriptor_); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  const int descriptor_;
};

class ViewTest : public ::testing::Test {
 protected:
  ViewTest() {
    options_.segment_bytes = 4 << 20;  // about four steps
    options_.codec = CodecPolicy::kRaw;
    options_.log = Sink();
  }
  LogSink Sink() {
    return [this](LogLevel, std::string_view text) {
      const std::lock_guard lock(log_mutex_);
      log_ += StrCat(text, "\n");
    };
  }
  std::string Logged() {
    const std::lock_guard lock(log_mutex_);
    return log_;
  }
  std::unique_ptr<Store> OpenStore(bool read_only = false, const std::string& name = "store") {
    StoreOptions options = options_;
    options.read_only = read_only;
    auto store = Store::Open(dir_ / name, options);
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return store.ok() ? std::move(*store) : nullptr;
  }
  void Save(uint64_t step, IfExists if_exists = IfExists::kError, uint64_t seed = 0) {
    auto handle = SaveSeeded(store_.get(), step, seed == 0 ? step : seed, kState, if_exists);
    ASSERT_TRUE(handle.ok()) << handle.status().ToString();
    ASSERT_OK(handle->Wait());
  }
  // A step that Orbax cannot hold.
  void SaveOdd(uint64_t step) {
    std::vector<std::vector<float>> data;
    data.reserve(kState.size());
    SaveRequest odd = MakeRequest(step, step, kState, &data);
    odd.items[0].leaves[1].record.dtype = format::DType::kUInt4;
    auto handle = store_->Save(std::move(odd));
    ASSERT_TRUE(handle.ok()) << handle.status().ToString();
    ASSERT_OK(handle->Wait());
  }
  void Delete(uint64_t step) { ASSERT_OK(store_->Delete({&step, 1})); }
  ViewOptions Options() {
    ViewOptions options;
    options.log = Sink();
    return options;
  }
  Result<std::shared_ptr<OrbaxView>> Open(const std::string& name, ViewOptions options) {
    return OpenView(*store_, dir_ / name, options);
  }
  std::shared_ptr<OrbaxView> MustOpen(const std::string& name = "view") {
    auto view = Open(name, Options());
    EXPECT_TRUE(view.ok()) << view.status().ToString();
    return view.ok() ? *view : nullptr;
  }
  // What is shown once the view has caught up.
  std::vector<std::string> Now(OrbaxView* view) {
    const auto current = view->WaitUntilCurrent(kLong);
    EXPECT_TRUE(current.ok() && *current) << current.status().ToString();
    return Shown(view->path());
  }

  TempDir dir_{"/var/tmp"};
  std::mutex log_mutex_;
  std::string log_;
  StoreOptions options_;
  std::unique_ptr<Store> store_ = nullptr;
};

TEST_F(ViewTest, StepsComeAndGoWithTheStore) {
  store_ = OpenStore();
  Save(1);
  const auto view = MustOpen();
  EXPECT_THAT(Now(view.get()), ElementsAre("1"));
  Save(20);
  Save(3);
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "20", "3"));
  for (const uint64_t step : {1, 20, 3}) {
    EXPECT_EQ(ReadViewed(view->PathOf(step), PlaceOf(store_.get(), step)),
              LeafData(kState[0], step));
  }
  // No data of its own, and no second name for any of the store's.
  for (const auto& entry : fs::directory_iterator(dir_ / "view/20/state/d")) {
    if (!entry.is_symlink()) continue;
    EXPECT_EQ(fs::read_symlink(entry.path()).parent_path(), fs::path(dir_ / "store/segments"));
    EXPECT_EQ(fs::hard_link_count(entry.path()), 1U);
  }
  EXPECT_THAT(TextOf(dir_ / "view/STEPWELL_VIEW"), HasSubstr(dir_ / "store"));
  Delete(20);
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "3"));
  Save(3, IfExists::kReplace, 33);
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "3"));
  EXPECT_EQ(ReadViewed(view->PathOf(3), PlaceOf(store_.get(), 3)), LeafData(kState[0], 33));

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

TEST_F(ViewTest, AViewThatIsClosedTakesItsStepsAlong) {
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

TEST_F(ViewTest, WhatCouldNotBeRemovedIsRemovedByTheNextView) {
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

// Whoever reads a chunk and then finds the step's directory still there has read the step's bytes:
// it goes before they do. Meanwhile reclaim goes on under the view.
TEST_F(ViewTest, DirectoriesGoBeforeTheBytesOfTheirSteps) {
  options_.keep = {KeepRule::Latest(3), KeepRule::Every(10)};
  store_ = OpenStore();
  const auto view = MustOpen();
  std::mutex mutex;
  std::map<uint64_t, Place> places;  // of commits; guarded by mutex
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> checked{0};
  std::thread reader([&] {
    while (!stop) {
      std::error_code gone;
      for (const auto& entry : fs::directory_iterator(dir_ / "view", gone)) {
        if (entry.path().extension() == ".orbax-checkpoint-tmp") continue;  // going, or coming
        const std::string identity = TextOf(entry.path() / kViewStepName);
        const size_t at = identity.find("\ncommit ");
        if (at == std::string::npos) continue;
        Place place;
        {
          const std::lock_guard lock(mutex);
          const auto it = places.find(std::stoull(identity.substr(at + 8)));
          if (it == places.end()) continue;
          place = it->second;
        }
        const auto data = ReadViewed(entry.path(), place);
        if (TextOf(entry.path() / kViewStepName) != identity) continue;
        EXPECT_EQ(data, LeafData(kState[0], std::stoull(entry.path().filename()))) << entry.path();
        ++checked;
      }
    }
  });
  for (uint64_t step = 1; step <= 60; ++step) {
    Save(step);
    const Place place = PlaceOf(store_.get(), step);
    const std::lock_guard lock(mutex);
    places[place.commit] = place;
  }
  ASSERT_OK(store_->Reclaim().status());
  while (checked == 0) std::this_thread::yield();
  stop = true;
  reader.join();
  EXPECT_THAT(Now(view.get()), ElementsAre("10", "20", "30", "40", "50", "58", "59", "60"));
  const StoreStats stats = store_->Stats();
  EXPECT_GT(stats.bytes_punched, 0U);
  EXPECT_EQ(stats.space.linked_bytes, 0U);
  EXPECT_EQ(stats.space.pinned_by_readers_bytes, 0U);
  EXPECT_LT(stats.segment_bytes, 30 * uint64_t{1} << 20) << "of 60 steps of 0.8 MB eight are live";
}

TEST_F(ViewTest, AReaderThatHoldsAStepKeepsIt) {
  options_.keep = {KeepRule::Latest(2)};
  store_ = OpenStore();
  const auto view = MustOpen();
  Save(1);
  Save(2);
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "2"));
  const Place place = PlaceOf(store_.get(), 1);
  {
    const Held held(view->PathOf(1));
    for (uint64_t step = 3; step < 20; ++step) Save(step);
    ASSERT_OK(store_->Reclaim().status());
    EXPECT_THAT(Now(view.get()), ElementsAre("1", "18", "19"));
    EXPECT_EQ(ReadViewed(view->PathOf(1), place), LeafData(kState[0], 1));
    EXPECT_EQ(view->Stats().held, 1U);
    EXPECT_GT(store_->Stats().space.pinned_by_readers_bytes, 0U);
  }
  while (view->Stats().held > 0) std::this_thread::yield();
  EXPECT_THAT(Now(view.get()), ElementsAre("18", "19"));
  ASSERT_OK(store_->Reclaim().status());
  EXPECT_EQ(store_->Stats().space.pinned_by_readers_bytes, 0U);

  // The old one stays while it is held, then the new one takes its place.
  const Place before = PlaceOf(store_.get(), 19);
  {
    const Held held(view->PathOf(19));
    Save(19, IfExists::kReplace, 77);
    ASSERT_OK(store_->Reclaim().status());
    EXPECT_THAT(Now(view.get()), ElementsAre("18", "19"));
    EXPECT_EQ(ReadViewed(view->PathOf(19), before), LeafData(kState[0], 19));
  }
  while (view->Stats().held > 0) std::this_thread::yield();
  EXPECT_THAT(Now(view.get()), ElementsAre("18", "19"));
  EXPECT_EQ(ReadViewed(view->PathOf(19), PlaceOf(store_.get(), 19)), LeafData(kState[0], 77));
}

TEST_F(ViewTest, StepsThatReclaimMovesAreShownAtTheirNewPlace) {
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
  EXPECT_EQ(ReadViewed(view->PathOf(2), after), LeafData(kState[0], 2));
  EXPECT_FALSE(fs::exists(SegmentPath(dir_ / "store", before.segment)));
}

TEST_F(ViewTest, ARebuildRemovesWhatIsStaleAndKeepsWhatIsGood) {
  store_ = OpenStore();
  for (uint64_t step = 1; step <= 3; ++step) Save(step);
  auto view = MustOpen();
  EXPECT_EQ(Now(view.get()).size(), 3U);
  ASSERT_OK(view->Close(/*keep=*/true));
  Delete(2);
  // As a killed process leaves it.
  const fs::path root = dir_ / "view";
  fs::copy(root / "1", root / "9", fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  fs::create_directories(root / "5.orbax-checkpoint-tmp/state");
  std::ofstream(root / "5.orbax-checkpoint-tmp/stepwell-export.lock") << "";
  fs::create_directories(root / "6.removed.orbax-checkpoint-tmp/state");
  // What is not Stepwell's.
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

TEST_F(ViewTest, OnlyDirectoriesOfThisStoreAreTaken) {
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

TEST_F(ViewTest, AViewIsServedAgainAfterAPowerCut) {
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

TEST_F(ViewTest, AMarkThatWasCutOffIsTakenOver) {
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

TEST_F(ViewTest, SeveralViewsInTheirOwnShapes) {
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

TEST_F(ViewTest, TheNextOpenServesThemAgain) {
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
  // As if a writer had died before its view had seen the end of step 9.
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

  // What is remembered may be lost.
  std::ofstream(dir_ / "store/VIEWS") << "{";
  store_ = OpenStore();
  EXPECT_THAT(store_->Stats().views, IsEmpty());
  EXPECT_THAT(Logged(), HasSubstr("its views are not known"));
  view = Open("view", options);
  ASSERT_TRUE(view.ok()) << view.status().ToString();
  EXPECT_THAT(Now(view->get()), ElementsAre("001", "003"));
}

TEST_F(ViewTest, WhatOrbaxCannotHoldIsNotShownAndHarmsNothing) {
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

TEST_F(ViewTest, ClosingEndsWhateverCannotBeShown) {
  const Watchdog watchdog;
  for (const bool closes_store : {false, true}) {
    store_ = OpenStore(/*read_only=*/false, closes_store ? "one" : "two");
    const auto view = MustOpen(closes_store ? "view one" : "view two");
    for (const uint64_t step : {1, 2, 3}) SaveOdd(step);
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

TEST_F(ViewTest, ClosingEndsOnAFullDisk) {
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
  for (const uint64_t step : {1, 2, 3}) Save(step);
  ASSERT_OK(store_->Close());
  EXPECT_THAT(Shown(disk / "view"), IsEmpty());
  EXPECT_GT((*view)->Stats().errors, 0U);
}

TEST_F(ViewTest, ClosingWithoutKeepingMakesNothingMore) {
  store_ = OpenStore();
  auto reading = OpenStore(/*read_only=*/true);
  ViewOptions options = Options();
  options.poll = std::chrono::hours(1);
  const auto view = OpenView(*reading, dir_ / "view", options);
  ASSERT_TRUE(view.ok()) << view.status().ToString();
  EXPECT_THAT(Now(view->get()), IsEmpty());
  for (const uint64_t step : {1, 2, 3}) Save(step);
  ASSERT_OK((*view)->Close(/*keep=*/false));
  EXPECT_EQ((*view)->Stats().made, 0U);
  EXPECT_FALSE(fs::exists(dir_ / "view"));
}

TEST_F(ViewTest, AViewThatFailsFailsNoSave) {
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

  // Somebody does not want it any more.
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

TEST_F(ViewTest, AFullDiskOfTheViewHarmsNothing) {
  const Mount disk(FsKind::kTmpfs, 256 << 10);
  ASSERT_MOUNTED(disk);
  store_ = OpenStore();
  Save(1);
  const auto view = OpenView(*store_, disk / "view", Options());
  ASSERT_TRUE(view.ok()) << view.status().ToString();
  EXPECT_THAT(Now(view->get()), ElementsAre("1"));
  {
    std::ofstream filler(disk / "filler", std::ios::binary);
    filler << std::string(1 << 20, 'x');
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
  for (const uint64_t step : {2, 3, 4}) EXPECT_OK(CheckSeeded(store_.get(), step, step, kState));
  EXPECT_OK(store_->Close());
}

TEST_F(ViewTest, SavesAndDeletesOfSeveralThreads) {
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
  const std::vector<std::string> wanted = {"0",   "100", "103", "106", "109", "200",
                                           "203", "206", "209", "3",   "6",   "9"};
  EXPECT_EQ(Now(one.get()), wanted);
  EXPECT_EQ(Now(two.get()), wanted);
  for (const std::string& name : wanted) {
    const uint64_t step = std::stoull(name);
    const uint64_t seed = step + (step % 100 % 6 == 0 ? 1 : 0);
    EXPECT_EQ(ReadViewed(one->PathOf(step), PlaceOf(store_.get(), step)),
              LeafData(kState[0], seed));
  }
}

TEST_F(ViewTest, AnotherProcessCanMirrorTheStore) {
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
  EXPECT_EQ(ReadViewed((*view)->PathOf(27), PlaceOf(store_.get(), 27)), LeafData(kState[0], 27));
  EXPECT_EQ((*view)->Stats().errors, 0U) << (*view)->Stats().last_error;
  ASSERT_OK(store_->Reclaim().status());
  EXPECT_EQ(store_->Stats().space.pinned_by_readers_bytes, 0U);
  ASSERT_OK(reading->Close());
  EXPECT_FALSE(fs::exists(dir_ / "view")) << "nobody would take away what is deleted now";
}

}  // namespace
}  // namespace stepwell::db
