// SPDX-License-Identifier: Apache-2.0
#include "db/import/arrays.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "db/import/decode.h"
#include "db/import/payloads.h"
#include "format/grid.h"
#include "format/orbax/param_name.h"
#include "format/orbax/zarr_chunk.h"
#include "io/executor.h"
#include "io/guard.h"

namespace stepwell::db::import {
namespace {

using format::orbax::ZarrArray;
using format::orbax::ZarrCompressor;

constexpr uint64_t kReadBytesMax = uint64_t{4} << 20, kReadGapBytesMax = uint64_t{64} << 10;
// From here on an array has memory of its own, and raw chunks are read straight to it.
constexpr uint64_t kLargeBytes = uint64_t{1} << 20;
constexpr uint64_t kSlabBytes = uint64_t{4} << 20, kSlabAlignment = 64;
constexpr uint64_t kChunksMax = uint64_t{1} << 26;  // of an array
constexpr size_t kInlineValuesPerTask = 256;
constexpr size_t kThreadsMin = 4, kThreadsMax = 8;
constexpr std::chrono::milliseconds kAskInterval{100};

// A stored value that is wanted.
struct Value {
  uint32_t array = 0;
  bool absent = false;
  uint64_t chunk_index = 0;
  ValuePlace place;
};

// A value whose one chunk, not compressed, is read in pieces straight to the array's memory.
struct PlainValue {
  const Value* value = nullptr;
  MutableBytes chunk;
  uint64_t chunk_offset_bytes = 0;  // in the file
  std::atomic<uint32_t> pieces_left{0};
};

struct Task {
  uint32_t file = ValuePlace::kInline;
  const ValueIndex* index = nullptr;
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
  // Values that lie in the range; or a piece of `plain`; or one that is kept as it is.
  size_t value_begin = 0;
  size_t value_end = 0;
  PlainValue* plain = nullptr;
  const Value* kept = nullptr;
};

// What a thread has for its tasks.
struct Scratch {
  io::AlignedBuffer read;
  io::AlignedBuffer chunk;
  std::string path;
  std::unique_ptr<io::File> file;
};

// In the grid of the whole array.
format::Shape ChunkIndices(const ImportArray& array, uint64_t chunk_index) {
  format::Shape indices =
      format::ChunkOrigin(chunk_index, array.zarr.shape, array.zarr.chunk_shape);
  for (size_t axis = 0; axis < indices.size(); ++axis) {
    indices[axis] = (array.origin[axis] + indices[axis]) / array.zarr.chunk_shape[axis];
  }
  return indices;
}

// For messages: a chunk's number in the whole array.
uint64_t ChunkNumber(const ImportArray& array, uint64_t chunk_index) {
  const format::Shape grid = format::GridShape(array.whole_shape, array.zarr.chunk_shape);
  const format::Shape indices = ChunkIndices(array, chunk_index);
  uint64_t number = 0;
  for (size_t axis = 0; axis < grid.size(); ++axis) number = number * grid[axis] + indices[axis];
  return number;
}

class Reading {
 public:
  Reading(io::FileSystem* file_system, const ReadOptions& options, std::vector<ImportArray>* arrays)
      : file_system_(file_system), options_(options), arrays_(*arrays) {}

  Status Run() {
    STEPWELL_RETURN_IF_ERROR(CheckSizes());
    STEPWELL_RETURN_IF_ERROR(FindValues());
    STEPWELL_RETURN_IF_ERROR(CheckMemory());
    STEPWELL_RETURN_IF_ERROR(Allocate());
    Plan();
    STEPWELL_RETURN_IF_ERROR(Execute());
    return CheckBools();
  }

