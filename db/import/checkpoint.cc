// SPDX-License-Identifier: Apache-2.0
// Reads a directory of Orbax's: steps, items, metadata.
#include <algorithm>

#include "db/export/orbax/digests.h"
#include "db/export/orbax/numbers.h"
#include "db/export/orbax/records.h"
#include "db/import/import.h"
#include "db/import/source.h"
#include "db/layout.h"
#include "format/orbax/ocdbt.h"
#include "format/orbax/orbax_files.h"
#include "format/orbax/python_text.h"
#include "format/orbax/tree_metadata.h"
#include "io/small_file.h"

namespace stepwell::db {
namespace {

using format::orbax::Printable;
using io::StatIfThere;

constexpr uint64_t kSmallFileBytesMax = uint64_t{64} << 20;
constexpr std::string_view kRootMetadataFolder = "metadata";
constexpr std::string_view kJsonFiles[] = {"data.json", "metadata", "metrics"};

std::string_view NameOf(std::string_view path) { return path.substr(path.rfind('/') + 1); }

bool IsTemporary(std::string_view name) {
  return name.find(format::orbax::kTemporaryMark) != std::string_view::npos;
}

Result<bool> Has(io::FileSystem* file_system, const std::string& folder, std::string_view name) {
  return io::HasFile(file_system, StrCat(folder, "/", name));
}

// Lists the directories of saves that were finished.
Result<std::vector<std::string>> Folders(io::FileSystem* file_system, const std::string& path) {
  STEPWELL_ASSIGN_OR_RETURN(const std::vector<std::string> names, file_system->List(path));
  std::vector<std::string> folders;
  for (const std::string& name : names) {
    STEPWELL_ASSIGN_OR_RETURN(const auto info, StatIfThere(file_system, StrCat(path, "/", name)));
    if (info && info->is_directory && !IsTemporary(name)) folders.push_back(name);
  }
  return folders;
}

// The file of an item that is JSON; empty when there is none. `alone`: it is if that is its only
// one.
Result<std::string> JsonFileOf(io::FileSystem* file_system, const std::string& folder, bool alone) {
  if (alone) {
    STEPWELL_ASSIGN_OR_RETURN(auto names, file_system->List(folder));
    std::erase(names, format::orbax::kCommitSuccessName);
    if (names.size() != 1) return std::string();
  }
  for (const std::string_view name : kJsonFiles) {
    STEPWELL_ASSIGN_OR_RETURN(const bool there, Has(file_system, folder, name));
    if (there) return std::string(name);
  }
  return std::string();
}

// Returns true if the directory is a step's, by one of its files or of its items' files.
Result<bool> IsStep(io::FileSystem* file_system, const std::string& path) {
  for (const std::string_view name :
       {format::orbax::kCheckpointMetadataName, format::orbax::kTreeMetadataName,
        format::orbax::kIndicatorName}) {
    STEPWELL_ASSIGN_OR_RETURN(const bool there, Has(file_system, path, name));
    if (there) return true;
  }
  STEPWELL_ASSIGN_OR_RETURN(const auto folders, Folders(file_system, path));
  for (const std::string& name : folders) {
    STEPWELL_ASSIGN_OR_RETURN(const bool there, Has(file_system, StrCat(path, "/", name),
                                                    format::orbax::kTreeMetadataName));
    if (there) return true;
  }
  return false;
}

}  // namespace

std::optional<uint64_t> StepOfName(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const std::string_view name = NameOf(path);
  size_t begin = name.size();
  while (begin > 0 && name[begin - 1] >= '0' && name[begin - 1] <= '9') --begin;
  if (begin == name.size()) return std::nullopt;
  if (begin > 0 && name[begin - 1] != '_' && name[begin - 1] != '-') return std::nullopt;
  uint64_t step = 0;
  if (!ParseInteger(name.substr(begin), &step) || step > INT64_MAX) return std::nullopt;
  return step;
}

Result<std::vector<OrbaxStep>> FindOrbaxSteps(io::FileSystem* file_system,
                                              const std::string& root_path) {
  const std::string root = WithoutTrailingSlashes(root_path);
  std::vector<OrbaxStep> steps;
  // A directory with none of these may still be a step of items. The names of its folders decide
  // then.
  for (const std::string_view name :
       {format::orbax::kCheckpointMetadataName, format::orbax::kTreeMetadataName}) {
    STEPWELL_ASSIGN_OR_RETURN(const bool is_step, Has(file_system, root, name));
    if (is_step) return steps;
  }
  STEPWELL_ASSIGN_OR_RETURN(const auto folders, Folders(file_system, root));
  for (const std::string& name : folders) {
    const std::optional<uint64_t> step = StepOfName(name);
    if (!step) continue;
    OrbaxStep found{*step, name, StrCat(root, "/", name)};
    STEPWELL_ASSIGN_OR_RETURN(const bool holds, IsStep(file_system, found.path));
    if (holds) steps.push_back(std::move(found));
  }
  std::stable_sort(steps.begin(), steps.end(),
                   [](const OrbaxStep& a, const OrbaxStep& b) { return a.step < b.step; });
  for (size_t i = 1; i < steps.size(); ++i) {
    if (steps[i].step != steps[i - 1].step) continue;
    return InvalidArgumentError(StrCat(root, ": ", steps[i - 1].name, " and ", steps[i].name,
                                       " are both step ", steps[i].step,
                                       "; import one of them by its own path"));
  }
  return steps;
}

Result<OrbaxCheckpoint> OrbaxCheckpoint::Open(io::FileSystem* file_system,
                                              const std::string& path) {
  OrbaxCheckpoint checkpoint(file_system, WithoutTrailingSlashes(path));
  STEPWELL_RETURN_IF_ERROR(checkpoint.Load());
  return checkpoint;
}

Status OrbaxCheckpoint::Load() {
  STEPWELL_ASSIGN_OR_RETURN(const auto info, StatIfThere(file_system_, path_));
  if (!info) return NotFoundError(StrCat(path_, ": there is no such directory"));
  if (!info->is_directory) {
    return InvalidArgumentError(StrCat(path_, " is a file; an Orbax checkpoint is a directory"));
  }
  if (IsTemporary(NameOf(path_))) {
    return InvalidArgumentError(StrCat(path_,
                                       " is a save that Orbax did not finish: its name has \"",
                                       format::orbax::kTemporaryMark, "\""));
  }
  identity_ = DirectoryText(*info);
  step_ = StepOfName(path_);
  folder_ = path_;
  STEPWELL_RETURN_IF_ERROR(ReadCheckpointMetadata(path_));
  STEPWELL_ASSIGN_OR_RETURN(const bool is_item,
                            Has(file_system_, path_, format::orbax::kTreeMetadataName));
  STEPWELL_ASSIGN_OR_RETURN(const bool is_step,
                            Has(file_system_, path_, format::orbax::kCheckpointMetadataName));
  if (is_item) {
    const std::string parent = ParentOf(path_);
    STEPWELL_ASSIGN_OR_RETURN(const bool in_step,
                              Has(file_system_, parent, format::orbax::kCheckpointMetadataName));
    if (!is_step && in_step) {
      if (!step_) step_ = StepOfName(parent);
      folder_ = parent;
      STEPWELL_RETURN_IF_ERROR(ReadCheckpointMetadata(parent));
      STEPWELL_RETURN_IF_ERROR(AddItem(std::string(NameOf(path_)), path_));
    } else {
      STEPWELL_RETURN_IF_ERROR(AddItem(std::string(kPlainItem), path_));
    }
  } else {
    STEPWELL_ASSIGN_OR_RETURN(const bool is_database,
                              Has(file_system_, path_, format::orbax::kOcdbtManifestName));
    if (is_database) {
      return DataLossError(StrCat(path_, ": ", format::orbax::kTreeMetadataName, " is missing"));
    }
    STEPWELL_ASSIGN_OR_RETURN(const auto folders, Folders(file_system_, path_));
    for (const std::string& name : folders) {
      STEPWELL_RETURN_IF_ERROR(AddItem(name, StrCat(path_, "/", name)));
    }
  }
  const auto known = [](const OrbaxItem& item) {
    return item.kind != OrbaxItem::Kind::kFiles && item.kind != OrbaxItem::Kind::kTorn;
  };
  if (!is_step && std::none_of(items_.begin(), items_.end(), known)) return NotACheckpoint();
  const auto named = [this](std::string_view name) {
    return std::find_if(items_.begin(), items_.end(),
                        [name](const OrbaxItem& item) { return item.target == name; });
  };
  for (const std::string_view name : kUnnamedItems) {
    const auto unnamed = named(name);
    if (unnamed != items_.end() && named(kPlainItem) == items_.end()) unnamed->target = kPlainItem;
  }
  if (!step_) {
    STEPWELL_ASSIGN_OR_RETURN(const auto digests, Digests());
    if (digests != nullptr) step_ = digests->step;
  }
  return ReadRootMetadata();
}

Status OrbaxCheckpoint::CheckUnchanged(Status status) const {
  STEPWELL_ASSIGN_OR_RETURN(const auto info, StatIfThere(file_system_, path_));
  if (info && DirectoryText(*info) == identity_) return status;
  return UnavailableError(
      StrCat(path_, " was replaced or removed while it was read: import it again"));
}

Status OrbaxCheckpoint::NotACheckpoint() {
  STEPWELL_ASSIGN_OR_RETURN(const auto steps, FindOrbaxSteps(file_system_, path_));
  if (steps.empty()) {
    return InvalidArgumentError(StrCat(path_, " is not an Orbax checkpoint: there is neither ",
                                       format::orbax::kCheckpointMetadataName, " nor ",
                                       format::orbax::kTreeMetadataName, " in it"));
  }
  return InvalidArgumentError(StrCat(path_, " holds ", steps.size(), " checkpoints, ",
                                     steps.front().name, " to ", steps.back().name,
                                     "; name one of them"));
}

Status OrbaxCheckpoint::AddItem(const std::string& name, const std::string& folder) {
  OrbaxItem item;
  item.name = name;
  item.target = name;
  item.path = folder;
  if (const auto found = handlers_.find(name); found != handlers_.end()) {
    item.handler = found->second;
  }
  STEPWELL_ASSIGN_OR_RETURN(item.kind, KindOf(name, &item));
  if (item.kind == OrbaxItem::Kind::kTree) {
    STEPWELL_ASSIGN_OR_RETURN(item.has_records, HasDigested(item, kRecordsName));
    STEPWELL_ASSIGN_OR_RETURN(item.has_values, HasDigested(item, kValuesName));
  }
  if (item.kind != OrbaxItem::Kind::kFiles && format::orbax::FindHandler(item.handler) == nullptr) {
    STEPWELL_ASSIGN_OR_RETURN(const bool as_files, IsExportedAsFiles(item));
    if (as_files) {
      item.kind = OrbaxItem::Kind::kFiles;
      item.json_file.clear();
    }
  }
  items_.push_back(std::move(item));
  return OkStatus();
}

// By the names of its files and its handler; sets `json_file`.
Result<OrbaxItem::Kind> OrbaxCheckpoint::KindOf(const std::string& name, OrbaxItem* item) const {
  using Kind = OrbaxItem::Kind;
  const auto* const handler = format::orbax::FindHandler(item->handler);
  STEPWELL_ASSIGN_OR_RETURN(const bool is_tree,
                            Has(file_system_, item->path, format::orbax::kTreeMetadataName));
  if (is_tree) {
    // ArraySave's item looks like a tree with the one leaf "checkpoint".
    const bool is_array = handler != nullptr && handler->kind == format::orbax::HandlerKind::kArray;
    return is_array ? Kind::kArray : Kind::kTree;
  }
  // Handlers of other programs have files of such names, too.
  const bool is_foreign = handler == nullptr && !item->handler.empty();
  STEPWELL_ASSIGN_OR_RETURN(item->json_file, JsonFileOf(file_system_, item->path, is_foreign));
  if (!item->json_file.empty()) {
    const bool is_metrics =
        item->json_file == format::orbax::kMetricsItem && name == format::orbax::kMetricsItem;
    return is_metrics ? Kind::kMetrics : Kind::kJson;
  }
  STEPWELL_ASSIGN_OR_RETURN(const bool is_database,
                            Has(file_system_, item->path, format::orbax::kOcdbtManifestName));
  return is_database || handler != nullptr ? Kind::kTorn : Kind::kFiles;
}

Result<std::shared_ptr<const ExportDigests>> OrbaxCheckpoint::Digests() {
  if (!digests_) {
    STEPWELL_ASSIGN_OR_RETURN(auto read, ReadDigests(file_system_, folder_));
    digests_ = read ? std::make_shared<const ExportDigests>(*std::move(read)) : nullptr;
  }
  return *digests_;
}

// Returns true if our own export recorded that these are files, whatever their names.
Result<bool> OrbaxCheckpoint::IsExportedAsFiles(const OrbaxItem& item) {
  STEPWELL_ASSIGN_OR_RETURN(const auto digests, Digests());
  if (digests == nullptr) return false;
  const auto& folders = digests->file_items;
  return std::any_of(folders.begin(), folders.end(), [&](const std::string& folder) {
    return StrCat(folder_, "/", folder) == item.path;
  });
}

// A file that was written into the directory later, or copied there from elsewhere, has no digest.
Result<bool> OrbaxCheckpoint::HasDigested(const OrbaxItem& item, std::string_view name) {
  STEPWELL_ASSIGN_OR_RETURN(const auto digests, Digests());
  if (digests == nullptr) return false;
  const std::string path = StrCat(item.path, "/", name);
  return std::any_of(digests->files.begin(), digests->files.end(), [&](const FileDigest& file) {
    return StrCat(folder_, "/", file.name) == path;
  });
}

Status OrbaxCheckpoint::ReadCheckpointMetadata(const std::string& folder) {
  const std::string path = StrCat(folder, "/", format::orbax::kCheckpointMetadataName);
  STEPWELL_ASSIGN_OR_RETURN(const auto text,
                            io::ReadIfThere(file_system_, path, kSmallFileBytesMax));
  if (!text) return OkStatus();
  STEPWELL_ASSIGN_OR_RETURN(const auto metadata,
                            format::orbax::DecodeCheckpointMetadata(path, *text));
  using Items = std::vector<format::orbax::ItemHandler>;
  if (const auto* items = std::get_if<Items>(&metadata.handlers)) {
    for (const format::orbax::ItemHandler& item : *items) {
      if (item.type) handlers_[item.item] = *item.type;
    }
  }
  if (metadata.custom_metadata != "{}") custom_metadata_ = metadata.custom_metadata;
  if (metadata.metrics != "{}") metrics_ = metadata.metrics;
  return OkStatus();
}

Status OrbaxCheckpoint::ReadRootMetadata() {
  const std::string parent = ParentOf(path_);
  STEPWELL_ASSIGN_OR_RETURN(const auto folder,
                            StatIfThere(file_system_, StrCat(parent, "/", kRootMetadataFolder)));
  if (!folder || !folder->is_directory) return OkStatus();
  const std::string path = StrCat(parent, "/", format::orbax::kRootMetadataName);
  STEPWELL_ASSIGN_OR_RETURN(const auto text,
                            io::ReadIfThere(file_system_, path, kSmallFileBytesMax));
  if (!text) return OkStatus();
  STEPWELL_ASSIGN_OR_RETURN(const auto metadata, format::orbax::DecodeRootMetadata(path, *text));
  if (metadata.custom_metadata != "{}") root_metadata_ = metadata.custom_metadata;
  return OkStatus();
}

}  // namespace stepwell::db
