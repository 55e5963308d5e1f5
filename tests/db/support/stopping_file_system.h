// SPDX-License-Identifier: Apache-2.0
// The machine's file system, which calls back before each operation that changes something: to
// kill the process at every point of what it does with files.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/open_disk.h"

namespace stepwell::db {

class StoppingFile : public io::File {
 public:
  StoppingFile(std::unique_ptr<io::File> file, const std::function<void()>& before, bool reserves)
      : File(file->path(), file->freeze()),
        file_(std::move(file)),
        before_(before),
        reserves_(reserves) {}

  Result<size_t> ReadAt(uint64_t offset, MutableBytes out) override {
    return file_->ReadAt(offset, out);
  }
  Status WriteAt(uint64_t offset, ConstBytes data) override {
    before_();
    return file_->WriteAt(offset, data);
  }
  Status Sync() override {
    before_();
    return file_->Sync();
  }
  Status Allocate(uint64_t offset, uint64_t length) override {
    before_();
    return reserves_ ? file_->Allocate(offset, length) : OkStatus();
  }
  Status PunchHole(uint64_t offset, uint64_t length) override {
    before_();
    return file_->PunchHole(offset, length);
  }
  Status Truncate(uint64_t size) override {
    before_();
    return file_->Truncate(size);
  }
  // `source` is one that was opened for reading: not a StoppingFile.
  Status CloneFrom(File& source, uint64_t source_offset, uint64_t length,
                   uint64_t offset) override {
    before_();
    return file_->CloneFrom(source, source_offset, length, offset);
  }
  Status CopyFrom(File& source, uint64_t source_offset, uint64_t length, uint64_t offset) override {
    before_();
    return file_->CopyFrom(source, source_offset, length, offset);
  }
  Result<io::FileInfo> Info() override { return file_->Info(); }
  Result<bool> TryLock(io::LockKind kind) override {
    before_();
    return file_->TryLock(kind);
  }
  Status Unlock() override { return file_->Unlock(); }
  Result<bool> LockedByOther() override { return file_->LockedByOther(); }
  io::Alignment alignment() const override { return file_->alignment(); }
  int descriptor() const override { return file_->descriptor(); }

 private:
  const std::unique_ptr<io::File> file_;
  const std::function<void()> before_;
  const bool reserves_;
};

class StoppingFileSystem : public io::FileSystem {
 public:
  // Without `reserves` it has no fallocate, as NFS and others.
  explicit StoppingFileSystem(std::function<void()> before, bool reserves = true)
      : before_(std::move(before)), reserves_(reserves) {}

  Result<std::unique_ptr<io::File>> Open(const std::string& path,
                                         const io::FileOpenOptions& options) override {
    if (options.create) before_();
    STEPWELL_ASSIGN_OR_RETURN(auto file, files_->Open(path, options));
    if (!options.write) return file;
    return std::unique_ptr<io::File>(
        std::make_unique<StoppingFile>(std::move(file), before_, reserves_));
  }
  Result<io::FileInfo> Stat(const std::string& path) override { return files_->Stat(path); }
  Result<std::vector<std::string>> List(const std::string& path) override {
    return files_->List(path);
  }
  Status CreateDirectory(const std::string& path) override {
    before_();
    return files_->CreateDirectory(path);
  }
  Status Remove(const std::string& path) override {
    before_();
    return files_->Remove(path);
  }
  Status RemoveDirectory(const std::string& path) override {
    before_();
    return files_->RemoveDirectory(path);
  }
  Status Rename(const std::string& from, const std::string& to) override {
    before_();
    return files_->Rename(from, to);
  }
  Status Exchange(const std::string& one, const std::string& other) override {
    before_();
    return files_->Exchange(one, other);
  }
  Status Link(const std::string& from, const std::string& to) override {
    before_();
    return files_->Link(from, to);
  }
  Status SetMode(const std::string& path, uint32_t mode) override {
    before_();
    return files_->SetMode(path, mode);
  }
  Status SyncDirectory(const std::string& path) override {
    before_();
    return files_->SyncDirectory(path);
  }
  Result<uint64_t> FreeBytes(const std::string& path) override { return files_->FreeBytes(path); }

 private:
  io::FileSystem* const files_ = io::LocalFileSystem();
  const std::function<void()> before_;
  const bool reserves_;
};

}  // namespace stepwell::db