 private:
  Status CheckSizes() const;
  Status FindValues();
  void PlaceValues(ImportArray* array, std::span<const Value> values);
  Status CheckMemory();
  Status Allocate();
  void PlaceKept();
  void Plan();
  bool PlanKept(const Value& value);
  bool PlanPlain(const Value& value);
  Status Execute();
  void Work();
  Status RunTask(const Task& task, Scratch* scratch);
  Status RunPiece(const Task& task, Scratch* scratch);
  Status RunKept(const Task& task, Scratch* scratch);
  Status FinishPlain(const PlainValue& plain, const ValueIndex& index, Scratch* scratch);
  Status ReadTo(const ValueIndex& index, uint32_t file, uint64_t offset_bytes, MutableBytes out,
                Scratch* scratch);
  Status DecodeAt(const Value& value, ConstBytes bytes, Scratch* scratch);
  Status CheckDigest(const Value& value, ConstBytes bytes) const;
  Status InContext(const Status& status, const Value& value) const;
  Status CheckBools();
  const ImportArray& ArrayOf(const Value& value) const { return arrays_[value.array]; }

  io::FileSystem* const file_system_;
  const ReadOptions& options_;
  std::vector<ImportArray>& arrays_;
  std::vector<Value> values_;
  std::deque<PlainValue> plain_;
  std::vector<Task> tasks_;
  size_t threads_ = 1;

