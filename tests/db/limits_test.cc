// SPDX-License-Identifier: Apache-2.0
// Descriptors: few for however many segments, none after Close, and a store that survives the lack
// of them. Locks: whom nobody waits for without end, and what a removed LOCK does not admit.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "db/layout.h"
#include "db/log/pins.h"
#include "format/frame.h"
#include "format/records.h"
#include "io/open_disk.h"
#include "tests/db/support/forked.h"
#include "tests/db/support/reclaim_support.h"

namespace stepwell::db {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

const std::vector<LeafSpec> kTiny = {{"a", {7}, false, false}};

// The files below a directory that this process has open.
std::vector<std::string> OpenBelow(const std::string& directory) {
  std::vector<std::string> open;
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    const std::string target = fs::read_symlink(entry.path(), gone).string();
    if (!gone && target.starts_with(directory)) open.push_back(target);
  }
  return open;
}

// At most so many descriptors for this process, while it lives.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t count) {
    getrlimit(RLIMIT_NOFILE, &old_);
    const rlimit limit{count, old_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &old_); }

 private:
  rlimit old_{};
};

// Takes all descriptors but `left`.
class TakenDescriptors {
 public:
  explicit TakenDescriptors(int left) {
    for (int taken; (taken = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) {
      taken_.push_back(taken);
    }
    for (; left > 0 && !taken_.empty(); --left, taken_.pop_back()) close(taken_.back());
  }
  ~TakenDescriptors() {
    for (const int taken : taken_) close(taken);
  }

 private:
  std::vector<int> taken_;
};

class LimitsTest : public ReclaimTest {
 protected:
  StoreOptions Tiny() {
    StoreOptions options = Options();
    options.segment_bytes = 1;  // a segment takes a step or two
    options.keep = {KeepRule::Latest(8)};
    return options;
  }
  StoreOptions Reading() {
    StoreOptions options = Options();
    options.read_only = true;
    return options;
  }
  static Status SaveTiny(Store* store, uint64_t step) {
    STEPWELL_ASSIGN_OR_RETURN(auto handle, SaveSeeded(store, step, step, kTiny));
    return handle.Wait();
  }
};

// A segment as a writer leaves it that is killed before its first catalog.
void WriteEmptySegment(const Store& store, const std::string& path, uint64_t segment) {
  format::SegmentHeader header;
  header.store_id = store.id();
  header.segment = segment;
  header.nonce.fill(static_cast<uint8_t>(segment));
  format::FrameHeader frame;
  frame.kind = format::FrameKind::kSegmentHeader;
  frame.nonce = header.nonce;
  frame.epoch = 1;
  std::ofstream(SegmentPath(path, segment))
      << format::EncodeFrame(frame, format::EncodeSegmentHeader(header), 4096, nullptr);
}

TEST_F(LimitsTest, FourThousandSegmentsWithSixtyFourDescriptors) {
  constexpr uint64_t kSegments = 4096;
  const std::vector<LeafSpec> large = {{"w", {6, 1 << 20}, true, false}};  // of many segments
  const DescriptorLimit limit(64);
  auto writer = Open(Tiny());
  ASSERT_NE(writer, nullptr);
  const TempDir memory("/dev/shm");  // thousands of syncs
  const std::string killed = memory / "killed";
  const auto saved = SaveSeeded(writer.get(), 1000, 1000, large);
  ASSERT_OK(saved.status());
  ASSERT_OK(saved->Wait());
  ASSERT_OK(writer->SetPinned(std::vector<uint64_t>{1000}, true));
  for (uint64_t step = 0; step < 24; ++step) ASSERT_OK(SaveTiny(writer.get(), step));
  {
    const auto held = ReclaimLock::Acquire(io::LocalFileSystem(), path_, io::LockKind::kShared);
    CopyLiveStore(path_, killed);  // no file of it goes meanwhile
  }
  for (uint64_t i = 1; i <= kSegments; ++i) WriteEmptySegment(*writer, killed, 1000 + i);
  ASSERT_OK(writer->Close());

  // Every segment is opened to see what the killed writer left.
  const auto check = [&](Store* store) {
    EXPECT_THAT(StepNumbers(store), ElementsAre(17, 18, 19, 20, 21, 22, 23, 1000));
    for (uint64_t step = 17; step < 24; ++step) EXPECT_OK(CheckSeeded(store, step, step, kTiny));
    EXPECT_OK(CheckSeeded(store, 1000, 1000, large));
    const auto verified = store->Verify({});
    ASSERT_OK(verified.status());
    EXPECT_THAT(verified->problems, IsEmpty());
  };
  const auto reader = Store::Open(killed, Reading());
  ASSERT_OK(reader.status());
  check(reader->get());
  EXPECT_LT(OpenBelow(killed).size(), 16U);
  StoreOptions usual = Tiny();
  usual.segment_bytes = Options().segment_bytes;
  auto opened = Store::Open(killed, usual);
  ASSERT_OK(opened.status());
  check(opened->get());
  EXPECT_OK(SaveTiny(opened->get(), 24));
  EXPECT_LT(OpenBelow(killed).size(), 32U) << ::testing::PrintToString(OpenBelow(killed));
  EXPECT_OK((*opened)->Close());
}

// The store has more live segments than a process may have files open by default.
TEST_F(LimitsTest, TwelveHundredLiveSegmentsUnderTheDefaultLimit) {
  constexpr uint64_t kSegments = 1200;
  const DescriptorLimit limit(1024);
  const TempDir memory("/dev/shm");  // thousands of syncs
  const std::string path = memory / "run";
  StoreOptions options = Options();
  options.segment_bytes = 1;
  const Signal saved;
  const pid_t child = Fork([&] {
    const auto store = Store::Open(path, options);
    if (!store.ok()) return false;
    for (uint64_t step = 0; (*store)->Stats().segments < kSegments; ++step) {
      if (!SaveTiny(store->get(), step).ok()) return false;
    }
    saved.Raise();
    pause();
    return true;
  });
  saved.Wait();
  Kill(child);

  std::vector<uint64_t> steps;
  const auto check = [&](Store* store) {
    steps = StepNumbers(store);
    EXPECT_GE(steps.size(), kSegments / 2);
    for (const uint64_t step : steps) ASSERT_OK(CheckSeeded(store, step, step, kTiny));
    const auto verified = store->Verify({});
    ASSERT_OK(verified.status());
    EXPECT_THAT(verified->problems, IsEmpty());
    EXPECT_LT(OpenBelow(path).size(), 600U);
  };
  StoreOptions reading = options;
  reading.read_only = true;
  auto reader = Store::Open(path, reading);
  ASSERT_OK(reader.status());
  check(reader->get());
  ASSERT_OK((*reader)->Close());
  auto store = Store::Open(path, options);
  ASSERT_OK(store.status());
  check(store->get());
  EXPECT_OK(SaveTiny(store->get(), steps.back() + 1));
  // All but one go at once, and their files with them.
  ASSERT_OK((*store)->Delete(steps));
  ASSERT_OK((*store)->Reclaim().status());
  EXPECT_THAT(StepNumbers(store->get()), ElementsAre(steps.back() + 1));
  EXPECT_OK(CheckSeeded(store->get(), steps.back() + 1, steps.back() + 1, kTiny));
  EXPECT_LT((*store)->Stats().segments, 60U);  // those that hold catalogs
  EXPECT_OK((*store)->Close());
}

TEST_F(LimitsTest, AFollowingReaderKeepsNothingThatWasRemoved) {
  const auto writer = Open(Tiny());
  const auto reader = Open(Reading());
  for (uint64_t step = 0; step < 60; ++step) {
    ASSERT_OK(SaveTiny(writer.get(), step));
    ASSERT_OK(CheckSeeded(reader.get(), step, step, kTiny));
  }
  ASSERT_OK(writer->Reclaim().status());
  ASSERT_OK(SaveTiny(writer.get(), 60));
  ASSERT_OK(CheckSeeded(reader.get(), 60, 60, kTiny));
  // The reader closes files that reclaim has removed since at its next look.
  const std::vector<std::string> open = OpenBelow(SegmentsPath(path_));
  EXPECT_LT(std::count_if(open.begin(), open.end(),
                          [](const std::string& name) { return name.ends_with("(deleted)"); }),
            8);
}

TEST_F(LimitsTest, AfterCloseNothingIsOpen) {
  const auto writer = Open(Options());
  for (uint64_t step = 0; step < 8; ++step) Save(writer.get(), step);
  const auto reader = Open(Reading());
  Check(reader.get());
  const auto kept = reader->Read(3);
  ASSERT_OK(kept.status());
  Check(writer.get());
  EXPECT_THAT(OpenBelow(path_), Not(IsEmpty()));
  ASSERT_OK(writer->Close());
  ASSERT_OK(reader->Close());
  CheckRead(kept->get());  // its pin is all that it keeps
  (void)writer->Stats();
  EXPECT_THAT(OpenBelow(path_), SizeIs(1)) << ::testing::PrintToString(OpenBelow(path_));
  EXPECT_THAT(OpenBelow(path_), Contains(HasSubstr("/readers/")));
}

// Wherever the descriptors end, a save fails or succeeds, and the next one finds a store that
// works.
TEST_F(LimitsTest, WithoutDescriptorsNothingFreezes) {
  const DescriptorLimit limit(128);
  const auto writer = Open(Tiny());
  uint64_t step = 0;
  int failed = 0;
  for (int left = 0; left < 12; ++left) {
    std::vector<uint64_t> saved;
    {
      const TakenDescriptors taken(left);
      for (int i = 0; i < 4; ++i, ++step) {
        const Status status = SaveTiny(writer.get(), step);
        if (status.ok()) saved.push_back(step);
        if (!status.ok()) ++failed;
      }
    }
    SCOPED_TRACE(StrCat(left, " left"));
    ASSERT_OK(SaveTiny(writer.get(), step++));
    for (const uint64_t one : saved) EXPECT_OK(CheckSeeded(writer.get(), one, one, kTiny));
  }
  EXPECT_GT(failed, 0);
  (void)writer->TakeError();
  EXPECT_OK(writer->Close());
}

TEST_F(LimitsTest, ARemovedLockAdmitsNoSecondWriter) {
  auto first = Open(Options());
  Save(first.get(), 0);
  ASSERT_TRUE(fs::remove(LockFilePath(path_)));
  const auto second = Store::Open(path_, Options());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(second.status().message(), HasSubstr(StrCat("process ", getpid(), " (this one)")));
  // A reader knows by STEPWELL that the writer lives: it does not scan.
  fs::remove(LockFilePath(path_));
  const auto reader = Open(Reading());
  EXPECT_TRUE(reader->recovery().clean);
  Save(first.get(), 1);
  EXPECT_OK(CheckSeeded(reader.get(), 1, 1, kState));
  // A child that was forked holds nothing.
  const pid_t child = Fork([] {
    pause();
    return true;
  });
  ASSERT_OK(first->Close());
  const auto third = Store::Open(path_, Options());
  EXPECT_OK(third.status());
  Kill(child);
}

TEST_F(LimitsTest, AStoppedReaderIsNotWaitedForWithoutEnd) {
  {
    const auto writer = Open(Options());
    for (uint64_t step = 0; step < 12; ++step) Save(writer.get(), step);
    CopyLiveStore(path_, dir_ / "killed");  // its last segment is not sealed
  }
  const std::string killed = dir_ / "killed";
  const Signal ready;
  const pid_t reader = Fork([&] {
    const auto held = ReclaimLock::Acquire(io::LocalFileSystem(), killed, io::LockKind::kShared);
    ready.Raise();
    raise(SIGSTOP);
    return held.ok();
  });
  ready.Wait();
  ASSERT_EQ(waitpid(reader, nullptr, WUNTRACED), reader);
  const auto writer = Store::Open(killed, Options());
  ASSERT_OK(writer.status());
  const std::string who = StrCat("process ", reader, ", which is stopped");
  EXPECT_THAT(log_, AllOf(HasSubstr("opened without giving space back"), HasSubstr(who)));
  Save(writer->get(), 100);
  EXPECT_OK((*writer)->Delete(std::vector<uint64_t>{1, 2, 3}));
  const Status reclaimed = (*writer)->Reclaim().status();
  EXPECT_EQ(reclaimed.code(), StatusCode::kUnavailable);
  EXPECT_THAT(reclaimed.message(), HasSubstr(who));
  Kill(reader);
  EXPECT_OK((*writer)->Reclaim().status());
  for (const uint64_t step : StepNumbers(writer->get())) {
    EXPECT_OK(CheckSeeded(writer->get(), step, step, kState));
  }
}

// A frame has at most 256 MiB: metadata that does not fit fails its save alone.
TEST_F(LimitsTest, MetadataThatNoFrameHoldsFailsThatSaveAlone) {
  const TempDir dir;
  const std::string path = dir / "run";
  auto store = Store::Open(path, {});
  ASSERT_OK(store.status());
  std::vector<std::vector<float>> scratch;
  SaveRequest request = MakeRequest(1, 1, kTiny, &scratch);
  request.metadata_json = "\"" + std::string(format::kFramePayloadBytesMax, 'x') + "\"";
  const auto handle = (*store)->Save(std::move(request));
  const Status status = handle.ok() ? handle->Wait() : handle.status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.ToString().substr(0, 200);
  EXPECT_THAT(status.message(), HasSubstr("the limit is"));
  ASSERT_OK(SaveSeeded(store->get(), 2, 2, kTiny)->Wait());
  EXPECT_THAT(StepNumbers(store->get()), ElementsAre(2));
  EXPECT_OK((*store)->Close());
}

}  // namespace
}  // namespace stepwell::db
