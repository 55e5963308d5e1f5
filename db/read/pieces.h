// SPDX-License-Identifier: Apache-2.0
// Requests for leaves whose pieces have chunk grids of their own, piece by piece. Pure.
#pragma once

#include <list>
#include <span>
#include <vector>

#include "db/store.h"

namespace stepwell::db {

// Requests that between them fill what `requests` want; those for whole leaves are copied. The
// pieces that they refer to are here, and refer to nothing but the memory to be filled.
struct PieceRequests {
  std::list<format::LeafRecord> leaves;
  std::vector<LoadRequest> requests;
};

bool HasPieces(std::span<const LoadRequest> requests);

// kDataLoss: a leaf's pieces contradict its record. kFailedPrecondition: they do not have all of a
// box: this is a part of a store of several processes, opened by itself.
Result<PieceRequests> SplitByPieces(std::span<const LoadRequest> requests);

}  // namespace stepwell::db
