// SPDX-License-Identifier: Apache-2.0
#include "db/read/restore_plan.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <tuple>

#include "format/piece.h"
#include "io/invariant.h"

namespace stepwell::db {
namespace {

constexpr uint64_t kOffsetMax = uint64_t{1} << 62;  // no file is longer

// Two wanted chunks are one if this is equal: the bytes in the log, and all that decoding them
// depends on. The leaf's shape and type matter only for the copy, which each request does by its
// own leaf.
auto Identity(const PlannedChunk& chunk) {
  const format::ChunkRecord& record = *chunk.record;
  return std::make_tuple(record.part, record.segment, record.offset_bytes, record.stored_bytes,
                         record.crc, record.logical_bytes, record.codec, record.hash,
                         chunk.chunk_index, chunk.value_offset_bytes);
}

bool ByPlace(const PlannedChunk& a, const PlannedChunk& b) {
  if (a.record->part != b.record->part) return a.record->part < b.record->part;
  if (a.record->segment != b.record->segment) return a.record->segment < b.record->segment;
  if (a.record->offset_bytes != b.record->offset_bytes) {
    return a.record->offset_bytes < b.record->offset_bytes;
  }
  return Identity(a) < Identity(b);
}

uint64_t EndOf(const format::ChunkRecord& record) {
  return record.offset_bytes + record.stored_bytes;
}

// The array has passed CheckLeaf.
Status CheckBox(const LoadRequest& request) {
  const format::LeafRecord& leaf = *request.leaf;
  const size_t rank = leaf.shape.size();
  const format::Box& box = request.box;
  bool inside = box.start.size() == rank && box.stop.size() == rank;
  for (size_t axis = 0; inside && axis < rank; ++axis) {
    inside = box.start[axis] <= box.stop[axis] && box.stop[axis] <= leaf.shape[axis];
  }
  if (!inside) return InvalidArgumentError(StrCat(LeafName(leaf), ": the box is not in the array"));
  if (!request.strides_bytes.empty() && request.strides_bytes.size() != rank) {
    return InvalidArgumentError(StrCat(LeafName(leaf), ": ",
                                       Counted(request.strides_bytes.size(), "stride", "strides"),
                                       " for an array of rank ", rank));
  }
  return OkStatus();
}

Status CheckRequest(const LoadRequest& request) {
  if (request.leaf == nullptr) return InvalidArgumentError("a request without a leaf");
  const format::LeafRecord& leaf = *request.leaf;
  if (leaf.kind == format::LeafKind::kNode) {
    return InvalidArgumentError(StrCat(LeafName(leaf), " is a node, not a leaf"));
  }
  STEPWELL_RETURN_IF_ERROR(CheckLeaf(leaf));
  if (leaf.kind != format::LeafKind::kArray) return OkStatus();
  if (HasPieces(request)) {
    return InternalError(StrCat(LeafName(leaf), ": pieces are planned one by one"));
  }
  return CheckBox(request);
}

bool Covers(const format::Box& box, const format::Shape& shape) {
  const auto is_zero = [](uint64_t start) { return start == 0; };
  return box.stop == shape && std::all_of(box.start.begin(), box.start.end(), is_zero);
}

Status AddChunk(const format::LeafRecord& leaf, uint64_t chunk_index, uint64_t value_offset,
                uint32_t request, std::vector<PlannedChunk>* chunks) {
  STEPWELL_RETURN_IF_ERROR(CheckChunk(leaf, chunk_index));
  PlannedChunk& chunk = chunks->emplace_back();
  chunk.leaf = &leaf;
  chunk.chunk_index = chunk_index;
  chunk.record = &leaf.chunks[chunk_index];
  chunk.value_offset_bytes = value_offset;
  chunk.requests.push_back(request);
  return OkStatus();
}

Status AddRequest(const LoadRequest& request, uint32_t number, std::vector<PlannedChunk>* chunks) {
  STEPWELL_RETURN_IF_ERROR(CheckRequest(request));
  const format::LeafRecord& leaf = *request.leaf;
  if (leaf.kind == format::LeafKind::kArray && !Covers(request.box, leaf.shape)) {
    for (const uint64_t i : format::ChunksInBox(request.box, leaf.shape, leaf.chunk_shape)) {
      STEPWELL_RETURN_IF_ERROR(AddChunk(leaf, i, 0, number, chunks));
    }
    return OkStatus();
  }
  uint64_t value_offset = 0;
  for (uint64_t i = 0; i < leaf.chunks.size(); ++i) {
    STEPWELL_RETURN_IF_ERROR(AddChunk(leaf, i, value_offset, number, chunks));
    if (leaf.kind == format::LeafKind::kValue) value_offset += leaf.chunks[i].logical_bytes;
  }
  return OkStatus();
}

// `chunks` is sorted; equal neighbours become one with the requests of all.
void MergeEqual(std::vector<PlannedChunk>* chunks) {
  size_t kept = 0;
  for (size_t i = 0; i < chunks->size(); ++i) {
    PlannedChunk& chunk = (*chunks)[i];
    if (kept > 0 && Identity((*chunks)[kept - 1]) == Identity(chunk)) {
      std::vector<uint32_t>& requests = (*chunks)[kept - 1].requests;
      // stable_sort kept the order of the requests; one request never wants a chunk twice.
      requests.insert(requests.end(), chunk.requests.begin(), chunk.requests.end());
      continue;
    }
    if (kept != i) (*chunks)[kept] = std::move(chunk);
    ++kept;
  }
  chunks->resize(kept);
}

// The piece as an array of its own.
format::LeafRecord LeafOf(const format::LeafRecord& leaf, const format::PieceRecord& piece) {
  format::LeafRecord own;
  own.key = leaf.key;
  own.kind = leaf.kind;
  own.value_type = leaf.value_type;
  own.dtype = leaf.dtype;
  own.shape = piece.shape;
  own.chunk_shape = piece.chunk_shape;
  own.chunk_count = format::ChunkCount(piece.shape, piece.chunk_shape);
  own.logical_bytes = format::ChunkBytes(piece.shape, format::FindDType(leaf.dtype)->item_bytes);
  const auto begin = leaf.chunks.begin() + static_cast<ptrdiff_t>(piece.first_chunk);
  own.chunks.assign(begin, begin + static_cast<ptrdiff_t>(own.chunk_count));
  return own;
}

// One for all requests of a leaf, so that chunks wanted twice are read once.
using PieceLeaves = std::map<const format::PieceRecord*, const format::LeafRecord*>;

Status AddPieces(const LoadRequest& request, PieceLeaves* leaves, PieceRequests* out) {
  const format::LeafRecord& leaf = *request.leaf;
  STEPWELL_RETURN_IF_ERROR(CheckLeaf(leaf));
  STEPWELL_RETURN_IF_ERROR(CheckBox(request));
  std::vector<int64_t> strides = request.strides_bytes;
  if (strides.empty()) {
    strides =
        format::CStrides(format::Extents(request.box), format::FindDType(leaf.dtype)->item_bytes);
  }
  const uint64_t wanted = format::ChunkBytes(format::Extents(request.box), 1);
  uint64_t found = 0;
  for (const format::PieceRecord& piece : leaf.pieces) {
    format::Box box{piece.origin, piece.origin};
    for (size_t axis = 0; axis < strides.size(); ++axis) box.stop[axis] += piece.shape[axis];
    LoadRequest part;
    part.box = format::Intersection(box, request.box);
    const uint64_t elements = format::ChunkBytes(format::Extents(part.box), 1);
    if (elements == 0) continue;
    found += elements;
    const format::LeafRecord*& known = (*leaves)[&piece];
    if (known == nullptr) known = &out->leaves.emplace_back(LeafOf(leaf, piece));
    part.leaf = known;
    part.out = request.out;
    part.strides_bytes = strides;
    for (size_t axis = 0; axis < strides.size(); ++axis) {
      if (part.out != nullptr) {
        part.out +=
            static_cast<int64_t>(part.box.start[axis] - request.box.start[axis]) * strides[axis];
      }
      part.box.start[axis] -= piece.origin[axis];
      part.box.stop[axis] -= piece.origin[axis];
    }
    out->requests.push_back(std::move(part));
  }
  if (found == wanted) return OkStatus();
  return FailedPreconditionError(StrCat(LeafName(leaf), ": this part of a store has ", found,
                                        " of ", wanted,
                                        " elements; read the step through the whole store"));
}

}  // namespace

Status CheckLeaf(const format::LeafRecord& leaf) {
  const auto bad = [&](const auto&... what) {
    return DataLossError(StrCat("leaf ", LeafName(leaf), ": its record is damaged: ", what...));
  };
  if (leaf.first_chunk != 0 || leaf.chunks.size() != leaf.chunk_count) {
    return bad(leaf.chunks.size(), " of ", leaf.chunk_count, " chunks from chunk ",
               leaf.first_chunk);
  }
  if (leaf.kind == format::LeafKind::kNode) {
    if (leaf.chunk_count != 0) return bad("a node with chunks");
    return OkStatus();
  }
  if (leaf.kind == format::LeafKind::kValue) {
    uint64_t bytes = leaf.inline_value.size();
    if (bytes != 0 && leaf.chunk_count != 0) return bad("both an inline value and chunks");
    for (const format::ChunkRecord& chunk : leaf.chunks) {
      if (__builtin_add_overflow(bytes, chunk.logical_bytes, &bytes)) return bad("its length");
    }
    if (bytes != leaf.logical_bytes) {
      return bad(bytes, " bytes where ", leaf.logical_bytes, " are expected");
    }
    return OkStatus();
  }
  if (leaf.kind != format::LeafKind::kArray) return bad("its kind");
  const format::DTypeInfo* dtype = format::FindDType(leaf.dtype);
  if (dtype == nullptr) return bad("unknown dtype ", static_cast<int>(leaf.dtype));
  const Result<uint64_t> count = format::ElementCount(leaf.shape, dtype->item_bytes);
  if (!count.ok()) return bad(count.status().message());
  if (leaf.chunk_shape.size() != leaf.shape.size()) {
    return bad("chunks of rank ", leaf.chunk_shape.size(), " in an array of rank ",
               leaf.shape.size());
  }
  if (std::find(leaf.chunk_shape.begin(), leaf.chunk_shape.end(), 0) != leaf.chunk_shape.end()) {
    return bad("empty chunks");
  }
  const uint64_t chunk_bytes = format::ChunkBytes(leaf.chunk_shape, dtype->item_bytes);
  if (*count != 0 && chunk_bytes > format::kPayloadLogicalMax) {
    return bad("chunks of ", chunk_bytes, " bytes");
  }
  if (leaf.partial || !leaf.pieces.empty()) {
    const Status status = format::CheckPieces(leaf);
    return status.ok() ? status : bad(status.message());
  }
  const uint64_t expected = format::ChunkCount(leaf.shape, leaf.chunk_shape);
  if (leaf.chunk_count != expected) {
    return bad(leaf.chunk_count, " chunks where its grid has ", expected);
  }
  return OkStatus();
}

Status CheckChunk(const format::LeafRecord& leaf, uint64_t chunk_index) {
  const format::ChunkRecord& chunk = leaf.chunks[chunk_index];
  const auto bad = [&](const auto&... what) {
    return DataLossError(StrCat("leaf ", LeafName(leaf), " chunk ", chunk_index,
                                ": its record is damaged: ", what...));
  };
  uint64_t logical_max = format::kPayloadLogicalMax;
  if (leaf.kind == format::LeafKind::kArray) {
    const uint64_t item_bytes = format::FindDType(leaf.dtype)->item_bytes;
    const format::Shape& chunk_shape = leaf.pieces.empty()
                                           ? leaf.chunk_shape
                                           : format::PieceOfChunk(leaf, chunk_index).chunk_shape;
    logical_max = format::ChunkBytes(chunk_shape, item_bytes);
    if (chunk.logical_bytes != logical_max) {
      return bad(chunk.logical_bytes, " bytes where its grid has ", logical_max);
    }
  }
  if (chunk.logical_bytes > logical_max) return bad(chunk.logical_bytes, " bytes");
  bool has_base = false;
  const auto check = [&](const format::StoredPayload& payload) {
    const format::CodecInfo* const codec = format::FindCodec(payload.codec);
    if (codec == nullptr) {
      return bad("unknown codec ", static_cast<int>(payload.codec),
                 ", unless a newer version wrote it");
    }
    const size_t stored_max = format::PayloadBytesMax(payload.codec, chunk.logical_bytes);
    const bool exact = payload.codec == format::CodecId::kRaw;
    if (payload.stored_bytes < format::kCrcBytes || payload.stored_bytes > stored_max ||
        (exact && payload.stored_bytes != chunk.logical_bytes + format::kCrcBytes)) {
      return bad(payload.stored_bytes, " stored bytes for ", chunk.logical_bytes);
    }
    if (payload.offset_bytes > kOffsetMax) return bad("offset ", payload.offset_bytes);
    if (codec->needs_base != has_base) return bad("a difference without its base");
    has_base = true;
    return OkStatus();
  };
  for (const format::StoredPayload& base : chunk.bases) STEPWELL_RETURN_IF_ERROR(check(base));
  return check(chunk);
}

bool HasPieces(const LoadRequest& request) {
  return request.leaf != nullptr && request.leaf->kind == format::LeafKind::kArray &&
         (request.leaf->partial || !request.leaf->pieces.empty());
}

Result<PieceRequests> SplitByPieces(std::span<const LoadRequest> requests) {
  PieceRequests out;
  PieceLeaves leaves;
  for (const LoadRequest& request : requests) {
    if (HasPieces(request)) {
      STEPWELL_RETURN_IF_ERROR(AddPieces(request, &leaves, &out));
    } else {
      out.requests.push_back(request);
    }
  }
  return out;
}

const format::StoredPayload& PayloadAt(const format::ChunkRecord& chunk, size_t number) {
  return number < chunk.bases.size() ? chunk.bases[number] : chunk;
}

PlannedChunk PlanPayload(const PlannedChunk& chunk, size_t number,
                         std::deque<format::ChunkRecord>* records) {
  format::ChunkRecord& record = records->emplace_back();
  static_cast<format::StoredPayload&>(record) = PayloadAt(*chunk.record, number);
  record.part = chunk.record->part;
  record.logical_bytes = chunk.record->logical_bytes;
  PlannedChunk one;
  one.leaf = chunk.leaf;
  one.chunk_index = chunk.chunk_index;
  one.record = &record;
  return one;
}

RestorePlan PlanReads(std::vector<PlannedChunk> chunks) {
  RestorePlan plan;
  if (!std::is_sorted(chunks.begin(), chunks.end(), ByPlace)) {
    std::stable_sort(chunks.begin(), chunks.end(), ByPlace);
  }
  plan.chunks = std::move(chunks);
  uint64_t total_bytes = 0;
  for (const PlannedChunk& chunk : plan.chunks) total_bytes += chunk.record->stored_bytes;
  const uint64_t read_bytes_max =
      total_bytes <= kSmallPlanBytes ? kSmallPlanReadBytesMax : kReadBytesMax;
  const format::ChunkRecord* previous = nullptr;
  for (uint32_t i = 0; i < plan.chunks.size(); ++i) {
    const format::ChunkRecord& record = *plan.chunks[i].record;
    // The same payload may stand in several places of the grid: its bytes are needed once.
    const bool same_bytes = previous != nullptr && previous->part == record.part &&
                            previous->segment == record.segment &&
                            previous->offset_bytes == record.offset_bytes &&
                            previous->stored_bytes == record.stored_bytes;
    if (!same_bytes) plan.bytes_needed += record.stored_bytes;
    previous = &record;
    if (!plan.reads.empty()) {
      PlannedRead& last = plan.reads.back();
      const uint64_t last_end = last.offset_bytes + last.length_bytes;
      const uint64_t end = std::max(last_end, EndOf(record));
      const bool near =
          record.offset_bytes <= last_end || record.offset_bytes - last_end <= kReadGapBytesMax;
      // A chunk that lies wholly in the read belongs to it, however long the read is.
      const bool fits = end == last_end || end - last.offset_bytes <= read_bytes_max;
      const bool same_file = last.part == record.part && last.segment == record.segment;
      if (same_file && near && fits) {
        last.length_bytes = end - last.offset_bytes;
        last.chunk_end = i + 1;
        continue;
      }
    }
    plan.reads.push_back(
        {record.segment, record.offset_bytes, record.stored_bytes, i, i + 1, record.part});
  }
  uint32_t next = 0;
  for (const PlannedRead& read : plan.reads) {
    STEPWELL_DCHECK(read.chunk_begin == next && read.chunk_end > next, "a chunk is in no read");
    next = read.chunk_end;
    plan.bytes_read += read.length_bytes;
  }
  STEPWELL_DCHECK(next == plan.chunks.size(), "a chunk is in no read");
  return plan;
}

Result<RestorePlan> PlanRestore(std::span<const LoadRequest> requests) {
  if (requests.size() > UINT32_MAX) return InvalidArgumentError("too many requests");
  std::vector<PlannedChunk> chunks;
  chunks.reserve(requests.size());
  for (uint32_t i = 0; i < requests.size(); ++i) {
    STEPWELL_RETURN_IF_ERROR(AddRequest(requests[i], i, &chunks));
  }
  if (chunks.size() > UINT32_MAX) return InvalidArgumentError("too many chunks");
  if (!std::is_sorted(chunks.begin(), chunks.end(), ByPlace)) {
    std::stable_sort(chunks.begin(), chunks.end(), ByPlace);
  }
  MergeEqual(&chunks);
  const auto has_bases = [](const PlannedChunk& chunk) { return !chunk.record->bases.empty(); };
  const auto delta = std::stable_partition(chunks.begin(), chunks.end(), std::not_fn(has_bases));
  std::vector<PlannedChunk> deltas(std::make_move_iterator(delta),
                                   std::make_move_iterator(chunks.end()));
  chunks.erase(delta, chunks.end());
  RestorePlan plan = PlanReads(std::move(chunks));
  for (const PlannedChunk& chunk : deltas) plan.bytes_needed += chunk.record->all_stored_bytes();
  for (const PlannedChunk& chunk : deltas) plan.bytes_read += chunk.record->all_stored_bytes();
  plan.deltas = std::move(deltas);
  return plan;
}

}  // namespace stepwell::db
