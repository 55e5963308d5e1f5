// SPDX-License-Identifier: Apache-2.0
// The index: RocksDB as the LSM tree over the log. The only file pair that includes rocksdb
// headers.
//
// It is a cache of the log and never the only witness: no WAL, atomic flush, and every call may
// fail, upon which the engine serves from the log and rebuilds. Column families `steps`, `leaves`,
// `chunks` (keys of format/key.h, values of format/records.h); the default family has the meta row.
// All calls block; Apply, Flush and the destructor on one thread at a time (the index worker),
// reads on any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/records.h"
#include "io/disk.h"
#include "io/log.h"

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
  std::vector<std::pair<uint64_t, bool>> pins;  // (step, pinned), of steps that the batch neither
                                                // adds nor removes
  uint64_t through_commit = 0;
  uint32_t through_crc = 0;  // of its frame, and so of all before it; 0: not known
  // With this batch the index has every step that is live at `through_commit`, so that the absence
  // of one says something.
  bool complete = false;
};

class Index {
 public:
  struct Options {
    io::FileSystem* file_system = nullptr;
    std::string path;  // the index directory; made when absent
    format::Id128 store_id{};
    std::shared_ptr<io::Freeze> freeze;  // of the index alone
    bool inline_jobs = false;  // simulation: RocksDB's flushes and compactions on calling threads
    LogSink log;
  };
  // Any failure means: Destroy(path) and open again, or go on without an index. An index of another
  // store (store_id) fails with kDataLoss.
  static Result<std::unique_ptr<Index>> Open(const Options& options);
  // Removes the files of an index directory (only files RocksDB makes; the directory stays).
  static Status Destroy(io::FileSystem* file_system, const std::string& path);

  virtual ~Index() = default;
  // "Applied through": 0 for a new index.
  virtual uint64_t applied_commit() const = 0;
  virtual uint32_t applied_crc() const = 0;
  // IndexBatch::complete of the last batch.
  virtual bool complete() const = 0;
  virtual Result<std::vector<IndexedStep>> Steps() = 0;
  virtual Status Apply(const IndexBatch& batch) = 0;
  // Bytes applied since the last Flush: the engine flushes at 16 MiB.
  virtual uint64_t unflushed_bytes() const = 0;
  // Makes everything applied durable; kAborted when the index's disk is frozen.
  virtual Status Flush() = 0;
  // Leaf records with chunks whose keys are in `range`, sorted by key, from one snapshot; none when
  // the step is not there with exactly this commit number and frame CRC.
  virtual Result<std::optional<std::vector<format::LeafRecord>>> Read(
      uint64_t step, uint64_t commit, uint32_t frame_crc, const format::KeyRange& range) = 0;
  // The step's record with its texts; none as for Read.
  virtual Result<std::optional<format::StepRecord>> ReadStep(uint64_t step, uint64_t commit,
                                                             uint32_t frame_crc) = 0;
};

}  // namespace stepwell::db
