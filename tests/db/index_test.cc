// SPDX-License-Identifier: Apache-2.0
// The index is a cache of the log, so the one thing it must never do is lie: after any crash or
// damage it is a whole prefix of what was applied, or it says that it is bad.
#include "db/index/index.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "format/key.h"
#include "io/open_disk.h"
#include "tests/sim/sim_disk.h"

namespace stepwell::db {
namespace {

using format::LeafRecord;
using format::PathComponent;

constexpr format::Id128 kStoreId{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
constexpr char kPath[] = "/index";
constexpr uint64_t kBatches = 8;

struct StepData {
  format::StepRecord record;
  uint32_t frame_crc = 0;
  std::vector<LeafRecord> leaves;  // sorted by key
};
using Model = std::map<uint64_t, StepData>;

std::string Key(std::string_view item, const std::vector<std::string>& names) {
  format::KeyPath path;
  for (const std::string& name : names) path.push_back({PathComponent::Type::kKey, 0, name});
  return format::EncodeLeafKey(item, path).value();
}

LeafRecord Leaf(std::string key, uint64_t seed, uint64_t chunks) {
  LeafRecord leaf;
  leaf.key = std::move(key);
  leaf.dtype = format::DType::kFloat32;
  leaf.shape = {chunks, 256};
  leaf.chunk_shape = {1, 256};
  leaf.logical_bytes = chunks * 1024;
  leaf.chunk_count = chunks;
  for (uint64_t i = 0; i < chunks; ++i) {
    format::ChunkRecord chunk;
    chunk.segment = seed;
    chunk.offset_bytes = 4096 * (i + 1);
    chunk.stored_bytes = 1028;
    chunk.logical_bytes = 1024;
    chunk.crc = static_cast<uint32_t>(seed * 1000003 + i);
    leaf.chunks.push_back(chunk);
  }
  return leaf;
}

StepData MakeStep(uint64_t step, uint64_t commit, uint64_t chunks = 3) {
  StepData data;
  data.record.step = step;
  data.record.commit = commit;
  data.record.metadata_json = StrCat("{\"commit\":", commit, "}");
  data.frame_crc = static_cast<uint32_t>(commit * 2654435761U);
  data.leaves = {
      Leaf(Key("opt", {"mu", "a"}), commit, chunks), Leaf(Key("params", {}), commit + 1, 0),
      Leaf(Key("params", {"a"}), commit + 2, chunks + 1),
      Leaf(Key("params", {"a", "b"}), commit + 3, 1), Leaf(Key("params", {"ab"}), commit + 4, 2)};
  std::sort(data.leaves.begin(), data.leaves.end(),
            [](const LeafRecord& a, const LeafRecord& b) { return a.key < b.key; });
  return data;
}

// Step `commit` comes, the one three before goes, and every fourth commit replaces its predecessor.
Model ModelAfter(uint64_t commits) {
  Model model;
  for (uint64_t commit = 1; commit <= commits; ++commit) {
    if (commit > 3) model.erase(commit - 3);
    const uint64_t step = commit % 4 == 0 ? commit - 1 : commit;
    model[step] = MakeStep(step, commit);
  }
  return model;
}

Status ApplyCommit(Index* index, uint64_t commit) {
  IndexBatch batch;
  const uint64_t step = commit % 4 == 0 ? commit - 1 : commit;
  if (commit > 3) batch.removed_steps.push_back(commit - 3);
  if (step != commit) batch.removed_steps.push_back(step);
  const StepData data = MakeStep(step, commit);
  batch.added.push_back({&data.record, data.frame_crc, &data.leaves});
  batch.through_commit = commit;
  return index->Apply(batch);
}

Status ApplyStep(Index* index, const StepData& data) {
  IndexBatch batch;
  batch.added.push_back({&data.record, data.frame_crc, &data.leaves});
  batch.through_commit = data.record.commit;
  return index->Apply(batch);
}

// Fails (with a Status) or holds exactly the model after its applied commit.
Status CheckPrefix(Index* index) {
  const Model model = ModelAfter(index->applied_commit());
  STEPWELL_ASSIGN_OR_RETURN(const std::vector<IndexedStep> steps, index->Steps());
  EXPECT_EQ(steps.size(), model.size());
  for (const IndexedStep& step : steps) {
    const auto found = model.find(step.step);
    if (found == model.end()) {
      ADD_FAILURE() << "step " << step.step << " should not be there";
      continue;
    }
    const StepData& data = found->second;
    EXPECT_EQ(step.commit, data.record.commit);
    EXPECT_EQ(step.frame_crc, data.frame_crc);
    STEPWELL_ASSIGN_OR_RETURN(const auto leaves, index->Read(step.step, step.commit, step.frame_crc,
                                                             format::KeysBelow("")));
    EXPECT_TRUE(leaves.has_value() && *leaves == data.leaves) << "step " << step.step;
  }
  return OkStatus();
}

struct Opened {
  std::shared_ptr<io::Freeze> freeze = std::make_shared<io::Freeze>();
  Status status;
  std::unique_ptr<Index> index;
};
Opened Open(io::FileSystem* files, const std::string& path = kPath,
            const format::Id128& store_id = kStoreId) {
  Opened opened;
  Index::Options options;
  options.file_system = files;
  options.path = path;
  options.store_id = store_id;
  options.freeze = opened.freeze;
  options.inline_jobs = true;
  auto index = Index::Open(options);
  opened.status = index.status();
  if (index.ok()) opened.index = std::move(index).value();
  return opened;
}

std::shared_ptr<sim::SimWorld> NewWorld() { return sim::SimWorld::Make({1, uint64_t{1} << 30}); }

// All batches, flushed after every second one; the commit that a flush made durable.
uint64_t Fill(Index* index) {
  uint64_t durable = 0;
  for (uint64_t commit = 1; commit <= kBatches; ++commit) {
    if (!ApplyCommit(index, commit).ok()) return durable;
    if (commit % 2 != 0) continue;
    if (!index->Flush().ok()) return durable;
    durable = commit;
  }
  return durable;
}

void ExpectRebuilds(io::FileSystem* files) {
  const Status destroyed = Index::Destroy(files, kPath);
  ASSERT_TRUE(destroyed.ok()) << destroyed.ToString();
  const Opened opened = Open(files);
  ASSERT_TRUE(opened.status.ok()) << opened.status.ToString();
  EXPECT_EQ(opened.index->applied_commit(), 0u);
  EXPECT_EQ(Fill(opened.index.get()), kBatches);
  EXPECT_TRUE(CheckPrefix(opened.index.get()).ok());
}

TEST(IndexTest, NewOneIsEmpty) {
  sim::SimFileSystem files(NewWorld());
  const Opened opened = Open(&files);
  ASSERT_TRUE(opened.status.ok()) << opened.status.ToString();
  EXPECT_EQ(opened.index->applied_commit(), 0u);
  EXPECT_TRUE(opened.index->Steps().value().empty());
  EXPECT_FALSE(opened.index->Read(1, 1, 1, format::KeysBelow("")).value().has_value());
  EXPECT_EQ(opened.index->unflushed_bytes(), 0u);
  EXPECT_TRUE(opened.index->Flush().ok());
}

TEST(IndexTest, EveryBatchIsSeenAtOnce) {
  sim::SimFileSystem files(NewWorld());
  const Opened opened = Open(&files);
  for (uint64_t commit = 1; commit <= 20; ++commit) {
    ASSERT_TRUE(ApplyCommit(opened.index.get(), commit).ok());
    EXPECT_EQ(opened.index->applied_commit(), commit);
    EXPECT_TRUE(CheckPrefix(opened.index.get()).ok());
    EXPECT_GT(opened.index->unflushed_bytes(), 0u);
    if (commit % 3 != 0) continue;
    ASSERT_TRUE(opened.index->Flush().ok());
    EXPECT_EQ(opened.index->unflushed_bytes(), 0u);
    EXPECT_TRUE(CheckPrefix(opened.index.get()).ok());
  }
}

TEST(IndexTest, PrefixSelectsASubtree) {
  sim::SimFileSystem files(NewWorld());
  const Opened opened = Open(&files);
  const StepData data = MakeStep(7, 1);
  ASSERT_TRUE(ApplyStep(opened.index.get(), data).ok());
  ASSERT_TRUE(ApplyStep(opened.index.get(), MakeStep(8, 2)).ok());
  for (const std::string& prefix :
       {std::string(), format::EncodeItem("params"), format::EncodeItem("opt"),
        Key("params", {"a"}), Key("params", {"ab"}), Key("params", {"a", "b"}),
        Key("params", {"none"}), format::EncodeItem("none")}) {
    std::vector<LeafRecord> expected;
    for (const LeafRecord& leaf : data.leaves) {
      if (leaf.key.starts_with(prefix)) expected.push_back(leaf);
    }
    const auto read = opened.index->Read(7, 1, data.frame_crc, format::KeysBelow(prefix));
    ASSERT_TRUE(read.ok()) << read.status().ToString();
    ASSERT_TRUE(read->has_value());
    EXPECT_EQ(**read, expected);
  }
}

TEST(IndexTest, OnlyTheCommitAskedForIsRead) {
  sim::SimFileSystem files(NewWorld());
  const Opened opened = Open(&files);
  const StepData data = MakeStep(7, 3);
  ASSERT_TRUE(ApplyStep(opened.index.get(), data).ok());
  EXPECT_TRUE(opened.index->Read(7, 3, data.frame_crc, format::KeysBelow("")).value().has_value());
  EXPECT_FALSE(opened.index->Read(7, 4, data.frame_crc, format::KeysBelow("")).value().has_value());
  EXPECT_FALSE(
      opened.index->Read(7, 3, data.frame_crc + 1, format::KeysBelow("")).value().has_value());
  EXPECT_FALSE(opened.index->Read(6, 3, data.frame_crc, format::KeysBelow("")).value().has_value());
}

TEST(IndexTest, ReplacedStepLeavesNothingOfItself) {
  sim::SimFileSystem files(NewWorld());
  const Opened opened = Open(&files);
  for (const uint64_t step : {uint64_t{0}, uint64_t{5}, UINT64_MAX}) {
    ASSERT_TRUE(ApplyStep(opened.index.get(), MakeStep(step, 1, 20)).ok());
    StepData data = MakeStep(step, 2, 5);
    data.leaves.resize(2);
    ASSERT_TRUE(ApplyStep(opened.index.get(), data).ok());  // does not say that it replaces
    EXPECT_EQ(opened.index->Read(step, 2, data.frame_crc, format::KeysBelow("")).value(),
              data.leaves);
    IndexBatch removal;
    removal.removed_steps = {step};
    removal.through_commit = 3;
    ASSERT_TRUE(opened.index->Apply(removal).ok());
    EXPECT_TRUE(opened.index->Steps().value().empty());
    data.leaves.resize(1);
    ASSERT_TRUE(ApplyStep(opened.index.get(), data).ok());
    EXPECT_EQ(opened.index->Read(step, 2, data.frame_crc, format::KeysBelow("")).value(),
              data.leaves);
    ASSERT_TRUE(opened.index->Apply(removal).ok());
  }
}

TEST(IndexTest, LeafThatGoesOnInAnotherRecord) {
  sim::SimFileSystem files(NewWorld());
  const Opened opened = Open(&files);
  StepData whole = MakeStep(1, 1, 10);
  StepData parts = whole;
  LeafRecord& first = parts.leaves.front();
  LeafRecord rest;
  rest.key = first.key;
  rest.chunk_count = first.chunk_count;
  rest.first_chunk = 4;
  rest.chunks.assign(first.chunks.begin() + 4, first.chunks.end());
  first.chunks.resize(4);
  parts.leaves.insert(parts.leaves.begin() + 1, rest);
  ASSERT_TRUE(ApplyStep(opened.index.get(), parts).ok());
  EXPECT_EQ(opened.index->Read(1, 1, whole.frame_crc, format::KeysBelow("")).value(), whole.leaves);
}

// A row says what a step's frame says, and its pin; the meta row whether none is left out.
TEST(IndexTest, PinsTextsAndWhetherItIsComplete) {
  const auto world = NewWorld();
  sim::SimFileSystem files(world);
  {
    const Opened opened = Open(&files);
    EXPECT_FALSE(opened.index->complete());
    const StepData data = MakeStep(5, 1);
    IndexBatch batch;
    batch.added.push_back({&data.record, data.frame_crc, &data.leaves});
    batch.through_commit = 1;
    batch.complete = true;
    ASSERT_TRUE(opened.index->Apply(batch).ok());
    EXPECT_TRUE(opened.index->complete());
    IndexBatch pins;
    pins.pins = {{5, true}, {6, true}};  // and one that is not there
    pins.through_commit = 2;
    pins.complete = true;
    ASSERT_TRUE(opened.index->Apply(pins).ok());
    ASSERT_TRUE(opened.index->Flush().ok());
    pins.complete = false;
    ASSERT_TRUE(opened.index->Apply(pins).ok());
    EXPECT_FALSE(opened.index->complete());
  }
  const StepData data = MakeStep(5, 1);
  const auto image = world->Crash({.seed = 1, .odds = std::nullopt, .names = std::nullopt});
  sim::SimFileSystem after(image);
  const Opened opened = Open(&after);
  ASSERT_TRUE(opened.status.ok()) << opened.status.ToString();
  const auto steps = opened.index->Steps();
  ASSERT_EQ(steps->size(), 1U);
  EXPECT_TRUE(steps->front().pinned);
  EXPECT_FALSE(steps->front().of_group);
  const auto record = opened.index->ReadStep(5, 1, data.frame_crc);
  ASSERT_TRUE(record.ok() && record->has_value());
  format::StepRecord expected = data.record;
  expected.pinned = true;
  EXPECT_EQ(**record, expected);
  EXPECT_FALSE(opened.index->ReadStep(5, 2, data.frame_crc)->has_value());
  EXPECT_FALSE(opened.index->ReadStep(5, 1, data.frame_crc + 1)->has_value());
  EXPECT_FALSE(opened.index->ReadStep(6, 1, data.frame_crc)->has_value());
}

TEST(IndexTest, MissingChunksAreDataLoss) {
  sim::SimFileSystem files(NewWorld());
  const Opened opened = Open(&files);
  StepData data = MakeStep(1, 1, 10);
  data.leaves.front().chunks.pop_back();
  ASSERT_TRUE(ApplyStep(opened.index.get(), data).ok());
  EXPECT_EQ(opened.index->Read(1, 1, data.frame_crc, format::KeysBelow("")).status().code(),
            StatusCode::kDataLoss);
}

TEST(IndexTest, ReopeningKeepsWhatWasFlushed) {
  sim::SimFileSystem files(NewWorld());
  for (uint64_t commit = 1; commit <= 9; commit += 3) {
    const Opened opened = Open(&files);
    ASSERT_TRUE(opened.status.ok()) << opened.status.ToString();
    EXPECT_EQ(opened.index->applied_commit(), commit - 1);
    EXPECT_TRUE(CheckPrefix(opened.index.get()).ok());
    for (uint64_t next = commit; next < commit + 3; ++next) {
      ASSERT_TRUE(ApplyCommit(opened.index.get(), next).ok());
    }
    ASSERT_TRUE(opened.index->Flush().ok());
    ASSERT_TRUE(ApplyCommit(opened.index.get(), commit + 3).ok());  // lost: only the tail
  }
}

TEST(IndexTest, IndexOfAnotherStoreIsRefused) {
  sim::SimFileSystem files(NewWorld());
  {
    const Opened opened = Open(&files);
    Fill(opened.index.get());
  }
  EXPECT_EQ(Open(&files, kPath, format::Id128{}).status.code(), StatusCode::kDataLoss);
  EXPECT_TRUE(Open(&files).status.ok());
}

// Many flushes must not pile up tables: compaction runs, on this thread.
TEST(IndexTest, TablesAreCompacted) {
  const auto world = NewWorld();
  sim::SimFileSystem files(world);
  const Opened opened = Open(&files);
  for (uint64_t commit = 1; commit <= 60; ++commit) {
    ASSERT_TRUE(ApplyCommit(opened.index.get(), commit).ok());
    ASSERT_TRUE(opened.index->Flush().ok());
  }
  size_t tables = 0;
  const std::vector<std::string> names = files.List(kPath).value();
  for (const std::string& name : names) tables += name.ends_with(".sst") ? 1 : 0;
  EXPECT_LT(tables, 4u * 8u);
  EXPECT_TRUE(CheckPrefix(opened.index.get()).ok());
}

TEST(IndexTest, ReadersBesideTheWriter) {
  sim::SimFileSystem files(NewWorld());
  const Opened opened = Open(&files);
  const StepData data = MakeStep(1000, 1, 50);
  ASSERT_TRUE(ApplyStep(opened.index.get(), data).ok());
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop) {
      const auto leaves = opened.index->Read(1000, 1, data.frame_crc, format::KeysBelow(""));
      ASSERT_TRUE(leaves.ok() && leaves->has_value());
      ASSERT_EQ(**leaves, data.leaves);
    }
  });
  EXPECT_EQ(Fill(opened.index.get()), kBatches);
  stop = true;
  reader.join();
}

