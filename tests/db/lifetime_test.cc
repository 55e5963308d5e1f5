// SPDX-License-Identifier: Apache-2.0
// Threads of a store touch nothing of it once it is closed and dropped.
#include <gmock/gmock.h>
#include <pthread.h>

#include <atomic>
#include <cctype>
#include <iostream>
#include <random>
#include <thread>

#include "db/environment.h"
#include "db/layout.h"
#include "db/view/view.h"
#include "tests/db/support/damage_support.h"

namespace stepwell::db {
namespace {

// Returns true in a thread that copies or encodes: "stepwell-0" and so on, "stepwell-enc-0".
bool IsWorker() {
  std::string name(16, '\0');
  pthread_getname_np(pthread_self(), name.data(), name.size());
  return name.starts_with("stepwell-enc") ||
         (name.starts_with("stepwell-") && std::isdigit(static_cast<unsigned char>(name[9])) != 0);
}

// A disk whose Wake returns late to workers: as if they lost their CPU right after they woke the
// engine.
class LateWakeDisk final : public io::Disk {
 public:
  struct Seen {
    std::atomic<int> in_wake{0};
    std::atomic<int> gone_in_wake{0};
  };

  LateWakeDisk(std::unique_ptr<io::Disk> disk, std::shared_ptr<Seen> seen)
      : disk_(std::move(disk)), seen_(std::move(seen)) {}
  ~LateWakeDisk() override { seen_->gone_in_wake += seen_->in_wake.load(); }

  void Submit(io::Op* op) override { disk_->Submit(op); }
  size_t Poll(bool wait) override { return disk_->Poll(wait); }
  void Wake() override {
    const std::shared_ptr<Seen> seen = seen_;
    ++seen->in_wake;
    disk_->Wake();
    if (IsWorker()) std::this_thread::sleep_for(std::chrono::milliseconds(150));
    --seen->in_wake;
  }
  size_t in_flight() const override { return disk_->in_flight(); }
  size_t depth() const override { return disk_->depth(); }
  int RegisterBuffer(MutableBytes buffer) override { return disk_->RegisterBuffer(buffer); }
  void RegisterFile(io::File* file) override { disk_->RegisterFile(file); }
  void UnregisterFile(io::File* file) override { disk_->UnregisterFile(file); }
  std::string Describe() const override { return disk_->Describe(); }

 private:
  const std::unique_ptr<io::Disk> disk_;
  const std::shared_ptr<Seen> seen_;
};

TEST(LifetimeTest, CloseWaitsForWorkersThatJustPosted) {
  const TempDir dir;
  const auto seen = std::make_shared<LateWakeDisk::Seen>();
  for (int round = 0; round < 4; ++round) {
    StoreOptions options;
    options.threads = 4;
    auto environment = MakeEnvironment(options);
    ASSERT_TRUE(environment.ok()) << environment.status().ToString();
    environment->without_index = true;  // its close would take longer than any wake
    environment->make_disk = [make = environment->make_disk,
                              seen]() -> Result<std::unique_ptr<io::Disk>> {
      STEPWELL_ASSIGN_OR_RETURN(auto disk, make());
      return std::unique_ptr<io::Disk>(std::make_unique<LateWakeDisk>(std::move(disk), seen));
    };
    auto store = OpenStore(dir / "run", options, std::move(*environment));
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    const auto step = static_cast<uint64_t>(round);
    ASSERT_OK(SaveSeeded(store->get(), step, step, SmallState())->Wait());
    ASSERT_OK((*store)->Close());
    store->reset();
  }
  EXPECT_EQ(seen->gone_in_wake, 0);
}

// One flipped bit, then everything that may still run when the store is closed and dropped: the
// index being opened or remade, a pass of reclaim, a view, saves, callbacks, and readers that
// outlive the store on threads of their own.
TEST(LifetimeTest, DamagedStoresAreOpenedClosedAndDropped) {
  const TempDir dir;
  const std::string whole = dir / "whole";
  const std::vector<LeafSpec> specs = SmallState();
  StoreOptions options;
  options.steps_before_index = 0;  // an index at any size
  options.keep = {KeepRule::Latest(3)};
  options.segment_bytes = 1 << 20;
  {
    auto store = Store::Open(whole, options);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    for (uint64_t step = 0; step < 5; ++step) {
      ASSERT_OK(SaveSeeded(store->get(), step, step, specs)->Wait());
    }
    ASSERT_OK((*store)->Close());
  }
  std::mt19937_64 random(4);
  const uint64_t lifetimes = InAStorm(12);
  int opened = 0;
  std::atomic<int> called_back{0};
  for (uint64_t i = 0; i < lifetimes; ++i) {
    SCOPED_TRACE(i);
    const std::string path = dir / "damaged";
    CopyStore(whole, path);
    const auto files = FilesIn(random() % 4 == 0 ? IndexPath(path) : SegmentsPath(path));
    const std::string& file = files[random() % files.size()];
    const uint64_t size = std::filesystem::file_size(file);
    if (size > 0) FlipByte(file, random() % size, static_cast<char>(1 << random() % 7));
    options.disk = random() % 2 == 0 ? io::DiskKind::kUring : io::DiskKind::kPosix;
    auto store = Store::Open(path, options);
    if (!store.ok()) continue;
    ++opened;
    std::shared_ptr<OrbaxView> view;
    if (random() % 3 == 0) {
      auto shown = OpenView(**store, dir / StrCat("view", i), {});
      if (shown.ok()) view = *shown;
    }
    std::vector<std::shared_ptr<StepReader>> readers;
    for (const uint64_t step : StepNumbers(store->get())) {
      auto reader = (*store)->Read(step);
      if (reader.ok()) readers.push_back(std::move(*reader));
    }
    std::thread beside([readers = std::move(readers)] {
      for (int round = 0; round < 3; ++round) {
        for (const auto& reader : readers) {
          const auto leaves = reader->Leaves("");
          if (!leaves.ok()) continue;
          std::string bytes;
          for (const auto& leaf : *leaves) {
            LoadLeaf(reader.get(), leaf, &bytes).IgnoreError("it may be the damaged one");
          }
        }
      }
    });
    if (random() % 2 == 0) {
      auto handle = SaveSeeded(store->get(), 10, 10, specs);
      if (handle.ok()) handle->OnComplete([&](const Status&) { ++called_back; });
    }
    (*store)->Close().IgnoreError("the damage may be in its way");
    store->reset();
    beside.join();
  }
  EXPECT_GT(opened, 0);
  std::cout << lifetimes << " lifetimes, " << opened << " of them opened\n";
}

}  // namespace
}  // namespace stepwell::db
