// SPDX-License-Identifier: Apache-2.0
// Grids of arbitrary shapes, and copies between arrays and chunks against a copy of one element
// after another.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "format/grid.h"
#include "fuzz/support/check.h"
#include "fuzz/support/input.h"
#include "fuzz/support/memory.h"

namespace stepwell::fuzz {
namespace {

using namespace format;  // NOLINT(google-build-using-namespace)

constexpr uint64_t kBytesMax = uint64_t{32} << 10;  // of arrays that are copied

// Extents of any size; nothing is copied.
void Plan(Input* input) {
  const uint64_t item_bytes = uint64_t{1} << input->Below(5);
  const size_t rank = input->Below(kRankMax + 2);
  Shape shape;
  Shape shard;
  const bool sharded = input->Below(2) != 0;
  for (size_t axis = 0; axis < rank; ++axis) {
    // Mostly small: the product must stay below 2^62 for anything to happen.
    const uint8_t shift = input->Byte();
    const uint64_t extent = input->Take<uint32_t>();
    shape.push_back((shift & 0x80) != 0 ? extent << (shift & 15) : extent % 7);
    if (sharded) shard.push_back(input->Below(9));
  }
  const auto count = ElementCount(shape, item_bytes);
  if (!count.ok()) return;
  const Shape chunk = ChooseChunkShape(shape, item_bytes, shard);
  Check(chunk.size() == rank, "a chunk of another rank");
  Check(std::all_of(chunk.begin(), chunk.end(), [](uint64_t e) { return e >= 1; }),
        "an empty chunk");
  Check(ChunkBytes(chunk, item_bytes) <= kChunkBytesMax, "a chunk above the limit");
  const Shape grid = GridShape(shape, chunk);
  const uint64_t chunks = ChunkCount(shape, chunk);
  Check((chunks == 0) == (*count == 0), "no chunks, or chunks of nothing");
  Check(chunks == std::accumulate(grid.begin(), grid.end(), uint64_t{1}, std::multiplies<>()),
        "the count is not the grid's");
  if (chunks == 0) return;
  const Shape origin = ChunkOrigin(chunks - 1, shape, chunk);
  for (size_t axis = 0; axis < rank; ++axis) {
    Check(origin[axis] < shape[axis] && origin[axis] % chunk[axis] == 0, "a chunk out of place");
    Check(shape[axis] - origin[axis] <= chunk[axis], "elements behind the last chunk");
  }
}

// Moves `at` on in C order; false at the end.
bool Next(Shape* at, const Box& box) {
  for (size_t axis = at->size(); axis-- > 0;) {
    if (++(*at)[axis] < box.stop[axis]) return true;
    (*at)[axis] = box.start[axis];
  }
  return false;
}

std::byte* At(std::byte* data, const Shape& at, const Shape& start,
              const std::vector<int64_t>& strides) {
  for (size_t axis = 0; axis < at.size(); ++axis) {
    data += static_cast<int64_t>(at[axis] - start[axis]) * strides[axis];
  }
  return data;
}

// Strides of an array of these extents in any order of axes, some backwards, some with gaps;
// `first` is where element 0 lies.
std::vector<int64_t> TakeStrides(Input* input, const Shape& extents, uint64_t item_bytes,
                                 uint64_t* size_bytes, uint64_t* first) {
  const size_t rank = extents.size();
  std::vector<size_t> order(rank);
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t i = rank; i > 1; --i) std::swap(order[i - 1], order[input->Below(i)]);
  std::vector<int64_t> strides(rank);
  uint64_t stride = item_bytes;
  *first = 0;
  for (const size_t axis : order) {
    const uint8_t choice = input->Byte();
    if (choice % 4 == 1) stride += item_bytes;
    const auto signed_stride = static_cast<int64_t>(stride);
    strides[axis] = signed_stride;
    if (choice % 4 == 2 && extents[axis] > 0) {
      *first += stride * (extents[axis] - 1);
      strides[axis] = -signed_stride;
    }
    stride *= std::max<uint64_t>(1, extents[axis]);
  }
  *size_bytes = stride;
  return strides;
}

std::byte Canonical(const DTypeInfo& dtype, std::byte value) {
  if (dtype.dtype == DType::kBool) return value == std::byte{0} ? value : std::byte{1};
  if (dtype.value_bits == 2) return value & std::byte{3};
  if (dtype.value_bits == 4) return value & std::byte{15};
  return value;
}

// Gathers every chunk of a strided array, then scatters a box of it to strided memory.
void Copy(Input* input) {
  const auto types = AllDTypes();
  const DTypeInfo& dtype = types[input->Below(types.size())];
  const size_t rank = input->Below(6);
  Shape shape;
  Shape chunk_shape;
  Box box;
  uint64_t bytes = dtype.item_bytes;
  for (size_t axis = 0; axis < rank; ++axis) {
    const uint64_t extent = input->Below(12);
    const uint64_t chunk_extent = 1 + input->Below(7);
    bytes *= extent + chunk_extent + 1;  // room for strides with gaps, and for padding
    if (bytes > kBytesMax) break;
    shape.push_back(extent);
    chunk_shape.push_back(chunk_extent);
    const uint64_t start = input->Below(extent + 1);
    box.start.push_back(start);
    box.stop.push_back(start + input->Below(extent - start + 1));
  }
  uint64_t array_bytes = 0;
  uint64_t first = 0;
  const auto strides = TakeStrides(input, shape, dtype.item_bytes, &array_bytes, &first);
  Shape box_shape;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    box_shape.push_back(box.stop[axis] - box.start[axis]);
  }
  uint64_t out_bytes = 0;
  uint64_t out_first = 0;
  const auto out_strides = TakeStrides(input, box_shape, dtype.item_bytes, &out_bytes, &out_first);
  std::vector<std::byte> array(array_bytes);
  for (size_t i = 0; i < array.size(); ++i) array[i] = static_cast<std::byte>(i * 151 + i / 251);
  std::vector<std::byte> out(out_bytes, std::byte{0xEE});
  std::vector<std::byte> wanted = out;
  const std::vector<uint64_t> inside = ChunksInBox(box, shape, chunk_shape);
  Check(std::is_sorted(inside.begin(), inside.end()), "chunks of a box are not in order");
  const Shape zero(shape.size(), 0);
  const uint64_t chunk_bytes = ChunkBytes(chunk_shape, dtype.item_bytes);
  const MutableStridedArray view{out.data() + out_first, box_shape, out_strides};
  for (uint64_t i = 0; i < ChunkCount(shape, chunk_shape); ++i) {
    std::vector<std::byte> chunk(chunk_bytes, std::byte{0xEE});
    GatherChunk({array.data() + first, shape, strides}, dtype, chunk_shape, i, chunk.data());
    uint64_t offset = 0;
    if (strides == CStrides(shape, dtype.item_bytes) && dtype.value_bits == 0 &&
        dtype.dtype != DType::kBool &&
        ChunkIsContiguous(shape, chunk_shape, i, dtype.item_bytes, &offset)) {
      Check(std::memcmp(chunk.data(), array.data() + offset, chunk_bytes) == 0, "no such run");
    }
    const std::vector<std::byte> before = out;
    ScatterChunk(chunk, dtype, shape, chunk_shape, i, box, view);
    const bool meets = std::binary_search(inside.begin(), inside.end(), i);
    Check(meets || out == before, "a chunk that the box does not meet was copied");
  }
  const bool empty = std::find(box_shape.begin(), box_shape.end(), 0) != box_shape.end();
  Shape at = box.start;
  for (bool more = !empty; more; more = Next(&at, box)) {
    std::byte* to = At(wanted.data() + out_first, at, box.start, out_strides);
    const std::byte* from = At(array.data() + first, at, zero, strides);
    std::memcpy(to, from, dtype.item_bytes);
    if (dtype.item_bytes == 1) *to = Canonical(dtype, *to);
  }
  Check(out == wanted, "an array came back differently");
}

}  // namespace
}  // namespace stepwell::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepwell::fuzz;
  // Bounded by the sizes above, not by the input; each chunk of the grid is a copy.
  const MemoryLimit limit(size, {size_t{256} << 10, 0}, {size_t{2} << 30, 0});
  Input input(data, size);
  if (input.Byte() % 2 == 0) {
    Plan(&input);
  } else {
    Copy(&input);
  }
  return 0;
}
