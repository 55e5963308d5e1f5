// SPDX-License-Identifier: Apache-2.0
#include "db/save/shards.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

namespace stepwell::db {
namespace {

using format::Shape;

std::string BoxText(const ShardInput& shard) {
  std::string text = "[";
  for (size_t axis = 0; axis < shard.origin.size(); ++axis) {
    text += StrCat(axis == 0 ? "" : ", ", shard.origin[axis], ":",
                   shard.origin[axis] + shard.shape[axis]);
  }
  return text + "]";
}

std::string ShapeText(std::span<const uint64_t> shape) {
  std::string text = "(";
  for (const uint64_t extent : shape) text += StrCat(text.size() == 1 ? "" : ", ", extent);
  return text + ")";
}

uint64_t Elements(std::span<const uint64_t> shape) {
  return std::accumulate(shape.begin(), shape.end(), uint64_t{1}, std::multiplies<>());
}

// Leaves out a shard without elements, by giving false.
Result<bool> CheckShard(std::span<const uint64_t> shape, uint64_t item_bytes, size_t number,
                        ShardInput* shard) {
  const size_t rank = shape.size();
  if (shard->origin.size() != rank || shard->shape.size() != rank) {
    return InvalidArgumentError(
        StrCat("shard ", number, " has other axes than the array, which has ", rank));
  }
  for (size_t axis = 0; axis < rank; ++axis) {
    if (shard->origin[axis] > shape[axis] ||
        shard->shape[axis] > shape[axis] - shard->origin[axis]) {
      return InvalidArgumentError(StrCat("shard ", number, ", ", BoxText(*shard),
                                         ", reaches out of the array's shape ", ShapeText(shape)));
    }
  }
  if (Elements(shard->shape) == 0) return false;
  if (shard->data == nullptr && !shard->far) {
    return InvalidArgumentError(StrCat("shard ", number, " has no data"));
  }
  if (shard->strides_bytes.empty()) {
    shard->strides_bytes = format::CStrides(shard->shape, item_bytes);
  }
  if (shard->strides_bytes.size() != rank) {
    return InvalidArgumentError(StrCat("shard ", number, " needs as many strides as axes"));
  }
  return true;
}

bool Overlap(const ShardInput& a, const ShardInput& b) {
  for (size_t axis = 0; axis < a.origin.size(); ++axis) {
    if (a.origin[axis] >= b.origin[axis] + b.shape[axis] ||
        b.origin[axis] >= a.origin[axis] + a.shape[axis]) {
      return false;
    }
  }
  return true;
}

// Sweeps along the axis on which most shards begin at places of their own.
Status CheckDisjoint(const std::vector<ShardInput>& shards) {
  size_t sweep = 0;
  size_t places_most = 0;
  for (size_t axis = 0; axis < shards.front().origin.size(); ++axis) {
    std::vector<uint64_t> places;
    places.reserve(shards.size());
    for (const ShardInput& shard : shards) places.push_back(shard.origin[axis]);
    std::sort(places.begin(), places.end());
    const auto end = std::unique(places.begin(), places.end());
    const auto count = static_cast<size_t>(end - places.begin());
    if (count > places_most) {
      sweep = axis;
      places_most = count;
    }
  }
  const auto overlapping = [](const ShardInput& a, const ShardInput& b) {
    return InvalidArgumentError(StrCat("shards ", BoxText(a), " and ", BoxText(b), " overlap"));
  };
  if (shards.front().origin.empty()) {
    return shards.size() == 1 ? OkStatus() : overlapping(shards[0], shards[1]);
  }
  std::vector<uint32_t> order(shards.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto first = [&](uint32_t i) { return shards[i].origin[sweep]; };
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return first(a) < first(b); });
  std::vector<uint32_t> open;  // those that reach beyond where the sweep is
  for (const uint32_t i : order) {
    std::erase_if(open, [&](uint32_t j) { return first(j) + shards[j].shape[sweep] <= first(i); });
    for (const uint32_t j : open) {
      if (Overlap(shards[i], shards[j])) return overlapping(shards[j], shards[i]);
    }
    open.push_back(i);
  }
  return OkStatus();
}

}  // namespace

bool IsContiguous(const ShardInput& shard, uint64_t item_bytes) {
  return shard.strides_bytes == format::CStrides(shard.shape, item_bytes);
}

Result<ShardMap> ShardMap::Make(std::span<const uint64_t> shape, uint64_t item_bytes, bool partial,
                                std::vector<ShardInput> shards) {
  ShardMap map;
  for (size_t i = 0; i < shards.size(); ++i) {
    STEPWELL_ASSIGN_OR_RETURN(const bool has_elements,
                              CheckShard(shape, item_bytes, i, &shards[i]));
    if (has_elements) map.shards_.push_back(std::move(shards[i]));
  }
  std::sort(map.shards_.begin(), map.shards_.end(),
            [](const ShardInput& a, const ShardInput& b) { return a.origin < b.origin; });
  if (map.FindPlaces(shape)) return map;  // disjoint, and all there
  if (!map.shards_.empty()) STEPWELL_RETURN_IF_ERROR(CheckDisjoint(map.shards_));
  uint64_t given = 0;
  for (const ShardInput& shard : map.shards_) given += Elements(shard.shape);
  const uint64_t all = Elements(shape);
  if (given < all && !partial) {
    return InvalidArgumentError(StrCat("its ", shards.size(), " shards have ", given, " of the ",
                                       all, " elements of its shape ", ShapeText(shape)));
  }
  return map;
}

