// SPDX-License-Identifier: Apache-2.0
// RocksDB's disk stands still: saves, loads and questions about all steps go on without it.
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <thread>

#include "db/environment.h"
#include "tests/db/support/stopping_file_system.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {
namespace {

constexpr uint64_t kSaved = 120;

// The index worker's changes wait while `stalled`.
struct Stall {
  std::atomic<bool> stalled{true};
  std::atomic<uint64_t> waits{0};

  void Wait() {
    char name[16] = {};
    pthread_getname_np(pthread_self(), name, sizeof(name));
    if (std::string_view(name) != "stepwell-index") return;
    if (stalled) ++waits;
    stalled.wait(true);
  }
  void End() {
    stalled = false;
    stalled.notify_all();
  }
};

std::map<uint64_t, std::string> MetricsIn(Store* store) {
  std::map<uint64_t, std::string> metrics;
  const auto texts = store->Texts(SIZE_MAX);
  EXPECT_OK(texts.status());
  for (const StepTexts& each : *texts) {
    EXPECT_OK(each.status);
    metrics[each.step] = each.metrics_json;
  }
  return metrics;
}

TEST(IndexStallTest, SavesAndQuestionsGoOn) {
  const TempDir dir;
  Stall stall;
  StoppingFileSystem files([&] { stall.Wait(); });
  StoreOptions options;
  options.steps_before_index = 0;
  options.disk = io::DiskKind::kPosix;
  auto environment = MakeEnvironment(options);
  ASSERT_OK(environment.status());
  environment->file_system = &files;
  auto opened = OpenStore(dir / "run", options, std::move(*environment));
  ASSERT_OK(opened.status());
  Store* const store = opened->get();
  std::map<uint64_t, std::string> wanted;
  for (uint64_t step = 0; step < kSaved; ++step) {
    ASSERT_OK(SaveSeeded(store, step, step, SmallState())->Wait());
    wanted[step] = MetricsOf(step);
  }
  ASSERT_OK(store->Delete(std::vector<uint64_t>{3, 70}));
  wanted.erase(3);
  wanted.erase(70);
  while (stall.waits == 0) std::this_thread::yield();  // it does stand still
  EXPECT_EQ(MetricsIn(store), wanted);
  EXPECT_OK(CheckSeeded(store, 50, 50, SmallState()));

  stall.End();
  while (store->Stats().index_state != "rocksdb") std::this_thread::yield();
  EXPECT_EQ(MetricsIn(store), wanted) << "by the index";
  ASSERT_OK(store->Close());
  options.read_only = true;
  const auto reader = Store::Open(dir / "run", options);
  ASSERT_OK(reader.status());
  EXPECT_EQ(MetricsIn(reader->get()), wanted) << "by another process";
}

}  // namespace
}  // namespace stepwell::db
