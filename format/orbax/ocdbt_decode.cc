// SPDX-License-Identifier: Apache-2.0
// Manifests and B-tree nodes from untrusted bytes.
#include <algorithm>
#include <charconv>
#include <limits>
#include <type_traits>
#include <utility>

#include "format/endian.h"
#include "format/orbax/ocdbt_internal.h"
#include "format/orbax/ocdbt_read.h"

namespace stepwell::format::orbax {
namespace {

using internal::kMissing;

// Reads the columns of a manifest's or node's body. Every count is compared with the bytes that are
// left before anything is allocated for it. The first fault wins, and makes everything that is read
// afterwards zero.
class ColumnReader {
 public:
  explicit ColumnReader(std::string_view bytes) : left_(bytes) {}

  bool ok() const { return fault_.empty(); }
  const std::string& fault() const { return fault_; }
  size_t left() const { return left_.size(); }

  void Fail(std::string what) {
    if (ok()) fault_ = std::move(what);
    left_ = {};
  }
  void Require(bool holds, std::string_view what) {
    if (!holds) [[unlikely]]
      Fail(std::string(what));
  }

  std::string_view Bytes(size_t size) {
    if (size > left_.size()) {
      Fail("ends too early");
      return {};
    }
    const std::string_view bytes = left_.substr(0, size);
    left_.remove_prefix(size);
    return bytes;
  }
  uint8_t Byte() {
    const std::string_view byte = Bytes(1);
    return byte.empty() ? 0 : static_cast<uint8_t>(byte[0]);
  }
  template <typename T>
  T Little() {
    const std::string_view bytes = Bytes(sizeof(T));
    return bytes.empty() ? T{0} : LoadLittle<T>(AsBytes(bytes).data());
  }
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint8_t byte = Byte();
      const uint64_t bits = byte & 0x7F;
      if (bits << shift >> shift != bits) break;
      value |= bits << shift;
      if ((byte & 0x80) == 0) return value;
    }
    Fail("a number of more than 64 bits");
    return 0;
  }
  template <typename T = uint32_t>
  T VarintUpTo(std::type_identity_t<T> limit, std::string_view what) {
    const uint64_t value = Varint();
    if (value <= limit) return static_cast<T>(value);
    Fail(StrCat(what, " ", value, ", more than ", limit));
    return 0;
  }
  // Columns of numbers, one after another.
  template <typename Record>
  void Columns(std::initializer_list<uint64_t Record::*> fields, std::vector<Record>* records) {
    for (const auto field : fields) {
      for (Record& record : *records) record.*field = Varint();
    }
  }
  // A number of records that the bytes which are left can have.
  size_t Count(size_t record_bytes_min, std::string_view what) {
    const uint64_t count = Varint();
    if (count <= left_.size() / record_bytes_min) return count;
    Fail(StrCat(count, " ", what, " in ", left_.size(), " bytes"));
    return 0;
  }
  // A range of a file, whose offset and length were read before.
  void RequireRange(uint64_t offset_bytes, uint64_t length_bytes) {
    if (length_bytes <= internal::kFileBytesMax &&
        offset_bytes <= internal::kFileBytesMax - length_bytes)
      return;
    Fail(StrCat("offset ", offset_bytes, " and length ", length_bytes, " go beyond 2^63 bytes"));
  }

 private:
  std::string_view left_;
  std::string fault_;
};

Status BadBody(std::string_view what, const ColumnReader& in) {
  return DataLossError(StrCat("bad OCDBT ", what, ": ", in.fault()));
}

// ---- files ----

constexpr size_t kFileBytesMin = 2;  // in the columns of a table

struct FileLengths {
  uint32_t shared = 0;
  uint32_t rest = 0;
  uint32_t base = 0;
};

std::vector<FileLengths> ReadFileLengths(ColumnReader* in) {
  std::vector<FileLengths> files(in->Count(kFileBytesMin, "files"));
  for (size_t i = 1; i < files.size(); ++i) {
    files[i].shared = in->VarintUpTo(kOcdbtPathBytesMax, "shared path bytes");
  }
  for (FileLengths& file : files) {
    file.rest = in->VarintUpTo(kOcdbtPathBytesMax, "path bytes");
  }
  for (FileLengths& file : files) {
    file.base = in->VarintUpTo(kOcdbtPathBytesMax, "base path bytes");
  }
  return files;
}

