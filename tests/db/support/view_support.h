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

// Names of the checkpoints in a view; each is whole and all its links are good.
inline std::vector<std::string> Shown(const std::string& path) {
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

inline Place PlaceOf(Store* store, uint64_t step) {
  const auto reader = store->Read(step);
  EXPECT_TRUE(reader.ok()) << reader.status().ToString();
  if (!reader.ok()) return {};
  const auto leaf = (*reader)->Find(KeyOf("state", "w"));
  EXPECT_TRUE(leaf.ok() && leaf->has_value() && (*leaf)->chunks.size() == 1);
  const format::ChunkRecord& chunk = (*leaf)->chunks.front();
  return {(*reader)->step().commit, chunk.segment, chunk.offset_bytes};
}

// Leaf "w" as the view has it; empty when it is not there (any more).
inline std::vector<float> ReadViewed(const fs::path& checkpoint, const Place& place) {
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

}  // namespace stepwell::db::view_tests
