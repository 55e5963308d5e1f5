// SPDX-License-Identifier: Apache-2.0
// RocksDB on the adapter, frozen after each of its changes to the disk: no abort, and the next open
// finds a prefix of what was written, whole across the column families.
#include "io/rocks_file_system.h"

#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/system_clock.h>

#include <atomic>
#include <cerrno>

#include "tests/io/support/support.h"
#include "tests/storm.h"

namespace stepwell::io {
namespace {

using testing::TempDir;

// The fate of the n-th change and of all after it.
enum class Fault { kFreeze, kFullDisk, kIoError };

struct Trap {
  int64_t changes_until_fault = INT64_MAX;
  Fault fault = Fault::kFreeze;
  std::shared_ptr<Freeze> freeze;
  std::atomic<int64_t> changes{0};

  // Called before each change; what the change then returns if not OK.
  Status Spring() {
    if (++changes <= changes_until_fault) return OkStatus();
    switch (fault) {
      case Fault::kFreeze:  // somebody else's failure, at this instant
        freeze->Trip(ErrnoStatus(EIO, "write elsewhere"));
        return freeze->Check();
      case Fault::kFullDisk:
        return ErrnoStatus(ENOSPC, "write");
      case Fault::kIoError:
        return ErrnoStatus(EIO, "write");
    }
    return OkStatus();
  }
};

class TrapFile final : public File {
 public:
  TrapFile(std::unique_ptr<File> file, Trap* trap)
      : File(file->path(), file->freeze()), file_(std::move(file)), trap_(trap) {}
  Result<size_t> ReadAt(uint64_t offset, MutableBytes out) override {
    return file_->ReadAt(offset, out);
  }
  Status WriteAt(uint64_t offset, ConstBytes data) override {
    STEPWELL_RETURN_IF_ERROR(trap_->Spring());
    return file_->WriteAt(offset, data);
  }
  // Not carried out: nothing here cuts the power, and it is slow.
  Status Sync() override { return trap_->Spring(); }
  Status Allocate(uint64_t offset, uint64_t length) override {
    return file_->Allocate(offset, length);
  }
  Status PunchHole(uint64_t offset, uint64_t length) override {
    return file_->PunchHole(offset, length);
  }
  Status Truncate(uint64_t size) override {
    STEPWELL_RETURN_IF_ERROR(trap_->Spring());
    return file_->Truncate(size);
  }
  Result<FileInfo> Info() override { return file_->Info(); }
  Result<bool> TryLock(LockKind kind) override { return file_->TryLock(kind); }
  Status Unlock() override { return file_->Unlock(); }
  Result<bool> LockedByOther() override { return file_->LockedByOther(); }
  Alignment alignment() const override { return file_->alignment(); }

 private:
  const std::unique_ptr<File> file_;
  Trap* const trap_;
};

class TrapFileSystem final : public FileSystem {
 public:
  explicit TrapFileSystem(Trap* trap) : trap_(trap) {}
  Result<std::unique_ptr<File>> Open(const std::string& path,
                                     const FileOpenOptions& options) override {
    if (options.create) STEPWELL_RETURN_IF_ERROR(trap_->Spring());
    STEPWELL_ASSIGN_OR_RETURN(std::unique_ptr<File> file, files_->Open(path, options));
    return std::unique_ptr<File>(std::make_unique<TrapFile>(std::move(file), trap_));
  }
  Result<FileInfo> Stat(const std::string& path) override { return files_->Stat(path); }
  Result<std::vector<std::string>> List(const std::string& path) override {
    return files_->List(path);
  }
  Status CreateDirectory(const std::string& path) override {
    STEPWELL_RETURN_IF_ERROR(trap_->Spring());
    return files_->CreateDirectory(path);
  }
  Status Remove(const std::string& path) override {
    STEPWELL_RETURN_IF_ERROR(trap_->Spring());
    return files_->Remove(path);
  }
  Status RemoveDirectory(const std::string& path) override {
    STEPWELL_RETURN_IF_ERROR(trap_->Spring());
    return files_->RemoveDirectory(path);
  }
  Status Rename(const std::string& from, const std::string& to) override {
    STEPWELL_RETURN_IF_ERROR(trap_->Spring());
    return files_->Rename(from, to);
  }
  Status Link(const std::string& from, const std::string& to) override {
    STEPWELL_RETURN_IF_ERROR(trap_->Spring());
    return files_->Link(from, to);
  }
  Status SetMode(const std::string& path, uint32_t mode) override {
    STEPWELL_RETURN_IF_ERROR(trap_->Spring());
    return files_->SetMode(path, mode);
  }
  Status SyncDirectory(const std::string&) override { return trap_->Spring(); }
  Result<uint64_t> FreeBytes(const std::string& path) override { return files_->FreeBytes(path); }

