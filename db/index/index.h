// SPDX-License-Identifier: Apache-2.0
// The index: RocksDB as the view across steps. Only this room includes rocksdb headers.
//
// The log alone says what is in a step. A row of the index repeats the texts of a step's commit
// frame, so that a question about all steps costs one scan instead of a frame each. A row counts
// only if it has the commit number and the frame CRC of the live step. RocksDB has no WAL here:
// after a crash the rows that were not flushed are missing, and readers read those frames. Every
// call may fail; then the log answers.
//
// All calls block. Apply, Flush and the destructor on one thread at a time; Scan on any.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "format/records.h"
#include "io/disk.h"
#include "io/result.h"

namespace rocksdb {
class ColumnFamilyHandle;
class DB;
class WriteBatch;
}  // namespace rocksdb

namespace stepwell::db {

// A row of the family `steps`.
struct IndexRow {
  uint64_t step = 0;
  uint64_t commit = 0;
  uint32_t frame_crc = 0;  // of its commit frame
  // Texts of more than kIndexTextBytesMax together are in the frame alone.
  bool has_texts = false;
  std::string_view metadata_json;
  std::string_view metrics_json;
};
inline constexpr size_t kIndexTextBytesMax = size_t{16} << 10;

// One change, applied atomically.
struct IndexBatch {
  std::vector<uint64_t> removed_steps;
  std::vector<IndexRow> rows;  // each in place of the step's row before
};

class ErrorKeeper;
class JobQueueEnv;

class Index {
 public:
  struct Options {
    io::FileSystem* file_system = nullptr;
    std::string path;  // the index directory
    format::Id128 store_id{};
    std::shared_ptr<io::Freeze> freeze;  // of the index alone
  };
  // For the store's writer; makes the directory when it is absent. Any failure means: Destroy(path)
  // and open again, or go on without an index. An index of another store (store_id) fails with
  // kDataLoss.
  static Result<std::unique_ptr<Index>> Open(const Options& options);
  // For other processes, beside a writer too: what was flushed, as of now. Writes nothing.
  static Result<std::unique_ptr<Index>> OpenToRead(const Options& options);
  // Removes the files of an index directory (only files RocksDB makes; the directory stays).
  static Status Destroy(io::FileSystem* file_system, const std::string& path);

  ~Index();
  Index(const Index&) = delete;
  Index& operator=(const Index&) = delete;
  // Calls `visit` with the rows from `first` on, ascending by step, as of one instant, until it
  // returns false. The row's texts live as long as the call.
  Status Scan(uint64_t first, const std::function<bool(const IndexRow&)>& visit);
  Status Apply(const IndexBatch& batch);
  // Rows and bytes applied since the last Flush.
  uint64_t unflushed_rows() const { return unflushed_rows_; }
  uint64_t unflushed_bytes() const { return unflushed_bytes_; }
  // Makes everything applied durable; kAborted when the index's disk is frozen.
  Status Flush();

 private:
  explicit Index(const Options& options);
  template <typename Call>
  Status Guard(const char* what, Call call) noexcept;
  Status CheckFrozen() const;
  Status CheckUsable() const;
  // The public functions call these, which let RocksDB's exceptions pass.
  Status OpenGuarded(bool to_read);
  Status CheckMeta(bool to_read);
  Status ScanGuarded(uint64_t first, const std::function<bool(const IndexRow&)>& visit);
  Status ApplyGuarded(const IndexBatch& batch);
  Status FlushGuarded();
  Status Write(rocksdb::WriteBatch* batch);
  void RunJobs();

  const std::string path_;
  const format::Id128 store_id_;
  const std::shared_ptr<io::Freeze> freeze_;
  const std::shared_ptr<ErrorKeeper> errors_;
  std::unique_ptr<JobQueueEnv> env_;  // outlives db_
  rocksdb::DB* db_ = nullptr;
  std::vector<rocksdb::ColumnFamilyHandle*> handles_;  // all families, of which:
  rocksdb::ColumnFamilyHandle* meta_ = nullptr;
  rocksdb::ColumnFamilyHandle* steps_ = nullptr;
  std::atomic<uint64_t> unflushed_rows_{0};
  std::atomic<uint64_t> unflushed_bytes_{0};
  std::atomic<bool> broken_{false};
};

}  // namespace stepwell::db
