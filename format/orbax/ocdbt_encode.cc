// SPDX-License-Identifier: Apache-2.0
// Bulk building, bottom up: a node is encoded when the next entry does not fit, and becomes an
// entry one level higher. Nodes but the root drop the bytes that all keys below them begin with;
// their entry says how many.
#include <algorithm>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "format/endian.h"
#include "format/orbax/ocdbt.h"
#include "format/orbax/ocdbt_internal.h"

namespace stepwell::format::orbax {
namespace internal {

inline size_t SharedPrefix(std::string_view a, std::string_view b) {
  const size_t size = std::min(a.size(), b.size());
  return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + size, b.begin()).first -
                             a.begin());
}

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

}  // namespace internal

namespace {

using internal::AppendVarint;
using internal::Child;
using internal::FrameMagic;
using internal::Interior;
using internal::Leaf;
using internal::LeafValue;
using internal::SharedPrefix;

// The settings in a manifest for further writes. They are Orbax's own values.
constexpr uint64_t kMaxInlineValueBytes = 1024;
constexpr uint64_t kMaxDecodedNodeBytes = 100'000'000;
constexpr char kVersionTreeArityLog2 = 4;
constexpr uint64_t kConfigZstd = 1;
constexpr uint32_t kConfigZstdLevel = 0;

// A node's entry counts this many bytes besides its key and value: about its numbers.
constexpr size_t kEntryBytes = 16;

Status BadKey(std::string_view key, const std::string& what) {
  constexpr size_t kShownBytesMax = 200;
  return InvalidArgumentError(StrCat("OCDBT key \"", key.substr(0, kShownBytesMax),
                                     key.size() > kShownBytesMax ? "..." : "", "\": ", what));
}

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

// Files in ascending order, all with the empty base path.
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

// `files` by LeafValue::file.
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
    body.push_back(
        static_cast<char>(value.is_inline ? internal::kInlineValue : internal::kRangeValue));
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

// All children lie in the file `nodes_path`.
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

}  // namespace

Status CheckOcdbtPath(std::string_view path) {
  constexpr std::string_view kLock = ".__lock";
  const auto bad = [path](std::string_view what) {
    return InvalidArgumentError(StrCat("OCDBT file name \"", path.substr(0, 200), "\": ", what));
  };
  if (path.size() > kOcdbtPathBytesMax) return bad("longer than 65535 bytes");
  if (path.find('\0') != std::string_view::npos) return bad("has a NUL byte");
  for (std::string_view rest = path;;) {
    const size_t slash = rest.find('/');
    const std::string_view component = rest.substr(0, slash);
    if (component.empty()) return bad("absolute, empty, or with an empty component");
    if (component == "." || component == "..") return bad("has the component . or ..");
    if (component.size() >= kLock.size() &&
        component.substr(component.size() - kLock.size()) == kLock) {
      return bad("TensorStore takes names that end in .__lock for locks");
    }
    if (slash == std::string_view::npos) return OkStatus();
    rest.remove_prefix(slash + 1);
  }
}

struct OcdbtBuilder::Impl {
  explicit Impl(OcdbtOptions given)
      : options(std::move(given)), frames(options.compress), plain_frames(false) {}

  Status CheckAdd(std::string_view key);
  Status Add(std::string_view key, const LeafValue& value, std::string_view inline_value);
  Status EncodeLeaf(bool is_root);
  Status EncodeInterior(size_t level, bool is_root);
  Status EncodeNode(uint8_t node_height, const std::string& body, const std::string& first_key,
                    Child child, bool is_root);
  Status AddChild(size_t level, const std::string& first_key, const Child& child);
  Result<std::string> EncodeManifest();

  const OcdbtOptions options;
  internal::FrameEncoder frames;
  internal::FrameEncoder plain_frames;

  std::deque<std::string> files;  // by FileId; entries do not move
  std::unordered_map<std::string_view, FileId> file_ids;

  Leaf leaf;
  std::vector<Interior> interiors;  // [0] has height 1
  std::string last_key;
  std::string nodes;  // encoded and not taken
  uint64_t taken_bytes = 0;
  bool finished = false;

  Child root;
  uint64_t key_count = 0;
  uint64_t node_count = 0;
  uint8_t height = 0;
};

OcdbtBuilder::OcdbtBuilder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
OcdbtBuilder::OcdbtBuilder(OcdbtBuilder&&) noexcept = default;
OcdbtBuilder& OcdbtBuilder::operator=(OcdbtBuilder&&) noexcept = default;
OcdbtBuilder::~OcdbtBuilder() = default;

