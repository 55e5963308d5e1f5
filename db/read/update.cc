// SPDX-License-Identifier: Apache-2.0
#include "db/read/update.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <utility>

#include "db/read/restore_plan.h"
#include "db/read/step_reader.h"
#include "format/codec.h"
#include "format/hash.h"
#include "format/piece.h"
#include "io/for_each.h"
#include "io/guard.h"
#include "io/mutex.h"

namespace stepwell::db {
namespace {

using format::Box;
using format::ChunkRecord;
using format::LeafRecord;
using format::PieceRecord;
using format::Shape;
using format::StoredPayload;

uint64_t Elements(const Box& box) { return format::ChunkBytes(format::Extents(box), 1); }

bool AreSame(const StoredPayload& a, const StoredPayload& b) {
  return a.segment == b.segment && a.offset_bytes == b.offset_bytes &&
         a.stored_bytes == b.stored_bytes && a.crc == b.crc && a.codec == b.codec;
}

bool AreSame(const ChunkRecord& before, const ChunkRecord& after) {
  return before.hash.known() && before.hash == after.hash &&
         before.logical_bytes == after.logical_bytes;
}

// Returns how many of the payloads of `after`, the first ones, lead to the content of `before`; 0:
// it is not on the way.
size_t PayloadsHeld(const ChunkRecord& before, const ChunkRecord& after) {
  if (before.part != after.part) return 0;
  for (size_t i = 0; i < after.bases.size(); ++i) {
    if (AreSame(after.bases[i], before)) return i + 1;
  }
  return 0;
}

bool IsBoxOf(const MemoryBox& memory, const LeafRecord& leaf) {
  const size_t rank = leaf.shape.size();
  const Box& box = memory.box;
  bool inside =
      box.start.size() == rank && box.stop.size() == rank && memory.strides_bytes.size() == rank;
  for (size_t axis = 0; inside && axis < rank; ++axis) {
    inside = box.start[axis] <= box.stop[axis] && box.stop[axis] <= leaf.shape[axis];
  }
  return inside && (memory.data != nullptr || Elements(box) == 0);
}

}  // namespace

struct StepUpdate::Grid {
  // A part of it, in memory.
  struct View {
    Box box;  // in the grid
    Shape shape;
    std::byte* data = nullptr;
    std::vector<int64_t> strides_bytes;
  };

  const LeafRecord* leaf = nullptr;  // after
  const format::DTypeInfo* dtype = nullptr;
  PieceRecord piece;
  std::vector<View> views;

  void AddView(const MemoryBox& memory) {
    Box whole{piece.origin, piece.origin};
    for (size_t axis = 0; axis < piece.shape.size(); ++axis) whole.stop[axis] += piece.shape[axis];
    View view{format::Intersection(memory.box, whole), {}, memory.data, memory.strides_bytes};
    if (Elements(view.box) == 0) return;
    view.shape = format::Extents(view.box);
    for (size_t axis = 0; axis < piece.shape.size(); ++axis) {
      view.data += static_cast<int64_t>(view.box.start[axis] - memory.box.start[axis]) *
                   memory.strides_bytes[axis];
      view.box.start[axis] -= piece.origin[axis];
      view.box.stop[axis] -= piece.origin[axis];
    }
    views.push_back(std::move(view));
  }
  Box ChunkBox(uint64_t index) const {
    Box box{format::ChunkOrigin(index, piece.shape, piece.chunk_shape), {}};
    for (size_t axis = 0; axis < box.start.size(); ++axis) {
      box.stop.push_back(std::min(box.start[axis] + piece.chunk_shape[axis], piece.shape[axis]));
    }
    return box;
  }
};

struct StepUpdate::Chunk {
  const Grid* grid = nullptr;
  uint64_t index = 0;                   // in the grid
  const ChunkRecord* before = nullptr;  // what the memory holds; null: that cannot be checked
  const ChunkRecord* after = nullptr;
  size_t held = 0;                    // payloads of `after` that the memory stands for
  std::vector<std::string> payloads;  // those behind
  std::atomic<size_t> missing{0};

