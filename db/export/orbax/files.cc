// SPDX-License-Identifier: Apache-2.0
#include "db/export/orbax/files.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "db/export/orbax/records.h"
#include "format/grid.h"
#include "format/orbax/json.h"

namespace stepwell::db {
namespace {

namespace orbax = format::orbax;

constexpr std::string_view kNodesFile = "d/nodes";
constexpr std::string_view kFacadeKey = "stepwell_orbax";  // OWN_METADATA of the facades

// One key of the database: a chunk, or bytes of its own.
struct Entry {
  std::string key;
  const format::ChunkRecord* chunk = nullptr;
  const std::string* bytes = nullptr;
};

void AddArray(const ExportArray& array, const std::string& metadata, int zarr_format,
              std::vector<Entry>* entries) {
  entries->push_back(
      {orbax::StoreKey(array.name, orbax::ZarrMetadataName(zarr_format)), nullptr, &metadata});
  if (array.leaf == nullptr) {
    entries->push_back({orbax::StoreKey(array.name, orbax::ZarrChunkKey(array.zarr, {})), nullptr,
                        &array.element});
    return;
  }
  const format::Shape& chunk_shape = array.zarr.chunk_shape;
  for (size_t i = 0; i < array.leaf->chunks.size(); ++i) {
    format::Shape indices = format::ChunkOrigin(i, array.zarr.shape, chunk_shape);
    for (size_t axis = 0; axis < indices.size(); ++axis) indices[axis] /= chunk_shape[axis];
    entries->push_back({orbax::StoreKey(array.name, orbax::ZarrChunkKey(array.zarr, indices)),
                        &array.leaf->chunks[i], nullptr});
  }
}

// The handler that wrote an item of files, which the Orbax facades keep in the step's metadata.
std::optional<std::string> HandlerOfFiles(const orbax::Json& metadata, const std::string& item) {
  const orbax::Json* found = &metadata;
  for (const std::string& key : {std::string(kFacadeKey), std::string("handlers"), item}) {
    if (!found->is_object() || !found->contains(key)) return std::nullopt;
    found = &(*found)[key];
  }
  if (!found->is_string()) return std::nullopt;  // the reader has to say which it was
  return found->get<std::string>();
}

}  // namespace

Result<std::vector<ExportFile>> EncodeDatabase(const ExportItem& item, const ChunkPlaces& places,
                                               const DatabaseInfo& info) {
  std::vector<ExportFile> files;
  if (item.arrays.empty()) return files;
  std::vector<std::string> metadata;
  metadata.reserve(item.arrays.size());  // entries point at them
  std::vector<Entry> entries;
  for (const ExportArray& array : item.arrays) {
    STEPWELL_ASSIGN_OR_RETURN(std::string text, orbax::EncodeZarrMetadata(array.zarr));
    metadata.push_back(std::move(text));
    AddArray(array, metadata.back(), info.zarr_format, &entries);
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.key < b.key; });
  orbax::OcdbtOptions options;
  options.uuid = info.uuid;
  options.commit_time_ns = info.commit_time_ns;
  options.nodes_path = kNodesFile;
  STEPWELL_ASSIGN_OR_RETURN(auto builder, orbax::OcdbtBuilder::Create(std::move(options)));
  std::vector<orbax::OcdbtBuilder::FileId> ids;
  for (const std::string& file : places.files()) {
    STEPWELL_ASSIGN_OR_RETURN(const auto id, builder.AddFile(file));
    ids.push_back(id);
  }
  const uint64_t trailer = info.zarr_format == 2 ? format::kCrcBytes : 0;
  for (const Entry& entry : entries) {
    if (entry.chunk == nullptr) {
      STEPWELL_RETURN_IF_ERROR(builder.AddInline(entry.key, *entry.bytes));
      continue;
    }
    STEPWELL_ASSIGN_OR_RETURN(const ChunkPlaces::Place place,
                              places.Find(entry.chunk->part, *entry.chunk));
    STEPWELL_RETURN_IF_ERROR(builder.AddRange(entry.key, ids[place.file], place.offset_bytes,
                                              entry.chunk->stored_bytes - trailer));
  }
  STEPWELL_ASSIGN_OR_RETURN(orbax::OcdbtImage image, builder.Finish());
  files.push_back({std::string(kNodesFile), std::move(image.nodes)});
  files.push_back({std::string(orbax::kOcdbtManifestName), std::move(image.manifest)});
  return files;
}

