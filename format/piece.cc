// SPDX-License-Identifier: Apache-2.0
#include "format/piece.h"

#include <algorithm>
#include <utility>

namespace stepwell::format {
namespace {

// Returns the index in the leaf's grid of chunk `chunk_index` of a piece that lies on the grid.
uint64_t IndexInArray(const LeafRecord& record, const PieceRecord& piece, uint64_t chunk_index) {
  uint64_t index = 0;
  uint64_t scale = 1;
  for (size_t axis = piece.origin.size(); axis-- > 0;) {
    const uint64_t chunk = record.chunk_shape[axis];
    const uint64_t count = CeilDivide(piece.shape[axis], chunk);
    index += (piece.origin[axis] / chunk + chunk_index % count) * scale;
    chunk_index /= count;
    scale *= CeilDivide(record.shape[axis], chunk);
  }
  return index;
}

bool Overlap(const PieceRecord& a, const PieceRecord& b) {
  for (size_t axis = 0; axis < a.origin.size(); ++axis) {
    if (a.origin[axis] + a.shape[axis] <= b.origin[axis] ||
        b.origin[axis] + b.shape[axis] <= a.origin[axis]) {
      return false;
    }
  }
  return true;
}

// Disjoint boxes whose elements add up cover the array.
Status CheckCover(const LeafRecord& record) {
  const uint64_t wanted = ChunkBytes(record.shape, 1);
  uint64_t elements = 0;
  std::vector<const PieceRecord*> pieces;
  for (const PieceRecord& piece : record.pieces) {
    elements += ChunkBytes(piece.shape, 1);  // each at most the array's, which is at most 2^62
    if (elements > wanted) break;
    pieces.push_back(&piece);
  }
  if (elements != wanted) {
    return DataLossError(StrCat("its pieces have ", elements, " elements of ", wanted));
  }
  // Along the first axis only those are compared that may meet.
  std::sort(pieces.begin(), pieces.end(),
            [](const PieceRecord* a, const PieceRecord* b) { return a->origin < b->origin; });
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (size_t k = i + 1; k < pieces.size(); ++k) {
      if (!record.shape.empty() &&
          pieces[k]->origin[0] >= pieces[i]->origin[0] + pieces[i]->shape[0]) {
        break;
      }
      if (Overlap(*pieces[i], *pieces[k])) return DataLossError("two of its pieces overlap");
    }
  }
  return OkStatus();
}

}  // namespace

Shape Extents(const Box& box) {
  Shape extents(box.start.size());
  for (size_t axis = 0; axis < extents.size(); ++axis) {
    extents[axis] = box.stop[axis] - std::min(box.start[axis], box.stop[axis]);
  }
  return extents;
}

Box Intersection(const Box& a, const Box& b) {
  Box both = a;
  for (size_t axis = 0; axis < both.start.size(); ++axis) {
    both.start[axis] = std::max(a.start[axis], b.start[axis]);
    both.stop[axis] = std::min(a.stop[axis], b.stop[axis]);
  }
  return both;
}

bool LiesOnGrid(const LeafRecord& record, const Shape& origin, const Shape& shape) {
  for (size_t axis = 0; axis < origin.size(); ++axis) {
    const uint64_t end = origin[axis] + shape[axis];
    const uint64_t chunk = record.chunk_shape[axis];
    if (origin[axis] % chunk != 0) return false;
    if (end % chunk != 0 && end != record.shape[axis]) return false;
  }
  return true;
}

Status CheckPieces(const LeafRecord& record) {
  const size_t rank = record.shape.size();
  const DTypeInfo* dtype = FindDType(record.dtype);
  if (dtype == nullptr) return DataLossError("unknown dtype");
  uint64_t chunks = 0;
  for (const PieceRecord& piece : record.pieces) {
    if (piece.origin.size() != rank || piece.shape.size() != rank ||
        piece.chunk_shape.size() != rank) {
      return DataLossError("a piece of another rank");
    }
    for (size_t axis = 0; axis < rank; ++axis) {
      if (piece.shape[axis] == 0 || piece.chunk_shape[axis] == 0 ||
          piece.origin[axis] >= record.shape[axis] ||
          piece.shape[axis] > record.shape[axis] - piece.origin[axis]) {
        return DataLossError("a piece that is not in the array");
      }
    }
    if (ChunkBytes(piece.chunk_shape, dtype->item_bytes) > kPayloadLogicalMax) {
      return DataLossError("a piece with chunks that are too large");
    }
    if (piece.first_chunk != chunks) return DataLossError("pieces that do not follow each other");
    // No more than the piece has elements, so the sum stays far from overflowing.
    chunks += ChunkCount(piece.shape, piece.chunk_shape);
    if (chunks > record.chunk_count) return DataLossError("pieces with more chunks than the leaf");
  }
  if (chunks != record.chunk_count) return DataLossError("pieces with fewer chunks than the leaf");
  return OkStatus();
}

const PieceRecord& PieceOfChunk(const LeafRecord& record, uint64_t chunk_index) {
  const auto after = std::upper_bound(
      record.pieces.begin(), record.pieces.end(), chunk_index,
      [](uint64_t index, const PieceRecord& piece) { return index < piece.first_chunk; });
  return *std::prev(after);
}

Status JoinPieces(LeafRecord* record) {
  STEPWELL_RETURN_IF_ERROR(CheckPieces(*record));
  if (record->chunks.size() != record->chunk_count) {
    return DataLossError("its pieces lack chunks");
  }
  const auto on_grid = [&](const PieceRecord& piece) {
    return piece.chunk_shape == record->chunk_shape &&
           LiesOnGrid(*record, piece.origin, piece.shape);
  };
  if (!std::all_of(record->pieces.begin(), record->pieces.end(), on_grid)) {
    return CheckCover(*record);
  }
  if (record->chunk_count != ChunkCount(record->shape, record->chunk_shape)) {
    return DataLossError(StrCat("its pieces have ", record->chunk_count, " chunks of ",
                                ChunkCount(record->shape, record->chunk_shape)));
  }
  std::vector<ChunkRecord> chunks(record->chunks.size());
  std::vector<bool> filled(chunks.size());
  for (const PieceRecord& piece : record->pieces) {
    const uint64_t count = ChunkCount(piece.shape, piece.chunk_shape);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t index = IndexInArray(*record, piece, i);
      if (index >= chunks.size() || filled[index])
        return DataLossError("two of its pieces overlap");
      filled[index] = true;
      chunks[index] = record->chunks[piece.first_chunk + i];
    }
  }
  record->chunks = std::move(chunks);
  record->pieces.clear();
  record->partial = false;
  return OkStatus();
}

}  // namespace stepwell::format
