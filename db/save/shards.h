// SPDX-License-Identifier: Apache-2.0
// An array that is given in shards, as saving sees it: which shards have a chunk's elements.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "db/store.h"
#include "format/dtype.h"
#include "format/grid.h"
#include "io/bytes.h"
#include "io/result.h"

namespace stepwell::db {

// The shards of one array, checked: none without elements, ascending by origin, with strides.
class ShardMap {
 public:
  ShardMap() = default;
  // kInvalidArgument names the first shard that lies outside of `shape`, that overlaps another, or
  // is without memory; without `partial` also when elements are in no shard.
  static Result<ShardMap> Make(std::span<const uint64_t> shape, uint64_t item_bytes, bool partial,
                               std::vector<ShardInput> shards);

  bool empty() const { return shards_.empty(); }
  const std::vector<ShardInput>& shards() const { return shards_; }
  // Of a shard whose bytes are far away: where they are now. Null: nowhere in memory.
  void SetMemory(size_t number, const std::byte* data, std::vector<int64_t> strides_bytes) {
    shards_[number].data = data;
    shards_[number].strides_bytes = std::move(strides_bytes);
  }
  // The numbers of the shards that have elements of a chunk.
  std::vector<uint32_t> ShardsOf(std::span<const uint64_t> shape,
                                 std::span<const uint64_t> chunk_shape, uint64_t chunk_index) const;
  // The extents of the shards where they lie on a grid of them (only those at the array's end may
  // be smaller); else empty.
  const format::Shape& pitch() const { return pitch_; }

  // The bytes of a chunk where they already are one unpadded run in one shard, else empty.
  ConstBytes Run(std::span<const uint64_t> shape, uint64_t item_bytes,
                 std::span<const uint64_t> chunk_shape, uint64_t chunk_index) const;
  // The same as format::GatherChunk. Shards that have elements of the chunk are in memory.
  void Gather(std::span<const uint64_t> shape, const format::DTypeInfo& dtype,
              std::span<const uint64_t> chunk_shape, uint64_t chunk_index, std::byte* out) const;

 private:
  // Finds the pitch; true when there is one and the shards are all places of its grid, once each.
  bool FindPlaces(std::span<const uint64_t> shape);
  template <typename Function>  // of those that may have elements of the chunk
  void ForEachIn(std::span<const uint64_t> shape, std::span<const uint64_t> chunk_shape,
                 uint64_t chunk_index, Function function) const;

  std::vector<ShardInput> shards_;
  format::Shape pitch_;
  bool complete_ = false;  // shards_ are the chunks of the grid of pitch_, in order
};

// Returns true if a shard is C-contiguous.
bool IsContiguous(const ShardInput& shard, uint64_t item_bytes);

}  // namespace stepwell::db