// The machine's disk stops at the n-th operation, for every n.
TEST(IndexTest, FreezeAtEachOperation) {
  uint64_t operations = 0;
  {
    const auto world = NewWorld();
    sim::SimFileSystem files(world);
    {
      const Opened opened = Open(&files);
      ASSERT_EQ(Fill(opened.index.get()), kBatches);
    }
    operations = world->mutating_ops();
  }
  ASSERT_GT(operations, 30u);
  uint64_t reopened = 0;
  for (uint64_t stop = 1; stop <= operations; ++stop) {
    SCOPED_TRACE(stop);
    const auto world = NewWorld();
    world->FreezeAt(stop);
    sim::SimFileSystem files(world);
    uint64_t durable = 0;
    {
      const Opened opened = Open(&files);
      if (opened.index) {
        durable = Fill(opened.index.get());
        if (opened.freeze->frozen()) {
          EXPECT_EQ(opened.index->Flush().code(), StatusCode::kAborted);
          EXPECT_EQ(ApplyCommit(opened.index.get(), 99).code(), StatusCode::kAborted);
        }
      }
    }
    const auto image = world->Crash({stop, {}, {}});
    sim::SimFileSystem after(image);
    {
      const Opened opened = Open(&after);
      if (opened.index) {
        ++reopened;
        EXPECT_GE(opened.index->applied_commit(), durable);
        const Status status = CheckPrefix(opened.index.get());
        EXPECT_TRUE(status.ok()) << status.ToString();
      }
    }
    ExpectRebuilds(&after);
  }
  EXPECT_GT(reopened, operations / 2);
}

