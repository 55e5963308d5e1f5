// SPDX-License-Identifier: Apache-2.0
// OCDBT databases from untrusted bytes: manifests, B-tree nodes, and a walk over the
// keys of the newest version. Bad bytes are kDataLoss; versions of the format that are not known
// are kUnimplemented.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/orbax/ocdbt.h"
#include "io/bytes.h"
#include "io/result.h"

namespace stepwell::format::orbax {

// Real trees, with nodes of two entries, have a height of 7.
inline constexpr int kOcdbtHeightMax = 64;

// A file below the database's folder.
struct OcdbtFile {
  std::string path;
  std::string base;  // goes before all paths that nodes in this file name (done by the decoder)
};

struct OcdbtManifest {
  OcdbtUuid uuid{};
  uint32_t max_inline_value_bytes = 0;  // these are for writers
  uint32_t max_decoded_node_bytes = 0;
  uint8_t version_tree_arity_log2 = 0;
  std::optional<int32_t> zstd_level;  // none: new nodes are not compressed

  // The newest version.
  uint64_t generation = 0;
  uint64_t commit_time_ns = 0;
  bool has_keys = false;  // false: there is no root
  OcdbtFile root_file;
  uint64_t root_offset_bytes = 0;
  uint64_t root_length_bytes = 0;
  uint8_t root_height = 0;
  uint64_t key_count = 0;  // these are what the writer says
  uint64_t tree_bytes = 0;
  uint64_t indirect_bytes = 0;
};

// A manifest with settings only (see NewestOcdbtManifest) gives kUnimplemented.
Result<OcdbtManifest> DecodeOcdbtManifest(ConstBytes bytes);

// TensorStore can be told to write each generation's manifest to a file of its own: manifest.ocdbt
// has the settings then, manifest.<generation in 16 hexadecimal digits> the rest.
struct OcdbtNewest {
  std::string name;
  std::string bytes;
};
// Names in the database's folder; all of a file there.
using OcdbtList = std::function<Result<std::vector<std::string>>()>;
using OcdbtReadFile = std::function<Result<std::string>(const std::string& name)>;

// The newest manifest: `manifest`, the bytes of manifest.ocdbt, or the one with the highest number.
Result<OcdbtNewest> NewestOcdbtManifest(std::string manifest, const OcdbtList& list,
                                        const OcdbtReadFile& read);

// A key of a node is the first `shared_bytes` bytes of the key before it in the node, and `rest`;
// before all of them go the bytes that the node's parents say (OcdbtEntry::shared_by_all). Keys are
// not put together here: a few bytes could then become gigabytes.
struct OcdbtEntry {
  std::string_view rest;
  uint32_t shared_bytes = 0;

  // In leaves, the value; else `file`, offset and length are the value's or the child node's place.
  bool is_inline = false;
  std::string_view inline_value;
  uint32_t file = 0;  // in OcdbtNode::files
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;

  // In interior nodes: how many bytes at the beginning of this key all keys of the child begin with
  // (the child does not have them); and what the writer says of the child.
  uint32_t shared_by_all = 0;
  uint64_t key_count = 0;
  uint64_t tree_bytes = 0;
  uint64_t indirect_bytes = 0;
};

struct OcdbtNode {
  std::vector<OcdbtFile> files;
  std::vector<OcdbtEntry> entries;          // at least one, keys strictly ascending
  std::unique_ptr<const std::string> body;  // `entries` are views of it
};

// `height` is the node's as its parent says, 0 for leaves; `base` is OcdbtFile::base of the file
// that the node lies in.
Result<OcdbtNode> DecodeOcdbtNode(ConstBytes bytes, uint8_t height, std::string_view base);

// Keys from `begin` on, before `end`; no end: all.
struct OcdbtKeyRange {
  std::string begin;
  std::optional<std::string> end;
};
OcdbtKeyRange OcdbtKeysWithPrefix(std::string_view prefix);

// Bytes that are inline, or a range of a file. Valid during the call.
struct OcdbtValue {
  bool is_inline = false;
  std::string_view inline_value;
  std::string_view path;  // CheckOcdbtPath holds; the range itself is not checked
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
};

// Reads a range of a file below the database's folder. `length_bytes` is not to be trusted beyond
// the file's size: what is too short is found to be so by the walk.
using OcdbtRead = std::function<Result<std::string>(const std::string& path, uint64_t offset_bytes,
                                                    uint64_t length_bytes)>;
using OcdbtVisit = std::function<Status(std::string_view key, const OcdbtValue& value)>;

// Visits the keys of the newest version that lie in `range`, ascending; reads only the nodes that
// may have some, each of them once. The first error, also of `read` or `visit`, ends it.
Status WalkOcdbt(ConstBytes manifest, const OcdbtKeyRange& range, const OcdbtRead& read,
                 const OcdbtVisit& visit);

}  // namespace stepwell::format::orbax
