// SPDX-License-Identifier: Apache-2.0
#include "db/log/chunk_source.h"

#include "format/codec.h"
#include "format/hash.h"
#include "io/invariant.h"

namespace stepwell::db {

Result<std::string> SegmentSource::Read(const format::StoredPayload& payload, uint32_t part) {
  if (part == 0) files_->DropCached(payload.segment);
  STEPWELL_ASSIGN_OR_RETURN(const auto file, files_->Get(part, payload.segment));
  return ReadRange(*file, payload.offset_bytes, payload.stored_bytes);
}

Result<std::string> ChunkSources::Fetch(const format::StoredPayload& payload, uint32_t part) const {
  Status first;
  for (ChunkSource* const source : chain_) {
    Result<std::string> bytes = source->Read(payload, part);
    const Status status =
        bytes.ok() ? format::CheckPayload(AsBytes(*bytes), payload.crc) : bytes.status();
    if (status.ok()) return bytes;
    if (first.ok()) first = status;
  }
  return first;
}

Result<std::string> ChunkSources::ReadChunk(const format::ChunkRecord& chunk) const {
  std::vector<std::string> fetched;
  for (const format::StoredPayload& base : chunk.bases) {
    STEPWELL_ASSIGN_OR_RETURN(fetched.emplace_back(), Fetch(base, chunk.part));
  }
  STEPWELL_ASSIGN_OR_RETURN(fetched.emplace_back(), Fetch(chunk, chunk.part));
  std::vector<ConstBytes> payloads;
  for (const std::string& payload : fetched) payloads.push_back(AsBytes(payload));
  std::string logical(chunk.logical_bytes, '\0');
  STEPWELL_RETURN_IF_ERROR(
      DecodeChunk(chunk, payloads, {reinterpret_cast<std::byte*>(logical.data()), logical.size()}));
  return logical;
}

Status DecodeChunk(const format::ChunkRecord& chunk, std::span<const ConstBytes> payloads,
                   MutableBytes out) {
  STEPWELL_DCHECK(payloads.size() == chunk.bases.size() + 1, "a chunk without all its payloads");
  const format::StoredPayload& first = chunk.bases.empty() ? chunk : chunk.bases.front();
  STEPWELL_RETURN_IF_ERROR(format::DecodePayload(first.codec, payloads.front(), out));
  return ApplyDifferences(chunk, payloads.subspan(1), out);
}

Status ApplyDifferences(const format::ChunkRecord& chunk, std::span<const ConstBytes> payloads,
                        MutableBytes out) {
  if (chunk.bases.empty()) return OkStatus();
  STEPWELL_DCHECK(payloads.size() == chunk.bases.size(), "a chunk without all its differences");
  for (size_t i = 1; i < chunk.bases.size(); ++i) {
    STEPWELL_RETURN_IF_ERROR(format::DecodePayload(chunk.bases[i].codec, payloads[i - 1], out));
  }
  STEPWELL_RETURN_IF_ERROR(format::DecodePayload(chunk.codec, payloads.back(), out));
  // The CRCs say that each payload is the one that was written, and not that they belong together.
  if (format::HashOf(out) != chunk.hash) {
    return DataLossError("its difference to an earlier step leads to other bytes than were saved");
  }
  return OkStatus();
}

}  // namespace stepwell::db
