// SPDX-License-Identifier: Apache-2.0
#include "db/import/streamed.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "format/grid.h"

namespace stepwell::db::import {
namespace {

constexpr uint64_t kBoxBytes = uint64_t{16} << 20;
constexpr uint64_t kReadAheadBytes = uint64_t{128} << 20;

// The shape of most boxes.
format::Shape BoxShape(const ImportArray& array, const format::Shape& chunk_shape) {
  format::Shape box = array.zarr.shape;
  for (size_t axis = 0; axis < box.size(); ++axis) {
    if (format::ChunkBytes(box, array.dtype->item_bytes) <= kBoxBytes) break;
    uint64_t common = 0;
    const uint64_t gcd = std::gcd(array.zarr.chunk_shape[axis], chunk_shape[axis]);
    if (__builtin_mul_overflow(array.zarr.chunk_shape[axis] / gcd, chunk_shape[axis], &common) ||
        common >= box[axis]) {
      continue;
    }
    const uint64_t whole = std::exchange(box[axis], common);
    const uint64_t bytes = format::ChunkBytes(box, array.dtype->item_bytes);
    box[axis] *= std::clamp<uint64_t>(kBoxBytes / bytes, 1, whole / common);
  }
  return box;
}

}  // namespace

std::vector<format::Box> StreamedBoxes(const ImportArray& array, const format::Shape& chunk_shape) {
  const format::Shape& shape = array.zarr.shape;
  const format::Shape box_shape = BoxShape(array, chunk_shape);
  std::vector<format::Box> boxes;
  const uint64_t count = format::ChunkCount(shape, box_shape);
  for (uint64_t i = 0; i < count; ++i) {
    format::Box& box = boxes.emplace_back();
    box.start = format::ChunkOrigin(i, shape, box_shape);
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      box.stop.push_back(std::min(box.start[axis] + box_shape[axis], shape[axis]));
    }
  }
  return boxes;
}

StreamedArrays::StreamedArrays(io::FileSystem* file_system, ImportOptions options,
                               std::function<Status(const Status&)> check, uint64_t before_bytes,
                               uint64_t total_bytes)
    : file_system_(file_system),
      progress_(std::exchange(options.progress, {})),
      options_(std::move(options)),
      check_(std::move(check)),
      total_bytes_(total_bytes),
      done_bytes_(before_bytes) {}

void StreamedArrays::Add(const format::Shape& shard_shape, ImportArray* array) {
  array->kept.reset();
  array->chunk_shape =
      format::ChooseChunkShape(array->zarr.shape, array->dtype->item_bytes, shard_shape);
  std::vector<StreamedBox> streamed;
  for (format::Box& box : StreamedBoxes(*array, array->chunk_shape)) {
    boxes_.push_back(BoxOf(*array, box));
    streamed.push_back({static_cast<uint32_t>(boxes_.size() - 1), std::move(box)});
  }
  array->streamed = std::move(streamed);
}

Status StreamedArrays::Start(std::span<const uint32_t> boxes) {
  started_.insert(started_.end(), boxes.begin(), boxes.end());
  return OkStatus();
}

// Reads what was asked for first, several boxes at once: each stored value is decoded by one
// thread, and a box may be one value. The engine writes the boxes of before meanwhile.
Status StreamedArrays::ReadStarted() {
  std::vector<ImportArray> wanted;
  uint64_t bytes = 0;
  for (const uint32_t box : started_) {
    if (!wanted.empty() && bytes + boxes_[box].size_bytes > kReadAheadBytes) break;
    wanted.push_back(boxes_[box]);
    bytes += wanted.back().size_bytes;
  }
  if (options_.keep_waiting && !options_.keep_waiting()) {
    return CancelledError("the import was cancelled");
  }
  STEPWELL_RETURN_IF_ERROR(check_(ReadArrays(file_system_, options_, &wanted)));
  for (size_t i = 0; i < wanted.size(); ++i) {
    ImportArray& box = boxes_[started_[i]];
    box.data = wanted[i].data;
    box.hold = std::move(wanted[i].hold);
  }
  started_.erase(started_.begin(), started_.begin() + static_cast<ptrdiff_t>(wanted.size()));
  done_bytes_ += bytes;
  if (progress_) progress_(done_bytes_, total_bytes_);
  return OkStatus();
}

Status StreamedArrays::Wait(std::span<const uint32_t> boxes, std::vector<Copy>* copies) {
  copies->resize(boxes.size());  // an error names its array itself
  for (size_t i = 0; i < boxes.size(); ++i) {
    const ImportArray& box = boxes_[boxes[i]];
    while (box.hold == nullptr && !started_.empty()) STEPWELL_RETURN_IF_ERROR(ReadStarted());
    copies->at(i) = {box.data, format::CStrides(box.zarr.shape, box.dtype->item_bytes)};
  }
  return OkStatus();
}

Status StreamedArrays::Release(std::span<const uint32_t> boxes) {
  for (const uint32_t box : boxes) {
    boxes_[box].hold.reset();
    boxes_[box].data = nullptr;
    std::erase(started_, box);
  }
  return OkStatus();
}

}  // namespace stepwell::db::import
