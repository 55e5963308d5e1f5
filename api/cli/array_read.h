// SPDX-License-Identifier: Apache-2.0
// Any selection of an array's elements into memory, reading only the chunks that have some of them.
#pragma once

#include <cstddef>
#include <vector>

#include <stepwell/step.h>

#include "api/cli/slice.h"

namespace stepwell::cli {

// What one part of a large array may take in memory.
inline constexpr uint64_t kBoxBytesMax = uint64_t{32} << 20;

// The array's element type; kUnimplemented for one that this program does not know. The chunk shape
// is checked, too.
Result<const DTypeInfo*> ElementType(const LeafInfo& leaf);

// Per axis some ranges, one after the other; `out` gets the elements in C order. One read: memory
// for the box of the ranges is taken, so large selections go through SelectionBoxes.
Status LoadRanges(const Step& step, const LeafInfo& leaf, const std::vector<Ranges>& ranges_by_axis,
                  std::byte* out);
// The same of one range an axis, at most kBoxBytesMax at a time.
Status LoadBox(const Step& step, const LeafInfo& leaf, const Ranges& box,
               std::vector<std::byte>* out);

}  // namespace stepwell::cli