// What one kind of damage may lead to: a refusal, an error in reading, or an older whole prefix.
class DamageTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto world = NewWorld();
    sim::SimFileSystem files(world);
    const Opened opened = Open(&files);
    ASSERT_EQ(Fill(opened.index.get()), kBatches);
    world_ = world->CrashImageProcessKill(1);
  }
  std::vector<std::string> Named(std::string_view part) {
    std::vector<std::string> paths;
    for (const auto& [path, size] : world_->Files()) {
      if (path.find(part) != std::string::npos) paths.push_back(path);
    }
    EXPECT_FALSE(paths.empty()) << part;
    return paths;
  }
  uint64_t SizeOf(const std::string& path) { return world_->Contents(path)->size(); }
  // Returns whether the damage was noticed.
  bool Damaged(const std::function<void(sim::SimWorld*, io::FileSystem*)>& damage) {
    const auto image = world_->CrashImageProcessKill(1);
    sim::SimFileSystem files(image);
    damage(image.get(), &files);
    bool noticed = true;
    {
      const Opened opened = Open(&files);
      if (opened.index) {
        EXPECT_LE(opened.index->applied_commit(), kBatches);
        const Status status = CheckPrefix(opened.index.get());
        noticed = !status.ok() || opened.index->applied_commit() < kBatches;
        EXPECT_TRUE(status.ok() || status.code() == StatusCode::kDataLoss) << status.ToString();
      } else {
        EXPECT_EQ(opened.status.code(), StatusCode::kDataLoss) << opened.status.ToString();
      }
    }
    ExpectRebuilds(&files);
    return noticed;
  }
  static void Cut(io::FileSystem* files, const std::string& path, uint64_t size) {
    io::OpenOptions options;
    options.write = true;
    ASSERT_TRUE(files->Open(path, options).value()->Truncate(size).ok());
  }

  std::shared_ptr<sim::SimWorld> world_;
};

