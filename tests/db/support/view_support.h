// SPDX-License-Identifier: Apache-2.0
// A store with a view of it, what the view shows, and a reader that holds a step of it.
#pragma once

#include "db/view/view.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>
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
#include "io/open_disk.h"
#include "tests/db/support/export_support.h"
#include "tests/db/support/mount.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db::view_tests {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

inline constexpr milliseconds kLong{60'000};
const std::vector<LeafSpec> kState = {{"w", {200, 1000}, true, false}, {"b", {1000}, false, false}};

inline std::string TextOf(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// Names of the checkpoints in a view; each is whole, and none depends on what its links lead to.
inline std::vector<std::string> Shown(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (!fs::exists(entry.path() / kViewStepName)) continue;
    EXPECT_TRUE(fs::exists(entry.path() / "commit_success.txt")) << entry.path();
    EXPECT_TRUE(fs::exists(entry.path() / "state/manifest.ocdbt")) << entry.path();
    EXPECT_TRUE(fs::exists(entry.path() / "stepwell-digests")) << entry.path();
    size_t files = 0;
    for (const auto& file : fs::recursive_directory_iterator(entry.path())) {
      EXPECT_FALSE(file.is_symlink()) << file.path();
      files += file.path().parent_path().filename() == "d" ? 1 : 0;
    }
    EXPECT_GT(files, 0U) << entry.path();
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// OK when the step of this seed is there, bit for bit.
inline Status CheckShown(const fs::path& checkpoint, uint64_t seed,
                         const std::vector<LeafSpec>& specs = kState) {
  return CheckExported(io::LocalFileSystem(), checkpoint, seed, specs);
}

// Counts the data files that have another name.
inline size_t LinksOf(const fs::path& checkpoint) {
  size_t links = 0;
  for (const auto& file : fs::directory_iterator(checkpoint / "state/d")) {
    links += fs::hard_link_count(file.path()) > 1 ? 1 : 0;
  }
  return links;
}

// The place of a step's only chunk of its leaf "w", which is stored raw.
struct Place {
  uint64_t commit = 0;
  uint64_t segment = 0;
  uint64_t offset_bytes = 0;
};

inline Place PlaceOf(Store* store, uint64_t step) {
  const auto reader = store->Read(step);
  EXPECT_TRUE(reader.ok()) << reader.status().ToString();
  if (!reader.ok()) return {};
  const auto leaf = (*reader)->Find(KeyOf("state", "w"));
  EXPECT_TRUE(leaf.ok() && leaf->has_value() && (*leaf)->chunks.size() == 1);
  const format::ChunkRecord& chunk = (*leaf)->chunks.front();
  return {(*reader)->step().commit, chunk.segment, chunk.offset_bytes};
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

// The ways in which steps get their bytes: by links of the segments, or as small steps do, copied
// (or cloned, where the machine can).
enum class Placing { kLinks, kCopies };
inline std::string PlacingName(const ::testing::TestParamInfo<Placing>& test) {
  return test.param == Placing::kLinks ? "Links" : "Copies";
}

class ViewTest : public ::testing::TestWithParam<Placing> {
 protected:
  ViewTest() {
    view_tuning.may_clone = !Links();
    view_tuning.link_bytes_min = Links() ? 0 : UINT64_MAX;
    options_.segment_bytes = 4 << 20;  // about four steps
    options_.codec = CodecPolicy::kRaw;
    options_.log = Sink();
  }
  ~ViewTest() override {
    view_tuning.may_clone = true;
    view_tuning.link_bytes_min = uint64_t{8} << 20;
  }
  static bool Links() { return GetParam() == Placing::kLinks; }
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
  // Lists the shown steps once the view has caught up.
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

}  // namespace stepwell::db::view_tests
