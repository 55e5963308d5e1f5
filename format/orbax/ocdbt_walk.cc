// SPDX-License-Identifier: Apache-2.0
// Depth first. The height says how deep it goes, and each node is read once, so a tree that has
// itself below itself, or many times the same node, ends as an error.
#include <unordered_set>
#include <utility>

#include "format/key.h"
#include "format/orbax/ocdbt_internal.h"
#include "format/orbax/ocdbt_read.h"

namespace stepwell::format::orbax {
namespace {

class Walker {
 public:
  Walker(const OcdbtKeyRange& range, const OcdbtRead& read, const OcdbtVisit& visit)
      : range_(range), read_(read), visit_(visit) {}

  // A node, and what its parents say of its keys.
  struct Subtree {
    const OcdbtFile* file = nullptr;
    uint64_t offset_bytes = 0;
    uint64_t length_bytes = 0;
    uint8_t height = 0;
    std::string_view prefix;              // goes before the node's keys
    std::string_view first;               // no key below is less
    std::optional<std::string_view> end;  // all keys below are less
  };

  Status Walk(const Subtree& tree) {
    const std::string place = StrCat(tree.file->path, " at ", tree.offset_bytes);
    if (tree.length_bytes > internal::kFrameBytesMax) {
      return Bad(StrCat("a node of ", tree.length_bytes, " bytes")).WithContext(place);
    }
    if (!seen_.insert(place).second) return Bad("a node is there twice").WithContext(place);
    auto bytes = read_(tree.file->path, tree.offset_bytes, tree.length_bytes);
    if (!bytes.ok()) return bytes.status().WithContext(place);
    auto node = DecodeOcdbtNode(AsBytes(*bytes), tree.height, tree.file->base);
    if (!node.ok()) return node.status().WithContext(place);
    *bytes = {};  // not needed while what is below is read
    bytes.value().shrink_to_fit();
    return tree.height == 0 ? WalkLeaf(tree, *node, place) : WalkInterior(tree, *node, place);
  }

 private:
  static Status Bad(std::string_view what) {
    return DataLossError(StrCat("bad OCDBT tree: ", what));
  }

  bool IsBeyond(std::string_view key) const { return range_.end.has_value() && key >= *range_.end; }

  // Makes `key`, the one before (or the prefix), the key of `entry`.
  static Status NextKey(const Subtree& tree, const OcdbtEntry& entry, const std::string& place,
                        std::string* key) {
    key->resize(tree.prefix.size() + entry.shared_bytes);
    key->append(entry.rest);
    if (key->size() > kOcdbtKeyBytesMax) return Bad("a key is too long").WithContext(place);
    if (*key < tree.first) return Bad("a key is less than its parent's").WithContext(place);
    if (tree.end.has_value() && *key >= *tree.end) {
      return Bad("a key is not less than its parent's next").WithContext(place);
    }
    return OkStatus();
  }

  Status WalkLeaf(const Subtree& tree, const OcdbtNode& node, const std::string& place) {
    std::string key(tree.prefix);
    for (const OcdbtEntry& entry : node.entries) {
      STEPWELL_RETURN_IF_ERROR(NextKey(tree, entry, place, &key));
      if (key < range_.begin) continue;
      if (IsBeyond(key)) return OkStatus();
      OcdbtValue value{
          entry.is_inline, entry.inline_value, {}, entry.offset_bytes, entry.length_bytes};
      if (!entry.is_inline) value.path = node.files[entry.file].path;
      STEPWELL_RETURN_IF_ERROR(visit_(key, value));
    }
    return OkStatus();
  }

  Status WalkInterior(const Subtree& tree, const OcdbtNode& node, const std::string& place) {
    std::string key(tree.prefix);
    STEPWELL_RETURN_IF_ERROR(NextKey(tree, node.entries[0], place, &key));
    for (size_t i = 0; i < node.entries.size() && !IsBeyond(key); ++i) {
      const OcdbtEntry& entry = node.entries[i];
      std::string next = key;
      std::optional<std::string_view> end = tree.end;
      if (i + 1 < node.entries.size()) {
        STEPWELL_RETURN_IF_ERROR(NextKey(tree, node.entries[i + 1], place, &next));
        end = next;
      }
      if (!end.has_value() || *end > range_.begin) {
        const size_t prefix_bytes = tree.prefix.size() + entry.shared_by_all;
        STEPWELL_RETURN_IF_ERROR(Walk({&node.files[entry.file], entry.offset_bytes,
                                       entry.length_bytes, static_cast<uint8_t>(tree.height - 1),
                                       std::string_view(key).substr(0, prefix_bytes), key, end}));
      }
      key = std::move(next);
    }
    return OkStatus();
  }

  const OcdbtKeyRange& range_;
  const OcdbtRead& read_;
  const OcdbtVisit& visit_;
  std::unordered_set<std::string> seen_;
};

}  // namespace

OcdbtKeyRange OcdbtKeysWithPrefix(std::string_view prefix) {
  std::string end = PrefixEnd(std::string(prefix));
  if (end.empty()) return {std::string(prefix), std::nullopt};
  return {std::string(prefix), std::move(end)};
}

Status WalkOcdbt(ConstBytes manifest, const OcdbtKeyRange& range, const OcdbtRead& read,
                 const OcdbtVisit& visit) {
  STEPWELL_ASSIGN_OR_RETURN(const OcdbtManifest decoded, DecodeOcdbtManifest(manifest));
  if (!decoded.has_keys) return OkStatus();
  if (decoded.root_height > kOcdbtHeightMax) {
    return DataLossError(StrCat("bad OCDBT manifest: a tree of height ", int{decoded.root_height}));
  }
  return Walker(range, read, visit)
      .Walk({&decoded.root_file,
             decoded.root_offset_bytes,
             decoded.root_length_bytes,
             decoded.root_height,
             {},
             {},
             std::nullopt});
}

}  // namespace stepwell::format::orbax
