// SPDX-License-Identifier: Apache-2.0
// From arrays to tasks: the values that make them up, memory for them, what is read at once.
#include <algorithm>
#include <thread>
#include <tuple>
#include <utility>

#include "db/import/decode.h"
#include "db/import/reading.h"
#include "format/grid.h"
#include "format/orbax/zarr_metadata.h"
#include "io/executor.h"

namespace stepwell::db::import {

using format::orbax::ZarrArray;
using format::orbax::ZarrCompressor;
namespace {

constexpr uint64_t kReadBytesMax = uint64_t{4} << 20, kReadGapBytesMax = uint64_t{64} << 10;
// From here on an array has memory of its own, and raw chunks are read straight to it.
constexpr uint64_t kLargeBytes = uint64_t{1} << 20;
constexpr uint64_t kSharedBytes = uint64_t{4} << 20, kValueAlignment = 64;
constexpr uint64_t kChunksMax = uint64_t{1} << 26;  // of an array
constexpr size_t kInlineValuesPerTask = 256;
constexpr size_t kThreadsMin = 4, kThreadsMax = 8;

// For messages: a chunk's number in the whole array.
uint64_t ChunkNumber(const ImportArray& array, uint64_t chunk_index) {
  const format::Shape grid = format::GridShape(array.whole_shape, array.zarr.chunk_shape);
  const format::Shape indices = ChunkIndices(array, chunk_index);
  uint64_t number = 0;
  for (size_t axis = 0; axis < grid.size(); ++axis) number = number * grid[axis] + indices[axis];
  return number;
}

}  // namespace

Status Reading::InContext(const Status& status, const WantedValue& value) const {
  const ImportArray& array = ArrayOf(value);
  return status.WithContext(StrCat(array.label, ", chunk ", ChunkNumber(array, value.chunk_index),
                                   ": ", array.index->Describe(value.place)));
}

Status Reading::CheckSizes() const {
  for (const ImportArray& array : arrays_) {
    if (array.size_bytes <= options_.memory_bytes_max) continue;
    return ResourceExhaustedError(StrCat(array.label, ": an array of ", array.size_bytes,
                                         " bytes; the limit is ", options_.memory_bytes_max,
                                         " bytes of memory"));
  }
  return OkStatus();
}

// Looks up the value that has chunk `chunk` of arrays_[number].
Result<WantedValue> Reading::FindValue(uint32_t number, uint64_t chunk, uint64_t stored_max) const {
  const ImportArray& array = arrays_[number];
  WantedValue value{number, false, chunk, {}};
  const std::string key = ChunkKey(array, chunk);
  const auto place = array.index->Find(key);
  if (!place.ok()) {
    return place.status().WithContext(StrCat(array.label, ", chunk ", ChunkNumber(array, chunk)));
  }
  if (*place) {
    value.place = **place;
  } else if (array.may_be_absent) {
    value.absent = true;
  } else {
    return DataLossError(StrCat(array.label, ", chunk ", ChunkNumber(array, chunk), ": ",
                                array.index->DescribeAbsent(key),
                                array.fill_problem.empty() ? "" : "; ", array.fill_problem));
  }
  if (value.place.length_bytes > stored_max) {
    return InContext(DataLossError(StrCat(value.place.length_bytes,
                                          " bytes; its chunk has at most ", stored_max)),
                     value);
  }
  return value;
}

// Of streamed arrays, too: what is missing is said before anything is saved.
Status Reading::FindValues() {
  uint64_t filled_bytes = 0;
  for (uint32_t i = 0; i < arrays_.size(); ++i) {
    ImportArray& array = arrays_[i];
    const size_t first_value = values_.size();
    const uint64_t count = format::ChunkCount(array.zarr.shape, array.zarr.chunk_shape);
    if (count > kChunksMax) {
      return UnimplementedError(StrCat(array.label, ": ", count, " chunks in one array"));
    }
    const uint64_t chunk_bytes =
        format::ChunkBytes(array.zarr.chunk_shape, array.dtype->item_bytes);
    const uint64_t inner = format::orbax::ZarrInnerCount(array.zarr);
    const uint64_t stored_max =
        format::orbax::ZarrEncodedBytesMax(array.zarr.codecs, chunk_bytes / inner) * inner +
        format::orbax::ZarrIndexBytes(array.zarr);
    for (uint64_t chunk = 0; chunk < count; ++chunk) {
      STEPWELL_ASSIGN_OR_RETURN(WantedValue value, FindValue(i, chunk, stored_max));
      if (array.streamed.empty()) {
        values_.push_back(std::move(value));
      } else if (value.absent) {
        filled_bytes += std::min(chunk_bytes, array.size_bytes);
      }
    }
    // What nothing on disk stands for may be endless, and all of it would be written.
    if (filled_bytes > options_.memory_bytes_max) {
      return ResourceExhaustedError(StrCat(array.label, ": more than ", options_.memory_bytes_max,
                                           " bytes of fill values; that is the limit"));
    }
    if (array.streamed.empty()) PlaceValues(&array, std::span(values_).subspan(first_value));
  }
  return OkStatus();
}

// Computes the memory that the values need. Kept values are recorded in `payloads`.
void Reading::PlaceValues(ImportArray* array, std::span<const WantedValue> values) {
  array->memory_bytes = array->size_bytes;
  if (!array->kept) return;
  array->payloads.resize(values.size());
  array->memory_bytes = 0;
  for (const WantedValue& value : values) {
    array->memory_bytes += AlignUp(value.place.length_bytes, kValueAlignment);
  }
}

// Arrays, and for each thread the largest value with its chunk.
Status Reading::CheckMemory() {
  uint64_t total_bytes = 0;
  uint64_t value_bytes_max = kReadBytesMax;
  for (const ImportArray& array : arrays_) {
    if (__builtin_add_overflow(total_bytes, array.memory_bytes, &total_bytes)) {
      total_bytes = UINT64_MAX;
      break;
    }
  }
  for (const WantedValue& value : values_) {
    const ImportArray& array = ArrayOf(value);
    const uint64_t chunk_bytes =
        format::ChunkBytes(array.zarr.chunk_shape, array.dtype->item_bytes);
    const bool plain = array.zarr.codecs.compressor == ZarrCompressor::kNone;
    value_bytes_max = std::max(
        value_bytes_max, plain ? value.place.length_bytes : value.place.length_bytes + chunk_bytes);
  }
  const uint64_t limit = options_.memory_bytes_max;
  if (total_bytes > limit || value_bytes_max > limit - total_bytes) {
    return ResourceExhaustedError(
        StrCat("its arrays have ", total_bytes, " bytes, and reading a chunk takes up to ",
               value_bytes_max, "; the limit is ", limit,
               " bytes. Import its items one at a time, or on a machine with more memory"));
  }
  const uint64_t room = (limit - total_bytes) / value_bytes_max;
  const size_t cores = std::max(1U, std::thread::hardware_concurrency());
  threads_ = options_.threads > 0 ? options_.threads : std::clamp(cores, kThreadsMin, kThreadsMax);
  threads_ = static_cast<size_t>(std::min<uint64_t>(threads_, room));
  return OkStatus();
}

// Small arrays share memory: each mapping costs at least a page.
Status Reading::Allocate() {
  std::shared_ptr<io::AlignedBuffer> shared;
  uint64_t used_bytes = 0;
  for (ImportArray& array : arrays_) {
    if (array.memory_bytes == 0) continue;
    const bool own = array.memory_bytes >= kLargeBytes;
    std::shared_ptr<io::AlignedBuffer> memory = own ? nullptr : shared;
    if (memory == nullptr || used_bytes + array.memory_bytes > memory->size()) {
      memory = std::make_shared<io::AlignedBuffer>(own ? array.memory_bytes : kSharedBytes);
      if (!*memory) {
        return ResourceExhaustedError(
            StrCat(array.label, ": no memory for ", array.memory_bytes, " bytes"));
      }
      if (!own) {
        shared = memory;
        used_bytes = 0;
      }
    }
    array.data = memory->data() + (own ? 0 : used_bytes);
    if (!own) used_bytes = AlignUp(used_bytes + array.memory_bytes, kValueAlignment);
    array.hold = std::move(memory);
  }
  PlaceKept();
  return OkStatus();
}

// The values are in the order of their arrays.
void Reading::PlaceKept() {
  uint64_t used_bytes = 0;
  for (size_t i = 0; i < values_.size(); ++i) {
    const WantedValue& value = values_[i];
    ImportArray& array = arrays_[value.array];
    if (i > 0 && values_[i - 1].array != value.array) used_bytes = 0;
    if (array.payloads.empty()) continue;
    array.payloads[value.chunk_index] = {array.data + used_bytes, value.place.length_bytes};
    used_bytes += AlignUp(value.place.length_bytes, kValueAlignment);
  }
}

// Gives a kept value a task of its own. Such values are few, so their reads need no merging.
bool Reading::PlanKept(const WantedValue& value) {
  if (ArrayOf(value).payloads.empty()) return false;
  Task& task = tasks_.emplace_back();
  task.file = value.place.file;
  task.index = ArrayOf(value).index;
  task.kept = &value;
  return true;
}

// A large chunk that is stored as it lies in memory. What stands around it in the value (CRC, a
// shard's index) is checked when it is there.
bool Reading::PlanPlain(const WantedValue& value) {
  const ImportArray& array = ArrayOf(value);
  const ZarrArray& zarr = array.zarr;
  if (value.absent || value.place.file == ValuePlace::kInline ||
      value.place.length_bytes < kLargeBytes || zarr.codecs.compressor != ZarrCompressor::kNone ||
      format::orbax::ZarrInnerCount(zarr) != 1) {
    return false;
  }
  const uint64_t chunk_bytes = format::ChunkBytes(zarr.chunk_shape, array.dtype->item_bytes);
  const uint64_t index_bytes = format::orbax::ZarrIndexBytes(zarr);
  const uint64_t crc_bytes = zarr.codecs.crc32c ? sizeof(uint32_t) : 0;
  uint64_t array_offset_bytes = 0;
  if (value.place.length_bytes != chunk_bytes + crc_bytes + index_bytes ||
      !format::ChunkIsContiguous(zarr.shape, zarr.chunk_shape, value.chunk_index,
                                 array.dtype->item_bytes, &array_offset_bytes)) {
    return false;
  }
  PlainValue& plain = plain_.emplace_back();
  plain.value = &value;
  plain.chunk = {array.data + array_offset_bytes, chunk_bytes};
  const bool at_start = zarr.sharding && zarr.sharding->index_at_start;
  plain.chunk_offset_bytes = value.place.offset_bytes + (at_start ? index_bytes : 0);
  const uint64_t end = plain.chunk_offset_bytes + chunk_bytes;
  for (uint64_t at = plain.chunk_offset_bytes; at < end; at += kReadBytesMax) {
    Task& task = tasks_.emplace_back();
    task.file = value.place.file;
    task.index = array.index;
    task.offset_bytes = at;
    task.length_bytes = std::min(kReadBytesMax, end - at);
    task.plain = &plain;
    plain.pieces_left.fetch_add(1);
  }
  return true;
}

void Reading::Plan() {
  std::sort(values_.begin(), values_.end(), [this](const WantedValue& a, const WantedValue& b) {
    const auto key = [this](const WantedValue& value) {
      return std::tuple(ArrayOf(value).index, value.place.file, value.place.offset_bytes,
                        value.place.length_bytes, value.array, value.chunk_index);
    };
    return key(a) < key(b);
  });
  for (size_t i = 0; i < values_.size(); ++i) {
    const WantedValue& value = values_[i];
    if (PlanKept(value) || PlanPlain(value)) continue;
    const ValuePlace& place = value.place;
    const uint64_t end = place.offset_bytes + place.length_bytes;
    if (!tasks_.empty() && tasks_.back().value_end == i && tasks_.back().file == place.file &&
        tasks_.back().index == ArrayOf(value).index) {
      Task& last = tasks_.back();
      const uint64_t last_end = last.offset_bytes + last.length_bytes;
      const bool is_inline = place.file == ValuePlace::kInline;
      const bool fits = is_inline
                            ? i - last.value_begin < kInlineValuesPerTask
                            : place.offset_bytes <= last_end + kReadGapBytesMax &&
                                  std::max(end, last_end) - last.offset_bytes <= kReadBytesMax;
      if (fits) {
        last.length_bytes = std::max(end, last_end) - last.offset_bytes;
        last.value_end = i + 1;
        continue;
      }
    }
    Task& task = tasks_.emplace_back();
    task.file = place.file;
    task.index = ArrayOf(value).index;
    task.offset_bytes = place.offset_bytes;
    task.length_bytes = place.length_bytes;
    task.value_begin = i;
    task.value_end = i + 1;
  }
}

Status Reading::ReadTo(const ValueIndex& index, uint32_t file, uint64_t offset_bytes,
                       MutableBytes out, Scratch* scratch) {
  const std::string& path = index.paths()[file];
  if (scratch->file == nullptr || scratch->path != path) {
    Result<std::unique_ptr<io::File>> opened = file_system_->Open(path, {});
    if (opened.status().code() == StatusCode::kNotFound) {
      return DataLossError("the file is missing");
    }
    if (!opened.ok()) return opened.status();
    scratch->file = *std::move(opened);
    scratch->path = path;
  }
  STEPWELL_ASSIGN_OR_RETURN(const size_t size, scratch->file->ReadAt(offset_bytes, out));
  if (size == out.size()) return OkStatus();
  return DataLossError(StrCat("the file ends at ", offset_bytes + size, ", ", out.size() - size,
                              " bytes too early"));
}

}  // namespace stepwell::db::import