 private:
  FileSystem* const files_ = LocalFileSystem();
  Trap* const trap_;
};

// After a failed flush RocksDB's background thread sleeps for a second; here it does not.
class SleeplessClock final : public rocksdb::SystemClockWrapper {
 public:
  SleeplessClock() : SystemClockWrapper(rocksdb::SystemClock::Default()) {}
  const char* Name() const override { return "SleeplessClock"; }
  void SleepForMicroseconds(int) override {}
};

class TestEnv final : public rocksdb::EnvWrapper {
 public:
  explicit TestEnv(const std::shared_ptr<rocksdb::FileSystem>& files)
      : EnvWrapper(rocksdb::NewCompositeEnv(files)) {
    system_clock_ = std::make_shared<SleeplessClock>();
  }
};

// A database with three column families, flushed together, without a log of its own.
class Database {
 public:
  Database(const std::string& path, FileSystem* files, std::shared_ptr<Freeze> freeze)
      : env_(std::make_unique<TestEnv>(MakeRocksFileSystem(files, std::move(freeze)))) {
    rocksdb::DBOptions options;
    options.env = env_.get();
    options.create_if_missing = true;
    options.create_missing_column_families = true;
    options.atomic_flush = true;
    options.max_bgerror_resume_count = 0;
    options.max_manifest_file_size = 1024;  // so that MANIFEST rolls too
    rocksdb::ColumnFamilyOptions family;
    family.level0_file_num_compaction_trigger = 2;
    std::vector<rocksdb::ColumnFamilyDescriptor> families;
    for (const char* name : {"default", "steps", "leaves", "chunks"}) {
      families.emplace_back(name, family);
    }
    rocksdb::DB* db = nullptr;
    opened_ = rocksdb::DB::Open(options, path, families, &handles_, &db);
    db_.reset(db);
  }
  ~Database() {
    if (db_ == nullptr) return;
    for (rocksdb::ColumnFamilyHandle* handle : handles_) {
      EXPECT_TRUE(db_->DestroyColumnFamilyHandle(handle).ok());
    }
    db_->Close().PermitUncheckedError();
  }
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  const rocksdb::Status& opened() const { return opened_; }

  rocksdb::Status Write(int number) {
    rocksdb::WriteBatch batch;
    for (size_t i = 1; i < handles_.size(); ++i) {
      rocksdb::Status status = batch.Put(handles_[i], Key(number), std::string(300, 'v'));
      if (!status.ok()) return status;
    }
    rocksdb::WriteOptions options;
    options.disableWAL = true;
    return db_->Write(options, &batch);
  }
  rocksdb::Status Flush() { return db_->Flush(rocksdb::FlushOptions(), handles_); }
  rocksdb::Status Compact() {
    return db_->CompactRange(rocksdb::CompactRangeOptions(), handles_[1], nullptr, nullptr);
  }

  // Returns the number of writes: 0, 1, … without a hole, the same in each family; -1 if not so.
  int CountPrefix() {
    int common = -1;
    for (size_t i = 1; i < handles_.size(); ++i) {
      int count = 0;
      const std::unique_ptr<rocksdb::Iterator> it(
          db_->NewIterator(rocksdb::ReadOptions(), handles_[i]));
      for (it->SeekToFirst(); it->Valid(); it->Next()) {
        if (it->key().ToString() != Key(count++)) return -1;
      }
      if (!it->status().ok()) return -1;
      if (common >= 0 && common != count) return -1;
      common = count;
    }
    return common;
  }

