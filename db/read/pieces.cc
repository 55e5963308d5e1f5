// SPDX-License-Identifier: Apache-2.0
#include "db/read/pieces.h"

#include <algorithm>
#include <map>
#include <utility>

#include "db/read/restore_plan.h"
#include "format/piece.h"

namespace stepwell::db {
namespace {

bool HasPieces(const LoadRequest& request) {
  return request.leaf != nullptr && request.leaf->kind == format::LeafKind::kArray &&
         (request.leaf->partial || !request.leaf->pieces.empty());
}

// What the piece has of the box, in the array's coordinates; false: nothing.
bool Meet(const format::PieceRecord& piece, const format::Box& box, format::Box* common) {
  *common = box;
  for (size_t axis = 0; axis < box.start.size(); ++axis) {
    common->start[axis] = std::max(box.start[axis], piece.origin[axis]);
    common->stop[axis] = std::min(box.stop[axis], piece.origin[axis] + piece.shape[axis]);
    if (common->start[axis] >= common->stop[axis]) return false;
  }
  return true;
}

uint64_t ElementsOf(const format::Box& box) {
  uint64_t count = 1;
  for (size_t axis = 0; axis < box.start.size(); ++axis) count *= box.stop[axis] - box.start[axis];
  return count;
}

// The piece as an array of its own.
format::LeafRecord LeafOf(const format::LeafRecord& leaf, const format::PieceRecord& piece) {
  format::LeafRecord own;
  own.key = leaf.key;
  own.kind = leaf.kind;
  own.value_type = leaf.value_type;
  own.dtype = leaf.dtype;
  own.codec = leaf.codec;
  own.shape = piece.shape;
  own.chunk_shape = piece.chunk_shape;
  own.chunk_count = format::ChunkCount(piece.shape, piece.chunk_shape);
  own.logical_bytes = format::FindDType(leaf.dtype)->item_bytes;
  for (const uint64_t extent : piece.shape) own.logical_bytes *= extent;
  const auto begin = leaf.chunks.begin() + static_cast<ptrdiff_t>(piece.first_chunk);
  own.chunks.assign(begin, begin + static_cast<ptrdiff_t>(own.chunk_count));
  return own;
}

bool IsIn(const format::Box& box, const format::LeafRecord& leaf) {
  const size_t rank = leaf.shape.size();
  bool inside = box.start.size() == rank && box.stop.size() == rank;
  for (size_t axis = 0; inside && axis < rank; ++axis) {
    inside = box.start[axis] <= box.stop[axis] && box.stop[axis] <= leaf.shape[axis];
  }
  return inside;
}

class Splitter {
 public:
  explicit Splitter(PieceRequests* out) : out_(out) {}

  Status Add(const LoadRequest& request) {
    const format::LeafRecord& leaf = *request.leaf;
    STEPWELL_RETURN_IF_ERROR(CheckLeaf(leaf));
    const size_t rank = leaf.shape.size();
    if (!IsIn(request.box, leaf) ||
        (!request.strides_bytes.empty() && request.strides_bytes.size() != rank)) {
      return InvalidArgumentError(
          StrCat(LeafName(leaf), ": the box or its strides are not of the array"));
    }
    std::vector<int64_t> strides = request.strides_bytes;
    if (strides.empty()) {
      format::Shape extents(rank);
      for (size_t axis = 0; axis < rank; ++axis) {
        extents[axis] = request.box.stop[axis] - request.box.start[axis];
      }
      strides = format::CStrides(extents, format::FindDType(leaf.dtype)->item_bytes);
    }
    uint64_t found = 0;
    for (const format::PieceRecord& piece : leaf.pieces) {
      LoadRequest part;
      if (!Meet(piece, request.box, &part.box)) continue;
      found += ElementsOf(part.box);
      part.leaf = Leaf(leaf, piece);
      part.out = request.out;
      part.strides_bytes = strides;
      for (size_t axis = 0; axis < rank; ++axis) {
        if (part.out != nullptr) {
          part.out +=
              static_cast<int64_t>(part.box.start[axis] - request.box.start[axis]) * strides[axis];
        }
        part.box.start[axis] -= piece.origin[axis];
        part.box.stop[axis] -= piece.origin[axis];
      }
      out_->requests.push_back(std::move(part));
    }
    if (found == ElementsOf(request.box)) return OkStatus();
    return FailedPreconditionError(StrCat(LeafName(leaf), ": this part of a store has ", found,
                                          " of ", ElementsOf(request.box),
                                          " elements; read the step through the whole store"));
  }

 private:
  // One for all requests of a leaf, so that chunks wanted twice are read once.
  const format::LeafRecord* Leaf(const format::LeafRecord& leaf, const format::PieceRecord& piece) {
    auto& known = leaves_[&piece];
    if (known == nullptr) known = &out_->leaves.emplace_back(LeafOf(leaf, piece));
    return known;
  }

  PieceRequests* const out_;
  std::map<const format::PieceRecord*, const format::LeafRecord*> leaves_;
};

}  // namespace

bool HasPieces(std::span<const LoadRequest> requests) {
  return std::any_of(requests.begin(), requests.end(),
                     [](const LoadRequest& request) { return HasPieces(request); });
}

Result<PieceRequests> SplitByPieces(std::span<const LoadRequest> requests) {
  PieceRequests out;
  Splitter splitter(&out);
  for (const LoadRequest& request : requests) {
    if (!HasPieces(request)) {
      out.requests.push_back(request);
      continue;
    }
    STEPWELL_RETURN_IF_ERROR(splitter.Add(request));
  }
  return out;
}

}  // namespace stepwell::db
