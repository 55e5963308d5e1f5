// SPDX-License-Identifier: Apache-2.0
// Checks the chunks of a step: each is read and decoded, and nothing is kept.
#include <algorithm>
#include <deque>
#include <utility>

#include "db/read/delta_read.h"
#include "db/read/restore.h"

namespace stepwell::db {
namespace {

// The places that a check remembers: the chunks of some terabytes, in some hundred megabytes.
constexpr size_t kGoodChunksMax = size_t{4} << 20;

std::tuple<uint32_t, uint64_t, uint64_t> PlaceOf(const format::ChunkRecord& chunk) {
  return {chunk.part, chunk.segment, chunk.offset_bytes};
}

// The chunks to be checked, in two sorts. PlannedChunk::requests is an index into `payloads`.
struct Checks {
  std::vector<PlannedChunk> plain;                     // one payload each
  std::vector<PlannedChunk> deltas;                    // with all their payloads
  std::vector<const format::StoredPayload*> payloads;  // of the leaves' records
  std::deque<format::ChunkRecord> alone;               // payloads without those that they belong to
  uint64_t known_bytes = 0;                            // of chunks that need no look

  void Add(const format::LeafRecord& leaf, uint64_t index, const format::ChunkRecord& record,
           const format::StoredPayload& payload, std::vector<PlannedChunk>* to) {
    PlannedChunk& chunk = to->emplace_back();
    chunk.leaf = &leaf;
    chunk.chunk_index = index;
    chunk.record = &record;
    chunk.requests = {static_cast<uint32_t>(payloads.size())};
    payloads.push_back(&payload);
  }

  // Adds what of a chunk this commit has written: not what earlier ones wrote.
  void AddOwned(const format::LeafRecord& leaf, uint64_t index) {
    const format::ChunkRecord& whole = leaf.chunks[index];
    format::EachPayload(whole, [&](const format::StoredPayload& payload) {
      if (payload.referenced) return;
      format::ChunkRecord& record = alone.emplace_back();
      static_cast<format::StoredPayload&>(record) = payload;
      record.logical_bytes = whole.logical_bytes;
      record.part = whole.part;
      Add(leaf, index, record, payload, &plain);
    });
  }
};

// Checks a payload that is decoded by itself. A difference without its base has only its CRC.
Status CheckOne(const PlannedChunk& chunk, ConstBytes payload, io::AlignedBuffer* scratch) {
  const format::CodecId codec = chunk.record->codec;
  if (codec == format::CodecId::kRaw || format::FindCodec(codec)->needs_base) return OkStatus();
  return DecodeToScratch(chunk, payload, scratch).status();
}

void PlanChecks(std::span<const format::LeafRecord> leaves,
                const std::function<void(const BadChunk&)>& bad, const CheckOptions& options,
                Checks* checks) {
  const auto is_known = [&options](const format::ChunkRecord& chunk) {
    if (!chunk.referenced) return false;
    if (options.skip_referenced && chunk.bases.empty()) return true;
    return options.good != nullptr && options.good->contains(PlaceOf(chunk));
  };
  for (const format::LeafRecord& leaf : leaves) {
    if (Status status = CheckLeaf(leaf); !status.ok()) {
      bad({&leaf, 0, nullptr, std::move(status)});
      continue;
    }
    for (uint64_t i = 0; i < leaf.chunks.size(); ++i) {
      const format::ChunkRecord& chunk = leaf.chunks[i];
      if (is_known(chunk)) {
        checks->known_bytes += chunk.all_stored_bytes();
      } else if (Status status = CheckChunk(leaf, i); !status.ok()) {
        bad({&leaf, i, &chunk, std::move(status)});
      } else if (options.skip_referenced) {
        checks->AddOwned(leaf, i);
      } else {
        checks->Add(leaf, i, chunk, chunk, chunk.bases.empty() ? &checks->plain : &checks->deltas);
      }
    }
  }
}

}  // namespace

Status Restorer::Check(std::span<const format::LeafRecord> leaves,
                       const std::function<void(const BadChunk&)>& bad,
                       const std::function<bool(uint64_t)>& progress, const CheckOptions& options) {
  Checks checks;
  PlanChecks(leaves, bad, options, &checks);
  if (checks.payloads.size() >= UINT32_MAX) {
    return InvalidArgumentError("too many chunks in one check");
  }
  const RestorePlan plan = PlanReads(std::move(checks.plain));
  uint64_t bytes_done = checks.known_bytes;
  bool cancelled = false;
  // Some chunks were looked at, of which `errors` failed.
  const auto checked = [&](std::span<const PlannedChunk> some, std::span<const ChunkError> errors) {
    for (const PlannedChunk& chunk : some) {
      bytes_done += chunk.record->all_stored_bytes();
      if (options.good != nullptr && options.good->size() < kGoodChunksMax) {
        options.good->insert(PlaceOf(*chunk.record));
      }
    }
    for (const ChunkError& error : errors) {
      const PlannedChunk& chunk = some[error.chunk];
      bad({chunk.leaf, chunk.chunk_index, checks.payloads[chunk.requests[0]], error.status});
      if (options.good != nullptr) options.good->erase(PlaceOf(*chunk.record));
    }
    if (!cancelled && progress && !progress(bytes_done)) cancelled = true;
    return !cancelled;
  };
  const auto check_plain = [&](ReadContext* context) {
    ReadRun run(files_, &sources_, executor_, context, &plan, /*stop_at_error=*/false, CheckOne);
    return run.Run([&](const PlannedRead& read, std::span<const ChunkError> errors) {
      std::vector<ChunkError> in_read(errors.begin(), errors.end());
      for (ChunkError& error : in_read) error.chunk -= read.chunk_begin;
      const size_t count = read.chunk_end - read.chunk_begin;
      return checked(std::span(plan.chunks).subspan(read.chunk_begin, count), in_read);
    });
  };
  Status status = plan.reads.empty() ? OkStatus() : WithContext(plan, check_plain);
  if (status.ok() && !cancelled) {
    DeltaRead run(
        files_, &sources_, executor_, std::bind_front(&Restorer::WithContext, this),
        [](const PlannedChunk&) { return MutableBytes(); },
        [](const PlannedChunk&, ConstBytes) { return OkStatus(); });
    status = run.Run(checks.deltas, checked);
  }
  return cancelled ? CancelledError("the check was cancelled") : status;
}

}  // namespace stepwell::db