  void Gather(MutableBytes out) const {
    if (Elements(grid->ChunkBox(index)) * grid->dtype->item_bytes != out.size()) {
      std::ranges::fill(out, std::byte{});  // the padding
    }
    for (const Grid::View& view : grid->views) {
      format::GatherChunkPart({view.data, view.shape, view.strides_bytes}, view.box.start,
                              grid->piece.shape, *grid->dtype, grid->piece.chunk_shape, index,
                              out.data());
    }
  }
  void Scatter(ConstBytes logical) const {
    for (const Grid::View& view : grid->views) {
      format::ScatterChunk(logical, *grid->dtype, grid->piece.shape, grid->piece.chunk_shape, index,
                           view.box, {view.data, view.shape, view.strides_bytes});
    }
  }
  // Makes the content after of that before, which `out` holds if the memory stands for payloads.
  Status Decode(MutableBytes out) const {
    for (size_t i = 0; i < payloads.size(); ++i) {
      STEPWELL_RETURN_IF_ERROR(
          format::DecodePayload(PayloadAt(*after, held + i).codec, AsBytes(payloads[i]), out));
    }
    return OkStatus();
  }
  // Decodes in `scratch`, and checks the result. Where that is wrong, so is the memory, perhaps.
  Status Try(MutableBytes scratch) const {
    if (held > 0) Gather(scratch);
    STEPWELL_RETURN_IF_ERROR(Decode(scratch));
    if (after->hash.known() && format::HashOf(scratch) != after->hash) {
      return DataLossError("its payloads lead to other bytes than were saved");
    }
    return OkStatus();
  }
  // Writes the memory.
  Status Apply(MutableBytes scratch) const {
    if (const MutableBytes memory = InPlace(); !memory.empty()) return Decode(memory);
    if (held > 0) Gather(scratch);
    STEPWELL_RETURN_IF_ERROR(Decode(scratch));
    Scatter(scratch);
    return OkStatus();
  }
  // Returns true if Try() would not notice that the memory does not hold `before`.
  bool needs_check() const { return before != nullptr && (held == 0 || !after->hash.known()); }
  // Returns the chunk's bytes in the memory, if all of them lie there as in the chunk; else none.
  MutableBytes InPlace() const {
    const Box box = grid->ChunkBox(index);
    if (Elements(box) * grid->dtype->item_bytes != after->logical_bytes) return {};
    for (const Grid::View& view : grid->views) {
      if (Elements(format::Intersection(box, view.box)) != Elements(box)) continue;
      std::byte* data = view.data;
      auto run_bytes = static_cast<int64_t>(grid->dtype->item_bytes);
      for (size_t axis = box.start.size(); axis-- > 0;) {
        const auto extent = static_cast<int64_t>(box.stop[axis] - box.start[axis]);
        if (extent > 1 && view.strides_bytes[axis] != run_bytes) return {};
        data +=
            static_cast<int64_t>(box.start[axis] - view.box.start[axis]) * view.strides_bytes[axis];
        run_bytes *= extent;
      }
      return {data, after->logical_bytes};
    }
    return {};
  }
};

StepUpdate::StepUpdate(const ComparedStep& before, const ComparedStep& after)
    : before_(before), after_(after), restorer_(RestorerOf(*after.reader)) {}

StepUpdate::~StepUpdate() = default;

Result<std::unique_ptr<StepUpdate>> StepUpdate::Read(const ComparedStep& before,
                                                     const ComparedStep& after,
                                                     std::span<const LeafMemory> leaves) {
  std::unique_ptr<StepUpdate> update(new StepUpdate(before, after));
  if (update->restorer_ == nullptr) {
    return UnimplementedError("a step whose parts lie on several machines is not updated from");
  }
  for (const LeafMemory& leaf : leaves) STEPWELL_RETURN_IF_ERROR(update->Plan(leaf));
  if (update->chunks_.empty()) return update;
  uint64_t logical_bytes_max = 0;
  for (const Chunk& chunk : update->chunks_) {
    logical_bytes_max = std::max<uint64_t>(logical_bytes_max, chunk.after->logical_bytes);
  }
  for (size_t i = 0; i < io::ThreadsOfForEach(*update->restorer_->executor()); ++i) {
    if (!update->scratches_.emplace_back(logical_bytes_max)) {
      return ResourceExhaustedError("no memory to decode");
    }
  }
  STEPWELL_RETURN_IF_ERROR(update->CheckHeld(&Chunk::needs_check));
  const Status status = update->ReadPayloads();
  if (!status.ok()) {
    STEPWELL_RETURN_IF_ERROR(
        update->CheckHeld([](const Chunk& chunk) { return chunk.before != nullptr; }));
    return after.reader->Explain(status);
  }
  return update;
}

Status StepUpdate::Plan(const LeafMemory& memory) {
  const LeafRecord& one = before_.records[memory.leaf.before];
  const LeafRecord& other = after_.records[memory.leaf.after];
  STEPWELL_RETURN_IF_ERROR(CheckLeaf(one));
  STEPWELL_RETURN_IF_ERROR(CheckLeaf(other));
  if (other.kind != format::LeafKind::kArray || !AreSameKind(one, other)) {
    return InvalidArgumentError(StrCat(LeafName(other), " is not the same kind of array in step ",
                                       before_.reader->step().step, ": load step ",
                                       after_.reader->step().step));
  }
  for (const MemoryBox& box : memory.boxes) {
    if (!IsBoxOf(box, other)) {
      return InvalidArgumentError(LeafName(other) + ": its memory is not a box of the array");
    }
  }
  const std::vector<PieceRecord> grids_before = GridsOf(one);
  const std::vector<PieceRecord> grids = GridsOf(other);
  const bool are_same = AreSameGrids(grids_before, grids);
  for (size_t i = 0; i < grids.size(); ++i) {
    Grid& grid = grids_.emplace_back();
    grid.leaf = &other;
    grid.dtype = format::FindDType(other.dtype);
    grid.piece = grids[i];
    for (const MemoryBox& box : memory.boxes) grid.AddView(box);
    if (grid.views.empty()) continue;
    const uint64_t count = format::ChunkCount(grid.piece.shape, grid.piece.chunk_shape);
    for (uint64_t k = 0; k < count; ++k) {
      STEPWELL_RETURN_IF_ERROR(
          PlanChunk(grid, k, are_same ? &one.chunks[grids_before[i].first_chunk + k] : nullptr));
    }
  }
  return OkStatus();
}

Status StepUpdate::PlanChunk(const Grid& grid, uint64_t index, const ChunkRecord* before) {
  const uint64_t number = grid.piece.first_chunk + index;
  const ChunkRecord& after = grid.leaf->chunks[number];
  if (before != nullptr && AreSame(*before, after)) return OkStatus();
  const Box box = grid.ChunkBox(index);
  uint64_t here = 0;
  for (const Grid::View& view : grid.views) here += Elements(format::Intersection(box, view.box));
  if (here == 0) return OkStatus();
  STEPWELL_RETURN_IF_ERROR(CheckChunk(*grid.leaf, number));
  Chunk& chunk = chunks_.emplace_back();
  chunk.grid = &grid;
  chunk.index = index;
  chunk.after = &after;
  if (before != nullptr && before->hash.known() && here == Elements(box)) {
    chunk.before = before;
    chunk.held = PayloadsHeld(*before, after);
  }
  ++stats_.chunks;
  stats_.bytes_out += here * grid.dtype->item_bytes;
  return OkStatus();
}

MutableBytes StepUpdate::ScratchFor(const Chunk& chunk, size_t thread) {
  return scratches_[thread].bytes().first(chunk.after->logical_bytes);
}

Status StepUpdate::CheckHeld(const std::function<bool(const Chunk&)>& asked) {
  std::atomic<size_t> first{chunks_.size()};
  io::ForEach(restorer_->executor(), chunks_.size(), [&](size_t i, size_t thread) {
    const Chunk& chunk = chunks_[i];
    size_t known = first.load();
    if (!asked(chunk) || i > known) return;
    const MutableBytes content = ScratchFor(chunk, thread);
    chunk.Gather(content);
    if (format::HashOf(content) == chunk.before->hash) return;
    while (i < known && !first.compare_exchange_weak(known, i)) {
    }
  });
  if (first == chunks_.size()) return OkStatus();
  return InvalidArgumentError(StrCat(LeafName(*chunks_[first].grid->leaf), " does not hold step ",
                                     before_.reader->step().step, ": load step ",
                                     after_.reader->step().step));
}

Status StepUpdate::ReadPayloads() {
  if (chunks_.size() > UINT32_MAX) return InvalidArgumentError("too many chunks");
  std::deque<ChunkRecord> records;
  std::vector<PlannedChunk> wanted;
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    Chunk& chunk = chunks_[i];
    const auto count = static_cast<uint32_t>(chunk.after->bases.size() + 1 - chunk.held);
    chunk.payloads.resize(count);
    chunk.missing = count;
    const PlannedChunk planned{
        chunk.grid->leaf, chunk.grid->piece.first_chunk + chunk.index, chunk.after, 0, {}};
    for (uint32_t k = 0; k < count; ++k) {
      wanted.push_back(PlanPayload(planned, chunk.held + k, &records));
      wanted.back().requests = {i, k};
    }
  }
  return restorer_->ReadPayloads(
      std::move(wanted),
      [this](const PlannedChunk& one, ConstBytes payload, io::AlignedBuffer* scratch) {
        return Take(&chunks_[one.requests[0]], one.requests[1], payload, scratch);
      },
      &stats_);
}

