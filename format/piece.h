// SPDX-License-Identifier: Apache-2.0
// Pieces: leaves of which a store, being a part of a group, has boxes only; and how the pieces of
// several parts become the array again.
#pragma once

#include <cstdint>
#include <vector>

#include "format/records.h"
#include "io/result.h"

namespace stepwell::format {

inline constexpr size_t kPartStoresMax = 65536;

// The shape of a box; 0 on axes where it is empty.
Shape Extents(const Box& box);
// Returns the intersection of two boxes, which is empty on some axis if they are disjoint.
Box Intersection(const Box& a, const Box& b);
// Returns true if a box of an array begins and ends at boundaries of record.chunk_shape, or at the
// end of the array.
bool LiesOnGrid(const LeafRecord& record, const Shape& origin, const Shape& shape);

// Checks that the pieces of an array's first record are boxes of it, with grids that agree with its
// chunk count. The record's own shapes and dtype are checked already.
Status CheckPieces(const LeafRecord& record);

// The piece that has chunk `chunk_index` of the leaf; pieces are checked and there is one.
const PieceRecord& PieceOfChunk(const LeafRecord& record, uint64_t chunk_index);

// Makes one leaf of the chunks of its pieces where they all lie on the grid of record.chunk_shape
// and cover the array: `pieces` is empty then, and the chunks are those of the whole array. Where
// pieces have grids of their own they stay, and the leaf `partial`. kDataLoss: they overlap, or
// leave something out.
Status JoinPieces(LeafRecord* record);

}  // namespace stepwell::format
