// SPDX-License-Identifier: Apache-2.0
#include "db/mesh/staging_plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "format/dtype.h"
#include "format/piece.h"

namespace stepwell::db {
namespace {

using format::Box;
using format::Shape;

constexpr uint64_t kPieceAlignment = 256;  // bytes; what GPUs copy from at full speed

// The arrays of one leaf, cut between chunks until the parts fit.
class LeafStaging {
 public:
  LeafStaging(std::span<const StagedTarget> targets, std::vector<uint32_t> numbers,
              uint64_t batch_bytes, size_t memories, std::vector<StagedBatch>* batches)
      : targets_(targets),
        numbers_(std::move(numbers)),
        leaf_(targets[numbers_.front()].leaf),
        item_bytes_(format::FindDType(leaf_->dtype)->item_bytes),
        batch_bytes_(batch_bytes),
        memories_(memories),
        batches_(batches) {
    // An array whose pieces have grids of their own need not have one itself.
    chunk_ = leaf_->chunk_shape.size() == leaf_->shape.size()
                 ? leaf_->chunk_shape
                 : format::ChooseChunkShape(leaf_->shape, item_bytes_);
  }

  void Plan() { Place(Hull()); }

 private:
  // All chunks that any target needs, as a box of whole chunks.
  Box Hull() const {
    Box hull = targets_[numbers_.front()].box;
    for (const uint32_t number : numbers_) {
      const Box& box = targets_[number].box;
      for (size_t axis = 0; axis < chunk_.size(); ++axis) {
        hull.start[axis] = std::min(hull.start[axis], box.start[axis]);
        hull.stop[axis] = std::max(hull.stop[axis], box.stop[axis]);
      }
    }
    for (size_t axis = 0; axis < chunk_.size(); ++axis) {
      hull.start[axis] = AlignDown(hull.start[axis], chunk_[axis]);
    }
    return hull;
  }

  std::vector<StagedPiece> PiecesIn(const Box& region) const {
    std::map<std::pair<Shape, Shape>, StagedPiece> pieces;
    for (const uint32_t number : numbers_) {
      Box box = format::Intersection(region, targets_[number].box);
      if (format::ChunkBytes(format::Extents(box), 1) == 0) continue;
      StagedPiece& piece = pieces[{box.start, box.stop}];
      if (piece.targets.empty()) {
        piece.leaf = leaf_;
        piece.box = std::move(box);
        piece.near = targets_[number].near;
      }
      piece.targets.push_back(number);
    }
    std::vector<StagedPiece> list;
    list.reserve(pieces.size());
    for (auto& [box, piece] : pieces) list.push_back(std::move(piece));
    return list;
  }

  void Place(const Box& region) {
    std::vector<StagedPiece> pieces = PiecesIn(region);
    if (pieces.empty() || Append(&pieces)) return;
    const size_t axis = AxisToCut(region);
    if (axis < chunk_.size()) {
      const uint64_t chunks =
          (region.stop[axis] - region.start[axis] + chunk_[axis] - 1) / chunk_[axis];
      Box first = region;
      Box second = region;
      first.stop[axis] = region.start[axis] + chunks / 2 * chunk_[axis];
      second.start[axis] = first.stop[axis];
      Place(first);
      Place(second);
      return;
    }
    batches_->emplace_back().bytes.assign(memories_, 0);
    for (StagedPiece& piece : pieces) Add(std::move(piece));
  }

  // The first axis with several chunks; none: the number of axes.
  size_t AxisToCut(const Box& region) const {
    size_t axis = 0;
    while (axis < chunk_.size() && region.stop[axis] - region.start[axis] <= chunk_[axis]) ++axis;
    return axis;
  }

