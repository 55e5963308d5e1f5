// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "format/orbax/ocdbt_column_reader.h"
#include "format/orbax/ocdbt_internal.h"
#include "format/orbax/ocdbt_read.h"

namespace stepwell::format::orbax {
namespace internal {
namespace {

constexpr size_t kFileBytesMin = 2;  // in the columns of a table

struct FileLengths {
  uint32_t shared = 0;
  uint32_t rest = 0;
  uint32_t base = 0;
};

std::vector<FileLengths> ReadFileLengths(ColumnReader* in) {
  std::vector<FileLengths> files(in->Count(kFileBytesMin, "files"));
  for (size_t i = 1; i < files.size(); ++i) {
    files[i].shared =
        static_cast<uint32_t>(in->VarintUpTo(kOcdbtPathBytesMax, "shared path bytes"));
  }
  for (FileLengths& file : files) {
    file.rest = static_cast<uint32_t>(in->VarintUpTo(kOcdbtPathBytesMax, "path bytes"));
  }
  for (FileLengths& file : files) {
    file.base = static_cast<uint32_t>(in->VarintUpTo(kOcdbtPathBytesMax, "base path bytes"));
  }
  return files;
}

}  // namespace

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

}  // namespace internal

namespace {

using internal::BadBody;
using internal::ColumnReader;

// Least bytes of an entry, all columns together.
constexpr size_t kLeafEntryBytesMin = 3;
constexpr size_t kInteriorEntryBytesMin = 8;

// The key columns of both kinds of node; `interior` has one more.
void ReadKeys(bool interior, ColumnReader* in, std::vector<OcdbtEntry>* entries) {
  for (size_t i = 1; i < entries->size(); ++i) {
    (*entries)[i].shared_bytes =
        static_cast<uint32_t>(in->VarintUpTo(kOcdbtKeyBytesMax, "shared key bytes"));
  }
  std::vector<uint32_t> rest_bytes(entries->size());
  for (uint32_t& size : rest_bytes) {
    size = static_cast<uint32_t>(in->VarintUpTo(kOcdbtKeyBytesMax, "key bytes"));
  }
  if (interior) {
    for (OcdbtEntry& entry : *entries) {
      entry.shared_by_all =
          static_cast<uint32_t>(in->VarintUpTo(kOcdbtKeyBytesMax, "common key bytes"));
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
  for (OcdbtEntry& entry : *entries) entry.offset_bytes = in->Varint();
  for (OcdbtEntry& entry : *entries) {
    entry.length_bytes = in->Varint();
    in->RequireRange(entry.offset_bytes, entry.length_bytes);
  }
  for (OcdbtEntry& entry : *entries) entry.key_count = in->Varint();
  for (OcdbtEntry& entry : *entries) entry.tree_bytes = in->Varint();
  for (OcdbtEntry& entry : *entries) entry.indirect_bytes = in->Varint();
}

}  // namespace

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
  node.files = internal::ReadFileTable(base, &in);
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
