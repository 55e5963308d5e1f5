// SPDX-License-Identifier: Apache-2.0
#include "io/rocks_file_system.h"

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <exception>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "io/mutex.h"

namespace stepwell::io {

// Never NoSpace: RocksDB would start a thread that waits for room, and close would wait for that
// thread, which waits for work that only runs when we ask for it. Only reads come here with it (no
// memory, a quota): a change that fails is for the freeze to tell.
rocksdb::IOStatus ToIOStatus(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return rocksdb::IOStatus::OK();
    case StatusCode::kNotFound:
      return rocksdb::IOStatus::PathNotFound(status.message());
    default:
      return rocksdb::IOStatus::IOError(status.message());
  }
}

namespace {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;

// Hands what `get`, a Result<T>(), found to `use`; an exception (memory) becomes an error, for
// RocksDB is not exception-safe.
template <typename Get, typename Use>
IOStatus Answer(Get&& get, Use&& use) noexcept {
  try {
    auto got = get();
    if (!got.ok()) return ToIOStatus(got.status());
    use(std::move(got).value());
    return IOStatus::OK();
  } catch (const std::exception&) {
    return IOStatus::IOError();
  }
}
// The same for `make`, which only memory can fail.
template <typename Make>
IOStatus Answer(Make&& make) noexcept {
  return Answer([]() -> Result<bool> { return true; }, [&](bool) { make(); });
}

// Thread-safe. Lets changes through until the first one fails; from then on they are dropped and
// reported as done. Ghosts are the files that RocksDB made after that: they exist nowhere else, but
// RocksDB asks for the size of what it has just written and asserts that it is there.
class RocksChanges {
 public:
  explicit RocksChanges(std::shared_ptr<Freeze> freeze) : freeze_(std::move(freeze)) {}

  const std::shared_ptr<Freeze>& freeze() const { return freeze_; }
  bool frozen() const { return freeze_->frozen(); }

  // Runs `change`, or only `when_frozen` after the freeze. The caller's own mistakes (no such
  // file, already there) are reported; any other failure freezes.
  template <typename MakeChange, typename WhenFrozen>
  IOStatus Change(MakeChange&& change, WhenFrozen&& when_frozen) noexcept {
    try {
      if (!frozen()) {
        const Status status = change();
        const bool mistake =
            status.code() == StatusCode::kNotFound || status.code() == StatusCode::kAlreadyExists;
        if (mistake && !frozen()) return ToIOStatus(status);
        if (status.ok()) return IOStatus::OK();
        freeze_->Trip(status);
      }
      when_frozen();
    } catch (const std::exception&) {
      freeze_->Trip(out_of_memory_);
    }
    return IOStatus::OK();
  }
  template <typename MakeChange>
  IOStatus Change(MakeChange&& change) noexcept {
    return Change(change, [] {});
  }

  std::optional<uint64_t> GhostSize(const std::string& name) const {
    if (!frozen()) return std::nullopt;
    const MutexLock lock(&mutex_);
    const auto found = ghosts_.find(name);
    return found == ghosts_.end() ? std::nullopt : std::optional(found->second);
  }
  void SetGhost(const std::string& name, uint64_t size_bytes) {
    const MutexLock lock(&mutex_);
    ghosts_[name] = size_bytes;
  }
  void ForgetGhost(const std::string& name) {
    const MutexLock lock(&mutex_);
    ghosts_.erase(name);
  }
  void RenameGhost(const std::string& from, const std::string& to) {
    const MutexLock lock(&mutex_);
    auto ghost = ghosts_.extract(from);
    if (!ghost) return;
    ghosts_.erase(to);
    ghost.key() = to;
    ghosts_.insert(std::move(ghost));
  }

 private:
  const std::shared_ptr<Freeze> freeze_;
  // Made ahead, when there is memory.
  const Status out_of_memory_{StatusCode::kUnknown, "out of memory in a change to the index"};
  mutable Mutex mutex_;
  std::map<std::string, uint64_t> ghosts_ STEPWELL_GUARDED_BY(mutex_);  // name to size
};

IOStatus ReadInto(File* file, uint64_t offset, size_t size, rocksdb::Slice* result, char* scratch) {
  *result = rocksdb::Slice(scratch, 0);
  return Answer(
      [&] {
        return file->ReadAt(offset, {reinterpret_cast<std::byte*>(scratch), size});
      },
      [&](size_t read) { *result = rocksdb::Slice(scratch, read); });
}

class SequentialFile final : public rocksdb::FSSequentialFile {
 public:
  explicit SequentialFile(std::unique_ptr<File> file) : file_(std::move(file)) {}

  IOStatus Read(size_t size, const IOOptions&, rocksdb::Slice* result, char* scratch,
                IODebugContext*) override {
    IOStatus status = ReadInto(file_.get(), position_, size, result, scratch);
    position_ += result->size();
    return status;
  }
  IOStatus Skip(uint64_t size) override {
    position_ += size;
    return IOStatus::OK();
  }

