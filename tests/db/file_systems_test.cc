// SPDX-License-Identifier: Apache-2.0
// Space that comes back on file systems that allocate, punch and account each in its own way.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "tests/db/support/mount.h"
#include "tests/db/support/reclaim_support.h"

namespace stepwell::db {
namespace {

using ::testing::HasSubstr;

struct MountedBefore {
  explicit MountedBefore(FsKind kind) : mount(kind, kXfsBytesMin) {}
  Mount mount;
};

// The mount comes first: the store's path lies in it.
class FileSystemsTest : private MountedBefore,
                        public ReclaimTest,
                        public ::testing::WithParamInterface<FsKind> {
 protected:
  FileSystemsTest() : MountedBefore(GetParam()), ReclaimTest(mount / "run") {}
  void SetUp() override { ASSERT_MOUNTED(mount); }

  std::string ReadOnlyPoint() { return mount.ReadOnlyPoint(); }
  uint64_t FreeBytes() const {
    mount.Sync();
    return mount.FreeBytes();
  }
  void SaveRange(Store* store, uint64_t begin, uint64_t end) {
    for (uint64_t step = begin; step < end; ++step) Save(store, step);
  }
  // All but each fourth of the range.
  static void DeleteMost(Store* store, uint64_t begin, uint64_t end) {
    std::vector<uint64_t> steps;
    for (uint64_t step = begin; step < end; ++step) {
      if (step % 4 != 1) steps.push_back(step);
    }
    ASSERT_OK(store->Delete(steps));
  }
};

TEST_P(FileSystemsTest, SpaceComesBackByPunchingAndByRecycling) {
  auto store = Open(Options());
  for (uint64_t begin = 0; begin < 120; begin += 40) {
    SaveRange(store.get(), begin, begin + 40);
    const uint64_t used = DiskUse(path_);
    const uint64_t free = FreeBytes();
    const uint64_t punched_before = store->Stats().bytes_punched;
    CheckSpace(store.get());
    DeleteMost(store.get(), begin, begin + 40);
    CheckSpace(store.get());
    ASSERT_TRUE(store->Reclaim().ok());
    Check(store.get());
    EXPECT_GT(store->Stats().bytes_punched, punched_before + 10 * kMiB) << log_;
    // 30 steps of 0.8 MB; what the files gave up, the file system has.
    const uint64_t gone = used - DiskUse(path_);
    EXPECT_GT(gone, 20 * kMiB);
    // Btrfs keeps an extent until the last block of it goes.
    const uint64_t kept_bytes = GetParam() == FsKind::kBtrfs ? gone / 2 : kMiB;
    EXPECT_GT(FreeBytes() + kept_bytes, free + gone);
  }
  ASSERT_OK(store->Delete(StepNumbers(store.get())));
  SaveRange(store.get(), 200, 240);
  ASSERT_OK(store->Delete(StepNumbers(store.get())));
  ASSERT_TRUE(store->Reclaim().ok());
  SaveRange(store.get(), 300, 320);
  EXPECT_GT(store->Stats().segments_recycled, 0U) << log_;
  Check(store.get());
  ASSERT_OK(store->Close());
  store = Open(Options());
  EXPECT_EQ(StepNumbers(store.get()).size(), 20U);
  Check(store.get());
}

TEST_P(FileSystemsTest, ALinkedSegmentIsNeverPunched) {
  auto store = Open(Options());
  SaveRange(store.get(), 0, 24);
  std::vector<fs::path> segments;
  for (const auto& entry : fs::directory_iterator(path_ + "/segments")) {
    if (entry.path().extension() == ".seg") segments.push_back(entry.path());
  }
  std::sort(segments.begin(), segments.end());
  segments.resize(segments.size() - 2);  // those that may still be written
  const fs::path linked = fs::path(path_).parent_path() / "linked";
  fs::create_directory(linked);
  std::map<fs::path, std::string> before;
  for (size_t i = 0; i < segments.size(); i += 2) {
    const fs::path link = linked / segments[i].filename();
    fs::create_hard_link(segments[i], link);
    before[link] = Bytes(link);
  }
  ASSERT_GT(before.size(), 1U);
  const uint64_t linked_bytes = DiskUse(linked);
  CheckSpace(store.get());
  EXPECT_EQ(store->Stats().space.linked_bytes, linked_bytes);
  DeleteMost(store.get(), 0, 24);
  ASSERT_TRUE(store->Reclaim().ok());
  EXPECT_GT(store->Stats().bytes_punched, 0U) << "those without a link";
  SaveRange(store.get(), 100, 140);
  for (const auto& [link, bytes] : before) EXPECT_TRUE(Bytes(link) == bytes) << link;
  EXPECT_EQ(DiskUse(linked), linked_bytes);
  Check(store.get());
}

// A reader on a read-only mount cannot pin: it hears that its step was deleted.
TEST_P(FileSystemsTest, AReaderOnAReadOnlyMount) {
  auto store = Open(Options());
  SaveRange(store.get(), 0, 40);
  const std::string point = ReadOnlyPoint();
  ASSERT_NE(point, "") << "a read-only mount cannot be made here";
  StoreOptions read_only = Options();
  read_only.read_only = true;
  auto reader = Store::Open(point + "/run", read_only);
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  EXPECT_THAT(log_, HasSubstr("reading without a pin"));
  auto dead = (*reader)->Read(6);
  auto live = (*reader)->Read(5);
  ASSERT_TRUE(dead.ok() && live.ok());
  DeleteMost(store.get(), 0, 40);
  ASSERT_TRUE(store->Reclaim().ok());
  ASSERT_GT(store->Stats().bytes_punched, 0U);
  const auto leaves = (*dead)->Leaves("");
  ASSERT_TRUE(leaves.ok()) << "read when it was opened: " << leaves.status().ToString();
  std::vector<float> out(200 * 1000);
  for (const auto& leaf : *leaves) {
    if (leaf.key != KeyOf("state", "w")) continue;
    LoadRequest load;
    load.leaf = &leaf;
    load.box = format::WholeArray(leaf.shape);
    load.out = reinterpret_cast<std::byte*>(out.data());
    const auto stats = (*dead)->Load({&load, 1});
    EXPECT_EQ(stats.status().code(), StatusCode::kNotFound) << stats.status().ToString();
    EXPECT_THAT(stats.status().message(), HasSubstr("step 6 was deleted while it was being read"));
  }
  CheckRead(live->get());
  Check(reader->get());
  ASSERT_OK((*reader)->Close());
}

INSTANTIATE_TEST_SUITE_P(On, FileSystemsTest,
                         ::testing::Values(FsKind::kExt4, FsKind::kXfs, FsKind::kBtrfs,
                                           FsKind::kTmpfs),
                         [](const auto& test) { return FsName(test.param); });

}  // namespace
}  // namespace stepwell::db