TEST_F(DamageTest, NoneIsNotNoticed) {
  EXPECT_FALSE(Damaged([](sim::SimWorld*, io::FileSystem*) {}));
}

TEST_F(DamageTest, FilesCut) {
  for (const char* part : {"/MANIFEST-", ".sst"}) {
    for (const std::string& path : Named(part)) {
      const uint64_t size = SizeOf(path);
      for (uint64_t eighths = 0; eighths < 8; ++eighths) {
        SCOPED_TRACE(StrCat(path, " to ", size * eighths / 8));
        Damaged(
            [&](sim::SimWorld*, io::FileSystem* files) { Cut(files, path, size * eighths / 8); });
      }
    }
  }
}

TEST_F(DamageTest, BitsFlipped) {
  for (const char* part : {"/MANIFEST-", ".sst", "/CURRENT", "/OPTIONS-", "/IDENTITY"}) {
    for (const std::string& path : Named(part)) {
      const uint64_t size = SizeOf(path);
      for (uint64_t i = 0; i < 24; ++i) {
        const uint64_t offset = (size - 1) * i / 23;
        SCOPED_TRACE(StrCat(path, " at ", offset));
        Damaged([&](sim::SimWorld* world, io::FileSystem*) {
          ASSERT_TRUE(world->FlipBit(path, offset, static_cast<unsigned>(i % 8)));
        });
      }
    }
  }
}