// The table of files that a body names. `base` goes before each path.
std::vector<OcdbtFile> ReadFileTable(std::string_view base, ColumnReader* in) {
  // Paths that share their beginnings take more room here than there: so much more at most.
  uint64_t room = (uint64_t{1} << 20) + 64 * in->left();
  const std::vector<FileLengths> lengths = ReadFileLengths(in);
  std::vector<OcdbtFile> files;
  files.reserve(lengths.size());
  std::string path;  // of the file before, without `base`
  FileLengths last;
  for (const FileLengths& file : lengths) {
    in->Require(file.shared <= path.size(), "a path shares more than the one before has");
    in->Require(file.base == last.base || file.shared <= std::min(file.base, last.base),
                "paths of other bases share more than the bases");
    const size_t path_bytes = size_t{file.shared} + file.rest;
    in->Require(path_bytes <= kOcdbtPathBytesMax, "a path of more than 65535 bytes");
    in->Require(file.base <= path_bytes, "a base that is longer than its path");
    const size_t needed = 2 * base.size() + path_bytes + file.base;
    in->Require(needed <= room, "paths of files take too much room");
    const std::string_view rest = in->Bytes(file.rest);
    if (!in->ok()) return {};
    room -= needed;
    path.resize(file.shared);
    path += rest;
    const std::string_view own_base = std::string_view(path).substr(0, file.base);
    files.push_back({StrCat(base, path), StrCat(base, own_base)});
    last = file;
  }
  return files;
}

// ---- manifests ----

constexpr uint64_t kGenerationMax = (uint64_t{1} << 62) - 1;
constexpr int kArityLog2Max = 16;
// Least bytes of a record of each kind, all columns together.
constexpr size_t kVersionBytesMin = 16;
constexpr size_t kVersionNodeBytesMin = 14;

// A version, or a node of the version tree, of which only the place is looked at.
struct Version {
  uint64_t generation = 0;
  uint64_t file = 0;
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
  uint64_t key_count = 0;
  uint64_t tree_bytes = 0;
  uint64_t indirect_bytes = 0;
  uint64_t commit_time_ns = 0;
  uint8_t height = 0;
};

