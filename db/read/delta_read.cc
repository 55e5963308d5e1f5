// SPDX-License-Identifier: Apache-2.0
#include "db/read/delta_read.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <string>
#include <utility>
#include <vector>

namespace stepwell::db {
namespace {

// Bounds the payloads that are in memory at once: a group is one chunk, or has at most so many
// stored bytes.
constexpr uint64_t kGroupBytesMax = uint64_t{48} << 20;

size_t GroupSize(std::span<const PlannedChunk> chunks) {
  uint64_t bytes = 0;
  size_t count = 0;
  while (count < chunks.size()) {
    bytes += chunks[count].record->all_stored_bytes();
    if (count > 0 && bytes > kGroupBytesMax) break;
    ++count;
  }
  return count;
}

}  // namespace

// The payloads of some chunks, on their way.
struct DeltaRead::Group {
  struct Chunk {
    const PlannedChunk* planned = nullptr;
    std::vector<std::string> payloads;  // of the bases, then its own
    std::atomic<size_t> missing{0};
  };
  explicit Group(std::span<const PlannedChunk> planned) : chunks(planned.size()) {
    for (size_t i = 0; i < planned.size(); ++i) {
      const format::ChunkRecord& record = *planned[i].record;
      chunks[i].planned = &planned[i];
      chunks[i].payloads.resize(record.bases.size() + 1);
      chunks[i].missing = chunks[i].payloads.size();
      uint32_t number = 0;
      for (const format::StoredPayload& base : record.bases) Add(planned[i], i, base, number++);
      Add(planned[i], i, record, number);
    }
  }

  std::deque<Chunk> chunks;
  std::deque<format::ChunkRecord> records;  // one for each payload, without bases
  std::vector<PlannedChunk> payloads;       // `requests`: the chunk's index, the payload's number
  std::vector<ChunkError> errors;

 private:
  void Add(const PlannedChunk& planned, size_t chunk, const format::StoredPayload& payload,
           uint32_t number) {
    format::ChunkRecord& record = records.emplace_back();
    static_cast<format::StoredPayload&>(record) = payload;
    record.part = planned.record->part;
    record.logical_bytes = planned.record->logical_bytes;
    PlannedChunk& one = payloads.emplace_back();
    one.leaf = planned.leaf;
    one.chunk_index = planned.chunk_index;
    one.record = &record;
    one.requests = {static_cast<uint32_t>(chunk), number};
  }
};

Status DeltaRead::Run(std::span<const PlannedChunk> chunks, const GroupDone& done) {
  while (!chunks.empty()) {
    const std::span<const PlannedChunk> now = chunks.first(GroupSize(chunks));
    Group group(now);
    STEPWELL_RETURN_IF_ERROR(ReadGroup(&group));
    if (!done(now, group.errors)) break;
    chunks = chunks.subspan(now.size());
  }
  return OkStatus();
}

Status DeltaRead::ReadGroup(Group* group) {
  const RestorePlan plan = PlanReads(std::move(group->payloads));
  const auto take = [&](const PlannedChunk& one, ConstBytes payload, io::AlignedBuffer* scratch) {
    Group::Chunk& chunk = group->chunks[one.requests[0]];
    chunk.payloads[one.requests[1]].assign(reinterpret_cast<const char*>(payload.data()),
                                           payload.size());
    if (chunk.missing.fetch_sub(1) > 1) return OkStatus();
    const format::ChunkRecord& record = *chunk.planned->record;
    std::vector<ConstBytes> payloads;
    for (const std::string& bytes : chunk.payloads) payloads.push_back(AsBytes(bytes));
    if (scratch->size() < record.logical_bytes) *scratch = io::AlignedBuffer(record.logical_bytes);
    if (scratch->size() < record.logical_bytes) {
      return ResourceExhaustedError("no memory to decode");
    }
    const MutableBytes logical = scratch->bytes().first(record.logical_bytes);
    STEPWELL_RETURN_IF_ERROR(DecodeChunk(record, payloads, logical));
    chunk.payloads.clear();
    return take_(*chunk.planned, logical);
  };
  // The first error counts where several payloads of a chunk are damaged.
  const auto done = [&](const PlannedRead&, std::span<const ChunkError> errors) {
    for (const ChunkError& error : errors) {
      const uint32_t chunk = plan.chunks[error.chunk].requests[0];
      const auto is_same = [chunk](const ChunkError& other) { return other.chunk == chunk; };
      if (std::ranges::none_of(group->errors, is_same)) {
        group->errors.push_back({chunk, error.status});
      }
    }
    return true;
  };
  return with_context_(plan, [&](ReadContext* context) {
    ReadRun run(files_, sources_, executor_, context, &plan, /*stop_at_error=*/false, take);
    const Status status = run.Run(done);
    bytes_read_ += run.bytes_read();
    reads_ += run.reads();
    return status;
  });
}

}  // namespace stepwell::db
