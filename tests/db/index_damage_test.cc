// SPDX-License-Identifier: Apache-2.0
// Indexes that are damaged, on full disks, of many rows, after fork.
#include <gtest/gtest.h>

#include "tests/db/support/index_support.h"

namespace stepwell::db::index_tests {
namespace {

// One kind of damage may lead to a refusal, an error in reading, or an older whole prefix.
class IndexDamageTest : public testing::Test {
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
        const auto prefix = CheckPrefix(opened.index.get());
        EXPECT_LE(prefix.ok() ? *prefix : 0, kBatches);
        noticed = !prefix.ok() || *prefix < kBatches;
        EXPECT_TRUE(prefix.ok() || prefix.status().code() == StatusCode::kDataLoss)
            << prefix.status().ToString();
      } else {
        EXPECT_EQ(opened.status.code(), StatusCode::kDataLoss) << opened.status.ToString();
      }
    }
    ExpectRebuilds(&files);
    return noticed;
  }
  static void Cut(io::FileSystem* files, const std::string& path, uint64_t size) {
    io::FileOpenOptions options;
    options.write = true;
    ASSERT_TRUE(files->Open(path, options).value()->Truncate(size).ok());
  }

  std::shared_ptr<sim::SimWorld> world_;
};

TEST_F(IndexDamageTest, NoneIsNotNoticed) {
  EXPECT_FALSE(Damaged([](sim::SimWorld*, io::FileSystem*) {}));
}

TEST_F(IndexDamageTest, FilesCut) {
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

TEST_F(IndexDamageTest, BitsFlipped) {
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

TEST_F(IndexDamageTest, TableOrManifestGone) {
  for (const char* part : {"/MANIFEST-", ".sst"}) {
    for (const std::string& path : Named(part)) {
      SCOPED_TRACE(path);
      EXPECT_TRUE(Damaged(
          [&](sim::SimWorld*, io::FileSystem* files) { ASSERT_TRUE(files->Remove(path).ok()); }));
    }
  }
}

TEST_F(IndexDamageTest, CurrentEmptyOrGone) {
  EXPECT_TRUE(
      Damaged([&](sim::SimWorld*, io::FileSystem* files) { Cut(files, "/index/CURRENT", 0); }));
  EXPECT_TRUE(Damaged([&](sim::SimWorld*, io::FileSystem* files) {
    ASSERT_TRUE(files->Remove("/index/CURRENT").ok());
  }));
}

// RocksDB would read them whole, and ask for several times their size in memory.
TEST_F(IndexDamageTest, TextFilesThatAreLong) {
  for (const char* part : {"/CURRENT", "/OPTIONS-", "/IDENTITY"}) {
    for (const std::string& path : Named(part)) {
      SCOPED_TRACE(path);
      EXPECT_TRUE(Damaged([&](sim::SimWorld*, io::FileSystem* files) {
        Cut(files, path, uint64_t{2} << 20);  // longer: zeros
      }));
    }
  }
}

TEST_F(IndexDamageTest, UnreadableSectors) {
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
      (void)CheckPrefix(opened.index.get());  // wrong data fails inside; an error is right
    }
  }
}

TEST(IndexTest, DestroyTakesOnlyItsOwn) {
  sim::SimFileSystem files(NewWorld());
  EXPECT_TRUE(Index::Destroy(&files, kPath).ok());  // no such directory
  { EXPECT_EQ(Fill(Open(&files).index.get()), kBatches); }
  const std::vector<std::string> others = {".sst", "12a.sst", "LOGBOOK", "notes.txt", "x.log"};
  io::FileOpenOptions create;
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
  EXPECT_EQ(CheckPrefix(opened.index.get()).value(), 2U);  // reading goes on
}

// Makes a row whose text does not compress.
Row LongRow(uint64_t step, uint64_t commit) {
  Row row = MakeRow(step, commit);
  row.has_texts = true;
  row.metadata_json.clear();
  for (uint64_t word = step * 7919; row.metadata_json.size() < kIndexTextBytesMax / 2;) {
    word = word * 6364136223846793005U + 1442695040888963407U;
    row.metadata_json += StrCat(word);
  }
  return row;
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
      IndexBatch batch;
      std::vector<Row> rows;
      for (uint64_t step = 0; step < 64; ++step) {
        rows.push_back(LongRow(commit * 64 + step, commit));
      }
      for (const Row& row : rows) batch.rows.push_back(RowOf(row));
      status = opened.index->Apply(batch);
      if (status.ok()) status = opened.index->Flush();
      if (status.ok()) durable = commit;
    }
    if (status.code() != StatusCode::kAborted || durable == 0) return 1;
    const auto rows = RowsOf(opened.index.get());
    if (!rows.ok() || !rows->contains(durable * 64)) return 1;
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

TEST(IndexTest, ManyRowsOnARealDisk) {
  std::string path = testing::TempDir() + "stepwell_index_XXXXXX";
  ASSERT_NE(mkdtemp(path.data()), nullptr);
  constexpr uint64_t kRows = 100'000;
  {
    const Opened opened = Open(io::LocalFileSystem(), path);
    for (uint64_t step = 0; step < kRows;) {
      std::vector<Row> rows;
      for (int i = 0; i < 1000; ++i, ++step) rows.push_back(MakeRow(step, step + 1));
      IndexBatch batch;
      for (const Row& row : rows) batch.rows.push_back(RowOf(row));
      ASSERT_TRUE(opened.index->Apply(batch).ok());
      if (step % 8000 == 0) {
        ASSERT_TRUE(opened.index->Flush().ok());
      }
    }
    ASSERT_TRUE(opened.index->Flush().ok());
  }
  for (const bool to_read : {true, false}) {
    const Opened opened = Open(io::LocalFileSystem(), path, kStoreId, to_read);
    ASSERT_TRUE(opened.status.ok()) << opened.status.ToString();
    const Model rows = RowsOf(opened.index.get()).value();
    ASSERT_EQ(rows.size(), kRows);
    for (const auto& [step, row] : rows) ASSERT_EQ(row, MakeRow(step, step + 1));
  }
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
}  // namespace stepwell::db::index_tests