Status ReadConfig(ColumnReader* in, OcdbtManifest* manifest, uint8_t* kind) {
  const std::string_view uuid = in->Bytes(manifest->uuid.size());
  if (in->ok()) std::copy_n(AsBytes(uuid).data(), uuid.size(), manifest->uuid.data());
  *kind = in->Byte();
  constexpr uint64_t kUint32Max = std::numeric_limits<uint32_t>::max();
  manifest->max_inline_value_bytes = in->VarintUpTo(kUint32Max, "max_inline_value_bytes");
  manifest->max_decoded_node_bytes = in->VarintUpTo(kUint32Max, "max_decoded_node_bytes");
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
    version.generation = in->VarintUpTo<uint64_t>(kGenerationMax, "generation");
  }
  for (Version& version : versions) version.height = in->Byte();
  in->Columns({&Version::file, &Version::offset_bytes, &Version::length_bytes, &Version::key_count,
               &Version::tree_bytes, &Version::indirect_bytes},
              &versions);
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
  std::vector<Version> nodes(in->Count(kVersionNodeBytesMin, "version tree nodes"));
  for (Version& node : nodes)
    node.generation = in->VarintUpTo<uint64_t>(kGenerationMax, "generation");
  in->Columns({&Version::file, &Version::offset_bytes, &Version::length_bytes,
               &Version::key_count},  // of generations
              &nodes);
  for (size_t i = 0; i < nodes.size(); ++i) in->Bytes(sizeof(uint64_t));  // commit time
  for (size_t i = 0; i < nodes.size(); ++i) in->Byte();                   // height
  if (!in->ok()) return;
  for (const Version& node : nodes) {
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

// ---- nodes ----

// Least bytes of an entry, all columns together.
constexpr size_t kLeafEntryBytesMin = 3;
constexpr size_t kInteriorEntryBytesMin = 8;

// The key columns of both kinds of node; `interior` has one more.
void ReadKeys(bool interior, ColumnReader* in, std::vector<OcdbtEntry>* entries) {
  for (size_t i = 1; i < entries->size(); ++i) {
    (*entries)[i].shared_bytes = in->VarintUpTo(kOcdbtKeyBytesMax, "shared key bytes");
  }
  std::vector<uint32_t> rest_bytes(entries->size());
  for (uint32_t& size : rest_bytes) {
    size = in->VarintUpTo(kOcdbtKeyBytesMax, "key bytes");
  }
  if (interior) {
    for (OcdbtEntry& entry : *entries) {
      entry.shared_by_all = in->VarintUpTo(kOcdbtKeyBytesMax, "common key bytes");
    }
  }
  std::string key;
  for (size_t i = 0; i < entries->size() && in->ok(); ++i) {
    OcdbtEntry& entry = (*entries)[i];
    entry.rest = in->Bytes(rest_bytes[i]);
    in->Require(entry.shared_bytes <= key.size(), "a key shares more than the one before has");
    const size_t key_bytes = size_t{entry.shared_bytes} + entry.rest.size();
    in->Require(key_bytes <= kOcdbtKeyBytesMax, "a key of more than 65535 bytes");
    in->Require(entry.shared_by_all <= key_bytes, "more common bytes than the key has");
    if (!in->ok()) return;
    in->Require(i == 0 || entry.rest > std::string_view(key).substr(entry.shared_bytes),
                "keys that do not ascend");
    key.resize(entry.shared_bytes);
    key += entry.rest;
  }
}

void ReadLeafValues(size_t files, ColumnReader* in, std::vector<OcdbtEntry>* entries) {
  for (OcdbtEntry& entry : *entries) entry.length_bytes = in->Varint();
  for (OcdbtEntry& entry : *entries) {
    const uint8_t kind = in->Byte();
    in->Require(kind <= internal::kRangeValue, "unknown kind of value");
    entry.is_inline = kind == internal::kInlineValue;
  }
  for (OcdbtEntry& entry : *entries) {
    if (entry.is_inline) continue;
    const uint64_t file = in->Varint();
    in->Require(file < files, "a value in a file that is not there");
    entry.file = static_cast<uint32_t>(file);
  }
  for (OcdbtEntry& entry : *entries) {
    if (entry.is_inline) continue;
    entry.offset_bytes = in->Varint();
    in->RequireRange(entry.offset_bytes, entry.length_bytes);
  }
  for (OcdbtEntry& entry : *entries) {
    if (!entry.is_inline) continue;
    in->Require(entry.length_bytes <= kOcdbtInlineBytesMax, "an inline value of more than 1 MiB");
    entry.inline_value = in->Bytes(entry.length_bytes);
  }
}

void ReadChildren(size_t files, ColumnReader* in, std::vector<OcdbtEntry>* entries) {
  for (OcdbtEntry& entry : *entries) {
    const uint64_t file = in->Varint();
    in->Require(file < files, "a node in a file that is not there");
    entry.file = static_cast<uint32_t>(file);
  }
  in->Columns({&OcdbtEntry::offset_bytes, &OcdbtEntry::length_bytes, &OcdbtEntry::key_count,
               &OcdbtEntry::tree_bytes, &OcdbtEntry::indirect_bytes},
              entries);
  for (const OcdbtEntry& entry : *entries) {
    in->RequireRange(entry.offset_bytes, entry.length_bytes);
  }
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
  std::vector<OcdbtFile> files = ReadFileTable("", &in);
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

Result<OcdbtNode> DecodeOcdbtNode(ConstBytes bytes, uint8_t height, std::string_view base) {
  OcdbtNode node;
  STEPWELL_ASSIGN_OR_RETURN(std::string body,
                            internal::DecodeFrame(internal::FrameMagic::kNode, bytes));
  node.body = std::make_unique<const std::string>(std::move(body));
  ColumnReader in(*node.body);
  const uint8_t own_height = in.Byte();
  if (own_height != height) {
    in.Fail(StrCat("height ", int{own_height}, " where ", int{height}, " is expected"));
  }
  node.files = ReadFileTable(base, &in);
  const bool interior = height > 0;
  const size_t count = in.Count(interior ? kInteriorEntryBytesMin : kLeafEntryBytesMin, "entries");
  in.Require(count >= 1 && count <= kOcdbtNodeEntriesMax, "a number of entries not in 1 to 2^20");
  if (!in.ok()) return BadBody("B-tree node", in);
  node.entries.resize(count);
  ReadKeys(interior, &in, &node.entries);
  if (interior) {
    ReadChildren(node.files.size(), &in, &node.entries);
  } else {
    ReadLeafValues(node.files.size(), &in, &node.entries);
  }
  in.Require(in.left() == 0, "bytes behind its end");
  if (!in.ok()) return BadBody("B-tree node", in);
  for (const OcdbtFile& file : node.files) {
    const Status path = CheckOcdbtPath(file.path);
    if (!path.ok()) return DataLossError(StrCat("bad OCDBT B-tree node: ", path.message()));
  }
  return node;
}

}  // namespace stepwell::format::orbax
