// SPDX-License-Identifier: Apache-2.0
// The index: RocksDB as the LSM tree over the log. Only this room includes rocksdb headers.
//
// It is a cache of the log and never the only witness: no WAL, atomic flush, and every call may
// fail, upon which the engine serves from the log and rebuilds. Column families `steps`, `leaves`,
// `chunks` (keys of format/key.h, values of format/records.h); the default family has the meta row.
// All calls block; Apply, Flush and the destructor on one thread at a time (the index worker),
// reads on any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "db/log/recovery.h"
#include "format/records.h"
#include "io/disk.h"
#include "io/result.h"

namespace rocksdb {
class ColumnFamilyHandle;
class DB;
class WriteBatch;
}  // namespace rocksdb

namespace stepwell::db {

struct IndexedStep {
  uint64_t step = 0;
  uint64_t commit = 0;
  uint32_t frame_crc = 0;  // of its commit frame
  bool pinned = false;
  bool of_group = false;  // saved by several processes
};

// One change, applied atomically together with "applied through `through_commit`".
struct IndexBatch {
  struct Add {
    const format::StepRecord* step = nullptr;
    uint32_t frame_crc = 0;
    const std::vector<format::LeafRecord>* leaves = nullptr;  // chunks included
  };
  std::vector<uint64_t> removed_steps;  // removed before the additions
  std::vector<Add> added;
  std::vector<StepPin> pins;  // of steps that the batch neither adds nor removes
  uint64_t through_commit = 0;
  uint32_t through_crc = 0;  // of its frame, and so of all before it; 0: not known
  // With this batch the index has every step that is live at `through_commit`, so that the absence
  // of one says something.
  bool complete = false;
};

class ErrorKeeper;
class JobQueueEnv;

class Index {
 public:
  struct Options {
    io::FileSystem* file_system = nullptr;
    std::string path;  // the index directory; made when absent
    format::Id128 store_id{};
    std::shared_ptr<io::Freeze> freeze;  // of the index alone
  };
  // Any failure means: Destroy(path) and open again, or go on without an index. An index of another
  // store (store_id) fails with kDataLoss.
  static Result<std::unique_ptr<Index>> Open(const Options& options);
  // Removes the files of an index directory (only files RocksDB makes; the directory stays).
  static Status Destroy(io::FileSystem* file_system, const std::string& path);

  ~Index();
  Index(const Index&) = delete;
  Index& operator=(const Index&) = delete;
  // "Applied through": 0 for a new index.
  uint64_t applied_commit() const { return applied_commit_; }
  uint32_t applied_crc() const { return applied_crc_; }
  // IndexBatch::complete of the last batch.
  bool complete() const { return complete_; }
  Result<std::vector<IndexedStep>> Steps();
  Status Apply(const IndexBatch& batch);
  // Bytes applied since the last Flush: the engine flushes at 16 MiB.
  uint64_t unflushed_bytes() const { return unflushed_bytes_; }
  // Makes everything applied durable; kAborted when the index's disk is frozen.
  Status Flush();
  // Leaf records with chunks whose keys are in `range`, sorted by key, from one snapshot; none when
  // the step is not there with exactly this commit number and frame CRC.
  Result<std::optional<std::vector<format::LeafRecord>>> Read(uint64_t step, uint64_t commit,
                                                              uint32_t frame_crc,
                                                              const format::KeyRange& range);
  // The step's record with its texts; none as for Read.
  Result<std::optional<format::StepRecord>> ReadStep(uint64_t step, uint64_t commit,
                                                     uint32_t frame_crc);

 private:
  explicit Index(const Options& options);
  template <typename Call>
  Status Guard(const char* what, Call call) noexcept;
  template <typename T, typename Call>
  Result<T> GuardRead(Call call);
  Status CheckFrozen() const;
  Status CheckUsable() const;
  // What the public ones do, within RocksDB: exceptions pass through.
  Status OpenGuarded();
  Status ApplyGuarded(const IndexBatch& batch);
  Status FlushGuarded();
  Result<std::vector<IndexedStep>> ReadSteps();
  Result<std::optional<std::vector<format::LeafRecord>>> ReadLeaves(uint64_t step, uint64_t commit,
                                                                    uint32_t frame_crc,
                                                                    const format::KeyRange& range);
  Result<std::optional<format::StepRecord>> ReadStepRow(uint64_t step, uint64_t commit,
                                                        uint32_t frame_crc);
  // Adds the removal of a step to `batch`.
  Status RemoveStep(uint64_t step, rocksdb::WriteBatch* batch);
  // Adds what is pinned or not from now on; of the steps that the batch adds that is known already.
  Status AddPins(const IndexBatch& changes, rocksdb::WriteBatch* batch);
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
  rocksdb::ColumnFamilyHandle* leaves_ = nullptr;
  rocksdb::ColumnFamilyHandle* chunks_ = nullptr;
  std::atomic<uint64_t> applied_commit_{0};
  std::atomic<uint32_t> applied_crc_{0};
  std::atomic<bool> complete_{false};
  std::atomic<uint64_t> unflushed_bytes_{0};
  std::atomic<bool> broken_{false};
};

// Row of `steps`: the commit frame's CRC (4 bytes, little-endian), then the StepRecord message.
std::string EncodeStepRow(const format::StepRecord& step, uint32_t frame_crc);
// The row with another pin.
Result<std::string> RepinStepRow(std::string_view key, std::string_view row, bool pinned);

}  // namespace stepwell::db