 private:
  static std::string Key(int number) { return StrCat(1'000'000 + number); }

  const std::unique_ptr<rocksdb::Env> env_;
  rocksdb::Status opened_;
  std::vector<rocksdb::ColumnFamilyHandle*> handles_;
  std::unique_ptr<rocksdb::DB> db_;
};

constexpr int kWrites = 60;
constexpr int kWritesPerFlush = 15;

// Writes, flushes, compacts and closes, whatever happens. The last write known to be flushed while
// nothing was frozen.
int RunWorkload(const std::string& path, FileSystem* files, const std::shared_ptr<Freeze>& freeze) {
  Database db(path, files, freeze);
  int flushed = 0;
  if (!db.opened().ok()) return flushed;
  for (int i = 0; i < kWrites; ++i) {
    if (!db.Write(i).ok()) break;
    if ((i + 1) % kWritesPerFlush != 0) continue;
    if (!db.Flush().ok()) break;
    if (!freeze->frozen()) flushed = i + 1;
  }
  db.Compact().PermitUncheckedError();
  return flushed;
}

TEST(RocksFileSystemTest, WritesFlushesAndReopens) {
  const TempDir dir;
  const auto freeze = std::make_shared<Freeze>();
  EXPECT_EQ(RunWorkload(dir / "index", LocalFileSystem(), freeze), kWrites);
  EXPECT_FALSE(freeze->frozen()) << freeze->Check().ToString();
  Database db(dir / "index", LocalFileSystem(), freeze);
  ASSERT_TRUE(db.opened().ok()) << db.opened().ToString();
  EXPECT_EQ(db.CountPrefix(), kWrites);
  EXPECT_EQ(LocalFileSystem()->Stat(dir / "index/LOG").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(LocalFileSystem()->Stat(dir / "index/LOCK").status().code(), StatusCode::kNotFound);
}

TEST(RocksFileSystemTest, ReadErrorsAreReported) {
  const TempDir dir;
  const auto freeze = std::make_shared<Freeze>();
  RunWorkload(dir / "index", LocalFileSystem(), freeze);
  const std::vector<std::string> names = LocalFileSystem()->List(dir / "index").value();
  for (const std::string& name : names) {
    if (name.ends_with(".sst")) ASSERT_OK(LocalFileSystem()->Remove(dir / ("index/" + name)));
  }
  const Database db(dir / "index", LocalFileSystem(), freeze);
  EXPECT_FALSE(db.opened().ok());
  EXPECT_FALSE(freeze->frozen());
}

class RocksFaultTest : public ::testing::TestWithParam<Fault> {};

TEST_P(RocksFaultTest, EveryChangeMayBeTheLast) {
  Trap count;
  {
    const TempDir dir;
    TrapFileSystem files(&count);
    RunWorkload(dir / "index", &files, std::make_shared<Freeze>());
  }
  const int64_t points = count.changes;
  ASSERT_GT(points, 60);
  for (int64_t point = 0; point < points; point += static_cast<int64_t>(Stride(5))) {
    SCOPED_TRACE(StrCat("fault at change ", point));
    const TempDir dir;
    Trap trap;
    trap.changes_until_fault = point;
    trap.fault = GetParam();
    trap.freeze = std::make_shared<Freeze>();
    TrapFileSystem files(&trap);
    const int flushed = RunWorkload(dir / "index", &files, trap.freeze);
    // Background jobs make the number of changes vary a little from run to run.
    EXPECT_EQ(trap.freeze->frozen(), trap.changes > point);

    const auto freeze = std::make_shared<Freeze>();
    Trap none;
    TrapFileSystem sound(&none);
    Database db(dir / "index", &sound, freeze);
    ASSERT_TRUE(db.opened().ok()) << db.opened().ToString();
    const int found = db.CountPrefix();
    EXPECT_GE(found, flushed);
    EXPECT_EQ(found % kWritesPerFlush, 0);
    EXPECT_TRUE(db.Write(found).ok());
    EXPECT_TRUE(db.Flush().ok());
    EXPECT_EQ(db.CountPrefix(), found + 1);
    EXPECT_FALSE(freeze->frozen());
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, RocksFaultTest,
                         ::testing::Values(Fault::kFreeze, Fault::kFullDisk, Fault::kIoError),
                         [](const auto& param) -> std::string {
                           if (param.param == Fault::kFreeze) return "Freeze";
                           return param.param == Fault::kFullDisk ? "FullDisk" : "IoError";
                         });

TEST(RocksFileSystemTest, AfterTheFreezeRocksDbIsToldThatAllIsWell) {
  const TempDir dir;
  const auto freeze = std::make_shared<Freeze>();
  const auto files = MakeRocksFileSystem(LocalFileSystem(), freeze);
  const rocksdb::IOOptions options;
  std::unique_ptr<rocksdb::FSWritableFile> file;
  ASSERT_TRUE(files->NewWritableFile(dir / "a", {}, &file, nullptr).ok());
  ASSERT_TRUE(file->Append("real", options, nullptr).ok());
  // The caller's mistakes are told and do not freeze.
  EXPECT_FALSE(files->DeleteFile(dir / "none", options, nullptr).ok());
  EXPECT_FALSE(files->RenameFile(dir / "none", dir / "b", options, nullptr).ok());
  EXPECT_TRUE(files->CreateDirIfMissing(dir.path(), options, nullptr).ok());
  EXPECT_TRUE(files->FileExists(dir / "none", options, nullptr).IsNotFound());
  EXPECT_FALSE(freeze->frozen());

  freeze->Trip(ErrnoStatus(EIO, "write elsewhere"));
  EXPECT_TRUE(file->Append("dropped", options, nullptr).ok());
  EXPECT_TRUE(file->Sync(options, nullptr).ok());
  EXPECT_EQ(file->GetFileSize(options, nullptr), 11U);
  EXPECT_TRUE(file->Close(options, nullptr).ok());
  EXPECT_TRUE(files->DeleteFile(dir / "a", options, nullptr).ok());
  EXPECT_TRUE(files->RenameFile(dir / "a", dir / "b", options, nullptr).ok());
  EXPECT_EQ(LocalFileSystem()->List(dir.path()).value(), std::vector<std::string>{"a"});
  EXPECT_EQ(LocalFileSystem()->Stat(dir / "a").value().size_bytes, 4U);

  // A ghost: it answers for its name and size, but it cannot be read.
  ASSERT_TRUE(files->NewWritableFile(dir / "g", {}, &file, nullptr).ok());
  EXPECT_TRUE(file->Append("12345", options, nullptr).ok());
  EXPECT_TRUE(files->RenameFile(dir / "g", dir / "h", options, nullptr).ok());
  uint64_t size = 0;
  EXPECT_TRUE(files->GetFileSize(dir / "h", options, &size, nullptr).ok());
  EXPECT_EQ(size, 5U);
  EXPECT_TRUE(files->FileExists(dir / "h", options, nullptr).ok());
  EXPECT_TRUE(files->FileExists(dir / "g", options, nullptr).IsNotFound());
  std::unique_ptr<rocksdb::FSRandomAccessFile> reader;
  EXPECT_FALSE(files->NewRandomAccessFile(dir / "h", {}, &reader, nullptr).ok());
  EXPECT_TRUE(files->DeleteFile(dir / "h", options, nullptr).ok());
  EXPECT_TRUE(files->FileExists(dir / "h", options, nullptr).IsNotFound());
}

// Covers reads without memory: RocksDB would wait for room, and never close again.
TEST(RocksFileSystemTest, NothingIsCalledAFullDisk) {
  EXPECT_TRUE(ToIOStatus(ResourceExhaustedError("no memory to read")).IsIOError());
  EXPECT_FALSE(ToIOStatus(ResourceExhaustedError("no memory to read")).IsNoSpace());
  EXPECT_FALSE(ToIOStatus(ErrnoStatus(EDQUOT, "open")).IsNoSpace());
}

}  // namespace
}  // namespace stepwell::io
