// SPDX-License-Identifier: Apache-2.0
// Statistics of chunks: of the elements that are the array's, and of what changed.
#include <algorithm>
#include <cstring>
#include <vector>

#include "format/element_statistics.h"
#include "format/endian.h"
#include "format/grid.h"
#include "io/result.h"

namespace stepwell::format {
namespace {

template <typename T>
uint64_t CountDifferentOf(ConstBytes before, ConstBytes after) {
  uint64_t different = 0;
  for (size_t at = 0; at < after.size(); at += sizeof(T)) {
    different += LoadLittle<T>(before.data() + at) != LoadLittle<T>(after.data() + at) ? 1 : 0;
  }
  return different;
}

}  // namespace

LeafStatistics StatisticsOfChunk(const DTypeInfo& dtype, std::span<const uint64_t> shape,
                                 std::span<const uint64_t> chunk_shape, uint64_t chunk_index,
                                 ConstBytes chunk) {
  LeafStatistics statistics;
  const Shape origin = ChunkOrigin(chunk_index, shape, chunk_shape);
  Shape there(shape.size());  // what the chunk has of the array, on each axis
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    there[axis] = std::min(chunk_shape[axis], shape[axis] - origin[axis]);
  }
  uint64_t run = 1;             // elements that lie together
  size_t outer = shape.size();  // axes before those of the run
  for (bool whole = true; whole && outer > 0;) {
    --outer;
    run *= there[outer];
    whole = there[outer] == chunk_shape[outer];
  }
  const std::vector<int64_t> strides = CStrides(chunk_shape, dtype.item_bytes);
  const uint64_t run_bytes = run * dtype.item_bytes;
  Shape index(outer, 0);
  for (;;) {
    uint64_t offset = 0;
    for (size_t axis = 0; axis < outer; ++axis) {
      offset += index[axis] * static_cast<uint64_t>(strides[axis]);
    }
    AddElements(dtype, chunk.subspan(offset, run_bytes), &statistics);
    size_t axis = outer;
    for (; axis > 0 && ++index[axis - 1] == there[axis - 1]; --axis) index[axis - 1] = 0;
    if (axis == 0) return statistics;
  }
}

uint64_t CountDifferent(size_t item_bytes, ConstBytes before, ConstBytes after) {
  STEPWELL_CHECK(before.size() == after.size(), "contents of two sizes");
  switch (item_bytes) {
    case 1:
      return CountDifferentOf<uint8_t>(before, after);
    case 2:
      return CountDifferentOf<uint16_t>(before, after);
    case 4:
      return CountDifferentOf<uint32_t>(before, after);
    case 8:
      return CountDifferentOf<uint64_t>(before, after);
    default: {
      uint64_t different = 0;
      for (size_t at = 0; at < after.size(); at += item_bytes) {
        different += std::memcmp(&before[at], &after[at], item_bytes) != 0 ? 1 : 0;
      }
      return different;
    }
  }
}

}  // namespace stepwell::format
