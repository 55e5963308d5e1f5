// SPDX-License-Identifier: Apache-2.0
// A whole checkpoint as a save.
#include <unistd.h>

#include <algorithm>
#include <map>

#include "db/export/orbax/digests.h"
#include "db/export/orbax/plan.h"
#include "db/import/import.h"
#include "db/import/source.h"
#include "db/import/streamed.h"
#include "db/import/tree.h"
#include "format/orbax/json.h"
#include "format/orbax/ocdbt.h"
#include "format/orbax/orbax_files.h"
#include "format/orbax/python_text.h"
#include "io/small_file.h"

namespace stepwell::db {
namespace {

using format::orbax::Json;
using import::ImportArray;
using import::ImportTree;

constexpr uint64_t kMetricsBytesMax = uint64_t{16} << 20;
constexpr uint64_t kStreamedBytesMin = uint64_t{1} << 20;  // arrays below this are read first
constexpr uint64_t kIdentityBytesMax = uint64_t{1} << 30;  // of a file

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
    if (item->kind != OrbaxItem::Kind::kTorn) continue;
    return DataLossError(StrCat(
        "item '", format::orbax::Printable(item->name), "' lacks the file that describes it, ",
        format::orbax::kTreeMetadataName, " or JSON; name the items to import without it"));
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

uint64_t MemoryBytesMax(const ImportOptions& options) {
  return options.memory_bytes_max > 0 ? options.memory_bytes_max : MachineMemoryBytes();
}

}  // namespace

struct ImportPlan::State : std::enable_shared_from_this<State> {
  explicit State(OrbaxCheckpoint read_of) : checkpoint(std::move(read_of)) {}

  OrbaxCheckpoint checkpoint;
  std::vector<const OrbaxItem*> items;  // of `checkpoint`
  std::string metrics_json;
  std::string metadata_json;
  std::vector<ItemInput> values;  // items that are JSON
  std::vector<ImportTree> trees;
  std::vector<ImportArray> arrays;  // of all trees, without elements
  std::shared_ptr<const std::map<std::string, DataDigest>> chunk_digests;  // null: none