// Payloads of a chunk come to several workers, in any order.
Status StepUpdate::Take(Chunk* chunk, size_t number, ConstBytes payload,
                        io::AlignedBuffer* scratch) const {
  chunk->payloads[number].assign(reinterpret_cast<const char*>(payload.data()), payload.size());
  if (chunk->missing.fetch_sub(1) > 1) return OkStatus();
  const uint64_t bytes = chunk->after->logical_bytes;
  if (scratch->size() < bytes) *scratch = io::AlignedBuffer(bytes);
  if (scratch->size() < bytes) return ResourceExhaustedError("no memory to decode");
  return chunk->Try(scratch->bytes().first(bytes));
}

Status StepUpdate::Apply() {
  io::Mutex mutex;
  Status first;
  io::ForEach(restorer_->executor(), chunks_.size(), [&](size_t i, size_t thread) {
    const Chunk& chunk = chunks_[i];
    const Status status =
        io::Guarded("decode a chunk", [&] { return chunk.Apply(ScratchFor(chunk, thread)); });
    if (status.ok()) return;
    const io::MutexLock lock(&mutex);
    if (first.ok()) {
      first =
          status.WithContext(StrCat(LeafName(*chunk.grid->leaf), " holds no step now: load step ",
                                    after_.reader->step().step));
    }
  });
  return first;
}

}  // namespace stepwell::db
