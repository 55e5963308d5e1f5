// SPDX-License-Identifier: Apache-2.0
// Items that other libraries wrote as files: kept as they are, for an export to give back.
#include <algorithm>
#include <filesystem>
#include <system_error>

#include "db/import/tree.h"
#include "db/layout.h"
#include "format/key.h"
#include "format/orbax/orbax_files.h"
#include "io/small_file.h"

namespace stepwell::db::import {
namespace {

using format::ContainerKind;
using format::ValueType;

constexpr size_t kFilesMax = 100'000;
constexpr int kDepthMax = 32;

class FilesReader {
 public:
  FilesReader(io::FileSystem* file_system, const OrbaxItem& source, uint64_t bytes_max)
      : file_system_(file_system), source_(source), bytes_left_(bytes_max) {
    item_.name = source.target;
    item_.kind = format::ItemKind::kFiles;
  }

  Result<ItemInput> Run() {
    STEPWELL_RETURN_IF_ERROR(AddFolder("", 0));
    const uint64_t count = item_.leaves.size();
    STEPWELL_ASSIGN_OR_RETURN(std::string key, format::EncodeLeafKey(item_.name, {}));
    item_.leaves.push_back(NodeInput(std::move(key), ContainerKind::kDict, count));
    return std::move(item_);
  }

 private:
  // `below`: relative to the item, "" or with "/" behind it.
  Status AddFolder(const std::string& below, int depth) {
    const std::string folder = StrCat(source_.path, "/", below);
    if (depth > kDepthMax) {
      return UnimplementedError(StrCat(folder, ": directories more than ", kDepthMax, " deep"));
    }
    STEPWELL_ASSIGN_OR_RETURN(const auto names, file_system_->List(folder));
    if (names.empty() && !below.empty()) return Add(below, ValueType::kNone, {});
    // The store of a checkpoint of ours lies in its first item, and the mark is of every export.
    const std::vector<std::string> stores =
        below.empty() ? StoresIn(file_system_, source_.path) : std::vector<std::string>();
    for (const std::string& name : names) {
      if (below.empty() && name == format::orbax::kCommitSuccessName) continue;
      if (std::find(stores.begin(), stores.end(), name) != stores.end()) continue;
      std::error_code error;
      if (std::filesystem::is_symlink(std::filesystem::symlink_status(folder + name, error))) {
        return UnimplementedError(StrCat(folder, name, " is a symbolic link; only files are kept"));
      }
      STEPWELL_ASSIGN_OR_RETURN(const auto info, io::StatIfThere(file_system_, folder + name));
      if (!info) return DataLossError(StrCat(folder, name, " was removed while it was read"));
      if (info->is_directory) {
        STEPWELL_RETURN_IF_ERROR(AddFolder(StrCat(below, name, "/"), depth + 1));
        continue;
      }
      STEPWELL_ASSIGN_OR_RETURN(std::string bytes,
                                io::ReadSmallFile(file_system_, folder + name, bytes_left_));
      bytes_left_ -= bytes.size();
      STEPWELL_RETURN_IF_ERROR(Add(below + name, ValueType::kBytes, std::move(bytes)));
    }
    return OkStatus();
  }

  Status Add(const std::string& path, ValueType type, std::string bytes) {
    if (item_.leaves.size() >= kFilesMax) {
      return UnimplementedError(StrCat(source_.path, " has more than ", kFilesMax, " files"));
    }
    STEPWELL_ASSIGN_OR_RETURN(std::string key,
                              format::EncodeLeafKey(item_.name, {PathComponent::Key(path)}));
    item_.leaves.push_back(ValueInput(std::move(key), type, std::move(bytes)));
    return OkStatus();
  }

  io::FileSystem* const file_system_;
  const OrbaxItem& source_;
  uint64_t bytes_left_;
  ItemInput item_;
};

}  // namespace

Result<ItemInput> ReadFilesItem(io::FileSystem* file_system, const OrbaxItem& item,
                                uint64_t memory_bytes_max) {
  return FilesReader(file_system, item, memory_bytes_max).Run();
}

}  // namespace stepwell::db::import
