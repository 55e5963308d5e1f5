// SPDX-License-Identifier: Apache-2.0
// LeafStatistics of stored elements. Pure.
#pragma once

#include <cstdint>
#include <span>

#include <stepwell/statistics.h>

#include "format/dtype.h"
#include "io/bytes.h"

namespace stepwell::format {

using stepwell::ChangedCount;
using stepwell::LeafStatistics;

// Adds whole elements as they are stored. `changed` is left alone.
void AddElements(const DTypeInfo& dtype, ConstBytes elements, LeafStatistics* statistics);

// The same as on processors without AVX2.
void AddElementsPortably(const DTypeInfo& dtype, ConstBytes elements, LeafStatistics* statistics);

// Returns those of the elements that a decoded chunk of the grid has of the array: its padding
// counts for nothing.
LeafStatistics StatisticsOfChunk(const DTypeInfo& dtype, std::span<const uint64_t> shape,
                                 std::span<const uint64_t> chunk_shape, uint64_t chunk_index,
                                 ConstBytes chunk);

// Returns how many of the elements, which both have as many of, differ in a bit. item_bytes: 1, 2,
// 4, 8 or 16.
uint64_t CountDifferent(size_t item_bytes, ConstBytes before, ConstBytes after);

}  // namespace stepwell::format
