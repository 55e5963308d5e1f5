// SPDX-License-Identifier: Apache-2.0
// A whole checkpoint as a save.
#include <unistd.h>

#include <algorithm>

#include "db/export_metadata.h"
#include "db/import.h"
#include "db/import_tree.h"
#include "format/orbax/json.h"
#include "format/orbax/python_text.h"
#include "format/orbax/user_json.h"

namespace stepwell::db {
namespace {

using format::orbax::Json;
using import::ImportArray;
using import::ImportTree;

constexpr uint64_t kMetricsBytesMax = uint64_t{16} << 20;

uint64_t MachineMemoryBytes() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE));
}

std::string ItemNames(const OrbaxCheckpoint& checkpoint) {
  std::string names;
  for (const OrbaxItem& item : checkpoint.items()) {
    names += StrCat(names.empty() ? "" : ", ", format::orbax::Printable(item.name));
  }
  return names;
}

Result<std::vector<const OrbaxItem*>> Select(const OrbaxCheckpoint& checkpoint,
                                             const std::vector<std::string>& names) {
  std::vector<const OrbaxItem*> items;
  for (const std::string& name : names) {
    const auto found = std::find_if(checkpoint.items().begin(), checkpoint.items().end(),
                                    [&](const OrbaxItem& item) { return item.name == name; });
    if (found == checkpoint.items().end()) {
      return NotFoundError(StrCat("there is no item \"", format::orbax::Printable(name),
                                  "\"; it has: ", ItemNames(checkpoint)));
    }
    if (std::find(items.begin(), items.end(), &*found) == items.end()) items.push_back(&*found);
  }
  if (names.empty()) {
    for (const OrbaxItem& item : checkpoint.items()) items.push_back(&item);
  }
  for (const OrbaxItem* item : items) {
    if (item->kind != OrbaxItem::Kind::kUnknown) continue;
    return UnimplementedError(StrCat("item '", format::orbax::Printable(item->name),
                                     "' is neither a pytree nor JSON; name the items to import "
                                     "without it. There are: ",
                                     ItemNames(checkpoint)));
  }
  return items;
}

// The checkpoint's own metadata; beside it, below "orbax", what belongs to the root and to items.
Result<std::string> MetadataJson(const OrbaxCheckpoint& checkpoint,
                                 const std::vector<ImportTree>& trees) {
  constexpr auto kDialect = format::orbax::JsonDialect::kPython;
  Json more = Json::object();
  if (!checkpoint.root_metadata().empty()) {
    STEPWELL_ASSIGN_OR_RETURN(
        more[kImportedRootKey],
        format::orbax::ParseJson("metadata", checkpoint.root_metadata(), kDialect));
  }
  for (const ImportTree& tree : trees) {
    if (tree.custom_metadata.empty()) continue;
    STEPWELL_ASSIGN_OR_RETURN(more[kImportedItemsKey][tree.item.name],
                              format::orbax::ParseJson("metadata", tree.custom_metadata, kDialect));
  }
  if (more.empty()) return checkpoint.custom_metadata();
  Json all = Json::object();
  if (!checkpoint.custom_metadata().empty()) {
    STEPWELL_ASSIGN_OR_RETURN(
        all, format::orbax::ParseJson("metadata", checkpoint.custom_metadata(), kDialect));
  }
  std::string key(kImportedMetadataKey);
  while (all.contains(key)) key.push_back('_');
  all[key] = std::move(more);
  std::string out;
  format::orbax::AppendPythonJson(all, &out);
  return out;
}

Result<SaveRequest> MakeRequest(const OrbaxCheckpoint& checkpoint, uint64_t step,
                                const ImportOptions& options) {
  io::FileSystem* const file_system = checkpoint.file_system();
  const uint64_t memory_bytes_max =
      options.memory_bytes_max > 0 ? options.memory_bytes_max : MachineMemoryBytes();
  STEPWELL_ASSIGN_OR_RETURN(const auto items, Select(checkpoint, options.items));
  SaveRequest request;
  request.step = step;
  request.metrics_json = options.items.empty() ? checkpoint.metrics() : "";
  std::vector<ImportArray> arrays;
  std::vector<ImportTree> trees;
  for (const OrbaxItem* item : items) {
    switch (item->kind) {
      case OrbaxItem::Kind::kTree:
      case OrbaxItem::Kind::kArray: {
        STEPWELL_ASSIGN_OR_RETURN(ImportTree tree,
                                  import::ReadTree(file_system, *item, memory_bytes_max, &arrays));
        trees.push_back(std::move(tree));
        break;
      }
      case OrbaxItem::Kind::kJson: {
        STEPWELL_ASSIGN_OR_RETURN(ItemInput input, import::ReadJsonItem(file_system, *item));
        request.items.push_back(std::move(input));
        break;
      }
      case OrbaxItem::Kind::kMetrics: {
        const std::string path = StrCat(item->path, "/", item->json_file);
        STEPWELL_ASSIGN_OR_RETURN(const std::string text,
                                  import::ReadSmallFile(file_system, path, kMetricsBytesMax));
        STEPWELL_ASSIGN_OR_RETURN(request.metrics_json,
                                  format::orbax::NormalJsonObject(path, text));
        break;
      }
      case OrbaxItem::Kind::kUnknown:
        break;
    }
  }
  import::ReadOptions reading;
  reading.threads = options.threads;
  reading.memory_bytes_max = memory_bytes_max;
  reading.keep_waiting = options.keep_waiting;
  STEPWELL_RETURN_IF_ERROR(import::ReadArrays(file_system, reading, &arrays));
  STEPWELL_ASSIGN_OR_RETURN(request.metadata_json, MetadataJson(checkpoint, trees));
  for (ImportTree& tree : trees) {
    STEPWELL_RETURN_IF_ERROR(import::FinishTree(arrays, &tree));
    request.items.push_back(std::move(tree.item));
  }
  if (request.items.empty()) {
    return InvalidArgumentError("it has no item with a tree: there is nothing to save");
  }
  return request;
}

}  // namespace

Result<SaveRequest> ImportRequest(const OrbaxCheckpoint& checkpoint, uint64_t step,
                                  const ImportOptions& options) {
  Result<SaveRequest> request = MakeRequest(checkpoint, step, options);
  if (!request.ok()) return request.status().WithContext(checkpoint.path());
  return request;
}

}  // namespace stepwell::db
