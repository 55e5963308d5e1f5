// SPDX-License-Identifier: Apache-2.0
// An exception at any point of what a writer does with files and with its disk, as where there is
// no memory: every call ends, and says what the next open finds.
#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <set>

#include "tests/db/support/fault_disk.h"
#include "tests/db/support/stopping_file_system.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {
namespace {

enum class PanicIn { kFiles, kDisk };

struct PanicCase {
  PanicIn where;
  io::DiskKind disk;
  bool once;  // else every time from there on
};
std::string PanicName(const ::testing::TestParamInfo<PanicCase>& info) {
  return StrCat(info.param.where == PanicIn::kFiles ? "Files" : "Disk",
                info.param.disk == io::DiskKind::kUring ? "Uring" : "Posix",
                info.param.once ? "Once" : "ForEver");
}

class PanicTest : public ::testing::TestWithParam<PanicCase> {
 protected:
  // The n-th call throws.
  void Count() {
    const int64_t left = left_.fetch_sub(1);
    if (left == 1 || (left < 1 && !GetParam().once)) throw std::bad_alloc();
  }

  Result<std::unique_ptr<Store>> OpenToFail() {
    StoreOptions options = Options();
    const bool in_disk = GetParam().where == PanicIn::kDisk;
    auto environment = FaultEnvironment(options, [this, in_disk](const io::Op&) {
      if (in_disk) Count();
      return DiskFault::kNone;
    });
    STEPWELL_RETURN_IF_ERROR(environment.status());
    environment->without_index = true;  // RocksDB is not written for exceptions
    if (!in_disk) environment->file_system = &files_;
    return OpenStore(path_, options, std::move(*environment));
  }
  static StoreOptions Options() {
    StoreOptions options;
    options.disk = GetParam().disk;
    options.segment_bytes = 1U << 20;
    return options;
  }

  // Returns the status of `call`; kOutcomeUnknown for an exception that comes through.
  template <typename Call>
  static Status StatusOfCall(Call call) {
    try {
      return call();
    } catch (const std::bad_alloc&) {
      return {StatusCode::kOutcomeUnknown, "no memory"};
    }
  }
  // A change of `step`, which is there afterwards or not.
  void Note(const Status& status, uint64_t step, bool there) {
    if (status.code() == StatusCode::kOutcomeUnknown) unknown_.insert(step);
    if (!status.ok()) return;
    if (there) there_.insert(step);
    if (!there) there_.erase(step);
  }

  void Change(Store* store) {
    for (const uint64_t step : {1U, 2U, 3U, 4U}) {
      Note(StatusOfCall([&]() -> Status {
             STEPWELL_ASSIGN_OR_RETURN(const SaveHandle handle,
                                       SaveSeeded(store, step, step, SmallState()));
             if (step == 2) return OkStatus();  // in flight together with the next; told below
             return handle.Wait();
           }),
           step, true);
    }
    if (StatusOfCall([&] { return store->Wait(); }).ok() == false) unknown_.insert(2);
    const std::vector<uint64_t> first{1};
    const std::vector<uint64_t> third{3};
    (void)StatusOfCall([&] { return store->SetPinned(third, true); });
    (void)StatusOfCall([&] { return store->SealSegments({1, 2, 3}).status(); });
    Note(StatusOfCall([&] { return store->Delete(first); }), 1, false);
    (void)StatusOfCall([&] { return store->Reclaim().status(); });
    Note(StatusOfCall([&]() -> Status {
           STEPWELL_ASSIGN_OR_RETURN(const SaveHandle handle,
                                     SaveSeeded(store, 5, 5, SmallState()));
           return handle.Wait();
         }),
         5, true);
    (void)StatusOfCall([&] { return store->Close(); });
  }

  void Check() {
    auto store = Store::Open(path_, Options());
    ASSERT_OK(store.status());
    const std::vector<uint64_t> steps = StepNumbers(store->get());
    const std::set<uint64_t> found(steps.begin(), steps.end());
    for (uint64_t step = 0; step <= 5; ++step) {
      if (!unknown_.contains(step)) {
        EXPECT_EQ(found.contains(step), there_.contains(step)) << "step " << step;
      }
    }
    for (const uint64_t step : found) {
      EXPECT_OK(CheckSeeded(store->get(), step, step, SmallState()));
    }
    ASSERT_OK(SaveSeeded(store->get(), 9, 9, SmallState()).status());
    EXPECT_OK((*store)->Close());
  }

  std::string path_;
  std::atomic<int64_t> left_{0};
  StoppingFileSystem files_{[this] { Count(); }};
  std::set<uint64_t> there_;
  std::set<uint64_t> unknown_;
};

TEST_P(PanicTest, EveryCallEndsAndSaysWhatIsThere) {
  const TempDir dir;
  for (int64_t n = 1;; n += static_cast<int64_t>(Stride(5))) {
    SCOPED_TRACE(n);
    path_ = dir / std::to_string(n);
    left_ = int64_t{1} << 40;
    {
      auto store = Store::Open(path_, Options());
      ASSERT_OK(store.status());
      ASSERT_OK(SaveSeeded(store->get(), 0, 0, SmallState())->Wait());
      ASSERT_OK((*store)->Close());
    }
    there_ = {0};
    unknown_.clear();
    left_ = n;
    (void)StatusOfCall([&]() -> Status {
      STEPWELL_ASSIGN_OR_RETURN(const auto store, OpenToFail());
      Change(store.get());
      return OkStatus();
    });
    const bool thrown = left_.exchange(int64_t{1} << 40) <= 0;
    Check();
    if (HasFailure()) return;
    if (!thrown) break;  // it has no n-th call
    ASSERT_LT(n, 2000);
  }
}

INSTANTIATE_TEST_SUITE_P(All, PanicTest,
                         ::testing::Values(PanicCase{PanicIn::kFiles, io::DiskKind::kPosix, true},
                                           PanicCase{PanicIn::kFiles, io::DiskKind::kUring, false},
                                           PanicCase{PanicIn::kDisk, io::DiskKind::kPosix, false},
                                           PanicCase{PanicIn::kDisk, io::DiskKind::kUring, true}),
                         PanicName);

}  // namespace
}  // namespace stepwell::db
