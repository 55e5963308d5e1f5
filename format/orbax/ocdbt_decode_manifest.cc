// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <limits>

#include "format/orbax/ocdbt_column_reader.h"
#include "format/orbax/ocdbt_internal.h"
#include "format/orbax/ocdbt_read.h"

namespace stepwell::format::orbax {
namespace {

using internal::BadBody;
using internal::ColumnReader;
using internal::kMissing;

constexpr uint64_t kGenerationMax = (uint64_t{1} << 62) - 1;
constexpr int kArityLog2Max = 16;
// Least bytes of a record of each kind, all columns together.
constexpr size_t kVersionBytesMin = 16;
constexpr size_t kVersionNodeBytesMin = 14;

// What is in a column for each version, or for each node of the version tree.
struct Place {
  uint64_t generation = 0;
  uint64_t file = 0;
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
};

struct Version : Place {
  uint8_t height = 0;
  uint64_t key_count = 0;
  uint64_t tree_bytes = 0;
  uint64_t indirect_bytes = 0;
  uint64_t commit_time_ns = 0;
};

Status ReadConfig(ColumnReader* in, OcdbtManifest* manifest, uint8_t* kind) {
  const std::string_view uuid = in->Bytes(manifest->uuid.size());
  if (in->ok()) std::copy_n(AsBytes(uuid).data(), uuid.size(), manifest->uuid.data());
  *kind = in->Byte();
  constexpr uint64_t kUint32Max = std::numeric_limits<uint32_t>::max();
  manifest->max_inline_value_bytes =
      static_cast<uint32_t>(in->VarintUpTo(kUint32Max, "max_inline_value_bytes"));
  manifest->max_decoded_node_bytes =
      static_cast<uint32_t>(in->VarintUpTo(kUint32Max, "max_decoded_node_bytes"));
  manifest->version_tree_arity_log2 = in->Byte();
  in->Require(
      manifest->version_tree_arity_log2 >= 1 && manifest->version_tree_arity_log2 <= kArityLog2Max,
      "version_tree_arity_log2 is not in 1 to 16");
  const uint64_t compression = in->Varint();
  if (!in->ok()) return BadBody("manifest", *in);
  if (compression > 1) {
    return UnimplementedError(StrCat("OCDBT database with compression ", compression));
  }
  if (compression == 1) manifest->zstd_level = in->Little<int32_t>();
  in->Require(*kind == internal::kManifestSingle || *kind == internal::kManifestNumbered,
              "unknown kind of manifest");
  return in->ok() ? OkStatus() : BadBody("manifest", *in);
}

std::vector<Version> ReadVersions(size_t files, ColumnReader* in) {
  std::vector<Version> versions(in->Count(kVersionBytesMin, "versions"));
  in->Require(!versions.empty(), "no version");
  for (Version& version : versions) {
    version.generation = in->VarintUpTo(kGenerationMax, "generation");
  }
  for (Version& version : versions) version.height = in->Byte();
  for (Version& version : versions) version.file = in->Varint();
  for (Version& version : versions) version.offset_bytes = in->Varint();
  for (Version& version : versions) version.length_bytes = in->Varint();
  for (Version& version : versions) version.key_count = in->Varint();
  for (Version& version : versions) version.tree_bytes = in->Varint();
  for (Version& version : versions) version.indirect_bytes = in->Varint();
  for (Version& version : versions) version.commit_time_ns = in->Little<uint64_t>();
  if (!in->ok()) return {};
  for (const Version& version : versions) {
    in->Require(version.file < files, "a root in a file that is not there");
    if (version.offset_bytes == kMissing && version.length_bytes == kMissing) continue;
    in->RequireRange(version.offset_bytes, version.length_bytes);
  }
  return versions;
}

void CheckVersions(const std::vector<Version>& versions, int arity_log2, ColumnReader* in) {
  for (size_t i = 0; i < versions.size(); ++i) {
    const Version& version = versions[i];
    in->Require(version.generation >= 1, "generation 0");
    if (i == 0) continue;
    const Version& before = versions[i - 1];
    in->Require(version.generation > before.generation, "generations that do not ascend");
    in->Require(version.commit_time_ns > before.commit_time_ns, "commit times that do not ascend");
    in->Require((version.generation - 1) >> arity_log2 == (before.generation - 1) >> arity_log2,
                "generations of two nodes of the version tree");
  }
}

// Older generations: looked at, but not needed for the newest.
void ReadVersionNodes(size_t files, ColumnReader* in) {
  std::vector<Place> nodes(in->Count(kVersionNodeBytesMin, "version tree nodes"));
  for (Place& node : nodes) node.generation = in->VarintUpTo(kGenerationMax, "generation");
  for (Place& node : nodes) node.file = in->Varint();
  for (Place& node : nodes) node.offset_bytes = in->Varint();
  for (Place& node : nodes) node.length_bytes = in->Varint();
  for (size_t i = 0; i < nodes.size(); ++i) in->Varint();                 // generations
  for (size_t i = 0; i < nodes.size(); ++i) in->Bytes(sizeof(uint64_t));  // commit time
  for (size_t i = 0; i < nodes.size(); ++i) in->Byte();                   // height
  if (!in->ok()) return;
  for (const Place& node : nodes) {
    in->Require(node.file < files, "a version tree node in a file that is not there");
    in->RequireRange(node.offset_bytes, node.length_bytes);
  }
}

// "manifest.000000000000002a": 42.
std::optional<uint64_t> NumberOf(std::string_view name) {
  constexpr std::string_view kPrefix = "manifest.";
  constexpr size_t kDigitCount = 16;
  if (!name.starts_with(kPrefix) || name.size() != kPrefix.size() + kDigitCount)
    return std::nullopt;
  uint64_t number = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, number, 16);
  const bool is_upper =
      std::any_of(name.begin(), name.end(), [](char c) { return c < 'a' && c > '9'; });
  if (error != std::errc() || stop != end || is_upper) return std::nullopt;
  return number;
}

}  // namespace