  std::atomic<size_t> next_task_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable finished_;
  size_t working_ = 0;  // guarded by mutex_, as all below
  size_t failed_task_ = SIZE_MAX;
  Status error_;
};

Status Reading::InContext(const Status& status, const Value& value) const {
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

Status Reading::FindValues() {
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
      Value value{i, false, chunk, {}};
      const std::string key = ChunkKey(array, chunk);
      STEPWELL_ASSIGN_OR_RETURN(const auto place, array.index->Find(key));
      if (place) {
        value.place = *place;
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
      values_.push_back(value);
    }
    PlaceValues(&array, std::span(values_).subspan(first_value));
  }
  return OkStatus();
}

// What memory they need; of those that are kept, `payloads` has their number.
void Reading::PlaceValues(ImportArray* array, std::span<const Value> values) {
  array->memory_bytes = array->size_bytes;
  if (!array->kept) return;
  array->payloads.resize(values.size());
  array->memory_bytes = 0;
  for (const Value& value : values) {
    array->memory_bytes += AlignUp(value.place.length_bytes, kSlabAlignment);
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
  for (const Value& value : values_) {
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
  std::shared_ptr<io::AlignedBuffer> slab;
  uint64_t used_bytes = 0;
  for (ImportArray& array : arrays_) {
    if (array.memory_bytes == 0) continue;
    const bool own = array.memory_bytes >= kLargeBytes;
    std::shared_ptr<io::AlignedBuffer> memory = own ? nullptr : slab;
    if (memory == nullptr || used_bytes + array.memory_bytes > memory->size()) {
      memory = std::make_shared<io::AlignedBuffer>(own ? array.memory_bytes : kSlabBytes);
      if (!*memory) {
        return ResourceExhaustedError(
            StrCat(array.label, ": no memory for ", array.memory_bytes, " bytes"));
      }
      if (!own) {
        slab = memory;
        used_bytes = 0;
      }
    }
    array.data = memory->data() + (own ? 0 : used_bytes);
    if (!own) used_bytes = AlignUp(used_bytes + array.memory_bytes, kSlabAlignment);
    array.hold = std::move(memory);
  }
  PlaceKept();
  return OkStatus();
}

// The values are in the order of their arrays.
void Reading::PlaceKept() {
  uint64_t used_bytes = 0;
  for (size_t i = 0; i < values_.size(); ++i) {
    const Value& value = values_[i];
    ImportArray& array = arrays_[value.array];
    if (i > 0 && values_[i - 1].array != value.array) used_bytes = 0;
    if (array.payloads.empty()) continue;
    array.payloads[value.chunk_index] = {array.data + used_bytes, value.place.length_bytes};
    used_bytes += AlignUp(value.place.length_bytes, kSlabAlignment);
  }
}

// Of their own size, and few: no need to merge reads.
bool Reading::PlanKept(const Value& value) {
  if (ArrayOf(value).payloads.empty()) return false;
  Task& task = tasks_.emplace_back();
  task.file = value.place.file;
  task.index = ArrayOf(value).index;
  task.kept = &value;
  return true;
}

// A large chunk that is stored as it lies in memory. What stands around it in the value (CRC, a
// shard's index) is checked when it is there.
bool Reading::PlanPlain(const Value& value) {
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
  std::sort(values_.begin(), values_.end(), [this](const Value& a, const Value& b) {
    const auto key = [this](const Value& value) {
      return std::tuple(ArrayOf(value).index, value.place.file, value.place.offset_bytes,
                        value.place.length_bytes, value.array, value.chunk_index);
    };
    return key(a) < key(b);
  });
  for (size_t i = 0; i < values_.size(); ++i) {
    const Value& value = values_[i];
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

Status Reading::DecodeAt(const Value& value, ConstBytes bytes, Scratch* scratch) {
  STEPWELL_RETURN_IF_ERROR(InContext(CheckDigest(value, bytes), value));
  return InContext(DecodeValue(ArrayOf(value), value.chunk_index, bytes, &scratch->chunk), value);
}

// Of a value of an export: that it is the very chunk that was exported.
Status Reading::CheckDigest(const Value& value, ConstBytes bytes) const {
  const ImportArray& array = ArrayOf(value);
  const auto* const digest = array.index->DigestOf(value.place);
  return digest == nullptr ? OkStatus() : CheckChunk(*digest, array.zarr.codecs.crc32c, bytes);
}

Status Reading::RunTask(const Task& task, Scratch* scratch) {
  if (task.plain != nullptr) return RunPiece(task, scratch);
  if (task.kept != nullptr) return RunKept(task, scratch);
  if (task.file == ValuePlace::kInline) {
    for (size_t i = task.value_begin; i < task.value_end; ++i) {
      const Value& value = values_[i];
      const Status status = value.absent
                                ? FillValue(ArrayOf(value), value.chunk_index, &scratch->chunk)
                                : DecodeValue(ArrayOf(value), value.chunk_index,
                                              AsBytes(value.place.inline_value), &scratch->chunk);
      if (!status.ok()) return InContext(status, value);
    }
    return OkStatus();
  }
  const Value& first = values_[task.value_begin];
  STEPWELL_RETURN_IF_ERROR(EnsureRoom(task.length_bytes, &scratch->read));
  const MutableBytes bytes = scratch->read.bytes().first(task.length_bytes);
  const Status read = ReadTo(*task.index, task.file, task.offset_bytes, bytes, scratch);
  if (!read.ok()) {
    // Which of the values it is: those before it are read without it.
    if (task.value_end - task.value_begin == 1) return InContext(read, first);
    for (size_t i = task.value_begin; i < task.value_end; ++i) {
      Task alone = task;
      alone.offset_bytes = values_[i].place.offset_bytes;
      alone.length_bytes = values_[i].place.length_bytes;
      alone.value_begin = i;
      alone.value_end = i + 1;
      STEPWELL_RETURN_IF_ERROR(RunTask(alone, scratch));
    }
    return OkStatus();
  }
  for (size_t i = task.value_begin; i < task.value_end; ++i) {
    const ValuePlace& place = values_[i].place;
    STEPWELL_RETURN_IF_ERROR(DecodeAt(
        values_[i],
        ConstBytes(bytes).subspan(place.offset_bytes - task.offset_bytes, place.length_bytes),
        scratch));
  }
  return OkStatus();
}

Status Reading::RunPiece(const Task& task, Scratch* scratch) {
  PlainValue& plain = *task.plain;
  const MutableBytes out =
      plain.chunk.subspan(task.offset_bytes - plain.chunk_offset_bytes, task.length_bytes);
  STEPWELL_RETURN_IF_ERROR(
      InContext(ReadTo(*task.index, task.file, task.offset_bytes, out, scratch), *plain.value));
  if (plain.pieces_left.fetch_sub(1) != 1) return OkStatus();
  return InContext(FinishPlain(plain, *task.index, scratch), *plain.value);
}

Status Reading::RunKept(const Task& task, Scratch* scratch) {
  const Value& value = *task.kept;
  const MutableBytes payload = ArrayOf(value).payloads[value.chunk_index];
  Status status = ReadTo(*task.index, task.file, value.place.offset_bytes, payload, scratch);
  if (status.ok()) status = CheckDigest(value, payload);
  if (status.ok()) status = CheckPayload(ArrayOf(value), payload, &scratch->chunk);
  return InContext(status, value);
}

Status Reading::FinishPlain(const PlainValue& plain, const ValueIndex& index, Scratch* scratch) {
  const Value& value = *plain.value;
  const ValuePlace& place = value.place;
  const uint64_t before_bytes = plain.chunk_offset_bytes - place.offset_bytes;
  const uint64_t after_bytes = place.length_bytes - before_bytes - plain.chunk.size();
  std::string rest(before_bytes + after_bytes, '\0');
  const MutableBytes bytes{reinterpret_cast<std::byte*>(rest.data()), rest.size()};
  STEPWELL_RETURN_IF_ERROR(
      ReadTo(index, place.file, place.offset_bytes, bytes.first(before_bytes), scratch));
  STEPWELL_RETURN_IF_ERROR(ReadTo(index, place.file, plain.chunk_offset_bytes + plain.chunk.size(),
                                  bytes.subspan(before_bytes), scratch));
  const ImportArray& array = ArrayOf(value);
  const size_t crc_bytes = array.zarr.codecs.crc32c ? sizeof(uint32_t) : 0;
  const ConstBytes crc = bytes.subspan(before_bytes, crc_bytes);
  const ConstBytes shard_index =
      before_bytes > 0 ? bytes.first(before_bytes) : bytes.subspan(crc_bytes);
  STEPWELL_RETURN_IF_ERROR(CheckDigest(value, crc.empty() ? ConstBytes(plain.chunk) : crc));
  const Status status = CheckPlainValue(array, plain.chunk, crc, shard_index);
  if (status.code() != StatusCode::kFailedPrecondition) return status;
  STEPWELL_RETURN_IF_ERROR(EnsureRoom(place.length_bytes, &scratch->read));
  const MutableBytes whole = scratch->read.bytes().first(place.length_bytes);
  STEPWELL_RETURN_IF_ERROR(ReadTo(index, place.file, place.offset_bytes, whole, scratch));
  return DecodeValue(array, value.chunk_index, whole, &scratch->chunk);
}

void Reading::Work() {
  Scratch scratch;
  while (!stop_.load()) {
    const size_t number = next_task_.fetch_add(1);
    if (number >= tasks_.size()) break;
    Status status =
        io::Guarded("import an array", [&] { return RunTask(tasks_[number], &scratch); });
    if (status.ok()) continue;
    stop_ = true;
    const std::lock_guard lock(mutex_);
    if (number < failed_task_) {
      failed_task_ = number;
      error_ = std::move(status);
    }
  }
  const std::lock_guard lock(mutex_);
  --working_;
  finished_.notify_all();
}

Status Reading::Execute() {
  if (tasks_.empty()) return OkStatus();
  const size_t threads = std::min(threads_, tasks_.size());
  STEPWELL_ASSIGN_OR_RETURN(const auto executor, io::MakeThreadPool(threads));
  working_ = threads;
  for (size_t i = 0; i < threads; ++i) {
    executor->Run([this] { Work(); });
  }
  bool cancelled = false;
  std::unique_lock lock(mutex_);
  while (!finished_.wait_for(lock, kAskInterval, [this] { return working_ == 0; })) {
    if (cancelled || !options_.keep_waiting) continue;
    lock.unlock();
    cancelled = !options_.keep_waiting();
    if (cancelled) stop_ = true;
    lock.lock();
  }
  if (!error_.ok()) return error_;
  return cancelled ? CancelledError("the import was cancelled") : OkStatus();
}

// As TensorStore, which refuses other bytes than 0 and 1.
Status Reading::CheckBools() {
  for (const ImportArray& array : arrays_) {
    if (array.dtype->dtype != format::DType::kBool || array.data == nullptr) continue;
    const ConstBytes bytes{array.data, array.size_bytes};
    const bool right = std::all_of(bytes.begin(), bytes.end(),
                                   [](std::byte byte) { return byte <= std::byte{1}; });
    if (!right) {
      return DataLossError(StrCat(array.label, ": a bool that is neither 0 nor 1"));
    }
  }
  return OkStatus();
}

}  // namespace

std::string ChunkKey(const ImportArray& array, uint64_t chunk_index) {
  return format::orbax::StoreKey(
      array.param_name, format::orbax::ZarrChunkKey(array.zarr, ChunkIndices(array, chunk_index)));
}

ImportArray BoxOf(const ImportArray& array, const format::Box& box) {
  ImportArray part = array;
  part.origin = box.start;
  for (size_t axis = 0; axis < box.start.size(); ++axis) {
    part.zarr.shape[axis] = box.stop[axis] - box.start[axis];
  }
  part.size_bytes = format::ChunkBytes(part.zarr.shape, part.dtype->item_bytes);
  return part;
}

Status DescribeArray(int zarr_format, uint64_t memory_bytes_max, ImportArray* array) {
  const std::string key =
      format::orbax::StoreKey(array->param_name, format::orbax::ZarrMetadataName(zarr_format));
  STEPWELL_ASSIGN_OR_RETURN(const auto place, array->index->Find(key));
  if (!place) return DataLossError(StrCat(array->label, ": ", array->index->DescribeAbsent(key)));
  Result<std::string> text = array->index->Read(*place);
  if (!text.ok()) return text.status().WithContext(array->label);
  const std::string file = StrCat(array->label, ": ", key);
  STEPWELL_ASSIGN_OR_RETURN(array->zarr, zarr_format == 2
                                             ? format::orbax::DecodeZarray(file, *text)
                                             : format::orbax::DecodeZarrJson(file, *text));
  array->dtype = format::FindDType(array->zarr.dtype);
  if (array->dtype == nullptr) return DataLossError(StrCat(file, ": no type of elements"));
  const uint64_t item_bytes = array->dtype->item_bytes;
  STEPWELL_ASSIGN_OR_RETURN(const uint64_t elements,
                            format::ElementCount(array->zarr.shape, item_bytes));
  array->size_bytes = elements * item_bytes;
  array->whole_shape = array->zarr.shape;
  array->origin.assign(array->whole_shape.size(), 0);
  const uint64_t chunk_bytes = format::ChunkBytes(array->zarr.chunk_shape, item_bytes);
  // Index entries are 16 bytes, as stored and as decoded.
  const uint64_t index_limit = array->zarr.sharding ? memory_bytes_max / 32 : UINT64_MAX;
  if (chunk_bytes > memory_bytes_max || format::orbax::ZarrInnerCount(array->zarr) > index_limit) {
    return ResourceExhaustedError(StrCat(
        file, ": chunks of ", chunk_bytes, " bytes in ", format::orbax::ZarrInnerCount(array->zarr),
        " parts; the limit is ", memory_bytes_max, " bytes of memory"));
  }
  STEPWELL_ASSIGN_OR_RETURN(array->kept, PayloadCodec(*array));
  if (!array->may_be_absent) return OkStatus();
  Result<std::string> fill = format::orbax::ZarrFillElement(file, array->zarr);
  array->may_be_absent = fill.ok();  // a value that is not read here matters only where it is used
  if (fill.ok()) {
    array->fill = *std::move(fill);
  } else {
    array->fill_problem = fill.status().message();
  }
  return OkStatus();
}

Status ReadArrays(io::FileSystem* file_system, const ReadOptions& options,
                  std::vector<ImportArray>* arrays) {
  return Reading(file_system, options, arrays).Run();
}

}  // namespace stepwell::db::import
