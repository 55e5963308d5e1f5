// SPDX-License-Identifier: Apache-2.0
// OCDBT: manifests, nodes and zstd frames behind checksums that are right; trees of nodes that the
// input makes up; and what the builder writes for arbitrary keys and values.
#include <map>

#include "format/crc32c.h"
#include "format/orbax/ocdbt.h"
#include "format/orbax/ocdbt_internal.h"
#include "format/orbax/ocdbt_read.h"
#include "fuzz/support/check.h"
#include "fuzz/support/input.h"
#include "fuzz/support/memory.h"
#include "tests/format/support/ocdbt_bytes.h"

namespace stepwell::fuzz {
namespace {

using format::orbax::CheckOcdbtPath;
using format::orbax::DecodeOcdbtManifest;
using format::orbax::DecodeOcdbtNode;
using format::orbax::Frame;
using format::orbax::OcdbtKeyRange;
using format::orbax::OcdbtNode;
using format::orbax::OcdbtValue;
using format::orbax::Varints;
using format::orbax::internal::FrameMagic;

constexpr size_t kFrameExtraBytes = 18;
constexpr int kReadsMax = 64;  // a tree of more is not looked at to its end
constexpr int kVisitsMax = 100'000;

void CheckRefused(const Status& status) {
  Check(status.ok() || status.code() == StatusCode::kDataLoss ||
            status.code() == StatusCode::kUnimplemented,
        status.ToString());
}

void CheckNode(const OcdbtNode& node) {
  Check(!node.entries.empty(), "a node without entries");
  for (const auto& file : node.files) {
    Check(CheckOcdbtPath(file.path).ok(), "a bad path");
    Check(file.path.compare(0, file.base.size(), file.base) == 0, "a base of another path");
  }
  std::string key;
  std::string last;
  const size_t compared = node.entries.size() < 1000 ? node.entries.size() : 1000;
  for (size_t i = 0; i < compared; ++i) {
    const auto& entry = node.entries[i];
    Check(entry.shared_bytes <= key.size(), "more shared than there is");
    key.resize(entry.shared_bytes);
    key += entry.rest;
    Check(key.size() <= format::orbax::kOcdbtKeyBytesMax, "a long key");
    Check(i == 0 || last < key, "keys that do not ascend");
    Check(entry.shared_by_all <= key.size(), "more common bytes than the key has");
    Check(entry.is_inline || entry.file < node.files.size(), "a file that is not there");
    Check(entry.is_inline || entry.offset_bytes + entry.length_bytes < uint64_t{1} << 63,
          "a range beyond 2^63");
    last = key;
  }
}

void Decode(Input* input) {
  const uint8_t flags = input->Byte();
  const std::string head{'\0', static_cast<char>(flags & 1)};  // raw or zstd
  if ((flags & 2) == 0) {
    const std::string frame = Frame(FrameMagic::kManifest, input->rest_text(), head);
    CheckRefused(DecodeOcdbtManifest(AsBytes(frame)).status());
    return;
  }
  const uint8_t height = flags >> 2 & 1;
  const auto node =
      DecodeOcdbtNode(AsBytes(Frame(FrameMagic::kNode, input->rest_text(), head)), height, "base/");
  CheckRefused(node.status());
  if (node.ok()) CheckNode(node.value());
  CheckRefused(DecodeOcdbtNode(input->rest(), height, "").status());  // as it is
}

using Found = std::map<std::string, std::string>;

Status Collect(std::string_view key, const OcdbtValue& value, Found* found) {
  if (found->size() == kVisitsMax) return CancelledError("enough");
  Check(found->empty() || found->rbegin()->first < key, "a walk that does not ascend");
  Check(value.is_inline || CheckOcdbtPath(value.path).ok(), "a bad path");
  found->emplace(key, value.is_inline ? std::string(value.inline_value)
                                      : StrCat("@", value.path, " ", value.offset_bytes, " ",
                                               value.length_bytes));
  return OkStatus();
}

// Bodies are where the tree says, in the file "n", which is `bodies`; frames are made around them.
Status WalkBodies(const std::string& manifest, std::string_view bodies, const OcdbtKeyRange& range,
                  Found* found) {
  int reads = 0;
  const auto read = [&](const std::string& path, uint64_t offset,
                        uint64_t length) -> Result<std::string> {
    if (path != "n" || offset > bodies.size() || length < kFrameExtraBytes ||
        length - kFrameExtraBytes > bodies.size() - offset || ++reads > kReadsMax) {
      return NotFoundError("no such range");
    }
    return Frame(FrameMagic::kNode, bodies.substr(offset, length - kFrameExtraBytes));
  };
  const auto visit = [found](std::string_view key, const OcdbtValue& value) {
    return Collect(key, value, found);
  };
  return WalkOcdbt(AsBytes(manifest), range, read, visit);
}

Found Within(const Found& found, const OcdbtKeyRange& range) {
  Found part;
  for (auto it = found.lower_bound(range.begin);
       it != found.end() && (!range.end.has_value() || it->first < *range.end); ++it) {
    part.insert(*it);
  }
  return part;
}

void Walk(Input* input) {
  const uint8_t height = input->Byte() % 4;
  const uint64_t offset = input->Take<uint16_t>();
  const uint64_t length = kFrameExtraBytes + input->Take<uint16_t>();
  OcdbtKeyRange range{std::string(input->Text(input->Byte() % 8)), std::nullopt};
  if (range.begin.size() % 2 == 0) range.end = input->Text(input->Byte() % 8);
  const std::string_view bodies = input->rest_text();
  const std::string manifest =
      Frame(FrameMagic::kManifest, std::string(16, 'u') + Varints({0, 100, 100, 4, 0, 1, 1, 0}) +
                                       "n" + Varints({1, 1, height, 0, offset, length, 0, 0, 0}) +
                                       std::string(8, '\0') + '\0');
  Found found;
  const Status status = WalkBodies(manifest, bodies, {}, &found);
  Check(status.ok() || status.code() == StatusCode::kDataLoss ||
            status.code() == StatusCode::kUnimplemented || status.code() == StatusCode::kNotFound ||
            status.code() == StatusCode::kCancelled,
        status.ToString());
  if (!status.ok()) return;
  Found part;
  const Status partial = WalkBodies(manifest, bodies, range, &part);
  Check(partial.ok(), "part of a good tree: ", partial.ToString());
  Check(part == Within(found, range), "a range of keys that is not the range of all");
}

void Build(Input* input) {
  format::orbax::OcdbtOptions options;
  options.nodes_path = "n";
  options.node_entries_max = 2 + input->Below(20);
  options.node_bytes_max = 16 + 16 * input->Below(256);
  options.compress = (input->Byte() & 1) != 0;
  OcdbtKeyRange range{std::string(input->Text(input->Byte() % 8)), std::nullopt};
  auto builder = format::orbax::OcdbtBuilder::Create(options).value();
  Found wrote;
  std::string last;
  while (!input->empty()) {
    const uint8_t kind = input->Byte();
    // Some of the key before, and new bytes.
    std::string key = last.substr(0, input->Below(last.size() + 1));
    key += input->Text(kind % 8);
    Status status;
    std::string value;
    if ((kind & 8) != 0) {
      value = input->Text(kind >> 4);
      status = builder.AddInline(key, value);
    } else {
      const std::string path = StrCat("d/", kind >> 4);
      const uint64_t offset = input->Take<uint32_t>();
      value = StrCat("@", path, " ", offset, " ", 7);
      status = builder.AddRange(key, builder.AddFile(path).value(), offset, 7);
    }
    const bool ascends = wrote.empty() || last < key;
    Check(status.ok() == ascends, status.ToString());
    if (!ascends) continue;
    last = key;
    wrote.emplace(std::move(key), std::move(value));
  }
  const auto image = builder.Finish().value();
  Check(image.key_count == wrote.size(), "other keys");
  Check(image.tree_bytes == image.nodes.size(), "other nodes");
  const format::orbax::Files files = {{"n", image.nodes}};
  for (const OcdbtKeyRange& bounds : {OcdbtKeyRange{}, range}) {
    Found found;
    const auto visit = [&found](std::string_view key, const OcdbtValue& value) {
      return Collect(key, value, &found);
    };
    const Status status =
        WalkOcdbt(AsBytes(image.manifest), bounds, format::orbax::ReadOf(files), visit);
    Check(status.ok(), status.ToString());
    Check(found == Within(wrote, bounds), "other keys or values came back");
  }
}

}  // namespace
}  // namespace stepwell::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepwell::fuzz;
  // A node of 2^20 entries takes 92 MiB.
  const MemoryLimit limit(size, {size_t{100} << 20, 0}, {size_t{256} << 20, 16384});
  Input input(data, size);
  switch (input.Byte() % 3) {
    case 0:
      Decode(&input);
      break;
    case 1:
      Walk(&input);
      break;
    default:
      Build(&input);
  }
  return 0;
}
