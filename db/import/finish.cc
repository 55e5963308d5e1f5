// SPDX-License-Identifier: Apache-2.0
// Leaves get the arrays that were read.
#include <cstring>
#include <memory>

#include "db/export/orbax/numbers.h"
#include "db/import/tree.h"
#include "format/piece.h"

namespace stepwell::db::import {
namespace {

using format::DType;
using StoredType = format::ValueType;

std::string IntegerOf(const ImportArray& array) {
  uint64_t bits = 0;
  std::memcpy(&bits, array.data, array.dtype->item_bytes);
  if (IsUnsignedInteger(array.zarr.dtype)) return std::to_string(bits);
  const int unused_bits = 64 - 8 * array.dtype->item_bytes;
  return std::to_string(static_cast<int64_t>(bits << unused_bits) >> unused_bits);
}

// Makes a scalar as Orbax does, by array.item(). Types for which Python has no number stay NumPy's.
LeafInput ScalarInput(const ImportArray& array, LeafInput leaf) {
  std::string key = leaf.record.key;
  if (array.zarr.dtype == DType::kBool) {
    return ValueInput(std::move(key), StoredType::kBool,
                      std::string(1, static_cast<char>(array.data[0])));
  }
  // The element type stays with it, for exports.
  const auto number = [&](StoredType type, std::string value) {
    LeafInput input = ValueInput(std::move(key), type, std::move(value));
    input.record.dtype = array.zarr.dtype;
    return input;
  };
  switch (array.zarr.dtype) {
    case DType::kFloat64:
    case DType::kFloat32:
    case DType::kFloat16:
    case DType::kBFloat16:
      return number(StoredType::kFloat, FloatValue(DecodeNumber(array.zarr.dtype, array.data)));
    default:
      break;
  }
  if (IsSignedInteger(array.zarr.dtype) || IsUnsignedInteger(array.zarr.dtype)) {
    return number(StoredType::kInt, IntegerOf(array));
  }
  leaf.record.value_type = StoredType::kNumpyScalar;
  return leaf;
}

// An array that is read box by box, by numbers of StreamedArrays.
void SetStreamedArray(const ImportArray& array, format::Shape shard_shape, LeafInput* leaf) {
  leaf->record.chunk_shape = array.chunk_shape;
  leaf->shard_shape = shard_shape.empty() ? array.zarr.shape : std::move(shard_shape);
  for (const StreamedBox& each : array.streamed) {
    ShardInput& shard = leaf->shards.emplace_back();
    shard.origin = each.box.start;
    shard.shape = format::Extents(each.box);
    shard.far = each.number;
  }
}

// All of an array, which this share alone has.
void SetWholeArray(const ImportArray& array, ImportTree::ArrayLeaf* array_leaf, LeafInput* leaf) {
  if (!array.streamed.empty()) {
    return SetStreamedArray(array, std::move(array_leaf->shard_shape), leaf);
  }
  leaf->hold = array.hold;
  if (array.kept) {
    leaf->record.chunk_shape = array.zarr.chunk_shape;
    leaf->codec = *array.kept;
    leaf->payloads.assign(array.payloads.begin(), array.payloads.end());
    return;
  }
  leaf->data = array.data;
  leaf->strides_bytes = format::CStrides(array.zarr.shape, array.dtype->item_bytes);
  leaf->shard_shape = std::move(array_leaf->shard_shape);
  if (array_leaf->is_scalar) *leaf = ScalarInput(array, std::move(*leaf));
}

// Some boxes of an array, perhaps none. What is the same for all shares is the same here.
void SetBoxes(const DealtArray& dealt, std::span<const ImportArray> boxes,
              const ImportTree::ArrayLeaf& array_leaf, LeafInput* leaf) {
  leaf->partial = true;
  // In several shares, borders of boxes are borders of chunks, if they can be.
  const bool is_cut = dealt.first_share != dealt.last_share;
  leaf->shard_shape = is_cut ? dealt.box_shape : array_leaf.shard_shape;
  if (boxes.empty()) return;
  auto holds = std::make_shared<std::vector<std::shared_ptr<const void>>>();
  for (const ImportArray& box : boxes) {
    holds->push_back(box.hold);
    ShardInput& shard = leaf->shards.emplace_back();
    shard.origin = box.origin;
    shard.shape = box.zarr.shape;
    shard.data = box.data;
    leaf->payloads.insert(leaf->payloads.end(), box.payloads.begin(), box.payloads.end());
  }
  leaf->hold = std::move(holds);
  if (!boxes.front().kept) return;
  leaf->record.chunk_shape = boxes.front().zarr.chunk_shape;
  leaf->codec = *boxes.front().kept;
}

}  // namespace

void FinishTree(std::span<const DealtArray> arrays, std::span<const ImportArray> read,
                const ImportShare& share, ImportTree* tree) {
  std::vector<LeafInput> given;
  for (ImportTree::ArrayLeaf& array_leaf : tree->array_leaves) {
    const DealtArray& array = arrays[array_leaf.array];
    LeafInput& leaf = tree->item.leaves[array_leaf.leaf];
    const auto boxes = read.subspan(array.first_box, array.boxes.size());
    if (share.index > 0 && boxes.empty()) continue;
    if (array.last_share == 0) {
      SetWholeArray(boxes.front(), &array_leaf, &leaf);
    } else {
      SetBoxes(array, boxes, array_leaf, &leaf);
    }
    if (share.index > 0) given.push_back(std::move(leaf));
  }
  if (share.index > 0) tree->item.leaves = std::move(given);
}

}  // namespace stepwell::db::import
