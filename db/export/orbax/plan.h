// SPDX-License-Identifier: Apache-2.0
// Plans an export: names, types and metadata of every leaf as Orbax has them. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "db/export/export.h"
#include "db/export/orbax/records.h"
#include "format/orbax/orbax_files.h"
#include "format/orbax/tree_metadata.h"
#include "format/orbax/zarr_metadata.h"
#include "format/records.h"

namespace stepwell::db {

struct ExportArray {
  std::string name;  // Orbax's, of the leaf
  format::orbax::ZarrArray zarr;
  const format::LeafRecord* leaf = nullptr;  // its chunks are the array's; null: it is one element,
  std::string element;                       // whose stored value this is
  // The leaf's chunks are to be decoded, and made of `zarr`'s type and grid, with this codec.
  bool rewrite = false;
  format::CodecId codec = format::CodecId::kRaw;
};

// A file of an item of kind kFiles: its path in the item's directory, and the leaf with its bytes.
struct ExportFileOf {
  std::string name;
  const format::LeafRecord* leaf = nullptr;
};

// A directory of the checkpoint.
struct ExportItem {
  std::string name;  // in the step
  std::string folder;
  format::ItemKind kind = format::ItemKind::kTree;
  // A tree ...
  format::orbax::TreeMetadata tree;
  std::vector<ExportArray> arrays;
  std::vector<format::orbax::LeafString> strings;
  std::vector<format::orbax::LeafSharding> shardings;
  std::vector<format::orbax::LeafArrayMetadata> array_metadatas;
  // ... or one JSON file, or files as another library wrote them.
  std::string json_file;
  std::string json;  // of a tree, too, that is JSON: Orbax's JSON handlers read it as well
  std::vector<ExportFileOf> files;
  std::vector<std::string> directories;  // of these, parents first
  ExportRecords records;                 // of a tree; the entries are those of `tree`
  bool is_tree() const { return kind == format::ItemKind::kTree; }
};

struct ExportPlan {
  uint64_t step = 0;
  std::vector<ExportItem> items;
  std::string custom_metadata = "{}";  // JSON objects, as json.dumps writes them
  std::string root_metadata;           // of the root that is made with it; "": none
  std::string metrics = "{}";
  uint64_t leaves = 0;
  uint64_t chunks = 0;
  uint64_t stored_bytes = 0;
  std::vector<std::string> left_out;  // items of which Orbax can hold nothing
  std::vector<ExportReport::Leaf> skipped;
  std::vector<ExportReport::Leaf> widened;
  std::vector<ExportReport::Leaf> as_numpy;
  std::vector<ExportReport::Leaf> as_text;
};

// `leaves`: the records of the items (or of the subtree) that `options` names, nodes too, in key
// order; long strings have been loaded into inline_value. The plan points at them.
//
// kInvalidArgument with every leaf, item and text that Orbax cannot hold, as `options` says.
// kDataLoss: records that contradict themselves.
Result<ExportPlan> PlanExport(const format::StepRecord& step,
                              std::span<const format::LeafRecord> leaves,
                              const ExportOptions& options);

// The metadata that an import kept beside a checkpoint's own, below "orbax", returns to its place.
//
// The key below which an import keeps it; with "_" behind it where the checkpoint has such a key.
inline constexpr std::string_view kImportedMetadataKey = "orbax";
inline constexpr std::string_view kImportedRootKey = "root";
inline constexpr std::string_view kImportedItemsKey = "items";  // an object by item

// Moves it out of the plan's custom metadata: to items, and, where a root is made, to the root.
// Metadata that has no place in this export, or that no import wrote, stays.
void PlaceImportedMetadata(bool makes_root, ExportPlan* plan);

// The name of the step's directory in a CheckpointManager's root. kInvalidArgument: a prefix that
// is not a file name.
Result<std::string> ExportStepName(uint64_t step, const ExportOptions& options);

}  // namespace stepwell::db