 private:
  const std::unique_ptr<File> file_;
  uint64_t position_ = 0;
};

class RandomAccessFile final : public rocksdb::FSRandomAccessFile {
 public:
  explicit RandomAccessFile(std::unique_ptr<File> file) : file_(std::move(file)) {}

  IOStatus Read(uint64_t offset, size_t size, const IOOptions&, rocksdb::Slice* result,
                char* scratch, IODebugContext*) const override {
    return ReadInto(file_.get(), offset, size, result, scratch);
  }

 private:
  const std::unique_ptr<File> file_;
};

// RocksDB collects small appends itself, so each Append is one write.
class WritableFile final : public rocksdb::FSWritableFile {
 public:
  WritableFile(std::string name, std::unique_ptr<File> file, std::shared_ptr<RocksChanges> changes)
      : name_(std::move(name)), changes_(std::move(changes)), file_(std::move(file)) {}

  using rocksdb::FSWritableFile::Append;
  IOStatus Append(const rocksdb::Slice& data, const IOOptions&, IODebugContext*) override {
    const uint64_t offset = size_bytes_;
    size_bytes_ += data.size();  // also when dropped: it is what RocksDB believes
    return Change([&] { return file_->WriteAt(offset, AsBytes({data.data(), data.size()})); });
  }
  IOStatus Truncate(uint64_t size, const IOOptions&, IODebugContext*) override {
    size_bytes_ = size;
    return Change([&] { return file_->Truncate(size); });
  }
  IOStatus Sync(const IOOptions&, IODebugContext*) override {
    return Change([&] { return file_->Sync(); });
  }
  IOStatus Flush(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus Close(const IOOptions&, IODebugContext*) override {
    file_.reset();
    return IOStatus::OK();
  }
  uint64_t GetFileSize(const IOOptions&, IODebugContext*) override { return size_bytes_; }

 private:
  // The file is null in a ghost; there the domain is frozen, so `change` does not run.
  template <typename MakeChange>
  IOStatus Change(MakeChange&& change) {
    return changes_->Change(
        [&]() -> Status {
          if (file_ == nullptr) return FailedPreconditionError(StrCat(name_, " is closed"));
          return change();
        },
        [&] { changes_->SetGhost(name_, size_bytes_); });
  }

  const std::string name_;
  const std::shared_ptr<RocksChanges> changes_;
  std::unique_ptr<File> file_;
  uint64_t size_bytes_ = 0;
};

class Directory final : public rocksdb::FSDirectory {
 public:
  Directory(FileSystem* files, std::string name, std::shared_ptr<RocksChanges> changes)
      : files_(files), name_(std::move(name)), changes_(std::move(changes)) {}

  IOStatus Fsync(const IOOptions&, IODebugContext*) override {
    return changes_->Change([&] { return files_->SyncDirectory(name_); });
  }
  IOStatus Close(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }

 private:
  FileSystem* const files_;
  const std::string name_;
  const std::shared_ptr<RocksChanges> changes_;
};

class SilentLogger final : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

// In-process only: the store's own LOCK keeps other writers away.
class NoLock final : public rocksdb::FileLock {};

// Derives from FileSystem, not from FileSystemWrapper over the default one: what is not here must
// fail as "not supported", never reach the machine's files behind the simulation's back.
class RocksFileSystem final : public rocksdb::FileSystem {
 public:
  RocksFileSystem(io::FileSystem* files, std::shared_ptr<Freeze> freeze)
      : files_(files), changes_(std::make_shared<RocksChanges>(std::move(freeze))) {}

  const char* Name() const override { return "StepwellFileSystem"; }

  IOStatus NewSequentialFile(const std::string& name, const FileOptions&,
                             std::unique_ptr<rocksdb::FSSequentialFile>* result,
                             IODebugContext*) override {
    return Answer([&] { return files_->Open(name, {}); },
                  [&](std::unique_ptr<File> file) {
                    *result = std::make_unique<SequentialFile>(std::move(file));
                  });
  }

  IOStatus NewRandomAccessFile(const std::string& name, const FileOptions&,
                               std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                               IODebugContext*) override {
    return Answer([&] { return files_->Open(name, {}); },
                  [&](std::unique_ptr<File> file) {
                    *result = std::make_unique<RandomAccessFile>(std::move(file));
                  });
  }

  IOStatus NewWritableFile(const std::string& name, const FileOptions&,
                           std::unique_ptr<rocksdb::FSWritableFile>* result,
                           IODebugContext*) override {
    std::unique_ptr<File> file;
    const IOStatus opened = changes_->Change([&]() -> Status {
      FileOpenOptions options;
      options.write = true;
      options.create = true;
      options.truncate = true;
      options.freeze = changes_->freeze();
      STEPWELL_ASSIGN_OR_RETURN(file, files_->Open(name, options));
      return OkStatus();
    });
    if (!opened.ok()) return opened;
    return Answer([&] {
      // Null after the freeze: a file that only RocksDB believes in.
      if (file == nullptr) changes_->SetGhost(name, 0);
      *result = std::make_unique<WritableFile>(name, std::move(file), changes_);
    });
  }

