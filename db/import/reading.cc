// SPDX-License-Identifier: Apache-2.0
#include "db/import/reading.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "db/import/decode.h"
#include "format/grid.h"
#include "format/orbax/zarr_metadata.h"
#include "io/executor.h"
#include "io/guard.h"

namespace stepwell::db::import {
namespace {

constexpr std::chrono::milliseconds kAskInterval{100};

}  // namespace

Status Reading::DecodeAt(const WantedValue& value, ConstBytes bytes, Scratch* scratch) {
  STEPWELL_RETURN_IF_ERROR(InContext(CheckDigest(value, bytes), value));
  return InContext(DecodeValue(ArrayOf(value), value.chunk_index, bytes, &scratch->chunk), value);
}

// Checks that a value of an export is the very chunk that was exported.
Status Reading::CheckDigest(const WantedValue& value, ConstBytes bytes) const {
  const ImportArray& array = ArrayOf(value);
  const auto* const digest = array.index->DigestOf(value.place);
  return digest == nullptr ? OkStatus() : CheckChunk(*digest, array.zarr.codecs.crc32c, bytes);
}

Status Reading::RunTask(const Task& task, Scratch* scratch) {
  if (task.plain != nullptr) return RunPiece(task, scratch);
  if (task.kept != nullptr) return RunKept(task, scratch);
  if (task.file == ValuePlace::kInline) {
    for (size_t i = task.value_begin; i < task.value_end; ++i) {
      const WantedValue& value = values_[i];
      const Status status = value.absent
                                ? FillValue(ArrayOf(value), value.chunk_index, &scratch->chunk)
                                : DecodeValue(ArrayOf(value), value.chunk_index,
                                              AsBytes(value.place.inline_value), &scratch->chunk);
      if (!status.ok()) return InContext(status, value);
    }
    return OkStatus();
  }
  const WantedValue& first = values_[task.value_begin];
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
  const WantedValue& value = *task.kept;
  const MutableBytes payload = ArrayOf(value).payloads[value.chunk_index];
  Status status = ReadTo(*task.index, task.file, value.place.offset_bytes, payload, scratch);
  if (status.ok()) status = CheckDigest(value, payload);
  if (status.ok()) status = CheckPayload(ArrayOf(value), payload, &scratch->chunk);
  return InContext(status, value);
}

Status Reading::FinishPlain(const PlainValue& plain, const ValueIndex& index, Scratch* scratch) {
  const WantedValue& value = *plain.value;
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
    done_bytes_ += tasks_[number].length_bytes;
    if (status.ok()) continue;
    stop_ = true;
    const io::MutexLock lock(&mutex_);
    if (number < failed_task_) {
      failed_task_ = number;
      error_ = std::move(status);
    }
  }
  const io::MutexLock lock(&mutex_);
  --working_;
  finished_.NotifyAll();
}

Status Reading::Execute() {
  if (tasks_.empty()) return OkStatus();
  const size_t threads = std::min(threads_, tasks_.size());
  STEPWELL_ASSIGN_OR_RETURN(const auto executor, io::MakeThreadPool(threads));
  {
    const io::MutexLock lock(&mutex_);
    working_ = threads;
  }
  for (size_t i = 0; i < threads; ++i) {
    executor->Run([this] { Work(); });
  }
  uint64_t total_bytes = 0;
  for (const Task& task : tasks_) total_bytes += task.length_bytes;
  bool cancelled = false;
  const io::MutexLock lock(&mutex_);
  for (;;) {
    const auto ask_at = std::chrono::steady_clock::now() + kAskInterval;
    while (working_ > 0 && finished_.WaitUntil(&mutex_, ask_at)) {
    }
    if (working_ == 0) break;
    const io::MutexUnlock unlocked(&mutex_);
    if (options_.progress) options_.progress(done_bytes_, total_bytes);
    if (!cancelled && options_.keep_waiting) cancelled = !options_.keep_waiting();
    if (cancelled) stop_ = true;
  }
  if (!error_.ok()) return error_;
  return cancelled ? CancelledError("the import was cancelled") : OkStatus();
}

// Refuses bytes other than 0 and 1, as TensorStore does.
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

Status ReadArrays(io::FileSystem* file_system, const ImportOptions& options,
                  std::vector<ImportArray>* arrays) {
  return Reading(file_system, options, arrays).Run();
}

}  // namespace stepwell::db::import