  Status CheckDigests(bool all);
  Status Describe(const ImportOptions& options);
  Result<SaveRequest> Read(uint64_t step, const ImportShare& share, const ImportOptions& options);
  std::shared_ptr<import::StreamedArrays> Stream(const ImportOptions& options,
                                                 std::vector<ImportArray>* read);
  std::vector<import::DealtArray> Deal(const ImportShare& share, std::vector<ImportArray>* boxes);
};

// Checks files against the digests of our exports. Chunks are checked when they are read. With
// `all`, missing items are damage, too.
Status ImportPlan::State::CheckDigests(bool all) {
  io::FileSystem* const file_system = checkpoint.file_system();
  const std::string& folder = checkpoint.folder();
  STEPWELL_ASSIGN_OR_RETURN(const auto digests, checkpoint.Digests());
  if (digests == nullptr) return OkStatus();
  if (all && !digests->left_out.empty()) {
    return DataLossError(StrCat("item '", format::orbax::Printable(digests->left_out.front()),
                                "' is not in it: Orbax can hold nothing of it. Name the items to "
                                "import, or take the step from its store"));
  }
  const auto is_wanted = [&](const FileDigest& file) {
    const std::string path = StrCat(folder, "/", file.name);
    return all || file.name.find('/') == std::string::npos ||
           std::any_of(items.begin(), items.end(),
                       [&](const OrbaxItem* item) { return path.starts_with(item->path + "/"); });
  };
  for (const FileDigest& file : digests->files) {
    if (!is_wanted(file)) continue;
    STEPWELL_ASSIGN_OR_RETURN(const auto problem, CheckFile(file_system, folder, file));
    if (problem) return DataLossError(StrCat(problem->file, ": ", problem->message));
  }
  auto data = std::make_shared<std::map<std::string, DataDigest>>();
  for (const DataDigest& each : digests->data) {
    data->emplace(StrCat(folder, "/", each.name), each);
  }
  chunk_digests = std::move(data);
  return OkStatus();
}

Status ImportPlan::State::Describe(const ImportOptions& options) {
  io::FileSystem* const file_system = checkpoint.file_system();
  STEPWELL_ASSIGN_OR_RETURN(items, Select(checkpoint, options.items));
  const bool all = options.items.empty() && checkpoint.path() == checkpoint.folder();
  STEPWELL_RETURN_IF_ERROR(CheckDigests(all));
  metrics_json = options.items.empty() ? checkpoint.metrics() : "";
  for (const OrbaxItem* item : items) {
    switch (item->kind) {
      case OrbaxItem::Kind::kTree:
      case OrbaxItem::Kind::kArray: {
        STEPWELL_ASSIGN_OR_RETURN(
            trees.emplace_back(),
            import::ReadTree(file_system, *item, MemoryBytesMax(options), &arrays));
        break;
      }
      case OrbaxItem::Kind::kJson: {
        STEPWELL_ASSIGN_OR_RETURN(ItemInput input, import::ReadJsonItem(file_system, *item));
        values.push_back(std::move(input));
        break;
      }
      case OrbaxItem::Kind::kMetrics: {
        const std::string path = StrCat(item->path, "/", item->json_file);
        STEPWELL_ASSIGN_OR_RETURN(const std::string text,
                                  io::ReadSmallFile(file_system, path, kMetricsBytesMax));
        STEPWELL_ASSIGN_OR_RETURN(metrics_json, format::orbax::NormalJsonObject(path, text));
        break;
      }
      case OrbaxItem::Kind::kTorn:  // Select has refused it
        break;
      case OrbaxItem::Kind::kFiles: {
        STEPWELL_ASSIGN_OR_RETURN(
            ItemInput input, import::ReadFilesItem(file_system, *item, MemoryBytesMax(options)));
        values.push_back(std::move(input));
        break;
      }
    }
  }
  if (values.empty() && trees.empty()) {
    return InvalidArgumentError("it has no item with a tree: there is nothing to save");
  }
  for (const ImportArray& array : arrays) array.index->SetDigests(chunk_digests);
  STEPWELL_ASSIGN_OR_RETURN(metadata_json, MetadataJson(checkpoint, trees));
  return OkStatus();
}

// The boxes of the arrays that are this share's.
std::vector<import::DealtArray> ImportPlan::State::Deal(const ImportShare& share,
                                                        std::vector<ImportArray>* boxes) {
  std::vector<import::ShareArray> deal;
  deal.reserve(arrays.size());
  for (const ImportArray& array : arrays) {
    deal.push_back({array.zarr.shape, array.zarr.chunk_shape, array.dtype->item_bytes, false});
  }
  for (const ImportTree& tree : trees) {
    for (const ImportTree::ArrayLeaf& array_leaf : tree.array_leaves)
      deal[array_leaf.array].only_first = array_leaf.is_scalar;
  }
  std::vector<import::DealtArray> dealt = import::DealArrays(deal, share);
  for (size_t i = 0; i < dealt.size(); ++i) {
    dealt[i].first_box = boxes->size();
    for (const format::Box& box : dealt[i].boxes) boxes->push_back(import::BoxOf(arrays[i], box));
  }
  return dealt;
}

// Chooses the arrays that are read while they are saved: of many bytes the large ones, and all if
// the others are too many. Null: none.
std::shared_ptr<import::StreamedArrays> ImportPlan::State::Stream(const ImportOptions& options,
                                                                  std::vector<ImportArray>* read) {
  uint64_t bytes = 0;
  uint64_t small_bytes = 0;
  for (const ImportArray& array : *read) {
    bytes += array.size_bytes;
    if (array.size_bytes < kStreamedBytesMin) small_bytes += array.size_bytes;
  }
  if (bytes <= options.held_bytes_max) return nullptr;
  const bool all = small_bytes > options.held_bytes_max;
  // The plan's indices say where the values are: they stay as long as the arrays are read.
  const auto check = [self = shared_from_this()](const Status& status) {
    const OrbaxCheckpoint& read_of = self->checkpoint;
    return read_of.CheckUnchanged(status.WithContext(read_of.path()));
  };
  auto streamed = std::make_shared<import::StreamedArrays>(checkpoint.file_system(), options, check,
                                                           all ? 0 : small_bytes, bytes);
  for (const ImportTree& tree : trees) {
    for (const ImportTree::ArrayLeaf& leaf : tree.array_leaves) {
      ImportArray& array = read->at(leaf.array);
      const bool is_large = array.size_bytes >= (all ? 1 : kStreamedBytesMin);
      // ReadArrays refuses one that is too large.
      const bool is_possible = !leaf.is_scalar && array.size_bytes <= options.memory_bytes_max;
      if (is_large && is_possible) streamed->Add(leaf.shard_shape, &array);
    }
  }
  return streamed;
}

Result<SaveRequest> ImportPlan::State::Read(uint64_t step, const ImportShare& share,
                                            const ImportOptions& options) {
  std::vector<ImportArray> boxes;
  const std::vector<import::DealtArray> dealt = Deal(share, &boxes);
  ImportOptions reading = options;
  reading.memory_bytes_max = MemoryBytesMax(options);
  SaveRequest request;
  if (share.count == 1) request.far = Stream(reading, &boxes);
  STEPWELL_RETURN_IF_ERROR(import::ReadArrays(checkpoint.file_system(), reading, &boxes));
  request.is_copy = true;
  request.step = step;
  if (share.index == 0) {
    request.metadata_json = std::move(metadata_json);
    request.metrics_json = std::move(metrics_json);
  }
  for (ItemInput& item : values) {
    if (share.index > 0) item.leaves.clear();
    request.items.push_back(std::move(item));
  }
  for (ImportTree& tree : trees) {
    import::FinishTree(dealt, boxes, share, &tree);
    request.items.push_back(std::move(tree.item));
  }
  return request;
}

Result<ImportPlan> ImportPlan::Make(const OrbaxCheckpoint& checkpoint,
                                    const ImportOptions& options) {
  auto state = std::make_shared<State>(checkpoint);
  STEPWELL_RETURN_IF_ERROR(
      checkpoint.CheckUnchanged(state->Describe(options).WithContext(checkpoint.path())));
  return ImportPlan(std::move(state));
}

std::vector<std::string> ImportPlan::ItemNames() const {
  std::vector<std::string> names;
  for (const ItemInput& item : state_->values) names.push_back(item.name);
  for (const ImportTree& tree : state_->trees) names.push_back(tree.item.name);
  return names;
}

// Returns a text that differs whenever Orbax saved something else, because it has times and
// randomly drawn file names. It also covers what the shares and the records depend on.
Result<std::string> ImportPlan::Identity() const {
  const OrbaxCheckpoint& checkpoint = state_->checkpoint;
  std::string identity;
  const auto add = [&](std::string_view text) {
    identity.append(StrCat(text.size(), ":")).append(text);
  };
  const auto add_file = [&](const std::string& folder, std::string_view name) -> Status {
    STEPWELL_ASSIGN_OR_RETURN(
        const auto text,
        io::ReadIfThere(checkpoint.file_system(), StrCat(folder, "/", name), kIdentityBytesMax));
    if (text) add(*text);
    return OkStatus();
  };
  STEPWELL_RETURN_IF_ERROR(add_file(checkpoint.path(), format::orbax::kCheckpointMetadataName));
  for (const OrbaxItem* item : state_->items) {
    add(item->name);
    STEPWELL_RETURN_IF_ERROR(add_file(item->path, format::orbax::kTreeMetadataName));
    STEPWELL_RETURN_IF_ERROR(add_file(item->path, format::orbax::kOcdbtManifestName));
    if (item->json_file.empty()) continue;
    STEPWELL_RETURN_IF_ERROR(add_file(item->path, item->json_file));
  }
  for (const ImportArray& array : state_->arrays) {
    std::string text = StrCat(array.label, ":", static_cast<int>(array.zarr.dtype), ":",
                              array.kept ? static_cast<int>(*array.kept) : -1);
    for (const auto* shape : {&array.zarr.shape, &array.zarr.chunk_shape}) {
      for (const uint64_t extent : *shape) text.append(StrCat(",", extent));
    }
    const bool is_empty = format::ChunkCount(array.zarr.shape, array.zarr.chunk_shape) == 0;
    if (!is_empty) {
      STEPWELL_ASSIGN_OR_RETURN(const auto place, array.index->Find(import::ChunkKey(array, 0)));
      if (place && place->file != import::ValuePlace::kInline) {
        const std::string& path = array.index->paths()[place->file];
        text.append(StrCat(":", path.substr(path.rfind('/') + 1), ":", place->offset_bytes, ":",
                           place->length_bytes));
      }
    }
    add(text);
  }
  return identity;
}

Result<SaveRequest> ImportPlan::Read(uint64_t step, const ImportShare& share,
                                     const ImportOptions& options) {
  Result<SaveRequest> request = state_->Read(step, share, options);
  STEPWELL_RETURN_IF_ERROR(
      state_->checkpoint.CheckUnchanged(request.status().WithContext(state_->checkpoint.path())));
  return request;
}

Result<SaveRequest> ImportRequest(const OrbaxCheckpoint& checkpoint, uint64_t step,
                                  const ImportOptions& options) {
  STEPWELL_ASSIGN_OR_RETURN(ImportPlan plan, ImportPlan::Make(checkpoint, options));
  STEPWELL_ASSIGN_OR_RETURN(SaveRequest request, plan.Read(step, {}, options));
  request.if_exists = options.if_exists;
  request.keep_waiting = options.keep_waiting;
  return request;
}

}  // namespace stepwell::db
