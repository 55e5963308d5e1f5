// SPDX-License-Identifier: Apache-2.0
// OCDBT: the key-value database in which Orbax keeps its arrays, as TensorStore reads and writes
// it.
//
// A database is a folder with manifest.ocdbt (settings and the root's place), files of B-tree
// nodes, and data files. A leaf has values up to 1 MiB inline; any other value is a range of any
// file below the folder, so bytes that lie in a file already are named, not copied. Here: databases
// of one version, written by OcdbtBuilder (ocdbt_encode.cc). ocdbt_read.h reads them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "io/bytes.h"
#include "io/result.h"

namespace stepwell::format::orbax {

inline constexpr std::string_view kOcdbtManifestName = "manifest.ocdbt";

// TensorStore's bounds, which builder and decoder share.
inline constexpr size_t kOcdbtKeyBytesMax = 65535;
inline constexpr size_t kOcdbtPathBytesMax = 65535;
inline constexpr size_t kOcdbtInlineBytesMax = size_t{1} << 20;
inline constexpr size_t kOcdbtNodeEntriesMax = size_t{1} << 20;

using OcdbtUuid = std::array<std::byte, 16>;

// Checks that TensorStore opens a file of this name below a database's folder. kInvalidArgument for
// the empty name, empty components (so also for absolute paths), ".", "..", NUL bytes, components
// that end in ".__lock", and more than kOcdbtPathBytesMax.
Status CheckOcdbtPath(std::string_view path);

struct OcdbtOptions {
  OcdbtUuid uuid{};             // of this database; random
  uint64_t commit_time_ns = 0;  // since 1970
  // The path at which the caller will put OcdbtImage::nodes, relative to the folder: "d/" and 32
  // random hexadecimal digits in TensorStore's own databases.
  std::string nodes_path;
  // Bounds of one node, before compression; a single entry may be larger. Readers fetch and decode
  // whole nodes, and do it again for every key when a decoded node does not fit their cache.
  size_t node_entries_max = 2000;
  size_t node_bytes_max = size_t{256} << 10;
  bool compress = true;  // nodes, by zstd, where it makes them smaller
};

// A finished database: the bytes of its two files, and what is in them.
struct OcdbtImage {
  std::string manifest;  // of kOcdbtManifestName: to be written last
  std::string nodes;     // of OcdbtOptions::nodes_path: empty (no file needed) without keys
  uint64_t key_count = 0;
  uint64_t node_count = 0;
  uint64_t tree_bytes = 0;      // of all nodes, also of those that TakeNodes gave away
  uint64_t indirect_bytes = 0;  // of all values that are ranges of files
  uint8_t height = 0;           // 0: the root is a leaf
};

// Takes keys in ascending order and encodes leaves as they fill: what it holds is one leaf, one
// interior node for each level, and the encoded nodes that were not taken. A call that is
// refused as kInvalidArgument changes nothing. One thread at a time.
class OcdbtBuilder {
 public:
  using FileId = uint32_t;

  static Result<OcdbtBuilder> Create(OcdbtOptions options);
  OcdbtBuilder(OcdbtBuilder&&) noexcept;
  OcdbtBuilder& operator=(OcdbtBuilder&&) noexcept;
  ~OcdbtBuilder();

  // A file that values lie in, relative to the folder. The same path gives the same id. Whether the
  // file exists, and ends where values do, is not checked before a reader asks for them.
  Result<FileId> AddFile(std::string_view path);

  // Keys are any bytes, each greater than the one before (as unsigned bytes), else
  // kInvalidArgument. The value is copied, or is `length_bytes` bytes of a file.
  Status AddInline(std::string_view key, std::string_view value);
  Status AddRange(std::string_view key, FileId file, uint64_t offset_bytes, uint64_t length_bytes);

  // The bytes of the nodes file that were made since the last call: for callers that write it out
  // in between. Finish() gives the rest.
  std::string TakeNodes();

  // Once, as the last call.
  Result<OcdbtImage> Finish();

 private:
  struct Impl;
  explicit OcdbtBuilder(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace stepwell::format::orbax
