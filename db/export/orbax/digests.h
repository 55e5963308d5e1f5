// SPDX-License-Identifier: Apache-2.0
// Checksums of all that an export consists of, in a file of its own that Orbax does not mind: Orbax
// has none of texts and metadata, and none of chunks of zarr 2. DESIGN.md, "Export", has the file.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <stepwell/reports.h>

#include "io/disk.h"
#include "io/result.h"

namespace stepwell::db {

// In the checkpoint's directory.
inline constexpr std::string_view kDigestsName = "stepwell-digests";

// The digest of a file that is checked as a whole. Its last four bytes are compared, not summed up:
// files of OCDBT end in a CRC-32C of their own, and the CRC of such a file is the same for all of
// them.
struct FileDigest {
  std::string name;  // relative to the checkpoint
  uint64_t bytes = 0;
  uint32_t crc = 0;   // of all but the last four bytes
  uint32_t tail = 0;  // those, little-endian; of a shorter file its bytes

  bool operator==(const FileDigest&) const = default;
};

// The digest of a chunk. `crc` covers all but its last four bytes, which repeat it, little-endian.
struct ChunkDigest {
  uint64_t offset_bytes = 0;
  uint32_t stored_bytes = 0;
  uint32_t crc = 0;

  bool operator==(const ChunkDigest&) const = default;
};

// The digest of a file of chunks, which may have bytes of other steps between them.
struct DataDigest {
  std::string name;
  uint64_t bytes = 0;
  std::vector<ChunkDigest> chunks;  // by offset

  bool operator==(const DataDigest&) const = default;
};

struct ExportDigests {
  std::optional<uint64_t> step;         // that was exported; none in those of version 1
  std::vector<std::string> file_items;  // folders of items of files; these may look like a tree's
  std::vector<std::string> left_out;    // items of which Orbax can hold nothing
  std::vector<FileDigest> files;
  std::vector<DataDigest> data;

  bool operator==(const ExportDigests&) const = default;
};

FileDigest DigestOf(std::string_view name, std::string_view bytes);

std::string EncodeDigests(const ExportDigests& digests);
// kDataLoss names `path`.
Result<ExportDigests> DecodeDigests(const std::string& path, std::string_view text);
// Those of a checkpoint, without the items that Orbax deleted from it; nothing where it has none,
// as those that Orbax wrote.
Result<std::optional<ExportDigests>> ReadDigests(io::FileSystem* file_system,
                                                 const std::string& checkpoint);

// The digests' text for a checkpoint that has files of another one: of its `items`, in directories
// of their own or, where it `is_item`, in its own; and `metadata`, as _CHECKPOINT_METADATA. Nothing
// where the other has none. Names of directories; one item where it `is_item`. `deleted`: an item
// that is not there any more, if any.
Result<std::optional<std::string>> CarryDigests(io::FileSystem* file_system,
                                                const std::string& checkpoint,
                                                const std::vector<std::string>& items, bool is_item,
                                                const std::string& deleted,
                                                std::string_view metadata);
// Items that a checkpoint of ours, or a copy of one, has had and has not: left out, or lost. Not of
// one that is its item itself.
Result<std::vector<std::string>> MissingItems(io::FileSystem* file_system,
                                              const std::string& checkpoint);

// Reads the file once; nothing when it is as it was.
Result<std::optional<VerifyProblem>> CheckFile(io::FileSystem* file_system,
                                               const std::string& checkpoint,
                                               const FileDigest& digest);

// Reads all that the export consists of. kFailedPrecondition: a checkpoint without digests, or none
// at all; kCancelled: `progress` said false.
Result<VerifyReport> VerifyExport(
    io::FileSystem* file_system, const std::string& checkpoint,
    const std::function<bool(uint64_t done_bytes, uint64_t total_bytes)>& progress);

// Checks that these are the exported chunk's bytes. Decoding checks a chunk that ends in a
// checksum. For such a chunk only the checksum is compared, and `bytes` may be the checksum alone.
Status CheckChunk(const ChunkDigest& digest, bool ends_in_crc, ConstBytes bytes);

}  // namespace stepwell::db
