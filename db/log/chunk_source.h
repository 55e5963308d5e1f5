// SPDX-License-Identifier: Apache-2.0
// The one way to a chunk's payload that can be believed: read from where it may lie, and checked
// against the CRC of its record; and from its payloads to the chunk. Thread-safe.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "db/log/segment_files.h"
#include "format/records.h"

namespace stepwell::db {

// A place where a chunk's payload may lie.
class ChunkSource {
 public:
  virtual ~ChunkSource() = default;
  // The bytes that should be the payload, in a segment of `part`, unchecked; an error where this
  // source has none.
  virtual Result<std::string> Read(const format::StoredPayload& payload, uint32_t part) = 0;
};

// The segment that the chunk's record names, where it lies: it may have been read wrong before.
class SegmentSource final : public ChunkSource {
 public:
  explicit SegmentSource(SegmentFiles* files) : files_(files) {}
  Result<std::string> Read(const format::StoredPayload& payload, uint32_t part) override;

 private:
  SegmentFiles* const files_;
};

// The sources of a store, in the order in which they are tried.
class ChunkSources {
 public:
  explicit ChunkSources(SegmentFiles* files) : segments_(files), chain_{&segments_} {}
  ChunkSources(const ChunkSources&) = delete;
  ChunkSources& operator=(const ChunkSources&) = delete;

  // The bytes of `payload` from the first source that has them with its CRC. Without one, the error
  // of the first source: kDataLoss where its bytes are wrong.
  Result<std::string> Fetch(const format::StoredPayload& payload, uint32_t part) const;
  // The chunk's decoded bytes.
  Result<std::string> ReadChunk(const format::ChunkRecord& chunk) const;

 private:
  SegmentSource segments_;
  const std::vector<ChunkSource*> chain_;
};

// Decodes a chunk into exactly `out` from its payloads, which were checked: those of its bases, in
// their order, and its own. kDataLoss where a difference leads to other bytes than were saved.
Status DecodeChunk(const format::ChunkRecord& chunk, std::span<const ConstBytes> payloads,
                   MutableBytes out);
// The second half of it: `out` has the decoded keyframe, `payloads` are those behind it.
Status ApplyDifferences(const format::ChunkRecord& chunk, std::span<const ConstBytes> payloads,
                        MutableBytes out);

}  // namespace stepwell::db
