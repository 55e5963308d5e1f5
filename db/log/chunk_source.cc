// SPDX-License-Identifier: Apache-2.0
#include "db/log/chunk_source.h"

#include "format/codec.h"

namespace stepwell::db {

Result<std::string> SegmentSource::Read(const format::ChunkRecord& chunk) {
  STEPWELL_ASSIGN_OR_RETURN(const auto file, files_->Get(chunk.part, chunk.segment));
  return ReadRange(*file, chunk.offset_bytes, chunk.stored_bytes);
}

Result<std::string> ChunkSources::Fetch(const format::ChunkRecord& chunk) const {
  Status first;
  for (ChunkSource* const source : chain_) {
    Result<std::string> payload = source->Read(chunk);
    const Status status =
        payload.ok() ? format::CheckPayload(AsBytes(*payload), chunk.crc) : payload.status();
    if (status.ok()) return payload;
    if (first.ok()) first = status;
  }
  return first;
}

}  // namespace stepwell::db
