// SPDX-License-Identifier: Apache-2.0
// Any selection of an array's elements into memory, reading only the chunks that have some of them;
// and values.
#pragma once

#include <string>
#include <vector>

#include "api/cli/slice.h"
#include "db/store.h"
#include "io/result.h"

namespace stepwell::cli {

// What one part of a large array may take in memory.
inline constexpr uint64_t kSlabBytesMax = uint64_t{32} << 20;

// The array's element type; kUnimplemented for one that this program does not know. Shape and chunk
// shape are checked, too.
Result<const format::DTypeInfo*> DTypeOf(const format::LeafRecord& leaf);

// Per axis some ranges, one after the other; `out` gets the elements in C order. One read: memory
// for the box of the ranges is taken, so large selections go through Slabs.
Status LoadRanges(db::StepReader* reader, const format::LeafRecord& leaf,
                  const std::vector<Ranges>& ranges_by_axis, std::byte* out);
// The same of one range an axis, slab by slab.
Status LoadSelection(db::StepReader* reader, const format::LeafRecord& leaf, const Ranges& ranges,
                     std::byte* out);

// The bytes of a value that is no array.
Result<std::string> ReadValue(db::StepReader* reader, const format::LeafRecord& leaf);

}  // namespace stepwell::cli