TEST_F(DamageTest, TableOrManifestGone) {
  for (const char* part : {"/MANIFEST-", ".sst"}) {
    for (const std::string& path : Named(part)) {
      SCOPED_TRACE(path);
      EXPECT_TRUE(Damaged(
          [&](sim::SimWorld*, io::FileSystem* files) { ASSERT_TRUE(files->Remove(path).ok()); }));
    }
  }
}

TEST_F(DamageTest, CurrentEmptyOrGone) {
  EXPECT_TRUE(
      Damaged([&](sim::SimWorld*, io::FileSystem* files) { Cut(files, "/index/CURRENT", 0); }));
  EXPECT_TRUE(Damaged([&](sim::SimWorld*, io::FileSystem* files) {
    ASSERT_TRUE(files->Remove("/index/CURRENT").ok());
  }));
}

TEST_F(DamageTest, UnreadableSectors) {
  for (uint64_t nth = 1; nth <= 40; ++nth) {
    SCOPED_TRACE(nth);
    const auto image = world_->CrashImageProcessKill(1);
    sim::SimFileSystem files(image);
    sim::Fault fault;
    fault.kind = sim::OpKind::kRead;
    fault.nth = nth;
    image->AddFault(fault);
    const Opened opened = Open(&files);
    if (opened.index) {
      CheckPrefix(opened.index.get()).IgnoreError("wrong data fails inside; an error is right");
    }
  }
}

