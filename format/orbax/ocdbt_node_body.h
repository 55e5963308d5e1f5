// SPDX-License-Identifier: Apache-2.0
// Nodes while they are being filled, and the bodies that are made of them.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "format/orbax/ocdbt_internal.h"

namespace stepwell::format::orbax::internal {

// The keys of one node, each as what it shares with the one before and the rest.
class NodeKeys {
 public:
  void Add(std::string_view key);
  void Clear();
  size_t size() const { return shared_.size(); }
  const std::string& first() const { return first_; }
  size_t shared_by_all() const { return SharedPrefix(first_, last_); }

  // The number of keys and the columns of their lengths, all keys without their first `drop` bytes;
  // AppendBytes is the last column.
  void AppendLengths(size_t drop, std::string* out) const;
  void AppendBytes(size_t drop, std::string* out) const { out->append(rests_, drop); }

 private:
  std::string first_;
  std::string last_;
  std::vector<uint32_t> shared_;
  std::vector<uint32_t> rest_bytes_;
  std::string rests_;
};

struct LeafValue {
  bool is_inline = false;
  uint32_t file = 0;
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
};

// A leaf that is being filled.
struct Leaf {
  NodeKeys keys;
  std::vector<LeafValue> values;
  std::string inline_values;
  size_t bytes = 0;
};

// An encoded node, and what lies below it.
struct Child {
  size_t shared_by_all = 0;  // bytes of its first key that all keys below begin with
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
  uint64_t key_count = 0;
  uint64_t tree_bytes = 0;
  uint64_t indirect_bytes = 0;
};

// An interior node that is being filled.
struct Interior {
  NodeKeys keys;
  std::vector<Child> children;
  size_t bytes = 0;
  bool any_encoded = false;  // of this height
};

// Files in ascending order, all with the empty base path.
void AppendFileTable(const std::vector<std::string_view>& paths, std::string* out);

// `files` by LeafValue::file.
std::string EncodeLeafBody(const Leaf& leaf, size_t drop, const std::deque<std::string>& files);
// All children lie in the file `nodes_path`.
std::string EncodeInteriorBody(const Interior& node, uint8_t height, size_t drop,
                               std::string_view nodes_path);

}  // namespace stepwell::format::orbax::internal
