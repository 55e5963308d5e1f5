// SPDX-License-Identifier: Apache-2.0
// The memory that log_disk_server.cc and its LogDisk share: the log of a disk and its faults.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <cstring>

namespace stepwell::db {

enum class DiskOp : uint32_t { kRead, kWrite, kDiscard, kFlush, kMark };

// Something that reached the disk. Arrivals and completions are instants of one clock, which counts
// them from 1.
struct LogEntry {
  DiskOp op = DiskOp::kWrite;  // kRead is not logged; a mark is a line written to the file "marks"
  uint64_t offset = 0;         // on the disk
  uint64_t length = 0;         // 0 of one that failed and was not done: it is on no image
  uint64_t data = 0;           // where its bytes begin, behind the SharedLog
  uint64_t begin = 0;          // its arrival: from then on it may be on the disk, in part, too
  uint64_t end = 0;  // its completion: a flush that begins later makes it durable; 0: none
};

// Which operations fail with EIO.
struct Fault {
  uint32_t ops = 0;  // a bit for each DiskOp
  uint64_t offset_begin = 0;
  uint64_t offset_end = UINT64_MAX;  // of the disk; a flush has no place and is always meant
  uint64_t skip = 0;                 // so many of them are served before
  uint64_t times = UINT64_MAX;       // so many fail then
  bool done = false;                 // they are done, and fail nevertheless
};

constexpr uint32_t Bit(DiskOp op) { return 1U << static_cast<uint32_t>(op); }

struct SharedLog {
  static constexpr uint64_t kEntriesMax = 1 << 20;
  static constexpr uint64_t kDataMax = uint64_t{16} << 30;  // of memory that is there when used

  pthread_mutex_t mutex = {};  // of processes; guards all of this and the disk's bytes
  Fault fault;
  uint64_t failed = 0;       // operations, by the fault
  uint32_t delay_us = 0;     // an operation takes up to that long, so that more happens meanwhile
  bool flushes_lie = false;  // flushes succeed and make nothing durable
  uint64_t now = 0;
  uint64_t data_used = 0;
  uint64_t entries = 0;
  LogEntry log[kEntriesMax];
};

class SharedLogLock {
 public:
  explicit SharedLogLock(SharedLog* log) : log_(log) { pthread_mutex_lock(&log_->mutex); }
  ~SharedLogLock() { pthread_mutex_unlock(&log_->mutex); }
  SharedLogLock(const SharedLogLock&) = delete;
  SharedLogLock& operator=(const SharedLogLock&) = delete;

 private:
  SharedLog* const log_;
};

// Adds an entry that begins now; with the lock held. Null: the log is full.
inline LogEntry* Begin(SharedLog* log, DiskOp op, uint64_t offset, uint64_t length,
                       const char* bytes) {
  const uint64_t data_bytes = bytes == nullptr ? 0 : length;
  if (log->entries == SharedLog::kEntriesMax || data_bytes > SharedLog::kDataMax - log->data_used) {
    return nullptr;
  }
  if (data_bytes > 0) {
    std::memcpy(reinterpret_cast<char*>(log + 1) + log->data_used, bytes, data_bytes);
  }
  LogEntry* entry = &log->log[log->entries++];
  *entry = {op, offset, length, log->data_used, ++log->now, 0};
  log->data_used += data_bytes;
  return entry;
}

}  // namespace stepwell::db