TEST(IndexTest, DestroyTakesOnlyItsOwn) {
  sim::SimFileSystem files(NewWorld());
  EXPECT_TRUE(Index::Destroy(&files, kPath).ok());  // no such directory
  { EXPECT_EQ(Fill(Open(&files).index.get()), kBatches); }
  const std::vector<std::string> others = {".sst", "12a.sst", "LOGBOOK", "notes.txt", "x.log"};
  io::OpenOptions create;
  create.write = create.create = true;
  for (const std::string& name : others) {
    ASSERT_TRUE(files.Open(StrCat(kPath, "/", name), create).ok());
  }
  ASSERT_TRUE(Index::Destroy(&files, kPath).ok());
  EXPECT_EQ(files.List(kPath).value(), others);
}

TEST(IndexTest, NotOpenedOnAFullDisk) {
  const auto world = sim::SimWorld::Make({1, uint64_t{7} << 20});
  sim::SimFileSystem files(world);
  EXPECT_EQ(Open(&files).status.code(), StatusCode::kResourceExhausted);
}

TEST(IndexTest, DiskThatFillsUpFreezes) {
  const auto world = NewWorld();
  sim::SimFileSystem files(world);
  const Opened opened = Open(&files);
  ASSERT_TRUE(ApplyCommit(opened.index.get(), 1).ok());
  ASSERT_TRUE(opened.index->Flush().ok());
  ASSERT_TRUE(ApplyCommit(opened.index.get(), 2).ok());
  world->SetCapacity(world->UsedBytes());
  const Status flushed = opened.index->Flush();
  EXPECT_EQ(flushed.code(), StatusCode::kAborted) << flushed.ToString();
  EXPECT_TRUE(CheckPrefix(opened.index.get()).ok());  // reading goes on
}

