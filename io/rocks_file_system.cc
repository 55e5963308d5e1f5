// SPDX-License-Identifier: Apache-2.0
#include "io/rocks_file_system.h"

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include "io/rocks_files.h"

namespace stepwell::io {
namespace {

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
    return Guarded([&]() -> IOStatus {
      Result<std::unique_ptr<File>> file = files_->Open(name, OpenOptions{});
      if (!file.ok()) return ToIOStatus(file.status());
      *result = MakeRocksSequentialFile(std::move(file).value());
      return IOStatus::OK();
    });
  }

  IOStatus NewRandomAccessFile(const std::string& name, const FileOptions&,
                               std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                               IODebugContext*) override {
    return Guarded([&]() -> IOStatus {
      Result<std::unique_ptr<File>> file = files_->Open(name, OpenOptions{});
      if (!file.ok()) return ToIOStatus(file.status());
      *result = MakeRocksRandomAccessFile(std::move(file).value());
      return IOStatus::OK();
    });
  }

  IOStatus NewWritableFile(const std::string& name, const FileOptions&,
                           std::unique_ptr<rocksdb::FSWritableFile>* result,
                           IODebugContext*) override {
    return OpenWritable(name, /*truncate=*/true, result);
  }

  IOStatus ReopenWritableFile(const std::string& name, const FileOptions&,
                              std::unique_ptr<rocksdb::FSWritableFile>* result,
                              IODebugContext*) override {
    return OpenWritable(name, /*truncate=*/false, result);
  }

  IOStatus NewDirectory(const std::string& name, const IOOptions&,
                        std::unique_ptr<rocksdb::FSDirectory>* result, IODebugContext*) override {
    return Guarded([&]() -> IOStatus {
      if (!changes_->frozen()) {
        Result<FileInfo> info = files_->Stat(name);
        if (!info.ok()) return ToIOStatus(info.status());
      }
      *result = MakeRocksDirectory(files_, name, changes_);
      return IOStatus::OK();
    });
  }

  IOStatus FileExists(const std::string& name, const IOOptions&, IODebugContext*) override {
    return Guarded([&]() -> IOStatus {
      if (changes_->GhostSize(name)) return IOStatus::OK();
      Result<FileInfo> info = files_->Stat(name);
      if (info.ok()) return IOStatus::OK();
      if (info.status().code() == StatusCode::kNotFound) return IOStatus::NotFound();
      return ToIOStatus(info.status());
    });
  }

  IOStatus GetChildren(const std::string& directory, const IOOptions&,
                       std::vector<std::string>* result, IODebugContext*) override {
    return Guarded([&]() -> IOStatus {
      result->clear();
      Result<std::vector<std::string>> names = files_->List(directory);
      if (names.ok()) {
        *result = std::move(names).value();
        return IOStatus::OK();
      }
      if (names.status().code() == StatusCode::kNotFound) {
        return IOStatus::NotFound(names.status().message());
      }
      return ToIOStatus(names.status());
    });
  }

  IOStatus DeleteFile(const std::string& name, const IOOptions&, IODebugContext*) override {
    return changes_->Change([&] { return files_->Remove(name); },
                            [&] { changes_->ForgetGhost(name); });
  }

  IOStatus Truncate(const std::string& name, size_t size, const IOOptions&,
                    IODebugContext*) override {
    return changes_->Change([&]() -> Status {
      OpenOptions options;
      options.write = true;
      options.freeze = changes_->freeze();
      STEPWELL_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files_->Open(name, options));
      return file->Truncate(size);
    });
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
    return Guarded([&]() -> IOStatus {
      if (const std::optional<uint64_t> ghost = changes_->GhostSize(name)) {
        *size = *ghost;
        return IOStatus::OK();
      }
      Result<FileInfo> info = files_->Stat(name);
      if (!info.ok()) return ToIOStatus(info.status());
      *size = info->size_bytes;
      return IOStatus::OK();
    });
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

  IOStatus LinkFile(const std::string& from, const std::string& to, const IOOptions&,
                    IODebugContext*) override {
    return changes_->Change([&] { return files_->Link(from, to); });
  }

  IOStatus NumFileLinks(const std::string& name, const IOOptions&, uint64_t* count,
                        IODebugContext*) override {
    return Guarded([&]() -> IOStatus {
      Result<FileInfo> info = files_->Stat(name);
      if (!info.ok()) return ToIOStatus(info.status());
      *count = info->link_count;
      return IOStatus::OK();
    });
  }

  IOStatus LockFile(const std::string&, const IOOptions&, rocksdb::FileLock** lock,
                    IODebugContext*) override {
    return Guarded([&] {
      *lock = new NoLock;
      return IOStatus::OK();
    });
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
    return Guarded([&] {
      *result = std::make_shared<SilentLogger>();
      return IOStatus::OK();
    });
  }

  // Paths mean what the FileSystem below makes of them; RocksDB only compares these.
  IOStatus GetAbsolutePath(const std::string& path, const IOOptions&, std::string* result,
                           IODebugContext*) override {
    return Guarded([&] {
      *result = path;
      return IOStatus::OK();
    });
  }

  IOStatus GetFreeSpace(const std::string& path, const IOOptions&, uint64_t* bytes,
                        IODebugContext*) override {
    return Guarded([&]() -> IOStatus {
      Result<uint64_t> free_bytes = files_->FreeBytes(path);
      if (!free_bytes.ok()) return ToIOStatus(free_bytes.status());
      *bytes = *free_bytes;
      return IOStatus::OK();
    });
  }

  IOStatus IsDirectory(const std::string& path, const IOOptions&, bool* is_directory,
                       IODebugContext*) override {
    return Guarded([&]() -> IOStatus {
      Result<FileInfo> info = files_->Stat(path);
      if (!info.ok()) return ToIOStatus(info.status());
      *is_directory = info->is_directory;
      return IOStatus::OK();
    });
  }

 private:
  IOStatus OpenWritable(const std::string& name, bool truncate,
                        std::unique_ptr<rocksdb::FSWritableFile>* result) {
    std::unique_ptr<File> file;
    uint64_t size_bytes = 0;
    const IOStatus opened = changes_->Change([&]() -> Status {
      OpenOptions options;
      options.write = true;
      options.create = true;
      options.truncate = truncate;
      options.freeze = changes_->freeze();
      STEPWELL_ASSIGN_OR_RETURN(file, files_->Open(name, options));
      if (truncate) return OkStatus();
      Result<FileInfo> info = file->Info();
      if (!info.ok()) {
        file.reset();
        return info.status();
      }
      size_bytes = info->size_bytes;
      return OkStatus();
    });
    if (!opened.ok()) return opened;
    return Guarded([&] {
      // Null after the freeze: a file that only RocksDB believes in.
      if (file == nullptr) changes_->SetGhost(name, 0);
      *result = MakeRocksWritableFile(name, std::move(file), size_bytes, changes_);
      return IOStatus::OK();
    });
  }

  io::FileSystem* const files_;  // the bare name is RocksDB's in here
  const std::shared_ptr<RocksChanges> changes_;
};

}  // namespace

std::shared_ptr<rocksdb::FileSystem> MakeRocksFileSystem(FileSystem* file_system,
                                                         std::shared_ptr<Freeze> freeze) {
  return std::make_shared<RocksFileSystem>(file_system, std::move(freeze));
}

}  // namespace stepwell::io