bool ShardMap::FindPlaces(std::span<const uint64_t> shape) {
  if (shards_.empty()) return false;
  const size_t rank = shape.size();
  Shape pitch(rank, 0);
  for (const ShardInput& shard : shards_) {
    for (size_t axis = 0; axis < rank; ++axis) {
      pitch[axis] = std::max(pitch[axis], shard.shape[axis]);
    }
  }
  for (const ShardInput& shard : shards_) {
    for (size_t axis = 0; axis < rank; ++axis) {
      const uint64_t rest = shape[axis] - shard.origin[axis];
      if (shard.origin[axis] % pitch[axis] != 0 ||
          shard.shape[axis] != std::min(pitch[axis], rest)) {
        return false;
      }
    }
  }
  pitch_ = std::move(pitch);
  if (format::ChunkCount(shape, pitch_) != shards_.size()) return false;
  // Ascending origins are ascending places: one shard each, when no two are the same.
  const auto same = [](const ShardInput& a, const ShardInput& b) { return a.origin == b.origin; };
  complete_ = std::adjacent_find(shards_.begin(), shards_.end(), same) == shards_.end();
  return complete_;
}

template <typename Function>
void ShardMap::ForEachIn(std::span<const uint64_t> shape, std::span<const uint64_t> chunk_shape,
                         uint64_t chunk_index, Function function) const {
  if (!complete_) {
    for (const ShardInput& shard : shards_) function(shard);
    return;
  }
  format::Box box;
  box.start = format::ChunkOrigin(chunk_index, shape, chunk_shape);
  box.stop = box.start;
  for (size_t axis = 0; axis < shape.size(); ++axis) box.stop[axis] += chunk_shape[axis];
  for (const uint64_t place : format::ChunksInBox(box, shape, pitch_)) function(shards_[place]);
}

ConstBytes ShardMap::Run(std::span<const uint64_t> shape, uint64_t item_bytes,
                         std::span<const uint64_t> chunk_shape, uint64_t chunk_index) const {
  const Shape origin = format::ChunkOrigin(chunk_index, shape, chunk_shape);
  ConstBytes run;
  ForEachIn(shape, chunk_shape, chunk_index, [&](const ShardInput& shard) {
    uint64_t stride = item_bytes;
    uint64_t offset = 0;
    bool cut = false;  // an axis after this one is not whole
    for (size_t axis = shape.size(); axis-- > 0;) {
      if (origin[axis] < shard.origin[axis] ||
          origin[axis] + chunk_shape[axis] > shard.origin[axis] + shard.shape[axis]) {
        return;  // not in this shard alone
      }
      if (cut && chunk_shape[axis] != 1) return;
      cut = cut || chunk_shape[axis] != shard.shape[axis];
      offset += (origin[axis] - shard.origin[axis]) * stride;
      stride *= shard.shape[axis];
    }
    if (IsContiguous(shard, item_bytes)) {
      run = {shard.data + offset, format::ChunkBytes(chunk_shape, item_bytes)};
    }
  });
  return run;
}

std::vector<uint32_t> ShardMap::ShardsOf(std::span<const uint64_t> shape,
                                         std::span<const uint64_t> chunk_shape,
                                         uint64_t chunk_index) const {
  const Shape origin = format::ChunkOrigin(chunk_index, shape, chunk_shape);
  std::vector<uint32_t> numbers;
  ForEachIn(shape, chunk_shape, chunk_index, [&](const ShardInput& shard) {
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      if (origin[axis] >= shard.origin[axis] + shard.shape[axis] ||
          shard.origin[axis] >= origin[axis] + chunk_shape[axis]) {
        return;
      }
    }
    numbers.push_back(static_cast<uint32_t>(&shard - shards_.data()));
  });
  return numbers;
}

void ShardMap::Gather(std::span<const uint64_t> shape, const format::DTypeInfo& dtype,
                      std::span<const uint64_t> chunk_shape, uint64_t chunk_index,
                      std::byte* out) const {
  const Shape origin = format::ChunkOrigin(chunk_index, shape, chunk_shape);
  bool padded = false;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    padded = padded || origin[axis] + chunk_shape[axis] > shape[axis];
  }
  if (padded) std::memset(out, 0, format::ChunkBytes(chunk_shape, dtype.item_bytes));
  ForEachIn(shape, chunk_shape, chunk_index, [&](const ShardInput& shard) {
    if (shard.data == nullptr) return;  // far away: it has nothing of a chunk that is asked for
    format::GatherChunkPart({shard.data, shard.shape, shard.strides_bytes}, shard.origin, shape,
                            dtype, chunk_shape, chunk_index, out);
  });
}

}  // namespace stepwell::db
