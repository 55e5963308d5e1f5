// SPDX-License-Identifier: Apache-2.0
#include "format/orbax/ocdbt_node_body.h"

#include <algorithm>
#include <unordered_map>

namespace stepwell::format::orbax::internal {
namespace {

template <typename Field>
void AppendColumn(const std::vector<Child>& children, Field Child::*field, size_t less,
                  std::string* out) {
  for (const Child& child : children) AppendVarint(child.*field - less, out);
}

// The files that a leaf's values lie in, by path.
std::vector<uint32_t> UsedFiles(const Leaf& leaf, const std::deque<std::string>& files) {
  std::vector<uint32_t> used;
  for (const LeafValue& value : leaf.values) {
    if (!value.is_inline && (used.empty() || used.back() != value.file)) used.push_back(value.file);
  }
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  std::sort(used.begin(), used.end(),
            [&files](uint32_t a, uint32_t b) { return files[a] < files[b]; });
  return used;
}

}  // namespace

void NodeKeys::Add(std::string_view key) {
  const size_t shared = shared_.empty() ? 0 : SharedPrefix(last_, key);
  if (shared_.empty()) first_ = key;
  last_.assign(key);
  shared_.push_back(static_cast<uint32_t>(shared));
  rest_bytes_.push_back(static_cast<uint32_t>(key.size() - shared));
  rests_ += key.substr(shared);
}

void NodeKeys::Clear() {
  shared_.clear();
  rest_bytes_.clear();
  rests_.clear();
}

void NodeKeys::AppendLengths(size_t drop, std::string* out) const {
  AppendVarint(size(), out);
  for (size_t i = 1; i < size(); ++i) AppendVarint(shared_[i] - drop, out);
  for (size_t i = 0; i < size(); ++i) AppendVarint(rest_bytes_[i] - (i == 0 ? drop : 0), out);
}

void AppendFileTable(const std::vector<std::string_view>& paths, std::string* out) {
  AppendVarint(paths.size(), out);
  std::string suffixes;
  std::string lengths;
  for (size_t i = 0; i < paths.size(); ++i) {
    const size_t shared = i == 0 ? 0 : SharedPrefix(paths[i - 1], paths[i]);
    if (i > 0) AppendVarint(shared, out);
    AppendVarint(paths[i].size() - shared, &lengths);
    suffixes += paths[i].substr(shared);
  }
  out->append(lengths);
  for (size_t i = 0; i < paths.size(); ++i) AppendVarint(0, out);
  out->append(suffixes);
}

std::string EncodeLeafBody(const Leaf& leaf, size_t drop, const std::deque<std::string>& files) {
  std::vector<std::string_view> paths;
  std::unordered_map<uint32_t, size_t> index;
  for (const uint32_t file : UsedFiles(leaf, files)) {
    index.emplace(file, paths.size());
    paths.push_back(files[file]);
  }
  std::string body(1, 0);  // height
  AppendFileTable(paths, &body);
  leaf.keys.AppendLengths(drop, &body);
  leaf.keys.AppendBytes(drop, &body);
  for (const LeafValue& value : leaf.values) AppendVarint(value.length_bytes, &body);
  for (const LeafValue& value : leaf.values) {
    body.push_back(static_cast<char>(value.is_inline ? kInlineValue : kRangeValue));
  }
  for (const LeafValue& value : leaf.values) {
    if (!value.is_inline) AppendVarint(index.find(value.file)->second, &body);
  }
  for (const LeafValue& value : leaf.values) {
    if (!value.is_inline) AppendVarint(value.offset_bytes, &body);
  }
  body += leaf.inline_values;
  return body;
}

std::string EncodeInteriorBody(const Interior& node, uint8_t height, size_t drop,
                               std::string_view nodes_path) {
  std::string body(1, static_cast<char>(height));
  AppendFileTable({nodes_path}, &body);
  node.keys.AppendLengths(drop, &body);
  AppendColumn(node.children, &Child::shared_by_all, drop, &body);
  node.keys.AppendBytes(drop, &body);
  for (size_t i = 0; i < node.children.size(); ++i) AppendVarint(0, &body);  // the one file
  AppendColumn(node.children, &Child::offset_bytes, 0, &body);
  AppendColumn(node.children, &Child::length_bytes, 0, &body);
  AppendColumn(node.children, &Child::key_count, 0, &body);
  AppendColumn(node.children, &Child::tree_bytes, 0, &body);
  AppendColumn(node.children, &Child::indirect_bytes, 0, &body);
  return body;
}

}  // namespace stepwell::format::orbax::internal
