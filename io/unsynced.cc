// SPDX-License-Identifier: Apache-2.0
#include "io/unsynced.h"

#include <utility>

namespace stepwell::io {
namespace {

class UnsyncedFileSystem final : public FileSystem {
 public:
  explicit UnsyncedFileSystem(std::shared_ptr<FileSystem> inner) : inner_(std::move(inner)) {}

  Result<std::unique_ptr<File>> Open(const std::string& path,
                                     const FileOpenOptions& options) override {
    auto file = inner_->Open(path, options);
    if (file.ok()) (*file)->SkipSyncs();
    return file;
  }
  Status SyncDirectory(const std::string& path) override { return (void)path, OkStatus(); }

  Result<FileInfo> Stat(const std::string& path) override { return inner_->Stat(path); }
  Result<std::vector<std::string>> List(const std::string& path) override {
    return inner_->List(path);
  }
  Status CreateDirectory(const std::string& path) override { return inner_->CreateDirectory(path); }
  Status Remove(const std::string& path) override { return inner_->Remove(path); }
  Status RemoveDirectory(const std::string& path) override { return inner_->RemoveDirectory(path); }
  Status Rename(const std::string& from, const std::string& to) override {
    return inner_->Rename(from, to);
  }
  Status Exchange(const std::string& one, const std::string& other) override {
    return inner_->Exchange(one, other);
  }
  Status Link(const std::string& from, const std::string& to) override {
    return inner_->Link(from, to);
  }
  Status SetMode(const std::string& path, uint32_t mode) override {
    return inner_->SetMode(path, mode);
  }
  Result<uint64_t> FreeBytes(const std::string& path) override { return inner_->FreeBytes(path); }
  Result<std::shared_ptr<const void>> HoldRoot() override { return inner_->HoldRoot(); }

 private:
  const std::shared_ptr<FileSystem> inner_;
};

}  // namespace

std::unique_ptr<FileSystem> WithoutSyncs(std::shared_ptr<FileSystem> inner) {
  return std::make_unique<UnsyncedFileSystem>(std::move(inner));
}

}  // namespace stepwell::io
