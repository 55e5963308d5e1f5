// SPDX-License-Identifier: Apache-2.0
#include "db/read/delta_read.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace stepwell::db {
namespace {

// Bounds what is in memory at once beside the places of the chunks: a group is one chunk, or takes
// at most so many bytes.
constexpr uint64_t kGroupBytesMax = uint64_t{48} << 20;

}  // namespace

// A chunk whose payloads are on their way.
struct DeltaRead::GroupChunk {
  const PlannedChunk* planned = nullptr;
  MutableBytes logical;  // decoded as far as it is
  std::unique_ptr<std::byte[]> memory;
  std::vector<std::string> differences;  // payloads
  std::atomic<size_t> missing{0};
};

struct DeltaRead::Group {
  Group(std::span<const PlannedChunk> planned, const PlaceOf& place_of) : chunks(planned.size()) {
    for (size_t i = 0; i < planned.size(); ++i) {
      const format::ChunkRecord& record = *planned[i].record;
      chunks[i].planned = &planned[i];
      chunks[i].logical = place_of(planned[i]);
      chunks[i].differences.resize(record.bases.size());
      chunks[i].missing = record.bases.size() + 1;
      for (uint32_t number = 0; number <= record.bases.size(); ++number) {
        payloads.push_back(PlanPayload(planned[i], number, &records));
        payloads.back().requests = {static_cast<uint32_t>(i), number};
      }
    }
  }

  std::deque<GroupChunk> chunks;
  std::deque<format::ChunkRecord> records;  // one for each payload, without bases
  std::vector<PlannedChunk> payloads;       // `requests`: the chunk's index, the payload's number
  std::vector<ChunkError> errors;
};

size_t DeltaRead::GroupSize(std::span<const PlannedChunk> chunks) const {
  uint64_t bytes = 0;
  size_t count = 0;
  while (count < chunks.size()) {
    const format::ChunkRecord& record = *chunks[count].record;
    bytes += record.all_stored_bytes() - record.bases.front().stored_bytes;
    if (place_of_(chunks[count]).empty()) bytes += record.logical_bytes;
    if (count > 0 && bytes > kGroupBytesMax) break;
    ++count;
  }
  return count;
}

Status DeltaRead::Run(std::span<const PlannedChunk> chunks, const GroupDone& done) {
  while (!chunks.empty()) {
    const std::span<const PlannedChunk> now = chunks.first(GroupSize(chunks));
    Group group(now, place_of_);
    STEPWELL_RETURN_IF_ERROR(ReadGroup(&group));
    if (!done(now, group.errors)) break;
    chunks = chunks.subspan(now.size());
  }
  return OkStatus();
}

// Takes the payload of that number. Payloads of a chunk come to several workers, in any order.
Status DeltaRead::Take(GroupChunk* chunk, uint32_t number, ConstBytes payload) const {
  const format::ChunkRecord& record = *chunk->planned->record;
  if (number > 0) {
    chunk->differences[number - 1].assign(reinterpret_cast<const char*>(payload.data()),
                                          payload.size());
  } else {
    if (chunk->logical.empty()) {
      chunk->memory = std::make_unique_for_overwrite<std::byte[]>(record.logical_bytes);
      chunk->logical = {chunk->memory.get(), record.logical_bytes};
    }
    STEPWELL_RETURN_IF_ERROR(
        format::DecodePayload(record.bases.front().codec, payload, chunk->logical));
  }
  if (chunk->missing.fetch_sub(1) > 1) return OkStatus();
  std::vector<ConstBytes> differences;
  for (const std::string& bytes : chunk->differences) differences.push_back(AsBytes(bytes));
  STEPWELL_RETURN_IF_ERROR(ApplyDifferences(record, differences, chunk->logical));
  chunk->differences.clear();
  if (chunk->memory == nullptr) return OkStatus();
  const Status status = take_(*chunk->planned, chunk->logical);
  chunk->memory.reset();
  return status;
}

Status DeltaRead::ReadGroup(Group* group) {
  const RestorePlan plan = PlanReads(std::move(group->payloads));
  const auto take = [&](const PlannedChunk& one, ConstBytes payload, io::AlignedBuffer*) {
    return Take(&group->chunks[one.requests[0]], one.requests[1], payload);
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
