// SPDX-License-Identifier: Apache-2.0
// Exports and views of steps that several processes saved: as if one had, whatever the parts do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "db/layout.h"
#include "db/view/view.h"
#include "tests/db/support/export_support.h"
#include "tests/db/support/group_support.h"

namespace stepwell::db {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::StartsWith;

constexpr uint32_t kParts = 3;
constexpr milliseconds kLong{60'000};

struct stat StatOf(const fs::path& path) {
  struct stat status {};
  EXPECT_EQ(stat(path.c_str(), &status), 0) << path;
  return status;
}

class GroupExportTest : public ::testing::Test {
 protected:
  GroupExportTest() {
    options_.segment_bytes = uint64_t{1} << 20;
    for (uint32_t part = 0; part < kParts; ++part) {
      specs_.push_back({PartLeaf(part), {100 + part, 1000}, part % 2 == 0, false});
    }
    OpenGroup();
  }
  void OpenGroup() {
    auto stores = GroupStores::Open(root_, kParts, options_);
    EXPECT_OK(stores.status());
    if (stores.ok()) group_ = std::move(*stores);
  }
  std::unique_ptr<Store> OpenToRead() {
    StoreOptions options;
    options.read_only = true;
    auto store = Store::Open(root_, options);
    EXPECT_OK(store.status());
    return store.ok() ? std::move(*store) : nullptr;
  }
  // 0.4 MB on each part, so that a segment holds two or three.
  void Save(uint64_t step) {
    for (uint32_t part = 0; part < kParts; ++part) {
      std::vector<std::vector<float>> scratch;
      scratch.reserve(1);
      SaveRequest request = MakeRequest(step, step, {specs_[part]}, &scratch);
      if (part != 0) request.items[0].leaves.pop_back();
      request.group = GroupSave{SaveId(step), group_.parts};
      const auto handle = group_.part(part)->Save(std::move(request));
      ASSERT_OK(handle.status());
      ASSERT_OK(handle->Wait());
    }
    const auto decided = group_.DecideAll(Commit(step, step));
    ASSERT_OK(decided.status());
    for (uint32_t part = 1; part < kParts && !decided->dead.empty(); ++part) {
      const auto there = StepNumbers(group_.part(part));
      for (const uint64_t dead : decided->dead) {
        if (std::find(there.begin(), there.end(), dead) == there.end()) continue;
        ASSERT_OK(group_.part(part)->Delete({&dead, 1}));
      }
    }
  }
  void Delete(uint64_t step) {
    for (const auto& store : group_.stores) ASSERT_OK(store->Delete({&step, 1}));
  }
  void Reclaim() {
    for (const auto& store : group_.stores) ASSERT_OK(store->Reclaim().status());
  }
  Status Check(const std::string& checkpoint, uint64_t step) {
    return CheckExported(io::LocalFileSystem(), checkpoint, step, specs_);
  }
  // Returns the place of a part's leaf.
  format::ChunkRecord PlaceOf(uint32_t part, uint64_t step) {
    const auto reader = group_.part(0)->Read(step);
    EXPECT_OK(reader.status());
    const auto leaf = (*reader)->Find(KeyOf("state", PartLeaf(part)));
    EXPECT_OK(leaf.status());
    EXPECT_EQ((*leaf)->chunks.front().part, part);
    return (*leaf)->chunks.front();
  }
  std::string SegmentOf(uint32_t part, uint64_t step) {
    return SegmentPath(PartPath(root_, part), PlaceOf(part, step).segment);
  }
  Result<ExportReport> Link(Store* store, uint64_t step, const std::string& name) {
    ExportOptions options;
    options.mode = ExportMode::kLink;
    return Export(*store, step, dir_ / name, options);
  }

  TempDir dir_{"/var/tmp"};
  const std::string root_ = dir_ / "run";
  StoreOptions options_;
  std::vector<LeafSpec> specs_;
  GroupStores group_;
};

TEST_F(GroupExportTest, LinksOfAllPartsStayAsTheyAre) {
  Save(1);
  ASSERT_OK(group_.Close());  // which seals them
  group_ = {};
  OpenGroup();
  const auto report = Link(group_.part(0), 1, "x");
  ASSERT_OK(report.status());
  EXPECT_EQ(report->mode, ExportMode::kLink);
  EXPECT_THAT(NamesIn(dir_ / "x/state/d"),
              ElementsAre("nodes", "segment-0000000001", "segment-0000000001-part-1",
                          "segment-0000000001-part-2"));
  EXPECT_OK(Check(dir_ / "x", 1));
  for (uint32_t part = 0; part < kParts; ++part) {
    const struct stat status = StatOf(SegmentOf(part, 1));
    EXPECT_EQ(status.st_nlink, 2U);
    EXPECT_EQ(status.st_mode & 0222, 0U);
  }
  const auto before = FilesBelow(dir_ / "x");
  for (uint64_t step = 2; step < 12; ++step) Save(step);
  for (uint64_t step = 1; step < 11; ++step) Delete(step);
  Reclaim();
  EXPECT_TRUE(FilesBelow(dir_ / "x") == before);
  EXPECT_OK(Check(dir_ / "x", 1));
  for (const std::string name :
       {"segment-0000000001", "segment-0000000001-part-1", "segment-0000000001-part-2"}) {
    EXPECT_EQ(StatOf(dir_ / ("x/state/d/" + name)).st_nlink, 1U) << "the store has let it go";
  }
  ASSERT_OK(group_.Close());
  group_ = {};
  OpenGroup();
  EXPECT_TRUE(FilesBelow(dir_ / "x") == before);
  EXPECT_OK(CheckSeeded(group_.part(0), 11, 11, specs_));
}

TEST_F(GroupExportTest, DeletingALinkedExportLeavesTheStore) {
  for (uint64_t step = 1; step < 5; ++step) Save(step);
  ASSERT_OK(Link(group_.part(0), 2, "x").status());
  fs::remove_all(dir_ / "x");
  for (uint64_t step = 1; step < 5; ++step) {
    EXPECT_OK(CheckSeeded(group_.part(0), step, step, specs_));
  }
  ASSERT_OK(group_.Close());
  group_ = {};
  OpenGroup();
  const auto report = group_.part(0)->Verify({});
  ASSERT_OK(report.status());
  EXPECT_THAT(report->problems, IsEmpty());
}

// Segments to which writers of other parts still append are copied, even if they share the process.
TEST_F(GroupExportTest, WhatIsNotSealedIsCopied) {
  Save(1);
  ASSERT_OK(Link(group_.part(0), 1, "x").status());
  EXPECT_THAT(NamesIn(dir_ / "x/state/d"), ElementsAre("chunks", "nodes", "segment-0000000001"));
  const auto reader = OpenToRead();
  ASSERT_OK(Link(reader.get(), 1, "y").status());
  Save(2);
  ASSERT_OK(Link(reader.get(), 2, "z").status());
  std::map<std::string, std::map<std::string, std::string>> exports;
  for (const std::string name : {"x", "y", "z"}) exports[name] = FilesBelow(dir_ / name);
  Save(3);
  ASSERT_OK(group_.Close());
  for (const auto& [name, files] : exports) {
    EXPECT_TRUE(FilesBelow(dir_ / name) == files) << name;
    EXPECT_OK(Check(dir_ / name, name == "z" ? 2 : 1));
  }
}

TEST_F(GroupExportTest, AutoLinksWhereEveryPartCanBeLinked) {
  Save(1);
  const auto run = [&](const std::string& path) { return Export(*group_.part(0), 1, path, {}); };
  const auto linked = run(dir_ / "x");
  ASSERT_OK(linked.status());
  EXPECT_EQ(linked->mode, ExportMode::kLink);
  // One part whose segments have another mode is enough for a copy, without a leftover.
  const std::string segment = SegmentOf(2, 1);
  fs::permissions(segment, fs::perms::owner_all);
  const auto copied = run(dir_ / "y");
  ASSERT_OK(copied.status());
  EXPECT_NE(copied->mode, ExportMode::kLink);
  EXPECT_THAT(NamesIn(dir_ / "y/state/d"), ElementsAre("chunks", "nodes"));
  EXPECT_OK(Check(dir_ / "x", 1));
  EXPECT_OK(Check(dir_ / "y", 1));
}

TEST_F(GroupExportTest, LinksAreMadeWhileThePartsReclaim) {
  options_.keep = {KeepRule::Latest(2)};
  ASSERT_OK(group_.Close());
  group_ = {};
  OpenGroup();
  Save(1);
  std::atomic<bool> stop{false};
  std::map<std::string, uint64_t> made;
  std::thread exporter([&] {
    const auto reader = OpenToRead();
    for (uint64_t number = 0; !stop || made.empty(); ++number) {
      const auto steps = StepNumbers(reader.get());
      if (steps.empty()) continue;
      const std::string name = StrCat("x", number);
      const auto report = Link(reader.get(), steps.front(), name);
      if (report.ok()) {
        made[dir_ / name] = steps.front();
        continue;
      }
      // Gone meanwhile, and said so.
      EXPECT_EQ(report.status().code(), StatusCode::kNotFound) << report.status().ToString();
    }
  });
  for (uint64_t step = 2; step < 40; ++step) Save(step);
  stop = true;
  exporter.join();
  Reclaim();
  for (const auto& [path, step] : made) EXPECT_OK(Check(path, step));
}

// ---- views -------------------------------------------------------------------------------------

std::string TextOf(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

class GroupViewTest : public GroupExportTest, public ::testing::WithParamInterface<bool> {
 protected:
  // Opens a view of the writer, or of a store that only reads.
  std::shared_ptr<OrbaxView> OpenIt(Store* store) {
    ViewOptions options;
    options.poll = milliseconds(20);
    auto view = OpenView(*store, dir_ / "view", options);
    EXPECT_OK(view.status());
    return view.ok() ? *view : nullptr;
  }
  static std::vector<std::string> Now(OrbaxView* view) {
    const auto current = view->WaitUntilCurrent(kLong);
    EXPECT_TRUE(current.ok() && *current) << current.status().ToString();
    auto names = NamesIn(view->path());
    std::erase(names, kViewMarkName);
    return names;
  }
};

TEST_P(GroupViewTest, StepsComeAndGoWithAllParts) {
  const auto reader = GetParam() ? OpenToRead() : nullptr;
  Store* const store = GetParam() ? reader.get() : group_.part(0);
  Save(1);
  const auto view = OpenIt(store);
  EXPECT_THAT(Now(view.get()), ElementsAre("1"));
  Save(2);
  EXPECT_THAT(Now(view.get()), ElementsAre("1", "2"));
  for (const uint64_t step : {uint64_t{1}, uint64_t{2}}) EXPECT_OK(Check(view->PathOf(step), step));
  for (uint64_t step = 3; step < 8; ++step) Save(step);
  for (uint64_t step = 1; step < 7; ++step) Delete(step);
  EXPECT_THAT(Now(view.get()), ElementsAre("7"));
  Reclaim();
  for (const auto& part : group_.stores) {
    EXPECT_EQ(part->Stats().space.pinned_by_readers_bytes, 0U);
  }
  EXPECT_OK(Check(view->PathOf(7), 7));
  EXPECT_EQ(view->Stats().errors, 0U) << view->Stats().last_error;
}

// Chunks that another part's reclaim moves are shown at their new place, though part 0 knows
// nothing of the move.
TEST_P(GroupViewTest, WhatAPartMovesIsShownAtItsNewPlace) {
  const auto reader = GetParam() ? OpenToRead() : nullptr;
  Store* const store = GetParam() ? reader.get() : group_.part(0);
  for (uint64_t step = 1; step < 12; ++step) Save(step);
  const auto view = OpenIt(store);
  EXPECT_EQ(Now(view.get()).size(), 11U);
  const std::string before = SegmentOf(1, 2);
  fs::create_hard_link(before, dir_ / "link");  // punching cannot help
  for (uint64_t step = 1; step < 9; ++step) {
    if (step != 2) Delete(step);
  }
  EXPECT_THAT(Now(view.get()), ElementsAre("10", "11", "2", "9"));
  ASSERT_OK(group_.part(1)->Reclaim().status());
  ASSERT_NE(SegmentOf(1, 2), before) << "it was to be moved";
  EXPECT_THAT(Now(view.get()), ElementsAre("10", "11", "2", "9"));
  EXPECT_OK(Check(view->PathOf(2), 2));
  ASSERT_OK(group_.part(1)->Reclaim().status());
  EXPECT_FALSE(fs::exists(before)) << "the view has let it go";
}

// Whoever reads all chunks and then finds the step's directory still there has read the step.
TEST_P(GroupViewTest, DirectoriesGoBeforeTheBytesOfAnyPart) {
  options_.keep = {KeepRule::Latest(3), KeepRule::Every(10)};
  ASSERT_OK(group_.Close());
  group_ = {};
  OpenGroup();
  const auto reader = GetParam() ? OpenToRead() : nullptr;
  const auto view = OpenIt(GetParam() ? reader.get() : group_.part(0));
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> checked{0};
  std::thread loader([&] {
    while (!stop) {
      for (const std::string& name : NamesIn(dir_ / "view")) {
        if (name.find_first_not_of("0123456789") != std::string::npos) continue;
        const std::string path = dir_ / ("view/" + name);
        const std::string identity = TextOf(path + "/stepwell-view");
        const Status status = Check(path, std::stoull(name));
        if (identity.empty() || TextOf(path + "/stepwell-view") != identity) continue;
        EXPECT_OK(status);
        ++checked;
      }
    }
  });
  for (uint64_t step = 1; step <= 40; ++step) Save(step);
  Reclaim();
  while (checked == 0) std::this_thread::yield();
  stop = true;
  loader.join();
  EXPECT_THAT(Now(view.get()), ElementsAre("10", "20", "30", "38", "39", "40"));
  Reclaim();
  for (const auto& part : group_.stores) {
    EXPECT_EQ(part->Stats().space.pinned_by_readers_bytes, 0U);
    EXPECT_LT(part->Stats().segment_bytes, 16 * uint64_t{1} << 20) << "of 40 steps six are live";
  }
}

TEST_P(GroupViewTest, AStepWithoutAPartIsNotShownUntilItIsThere) {
  Save(1);
  ASSERT_OK(group_.Close());
  group_ = {};
  const std::string part = PartPath(root_, 2);
  fs::rename(part, dir_ / "away");
  StoreOptions options = options_;
  options.read_only = GetParam();
  const auto store = Store::Open(root_, options);
  ASSERT_OK(store.status());
  const auto view = OpenIt(store->get());
  EXPECT_THAT(Now(view.get()), IsEmpty());
  EXPECT_THAT(view->Stats().last_error, HasSubstr("part 2 is missing"));
  fs::rename(dir_ / "away", part);
  EXPECT_THAT(Now(view.get()), ElementsAre("1"));
  EXPECT_OK(Check(view->PathOf(1), 1));
}

TEST_F(GroupExportTest, APartByItselfHasNoView) {
  Save(1);
  auto view = OpenView(*group_.part(1), dir_ / "view", {});
  ASSERT_OK(view.status());
  ASSERT_TRUE(*(*view)->WaitUntilCurrent(kLong));
  EXPECT_EQ((*view)->Stats().not_shown, 1U);
  EXPECT_THAT((*view)->Stats().last_error, HasSubstr("a view of its root"));
}

INSTANTIATE_TEST_SUITE_P(Of, GroupViewTest, ::testing::Bool(), [](const auto& kind) {
  return kind.param ? "AStoreThatReads" : "TheWriter";
});

}  // namespace
}  // namespace stepwell::db