  IOStatus NewDirectory(const std::string& name, const IOOptions&,
                        std::unique_ptr<rocksdb::FSDirectory>* result, IODebugContext*) override {
    return Answer(
        [&] { return changes_->frozen() ? FileInfo() : files_->Stat(name); },
        [&](const FileInfo&) { *result = std::make_unique<Directory>(files_, name, changes_); });
  }

  IOStatus FileExists(const std::string& name, const IOOptions& options,
                      IODebugContext* context) override {
    uint64_t size = 0;
    const IOStatus status = GetFileSize(name, options, &size, context);
    return status.IsPathNotFound() ? IOStatus::NotFound() : status;
  }

  IOStatus GetChildren(const std::string& directory, const IOOptions&,
                       std::vector<std::string>* result, IODebugContext*) override {
    result->clear();
    const IOStatus status =
        Answer([&] { return files_->List(directory); },
               [&](std::vector<std::string> names) { *result = std::move(names); });
    return status.IsPathNotFound() ? IOStatus::NotFound() : status;
  }

  IOStatus DeleteFile(const std::string& name, const IOOptions&, IODebugContext*) override {
    return changes_->Change([&] { return files_->Remove(name); },
                            [&] { changes_->ForgetGhost(name); });
  }

  IOStatus CreateDir(const std::string& name, const IOOptions&, IODebugContext*) override {
    return changes_->Change([&] { return files_->CreateDirectory(name); });
  }

  IOStatus CreateDirIfMissing(const std::string& name, const IOOptions&, IODebugContext*) override {
    return changes_->Change([&]() -> Status {
      Status status = files_->CreateDirectory(name);
      return status.code() == StatusCode::kAlreadyExists ? OkStatus() : status;
    });
  }

  IOStatus DeleteDir(const std::string& name, const IOOptions&, IODebugContext*) override {
    return changes_->Change([&] { return files_->RemoveDirectory(name); });
  }

  IOStatus GetFileSize(const std::string& name, const IOOptions&, uint64_t* size,
                       IODebugContext*) override {
    return Answer(
        [&]() -> Result<uint64_t> {
          if (const std::optional<uint64_t> ghost = changes_->GhostSize(name)) return *ghost;
          STEPWELL_ASSIGN_OR_RETURN(const FileInfo info, files_->Stat(name));
          return info.size_bytes;
        },
        [&](uint64_t found) { *size = found; });
  }

  // RocksDB shows the time to people and, with FIFO or TTL compaction (not used), deletes by it.
  IOStatus GetFileModificationTime(const std::string&, const IOOptions&, uint64_t* time,
                                   IODebugContext*) override {
    *time = 0;
    return IOStatus::OK();
  }

  IOStatus RenameFile(const std::string& from, const std::string& to, const IOOptions&,
                      IODebugContext*) override {
    return changes_->Change([&] { return files_->Rename(from, to); },
                            [&] { changes_->RenameGhost(from, to); });
  }

  IOStatus LockFile(const std::string&, const IOOptions&, rocksdb::FileLock** lock,
                    IODebugContext*) override {
    return Answer([&] { *lock = new NoLock; });
  }

  IOStatus UnlockFile(rocksdb::FileLock* lock, const IOOptions&, IODebugContext*) override {
    delete lock;
    return IOStatus::OK();
  }

  IOStatus GetTestDirectory(const IOOptions&, std::string*, IODebugContext*) override {
    return IOStatus::NotSupported("GetTestDirectory");
  }

  IOStatus NewLogger(const std::string&, const IOOptions&, std::shared_ptr<rocksdb::Logger>* result,
                     IODebugContext*) override {
    return Answer([&] { *result = std::make_shared<SilentLogger>(); });
  }

  // Paths mean what the FileSystem below makes of them; RocksDB only compares these.
  IOStatus GetAbsolutePath(const std::string& path, const IOOptions&, std::string* result,
                           IODebugContext*) override {
    return Answer([&] { *result = path; });
  }

  IOStatus IsDirectory(const std::string& path, const IOOptions&, bool* is_directory,
                       IODebugContext*) override {
    return Answer([&] { return files_->Stat(path); },
                  [&](const FileInfo& info) { *is_directory = info.is_directory; });
  }

 private:
  io::FileSystem* const files_;  // the bare name is RocksDB's in here
  const std::shared_ptr<RocksChanges> changes_;
};

}  // namespace

std::shared_ptr<rocksdb::FileSystem> MakeRocksFileSystem(FileSystem* file_system,
                                                         std::shared_ptr<Freeze> freeze) {
  return std::make_shared<RocksFileSystem>(file_system, std::move(freeze));
}

}  // namespace stepwell::io