Result<OcdbtBuilder> OcdbtBuilder::Create(OcdbtOptions options) {
  STEPWELL_RETURN_IF_ERROR(CheckOcdbtPath(options.nodes_path));
  if (options.node_entries_max < 2 || options.node_entries_max > kOcdbtNodeEntriesMax) {
    return InvalidArgumentError(
        StrCat("an OCDBT node of at most ", options.node_entries_max, " entries"));
  }
  return OcdbtBuilder(std::make_unique<Impl>(std::move(options)));
}

Result<OcdbtBuilder::FileId> OcdbtBuilder::AddFile(std::string_view path) {
  STEPWELL_RETURN_IF_ERROR(CheckOcdbtPath(path));
  const auto known = impl_->file_ids.find(path);
  if (known != impl_->file_ids.end()) return known->second;
  const auto id = static_cast<FileId>(impl_->files.size());
  impl_->file_ids.emplace(impl_->files.emplace_back(path), id);
  return id;
}

Status OcdbtBuilder::AddInline(std::string_view key, std::string_view value) {
  if (value.size() > kOcdbtInlineBytesMax) {
    return BadKey(key, StrCat("a value of ", value.size(), " bytes is too long to be inline"));
  }
  return impl_->Add(key, {true, 0, 0, value.size()}, value);
}

Status OcdbtBuilder::AddRange(std::string_view key, FileId file, uint64_t offset_bytes,
                              uint64_t length_bytes) {
  if (file >= impl_->files.size()) return BadKey(key, StrCat("no file ", file));
  if (length_bytes > internal::kFileBytesMax ||
      offset_bytes > internal::kFileBytesMax - length_bytes) {
    return BadKey(key, StrCat("offset ", offset_bytes, " and length ", length_bytes,
                              " go beyond 2^63 bytes"));
  }
  return impl_->Add(key, {false, file, offset_bytes, length_bytes}, {});
}

std::string OcdbtBuilder::TakeNodes() {
  impl_->taken_bytes += impl_->nodes.size();
  return std::exchange(impl_->nodes, {});
}

Status OcdbtBuilder::Impl::CheckAdd(std::string_view key) {
  if (finished) return FailedPreconditionError("the OCDBT database is finished");
  if (key.size() > kOcdbtKeyBytesMax) return BadKey(key, "longer than 65535 bytes");
  if (key_count == 0 || key > last_key) return OkStatus();
  return BadKey(key, key == last_key ? "is there twice"
                                     : StrCat("comes after \"", last_key.substr(0, 200),
                                              "\", which is greater"));
}

Status OcdbtBuilder::Impl::Add(std::string_view key, const LeafValue& value,
                               std::string_view inline_value) {
  STEPWELL_RETURN_IF_ERROR(CheckAdd(key));
  const size_t bytes = key.size() + inline_value.size() + kEntryBytes;
  if (leaf.keys.size() > 0 && (leaf.keys.size() >= options.node_entries_max ||
                               leaf.bytes + bytes > options.node_bytes_max)) {
    STEPWELL_RETURN_IF_ERROR(EncodeLeaf(/*is_root=*/false));
  }
  leaf.keys.Add(key);
  leaf.values.push_back(value);
  leaf.inline_values += inline_value;
  leaf.bytes += bytes;
  last_key.assign(key);
  ++key_count;
  return OkStatus();
}

Status OcdbtBuilder::Impl::EncodeLeaf(bool is_root) {
  Child child;
  child.shared_by_all = is_root ? 0 : leaf.keys.shared_by_all();
  child.key_count = leaf.keys.size();
  for (const LeafValue& value : leaf.values) {
    if (!value.is_inline) child.indirect_bytes += value.length_bytes;
  }
  const std::string body = EncodeLeafBody(leaf, child.shared_by_all, files);
  STEPWELL_RETURN_IF_ERROR(EncodeNode(0, body, leaf.keys.first(), child, is_root));
  leaf.keys.Clear();
  leaf.values.clear();
  leaf.inline_values.clear();
  leaf.bytes = 0;
  return OkStatus();
}