Result<OcdbtNewest> NewestOcdbtManifest(std::string manifest, const OcdbtList& list,
                                        const OcdbtReadFile& read) {
  STEPWELL_ASSIGN_OR_RETURN(
      const std::string body,
      internal::DecodeFrame(internal::FrameMagic::kManifest, AsBytes(manifest)));
  ColumnReader in(body);
  OcdbtManifest settings;
  uint8_t kind = 0;
  STEPWELL_RETURN_IF_ERROR(ReadConfig(&in, &settings, &kind));
  if (kind == internal::kManifestSingle) {
    return OcdbtNewest{std::string(kOcdbtManifestName), std::move(manifest)};
  }
  in.Require(in.left() == 0, "bytes behind its end");
  if (!in.ok()) return BadBody("manifest", in);
  STEPWELL_ASSIGN_OR_RETURN(const std::vector<std::string> names, list());
  OcdbtNewest newest;
  uint64_t newest_number = 0;
  for (const std::string& name : names) {
    const std::optional<uint64_t> number = NumberOf(name);
    if (!number || (!newest.name.empty() && *number < newest_number)) continue;
    newest.name = name;
    newest_number = *number;
  }
  if (newest.name.empty()) {
    return DataLossError("OCDBT database whose manifests are numbered, but there is none");
  }
  STEPWELL_ASSIGN_OR_RETURN(newest.bytes, read(newest.name));
  const auto decoded = DecodeOcdbtManifest(AsBytes(newest.bytes));
  if (!decoded.ok()) return decoded.status().WithContext(newest.name);
  if (decoded->generation != newest_number || decoded->uuid != settings.uuid) {
    return DataLossError(StrCat("bad OCDBT manifest ", newest.name, ": it is generation ",
                                decoded->generation, ", or another database's"));
  }
  return newest;
}

Result<OcdbtManifest> DecodeOcdbtManifest(ConstBytes bytes) {
  STEPWELL_ASSIGN_OR_RETURN(const std::string body,
                            internal::DecodeFrame(internal::FrameMagic::kManifest, bytes));
  ColumnReader in(body);
  OcdbtManifest manifest;
  uint8_t kind = 0;
  STEPWELL_RETURN_IF_ERROR(ReadConfig(&in, &manifest, &kind));
  if (kind == internal::kManifestNumbered) {
    return UnimplementedError(
        "OCDBT database with numbered manifests: this file has its settings only");
  }
  std::vector<OcdbtFile> files = internal::ReadFileTable("", &in);
  const std::vector<Version> versions = ReadVersions(files.size(), &in);
  CheckVersions(versions, manifest.version_tree_arity_log2, &in);
  ReadVersionNodes(files.size(), &in);
  in.Require(in.left() == 0, "bytes behind its end");
  if (!in.ok()) return BadBody("manifest", in);
  const Version& newest = versions.back();
  manifest.generation = newest.generation;
  manifest.commit_time_ns = newest.commit_time_ns;
  manifest.has_keys = newest.offset_bytes != kMissing;
  manifest.key_count = newest.key_count;
  manifest.tree_bytes = newest.tree_bytes;
  manifest.indirect_bytes = newest.indirect_bytes;
  if (!manifest.has_keys) return manifest;
  manifest.root_file = std::move(files[newest.file]);
  manifest.root_offset_bytes = newest.offset_bytes;
  manifest.root_length_bytes = newest.length_bytes;
  manifest.root_height = newest.height;
  const Status path = CheckOcdbtPath(manifest.root_file.path);
  if (!path.ok()) return DataLossError(StrCat("bad OCDBT manifest: ", path.message()));
  return manifest;
}

}  // namespace stepwell::format::orbax
