// SPDX-License-Identifier: Apache-2.0
#include "db/read/restore.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "db/read/delta_read.h"
#include "db/read/restore_run.h"

namespace stepwell::db {
namespace {

// Contexts kept for the next call; each may hold tens of megabytes of buffers.
constexpr size_t kIdleContextsMax = 2;

// A request with the layout of its memory.
struct Destination {
  const LoadRequest* request = nullptr;
  const format::DTypeInfo* dtype = nullptr;  // kArray
};

// Byte strides and extents of a request's memory, without an allocation.
struct Layout {
  explicit Layout(const Destination& destination) {
    const format::Box& box = destination.request->box;
    rank = box.start.size();
    const std::vector<int64_t>& given = destination.request->strides_bytes;
    auto stride = static_cast<int64_t>(destination.dtype->item_bytes);
    for (size_t axis = rank; axis-- > 0;) {
      extents[axis] = box.stop[axis] - box.start[axis];
      strides[axis] = given.empty() ? stride : given[axis];
      stride *= static_cast<int64_t>(extents[axis]);
    }
  }
  size_t rank = 0;
  std::array<uint64_t, format::kRankMax> extents;
  std::array<int64_t, format::kRankMax> strides;
};

// Returns true if a copy makes elements canonical. A byte from disk must not become an impossible
// bool.
bool Converts(const format::DTypeInfo& dtype) {
  return dtype.value_bits != 0 || dtype.dtype == format::DType::kBool;
}

// Returns the memory of the request to which a whole chunk goes as one run; null if it is not one
// run.
std::byte* RunOf(const Destination& destination, const Layout& layout, uint64_t chunk_index) {
  if (Converts(*destination.dtype)) return nullptr;
  const format::LeafRecord& leaf = *destination.request->leaf;
  const format::Box& box = destination.request->box;
  std::byte* out = destination.request->out;
  int64_t run = destination.dtype->item_bytes;  // bytes of the axes after this one
  for (size_t axis = layout.rank; axis-- > 0;) {
    const uint64_t grid = (leaf.shape[axis] + leaf.chunk_shape[axis] - 1) / leaf.chunk_shape[axis];
    const uint64_t extent = leaf.chunk_shape[axis];
    const uint64_t origin = chunk_index % grid * extent;
    chunk_index /= grid;
    if (origin < box.start[axis] || origin + extent > box.stop[axis]) return nullptr;
    if (extent != 1 && layout.strides[axis] != run) return nullptr;
    out += static_cast<int64_t>(origin - box.start[axis]) * layout.strides[axis];
    run *= static_cast<int64_t>(extent);
  }
  return out;
}

void CopyOut(const Destination& destination, const PlannedChunk& chunk, ConstBytes logical) {
  if (destination.dtype == nullptr) {
    std::memcpy(destination.request->out + chunk.value_offset_bytes, logical.data(),
                logical.size());
    return;
  }
  const Layout layout(destination);
  if (std::byte* run = RunOf(destination, layout, chunk.chunk_index)) {
    std::memcpy(run, logical.data(), logical.size());
    return;
  }
  const format::LeafRecord& leaf = *destination.request->leaf;
  const format::MutableStridedArray view{destination.request->out,
                                         std::span(layout.extents).first(layout.rank),
                                         std::span(layout.strides).first(layout.rank)};
  format::ScatterChunk(logical, *destination.dtype, leaf.shape, leaf.chunk_shape, chunk.chunk_index,
                       destination.request->box, view);
}

// Returns the memory of the chunk's one request to which all of it goes as one run; empty if there
// is no such memory.
MutableBytes PlaceOf(std::span<const Destination> destinations, const PlannedChunk& chunk) {
  const Destination& first = destinations[chunk.requests.front()];
  if (chunk.requests.size() > 1 || first.dtype == nullptr) return {};
  std::byte* const run = RunOf(first, Layout(first), chunk.chunk_index);
  if (run == nullptr) return {};
  return {run, chunk.record->logical_bytes};
}

Status DeliverLogical(std::span<const Destination> destinations, const PlannedChunk& chunk,
                      ConstBytes logical) {
  for (const uint32_t i : chunk.requests) CopyOut(destinations[i], chunk, logical);
  return OkStatus();
}

// Decodes one chunk into the memory of each request that wants it.
Status Deliver(std::span<const Destination> destinations, const PlannedChunk& chunk,
               ConstBytes payload, io::AlignedBuffer* scratch) {
  ConstBytes logical = payload.first(payload.size() - format::kCrcBytes);
  if (chunk.record->codec != format::CodecId::kRaw) {
    const MutableBytes place = PlaceOf(destinations, chunk);
    if (!place.empty()) return format::DecodePayload(chunk.record->codec, payload, place);
    STEPWELL_ASSIGN_OR_RETURN(logical, DecodeToScratch(chunk, payload, scratch));
  }
  return DeliverLogical(destinations, chunk, logical);
}

// The requests' destinations. Short values, which are in the records, are copied here.
Result<std::vector<Destination>> MakeDestinations(std::span<const LoadRequest> requests,
                                                  LoadStats* stats) {
  std::vector<Destination> destinations;
  destinations.reserve(requests.size());
  for (const LoadRequest& request : requests) {
    const format::LeafRecord& leaf = *request.leaf;
    Destination& destination = destinations.emplace_back();
    destination.request = &request;
    uint64_t bytes = leaf.logical_bytes;
    if (leaf.kind == format::LeafKind::kArray) {
      destination.dtype = format::FindDType(leaf.dtype);
      bytes = destination.dtype->item_bytes;
      for (size_t axis = 0; axis < leaf.shape.size(); ++axis) {
        bytes *= request.box.stop[axis] - request.box.start[axis];
      }
    }
    if (bytes == 0) continue;
    if (request.out == nullptr) {
      return InvalidArgumentError(StrCat(LeafName(leaf), ": no memory to load into"));
    }
    stats->bytes_out += bytes;
    if (leaf.kind == format::LeafKind::kValue && leaf.chunks.empty()) {
      std::memcpy(request.out, leaf.inline_value.data(), leaf.inline_value.size());
    }
  }
  return destinations;
}

// Keeps the error that comes first in a plan; false: there was one.
bool KeepFirst(std::span<const ChunkError> errors, ChunkError* first) {
  for (const ChunkError& error : errors) {
    if (first->status.ok() || error.chunk < first->chunk) *first = error;
  }
  return errors.empty();
}

}  // namespace

Result<ConstBytes> DecodeToScratch(const PlannedChunk& chunk, ConstBytes payload,
                                   io::AlignedBuffer* scratch) {
  const uint64_t bytes = chunk.record->logical_bytes;
  if (scratch->size() < bytes) *scratch = io::AlignedBuffer(bytes);
  if (scratch->size() < bytes) return ResourceExhaustedError("no memory to decode");
  const MutableBytes logical = scratch->bytes().first(bytes);
  STEPWELL_RETURN_IF_ERROR(format::DecodePayload(chunk.record->codec, payload, logical));
  return ConstBytes(logical);
}

Restorer::Restorer(SegmentFiles* files, io::Executor* executor, DiskFactory make_disk)
    : files_(files), sources_(files), executor_(executor), make_disk_(std::move(make_disk)) {}

Restorer::~Restorer() = default;

// A Disk belongs to the thread that made it: a wake-up armed by another thread might wait until
// that one next enters the kernel.
Result<std::unique_ptr<ReadContext>> Restorer::Borrow(const RestorePlan& plan) {
  const bool needs_disk = plan.reads.size() > 1;
  std::unique_ptr<ReadContext> context;
  {
    const io::MutexLock lock(&mutex_);
    const auto usable = [](const auto& idle) {
      return idle->disk() == nullptr || idle->thread() == std::this_thread::get_id();
    };
    const auto found = std::find_if(idle_.begin(), idle_.end(), usable);
    if (found != idle_.end()) {
      context = std::move(*found);
      idle_.erase(found);
    }
  }
  if (context == nullptr) context = std::make_unique<ReadContext>();
  context->SetThread();
  if (needs_disk && context->disk() == nullptr) {
    STEPWELL_ASSIGN_OR_RETURN(std::unique_ptr<io::Disk> disk, make_disk_());
    context->SetDisk(std::move(disk));
  }
  return context;
}

void Restorer::Return(std::unique_ptr<ReadContext> context) {
  if (!context->reusable()) return;
  std::unique_ptr<ReadContext> oldest;  // destroyed after the lock is given back
  const io::MutexLock lock(&mutex_);
  idle_.push_back(std::move(context));
  if (idle_.size() <= kIdleContextsMax) return;
  oldest = std::move(idle_.front());
  idle_.erase(idle_.begin());
}

Status Restorer::WithContext(const RestorePlan& plan,
                             const std::function<Status(ReadContext*)>& run) {
  STEPWELL_ASSIGN_OR_RETURN(std::unique_ptr<ReadContext> context, Borrow(plan));
  Status status = run(context.get());
  Return(std::move(context));
  return status;
}

Result<LoadStats> Restorer::Load(std::span<const LoadRequest> requests) {
  if (std::none_of(requests.begin(), requests.end(), HasPieces)) return LoadWhole(requests);
  STEPWELL_ASSIGN_OR_RETURN(const PieceRequests split, SplitByPieces(requests));
  return LoadWhole(split.requests);
}

Status Restorer::ReadPayloads(std::vector<PlannedChunk> payloads, const TakePayload& take,
                              LoadStats* stats) {
  const RestorePlan plan = PlanReads(std::move(payloads));
  stats->bytes_needed += plan.bytes_needed;
  return ReadPlan(plan, take, stats);
}

// All of a plan's reads, which have no deltas.
Status Restorer::ReadPlan(const RestorePlan& plan, const TakePayload& take, LoadStats* stats) {
  if (plan.reads.empty()) return OkStatus();
  ChunkError first;
  const Status status = WithContext(plan, [&](ReadContext* context) {
    ReadRun run(files_, &sources_, executor_, context, &plan, /*stop_at_error=*/true, take);
    const Status done = run.Run([&](const PlannedRead&, std::span<const ChunkError> errors) {
      return KeepFirst(errors, &first);
    });
    stats->bytes_read += run.bytes_read();
    stats->reads += run.reads();
    return done;
  });
  STEPWELL_RETURN_IF_ERROR(first.status);
  return status;
}

// Leaves without pieces.
Result<LoadStats> Restorer::LoadWhole(std::span<const LoadRequest> requests) {
  STEPWELL_ASSIGN_OR_RETURN(const RestorePlan plan, PlanRestore(requests));
  LoadStats stats;
  STEPWELL_ASSIGN_OR_RETURN(const std::vector<Destination> destinations,
                            MakeDestinations(requests, &stats));
  stats.bytes_needed = plan.bytes_needed;
  stats.chunks = plan.chunks.size() + plan.deltas.size();
  STEPWELL_RETURN_IF_ERROR(ReadPlan(
      plan,
      [&destinations](const PlannedChunk& chunk, ConstBytes payload, io::AlignedBuffer* scratch) {
        return Deliver(destinations, chunk, payload, scratch);
      },
      &stats));
  if (plan.deltas.empty()) return stats;
  DeltaRead deltas(
      files_, &sources_, executor_, std::bind_front(&Restorer::WithContext, this),
      [&destinations](const PlannedChunk& chunk) { return PlaceOf(destinations, chunk); },
      [&destinations](const PlannedChunk& chunk, ConstBytes logical) {
        return DeliverLogical(destinations, chunk, logical);
      });
  ChunkError first;
  const Status status = deltas.Run(
      plan.deltas, [&](std::span<const PlannedChunk>, std::span<const ChunkError> errors) {
        return KeepFirst(errors, &first);
      });
  stats.bytes_read += deltas.bytes_read();
  stats.reads += deltas.reads();
  STEPWELL_RETURN_IF_ERROR(first.status);
  STEPWELL_RETURN_IF_ERROR(status);
  return stats;
}

}  // namespace stepwell::db