Result<std::vector<ExportFile>> EncodeItemFiles(const ExportItem& item) {
  std::vector<ExportFile> files;
  if (!item.json_file.empty()) {
    files.push_back({item.json_file, item.json});
    return files;
  }
  if (!item.is_tree()) {
    for (const ExportFileOf& file : item.files) {
      files.push_back({file.name, file.leaf->inline_value});
    }
    return files;
  }
  const auto add = [&files](std::string_view name, Result<std::string> text) -> Status {
    if (!text.ok()) return text.status();
    files.push_back({std::string(name), *std::move(text)});
    return OkStatus();
  };
  STEPWELL_RETURN_IF_ERROR(add(orbax::kTreeMetadataName, orbax::EncodeTreeMetadata(item.tree)));
  if (!item.records.entries.empty()) {
    files.push_back({std::string(kRecordsName), format::EncodeRecords(item.records.entries)});
  }
  if (!item.records.values.empty()) {
    files.push_back({std::string(kValuesName), EncodeValues(item.records.values)});
  }
  if (!item.strings.empty()) {
    STEPWELL_RETURN_IF_ERROR(add(orbax::kStringsName, orbax::EncodeStrings(item.strings)));
  }
  if (!item.shardings.empty()) {
    STEPWELL_RETURN_IF_ERROR(add(orbax::kShardingName, orbax::EncodeShardings(item.shardings)));
    STEPWELL_RETURN_IF_ERROR(
        add(orbax::kArrayMetadatasName, orbax::EncodeArrayMetadatas(item.array_metadatas)));
  }
  if (!item.json.empty()) {
    const auto name = orbax::FindHandler(orbax::kJsonHandler)->json_file;
    files.push_back({std::string(name), item.json});
  }
  return files;
}

Result<std::vector<ExportFile>> EncodeCheckpointFiles(const ExportPlan& plan,
                                                      const format::StepRecord& step,
                                                      ExportLayout layout,
                                                      const std::string& path) {
  orbax::CheckpointMetadata metadata;
  std::vector<orbax::ItemHandler> handlers;
  const auto custom =
      orbax::ParseJson("metadata", plan.custom_metadata, orbax::JsonDialect::kPython);
  for (const ExportItem& item : plan.items) {
    orbax::ItemHandler& handler = handlers.emplace_back(orbax::ItemHandler{item.folder, {}});
    if (!item.json_file.empty()) {
      handler.type = orbax::kJsonHandler;
    } else if (item.is_tree()) {
      handler.type = orbax::kStandardHandler;
    } else if (custom.ok()) {
      handler.type = HandlerOfFiles(*custom, item.name);
    }
  }
  metadata.handlers = std::move(handlers);
  metadata.metrics = plan.metrics;
  metadata.custom_metadata = plan.custom_metadata;
  metadata.init_time_ns = metadata.commit_time_ns = step.time_ns;
  STEPWELL_ASSIGN_OR_RETURN(std::string text, orbax::EncodeCheckpointMetadata(metadata));
  std::vector<ExportFile> files;
  files.push_back({std::string(orbax::kCheckpointMetadataName), std::move(text)});
  if (layout == ExportLayout::kV1) files.push_back({std::string(orbax::kIndicatorName), ""});
  files.push_back({std::string(orbax::kCommitSuccessName), orbax::EncodeCommitSuccess(path)});
  return files;
}

}  // namespace stepwell::db
