// SPDX-License-Identifier: Apache-2.0
// Helpers of the tests of exports: whether a checkpoint is whole, and the contents of a directory.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "db/export/export.h"
#include "db/import/import.h"
#include "format/codec.h"
#include "format/grid.h"
#include "io/open_disk.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {

// Returns true if an imported float32 array has these values. Its chunks may still be encoded.
inline bool IsArray(const LeafInput& leaf, const std::vector<float>& wanted) {
  const format::Shape& shape = leaf.record.shape;
  if (leaf.payloads.empty()) {
    return wanted.empty() ||
           std::memcmp(leaf.data, wanted.data(), wanted.size() * sizeof(float)) == 0;
  }
  const format::Shape& chunk_shape = leaf.record.chunk_shape;
  const format::Shape grid = format::GridShape(shape, chunk_shape);
  std::vector<float> chunk(format::ChunkBytes(chunk_shape, sizeof(float)) / sizeof(float));
  for (size_t index = 0; index < leaf.payloads.size(); ++index) {
    const auto out = std::as_writable_bytes(std::span(chunk));
    if (!format::DecodePayload(leaf.codec, leaf.payloads[index], out).ok()) return false;
    for (size_t element = 0; element < chunk.size(); ++element) {
      size_t in_grid = index;
      size_t in_chunk = element;
      uint64_t at = 0;
      uint64_t stride = 1;
      bool inside = true;
      for (size_t axis = shape.size(); axis-- > 0;) {
        const uint64_t position =
            in_grid % grid[axis] * chunk_shape[axis] + in_chunk % chunk_shape[axis];
        in_grid /= grid[axis];
        in_chunk /= chunk_shape[axis];
        inside = inside && position < shape[axis];
        at += position * stride;
        stride *= shape[axis];
      }
      if (inside && std::memcmp(&chunk[element], &wanted[at], sizeof(float)) != 0) return false;
    }
  }
  return true;
}

// OK when the export at `path` is whole: it has its marks, and every array of `specs`, and the
// text, of item "state" comes back bit for bit, all checksums verified. Of another item, "extra",
// nothing is asked.
inline Status CheckExported(io::FileSystem* file_system, const std::string& path, uint64_t seed,
                            const std::vector<LeafSpec>& specs) {
  for (const std::string mark : {"/_CHECKPOINT_METADATA", "/commit_success.txt"}) {
    STEPWELL_RETURN_IF_ERROR(file_system->Stat(path + mark).status());
  }
  STEPWELL_ASSIGN_OR_RETURN(const auto checkpoint, OrbaxCheckpoint::Open(file_system, path));
  ImportOptions options;
  options.threads = 1;
  STEPWELL_ASSIGN_OR_RETURN(const SaveRequest request, ImportRequest(checkpoint, 0, options));
  if (request.metadata_json != StrCat("{\"seed\": ", seed, "}")) {
    return DataLossError(StrCat(path, " has metadata ", request.metadata_json));
  }
  std::map<std::string, const LeafInput*> leaves;
  for (const ItemInput& item : request.items) {
    if (item.name == "extra") continue;
    for (const LeafInput& leaf : item.leaves) {
      if (leaf.record.kind != format::LeafKind::kNode) leaves[leaf.record.key] = &leaf;
    }
  }
  if (leaves.size() != specs.size() + 1) {
    return DataLossError(StrCat(path, " has ", leaves.size(), " leaves"));
  }
  for (const LeafSpec& spec : specs) {
    const auto found = leaves.find(KeyOf("state", spec.name));
    if (found == leaves.end() || found->second->record.shape != spec.shape) {
      return DataLossError(StrCat(path, ": leaf ", spec.name, " is gone or has another shape"));
    }
    if (!IsArray(*found->second, LeafData(spec, seed))) {
      return DataLossError(StrCat(path, ": leaf ", spec.name, " is wrong"));
    }
  }
  const auto text = leaves.find(KeyOf("state", "text"));
  const std::string wanted = std::string(seed % 3 == 0 ? 5 : 5000, 'x') + std::to_string(seed);
  if (text == leaves.end() || text->second->value != wanted) {
    return DataLossError(StrCat(path, ": the text is wrong"));
  }
  return OkStatus();
}

// Every file below a directory, with its bytes.
inline std::map<std::string, std::string> FilesBelow(const std::string& path) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    std::error_code ignored;  // of symbolic links
    if (!entry.is_regular_file(ignored)) continue;
    std::ostringstream text;
    text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
    files[entry.path().lexically_relative(path)] = text.str();
  }
  return files;
}

// Names in a directory, sorted.
inline std::vector<std::string> NamesIn(const std::string& path) {
  auto names = io::LocalFileSystem()->List(path);
  EXPECT_TRUE(names.ok()) << names.status().ToString();
  return names.ok() ? *names : std::vector<std::string>();
}

}  // namespace stepwell::db