// On a real file system of 24 MiB, in a mount namespace of its own (gone with the process).
// Returns an exit status: 0 good, 2 no mount possible here.
int FillARealDisk(const std::string& path) {
  if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return 2;
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return 2;
  if (mount("tmpfs", path.c_str(), "tmpfs", 0, "size=24m") != 0) return 2;
  io::FileSystem* files = io::LocalFileSystem();
  uint64_t durable = 0;
  {
    const Opened opened = Open(files, path);
    if (!opened.index) return 1;
    Status status;
    for (uint64_t commit = 1; commit <= 1000 && status.ok(); ++commit) {
      StepData data = MakeStep(commit, commit, 20000);
      for (LeafRecord& leaf : data.leaves) {
        for (format::ChunkRecord& chunk : leaf.chunks) chunk.offset_bytes *= 1 + chunk.crc;
      }
      status = ApplyStep(opened.index.get(), data);
      if (status.ok()) status = opened.index->Flush();
      if (status.ok()) durable = commit;
    }
    if (status.code() != StatusCode::kAborted || durable == 0) return 1;
    const StepData last = MakeStep(durable, durable, 20000);
    const auto leaves = opened.index->Read(durable, durable, last.frame_crc, format::KeysBelow(""));
    if (!leaves.ok() || !leaves->has_value()) return 1;
  }
  const Opened full = Open(files, path);
  if (full.status.code() != StatusCode::kResourceExhausted) return 1;
  if (!Index::Destroy(files, path).ok()) return 1;
  return Open(files, path).index ? 0 : 1;
}

TEST(IndexTest, RealDiskThatFillsUpAbortsNothing) {
  std::string path = testing::TempDir() + "stepwell_index_XXXXXX";
  ASSERT_NE(mkdtemp(path.data()), nullptr);
  const pid_t pid = fork();
  if (pid == 0) _exit(FillARealDisk(path));
  int status = -1;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  EXPECT_NE(WEXITSTATUS(status), 1);
  if (WEXITSTATUS(status) == 2) RecordProperty("no_mount", 1);
  std::filesystem::remove_all(path);
}

TEST(IndexTest, LargeStepOnARealDisk) {
  std::string path = testing::TempDir() + "stepwell_index_XXXXXX";
  ASSERT_NE(mkdtemp(path.data()), nullptr);
  const StepData data = MakeStep(1, 1, 100'000);
  {
    const Opened opened = Open(io::LocalFileSystem(), path);
    ASSERT_TRUE(ApplyStep(opened.index.get(), data).ok());
    ASSERT_TRUE(opened.index->Flush().ok());
  }
  const Opened opened = Open(io::LocalFileSystem(), path);
  ASSERT_TRUE(opened.status.ok());
  EXPECT_TRUE(opened.index->Read(1, 1, data.frame_crc, format::KeysBelow("")).value() ==
              data.leaves);
  std::filesystem::remove_all(path);
}

// A child that leaves by exit() runs the destructors of RocksDB's globals, which wait for its timer
// thread. (SIGALRM ends a child that hangs.)
TEST(IndexTest, ForkedChildCanExit) {
  sim::SimFileSystem files(NewWorld());
  const Opened opened = Open(&files);
  ASSERT_EQ(Fill(opened.index.get()), kBatches);
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(60);
    exit(3);
  }
  int status = -1;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << status;
}

}  // namespace
}  // namespace stepwell::db
