// SPDX-License-Identifier: Apache-2.0
#include "db/export/orbax/root.h"

#include <string_view>
#include <utility>

#include "db/export/orbax/folder.h"
#include "db/export/orbax/plan.h"
#include "db/layout.h"
#include "io/guard.h"

namespace stepwell::db {
namespace {

constexpr std::string_view kMetadataFolder = "metadata";

}  // namespace

Result<ExportTarget> FindExportTarget(io::FileSystem* file_system, const std::string& store,
                                      uint64_t step, const std::string& destination,
                                      const ExportOptions& options) {
  ExportTarget target;
  target.path = WithoutTrailingSlashes(destination);
  if (target.path.empty()) return InvalidArgumentError("an export needs a destination");
  STEPWELL_RETURN_IF_ERROR(CheckOutside(file_system, store, target.path));
  if (options.layout != ExportLayout::kV0) return target;
  STEPWELL_ASSIGN_OR_RETURN(const std::string name, ExportStepName(step, options));
  if (!file_system->Stat(target.path).ok()) target.new_root = target.path;
  target.path += "/" + name;
  return target;
}

NewRoot::NewRoot(io::FileSystem* file_system, std::string path)
    : file_system_(file_system), path_(std::move(path)) {}

// Of an export that failed: what others have put there meanwhile stays.
NewRoot::~NewRoot() {
  if (!made_) return;
  constexpr const char* kWhy = "another program uses it by now, or the file system failed";
  io::Quietly([this] {
    if (has_metadata_) {
      file_system_->Remove(StrCat(path_, "/", format::orbax::kRootMetadataName)).IgnoreError(kWhy);
      file_system_->RemoveDirectory(StrCat(path_, "/", kMetadataFolder)).IgnoreError(kWhy);
    }
    file_system_->RemoveDirectory(path_).IgnoreError(kWhy);
  });
}

Status NewRoot::Make(const std::string& custom_metadata, uint32_t file_mode) {
  if (path_.empty()) return OkStatus();
  const Status made = file_system_->CreateDirectory(path_);
  if (made.code() == StatusCode::kAlreadyExists) {
    if (custom_metadata.empty()) return OkStatus();
    return UnavailableError(StrCat(path_, " appeared meanwhile: export again"));
  }
  if (made.code() == StatusCode::kNotFound) {
    STEPWELL_RETURN_IF_ERROR(CheckIsDirectory(file_system_, ParentOf(path_)));
  }
  STEPWELL_RETURN_IF_ERROR(made);
  made_ = true;
  STEPWELL_RETURN_IF_ERROR(file_system_->SyncDirectory(ParentOf(path_)));
  return custom_metadata.empty() ? OkStatus() : WriteMetadata(custom_metadata, file_mode);
}

Status NewRoot::WriteMetadata(const std::string& custom_metadata, uint32_t file_mode) {
  format::orbax::RootMetadata metadata;
  metadata.custom_metadata = custom_metadata;
  STEPWELL_ASSIGN_OR_RETURN(const std::string text, format::orbax::EncodeRootMetadata(metadata));
  STEPWELL_ASSIGN_OR_RETURN(const auto folder,
                            ExportFolder::Create(file_system_, StrCat(path_, "/", kMetadataFolder),
                                                 {.file_mode = file_mode}));
  const std::string_view name = format::orbax::kRootMetadataName;
  STEPWELL_RETURN_IF_ERROR(folder->Write(name.substr(kMetadataFolder.size() + 1), text));
  STEPWELL_RETURN_IF_ERROR(folder->Commit());
  has_metadata_ = true;
  return OkStatus();
}

}  // namespace stepwell::db