  // Into the last batch, or a new one; false when there is no room in an empty one.
  bool Append(std::vector<StagedPiece>* pieces) {
    std::vector<uint64_t> needed(memories_, 0);
    for (const StagedPiece& piece : *pieces) needed[piece.near] += BytesOf(piece);
    const auto fits = [&](const StagedBatch& batch) {
      for (size_t i = 0; i < memories_; ++i) {
        if (batch.bytes[i] + needed[i] > batch_bytes_) return false;
      }
      return true;
    };
    if (batches_->empty() || !fits(batches_->back())) {
      if (*std::max_element(needed.begin(), needed.end()) > batch_bytes_) return false;
      batches_->emplace_back().bytes.assign(memories_, 0);
    }
    for (StagedPiece& piece : *pieces) Add(std::move(piece));
    return true;
  }

  uint64_t BytesOf(const StagedPiece& piece) const {
    return AlignUp(format::ChunkBytes(format::Extents(piece.box), item_bytes_), kPieceAlignment);
  }

  void Add(StagedPiece piece) {
    StagedBatch& batch = batches_->back();
    uint64_t& used = batch.bytes[piece.near];
    piece.offset_bytes = used;
    used += BytesOf(piece);
    batch.pieces.push_back(std::move(piece));
  }

  const std::span<const StagedTarget> targets_;
  const std::vector<uint32_t> numbers_;  // of this leaf's targets
  const format::LeafRecord* const leaf_;
  const uint64_t item_bytes_;
  const uint64_t batch_bytes_;
  const size_t memories_;
  std::vector<StagedBatch>* const batches_;
  Shape chunk_;
};

}  // namespace

std::vector<StagedBatch> PlanStaging(std::span<const StagedTarget> targets, uint64_t batch_bytes) {
  std::vector<const format::LeafRecord*> order;
  std::map<const format::LeafRecord*, std::vector<uint32_t>> by_leaf;
  size_t memories = 0;
  for (uint32_t i = 0; i < targets.size(); ++i) {
    std::vector<uint32_t>& numbers = by_leaf[targets[i].leaf];
    if (numbers.empty()) order.push_back(targets[i].leaf);
    numbers.push_back(i);
    memories = std::max<size_t>(memories, targets[i].near + 1);
  }
  std::vector<StagedBatch> batches;
  for (const format::LeafRecord* leaf : order) {
    LeafStaging(targets, std::move(by_leaf[leaf]), batch_bytes, memories, &batches).Plan();
  }
  return batches;
}

std::vector<RowsCopy> CopiesInto(const Box& piece, const Box& target, uint64_t item_bytes) {
  const size_t rank = piece.start.size();
  const auto length = [](const Box& box, size_t axis) { return box.stop[axis] - box.start[axis]; };
  // Axes from `inner` on are whole in the target, and follow each other there as in the piece.
  size_t inner = rank;
  uint64_t inner_bytes = item_bytes;
  while (inner > 0 && length(piece, inner - 1) == length(target, inner - 1)) {
    inner_bytes *= length(piece, --inner);
  }
  // A row takes the next axis, too; the one before that counts rows; those before it are loops.
  RowsCopy copy;
  copy.row_bytes = inner > 0 ? inner_bytes * length(piece, inner - 1) : inner_bytes;
  copy.to_pitch_bytes = inner > 0 ? inner_bytes * length(target, inner - 1) : inner_bytes;
  copy.rows = inner > 1 ? length(piece, inner - 2) : 1;
  const size_t loops = inner > 2 ? inner - 2 : 0;
  const std::vector<int64_t> strides = format::CStrides(format::Extents(target), item_bytes);
  std::vector<RowsCopy> copies;
  Shape at = piece.start;
  for (;;) {
    copy.to_bytes = 0;
    for (size_t axis = 0; axis < rank; ++axis) {
      copy.to_bytes += (at[axis] - target.start[axis]) * static_cast<uint64_t>(strides[axis]);
    }
    copies.push_back(copy);
    copy.from_bytes += copy.row_bytes * copy.rows;
    size_t axis = loops;
    while (axis > 0 && ++at[axis - 1] == piece.stop[axis - 1]) {
      at[axis - 1] = piece.start[axis - 1];
      --axis;
    }
    if (axis == 0) return copies;
  }
}

}  // namespace stepwell::db
