// SPDX-License-Identifier: Apache-2.0
#include "io/rocks_files.h"

#include <algorithm>
#include <utility>

namespace stepwell::io {
namespace {

IOStatus ReadInto(File* file, uint64_t offset, size_t size, rocksdb::Slice* result, char* scratch) {
  return Guarded([&]() -> IOStatus {
    *result = rocksdb::Slice(scratch, 0);
    Result<size_t> read = file->ReadAt(offset, {reinterpret_cast<std::byte*>(scratch), size});
    if (!read.ok()) return ToIOStatus(read.status());
    *result = rocksdb::Slice(scratch, *read);
    return IOStatus::OK();
  });
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
  WritableFile(std::string name, std::unique_ptr<File> file, uint64_t size_bytes,
               std::shared_ptr<RocksChanges> changes)
      : name_(std::move(name)),
        changes_(std::move(changes)),
        file_(std::move(file)),
        size_bytes_(size_bytes) {}

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
  uint64_t size_bytes_;
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

}  // namespace

// Never NoSpace: RocksDB would start a thread that waits for room, and close would wait for that
// thread, which waits for work that only runs when we ask for it. Only reads come here with it (no
// memory, a quota): a change that fails is for the freeze to tell.
IOStatus ToIOStatus(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return IOStatus::OK();
    case StatusCode::kNotFound:
      return IOStatus::PathNotFound(status.message());
    default:
      return IOStatus::IOError(status.message());
  }
}

std::optional<uint64_t> RocksChanges::GhostSize(const std::string& name) const {
  if (!frozen()) return std::nullopt;
  std::lock_guard lock(mutex_);
  const auto found = ghosts_.find(name);
  if (found == ghosts_.end()) return std::nullopt;
  return found->second;
}

void RocksChanges::SetGhost(const std::string& name, uint64_t size_bytes) {
  std::lock_guard lock(mutex_);
  ghosts_[name] = size_bytes;
}

void RocksChanges::ForgetGhost(const std::string& name) {
  std::lock_guard lock(mutex_);
  ghosts_.erase(name);
}

void RocksChanges::RenameGhost(const std::string& from, const std::string& to) {
  std::lock_guard lock(mutex_);
  auto ghost = ghosts_.extract(from);
  if (!ghost) return;
  ghosts_.erase(to);
  ghost.key() = to;
  ghosts_.insert(std::move(ghost));
}

std::unique_ptr<rocksdb::FSSequentialFile> MakeRocksSequentialFile(std::unique_ptr<File> file) {
  return std::make_unique<SequentialFile>(std::move(file));
}

std::unique_ptr<rocksdb::FSRandomAccessFile> MakeRocksRandomAccessFile(std::unique_ptr<File> file) {
  return std::make_unique<RandomAccessFile>(std::move(file));
}

std::unique_ptr<rocksdb::FSWritableFile> MakeRocksWritableFile(
    std::string name, std::unique_ptr<File> file, uint64_t size_bytes,
    std::shared_ptr<RocksChanges> changes) {
  return std::make_unique<WritableFile>(std::move(name), std::move(file), size_bytes,
                                        std::move(changes));
}

std::unique_ptr<rocksdb::FSDirectory> MakeRocksDirectory(FileSystem* files, std::string name,
                                                         std::shared_ptr<RocksChanges> changes) {
  return std::make_unique<Directory>(files, std::move(name), std::move(changes));
}

}  // namespace stepwell::io