Status OcdbtBuilder::Impl::EncodeInterior(size_t level, bool is_root) {
  Interior& node = interiors[level];
  Child child;
  child.shared_by_all = is_root ? 0 : node.keys.shared_by_all();
  for (const Child& below : node.children) {
    child.shared_by_all = std::min(child.shared_by_all, below.shared_by_all);
    child.key_count += below.key_count;
    child.tree_bytes += below.tree_bytes;
    child.indirect_bytes += below.indirect_bytes;
  }
  const auto node_height = static_cast<uint8_t>(level + 1);
  const std::string body =
      EncodeInteriorBody(node, node_height, child.shared_by_all, options.nodes_path);
  // Adding it one level higher may move `interiors`, and `node` with them.
  const std::string first_key = node.keys.first();
  node.keys.Clear();
  node.children.clear();
  node.bytes = 0;
  node.any_encoded = true;
  return EncodeNode(node_height, body, first_key, child, is_root);
}

// Appends the node to the nodes file, and its entry to the node above.
Status OcdbtBuilder::Impl::EncodeNode(uint8_t node_height, const std::string& body,
                                      const std::string& first_key, Child child, bool is_root) {
  const size_t begin = nodes.size();
  STEPWELL_RETURN_IF_ERROR(frames.Append(FrameMagic::kNode, body, &nodes));
  child.offset_bytes = taken_bytes + begin;
  child.length_bytes = nodes.size() - begin;
  child.tree_bytes += child.length_bytes;
  ++node_count;
  if (!is_root) return AddChild(node_height, first_key, child);
  root = child;
  height = node_height;
  return OkStatus();
}

Status OcdbtBuilder::Impl::AddChild(size_t level, const std::string& first_key,
                                    const Child& child) {
  if (interiors.size() == level) interiors.emplace_back();
  const size_t bytes = first_key.size() + kEntryBytes;
  // At least two children, whatever they take: else the tree would not get narrower.
  if (interiors[level].children.size() >= options.node_entries_max ||
      (interiors[level].children.size() >= 2 &&
       interiors[level].bytes + bytes > options.node_bytes_max)) {
    STEPWELL_RETURN_IF_ERROR(EncodeInterior(level, /*is_root=*/false));
  }
  interiors[level].keys.Add(first_key);
  interiors[level].children.push_back(child);
  interiors[level].bytes += bytes;
  return OkStatus();
}

Result<std::string> OcdbtBuilder::Impl::EncodeManifest() {
  const bool empty = key_count == 0;
  std::string out(AsText(options.uuid));
  out.push_back(internal::kManifestSingle);
  AppendVarint(kMaxInlineValueBytes, &out);
  AppendVarint(kMaxDecodedNodeBytes, &out);
  out.push_back(kVersionTreeArityLog2);
  AppendVarint(kConfigZstd, &out);
  AppendLittle(kConfigZstdLevel, &out);
  AppendFileTable({empty ? std::string_view() : options.nodes_path}, &out);
  AppendVarint(1, &out);  // versions
  AppendVarint(1, &out);  // generation
  out.push_back(static_cast<char>(height));
  AppendVarint(0, &out);  // file
  AppendVarint(empty ? internal::kMissing : root.offset_bytes, &out);
  AppendVarint(empty ? internal::kMissing : root.length_bytes, &out);
  AppendVarint(root.key_count, &out);
  AppendVarint(root.tree_bytes, &out);
  AppendVarint(root.indirect_bytes, &out);
  AppendLittle(options.commit_time_ns, &out);
  AppendVarint(0, &out);  // version tree nodes
  std::string manifest;
  STEPWELL_RETURN_IF_ERROR(plain_frames.Append(FrameMagic::kManifest, out, &manifest));
  return manifest;
}

Result<OcdbtImage> OcdbtBuilder::Finish() {
  Impl& impl = *impl_;
  if (impl.finished) return FailedPreconditionError("the OCDBT database is finished");
  impl.finished = true;
  // The lowest level of which no node was encoded is the root's.
  if (impl.key_count > 0) {
    bool is_root = impl.interiors.empty();
    STEPWELL_RETURN_IF_ERROR(impl.EncodeLeaf(is_root));
    for (size_t level = 0; !is_root; ++level) {
      is_root = !impl.interiors[level].any_encoded;
      STEPWELL_RETURN_IF_ERROR(impl.EncodeInterior(level, is_root));
    }
  }
  OcdbtImage image;
  STEPWELL_ASSIGN_OR_RETURN(image.manifest, impl.EncodeManifest());
  image.nodes = TakeNodes();
  image.key_count = impl.key_count;
  image.node_count = impl.node_count;
  image.tree_bytes = impl.root.tree_bytes;
  image.indirect_bytes = impl.root.indirect_bytes;
  image.height = impl.height;
  return image;
}

}  // namespace stepwell::format::orbax
