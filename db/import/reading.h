// SPDX-License-Identifier: Apache-2.0
// ReadArrays at work: which values are wanted, tasks in the order of the files, threads that run
// them. Private to import/.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "db/import/arrays.h"
#include "io/buffer.h"
#include "io/mutex.h"

namespace stepwell::db::import {

// A stored value that is wanted.
struct WantedValue {
  uint32_t array = 0;
  bool absent = false;
  uint64_t chunk_index = 0;
  ValuePlace place;
};

// A value whose one chunk, not compressed, is read in pieces straight to the array's memory.
struct PlainValue {
  const WantedValue* value = nullptr;
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
  const WantedValue* kept = nullptr;
};

// The memory that a thread uses for its tasks.
struct Scratch {
  io::AlignedBuffer read;
  io::AlignedBuffer chunk;
  std::string path;
  std::unique_ptr<io::File> file;
};
class Reading {
 public:
  Reading(io::FileSystem* file_system, const ImportOptions& options,
          std::vector<ImportArray>* arrays)
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
  Result<WantedValue> FindValue(uint32_t number, uint64_t chunk, uint64_t stored_max) const;
  Status FindValues();
  void PlaceValues(ImportArray* array, std::span<const WantedValue> values);
  Status CheckMemory();
  Status Allocate();
  void PlaceKept();
  void Plan();
  bool PlanKept(const WantedValue& value);
  bool PlanPlain(const WantedValue& value);
  Status Execute();
  void Work() STEPWELL_EXCLUDES(mutex_);
  Status RunTask(const Task& task, Scratch* scratch);
  Status RunPiece(const Task& task, Scratch* scratch);
  Status RunKept(const Task& task, Scratch* scratch);
  Status FinishPlain(const PlainValue& plain, const ValueIndex& index, Scratch* scratch);
  Status ReadTo(const ValueIndex& index, uint32_t file, uint64_t offset_bytes, MutableBytes out,
                Scratch* scratch);
  Status DecodeAt(const WantedValue& value, ConstBytes bytes, Scratch* scratch);
  Status CheckDigest(const WantedValue& value, ConstBytes bytes) const;
  Status InContext(const Status& status, const WantedValue& value) const;
  Status CheckBools();
  const ImportArray& ArrayOf(const WantedValue& value) const { return arrays_[value.array]; }

  io::FileSystem* const file_system_;
  const ImportOptions& options_;
  std::vector<ImportArray>& arrays_;
  std::vector<WantedValue> values_;
  std::deque<PlainValue> plain_;
  std::vector<Task> tasks_;
  size_t threads_ = 1;

  std::atomic<size_t> next_task_{0};
  std::atomic<uint64_t> done_bytes_{0};
  std::atomic<bool> stop_{false};
  io::Mutex mutex_;
  io::CondVar finished_;
  size_t working_ STEPWELL_GUARDED_BY(mutex_) = 0;
  size_t failed_task_ STEPWELL_GUARDED_BY(mutex_) = SIZE_MAX;
  Status error_ STEPWELL_GUARDED_BY(mutex_);
};

}  // namespace stepwell::db::import
