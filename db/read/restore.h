// SPDX-License-Identifier: Apache-2.0
// Executes restore plans: keeps the disk's queue full on the calling thread, checks and decodes on
// the workers, into memory the caller owns. Thread-safe: each call borrows a context (a Disk and
// its read buffers) from a small pool.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "db/log/chunk_source.h"
#include "db/log/recovery.h"
#include "db/log/segment_files.h"
#include "db/read/restore_plan.h"
#include "db/store.h"
#include "io/buffer.h"
#include "io/disk.h"
#include "io/executor.h"
#include "io/mutex.h"

namespace stepwell::db {

class ReadContext;

// Private to the executor: decodes a chunk without bases into `scratch`, which grows.
Result<ConstBytes> DecodeToScratch(const PlannedChunk& chunk, ConstBytes payload,
                                   io::AlignedBuffer* scratch);

// Chunks that were found good, so that what many steps refer to is read once: part, segment,
// offset.
using GoodChunks = std::set<std::tuple<uint32_t, uint64_t, uint64_t>>;

struct CheckOptions {
  bool skip_referenced = false;  // what earlier commits wrote
  GoodChunks* good = nullptr;    // is not read again, and grows
};

class Restorer {
 public:
  using DiskFactory = std::function<Result<std::unique_ptr<io::Disk>>()>;
  // `executor` may be inline (simulation): then everything runs on the calling thread.
  Restorer(SegmentFiles* files, io::Executor* executor, DiskFactory make_disk);
  ~Restorer();

  // Fills every request or fails with the first error in (segment, offset) order: kDataLoss
  // "<file>: offset N: leaf <path> chunk i: what was wrong", kNotFound when a segment is gone.
  Result<LoadStats> Load(std::span<const LoadRequest> requests);

  // Takes one payload, which has the CRC of its record, on any thread. `scratch` is this thread's
  // for the call, and grows.
  using TakePayload =
      std::function<Status(const PlannedChunk&, ConstBytes payload, io::AlignedBuffer* scratch)>;
  // Reads payloads, of PlanPayload, in the order of their places, and fails with the first error as
  // Load does. Adds to `stats`.
  Status ReadPayloads(std::vector<PlannedChunk> payloads, const TakePayload& take,
                      LoadStats* stats);
  // For work on what was read.
  io::Executor* executor() const { return executor_; }

  // Reads and checks every chunk of `leaves` (decoding too, into scratch), calling `bad` (on the
  // calling thread) for each that fails and `progress` with the stored bytes done; `progress`
  // returning false stops with kCancelled.
  Status Check(std::span<const format::LeafRecord> leaves,
               const std::function<void(const BadChunk&)>& bad,
               const std::function<bool(uint64_t)>& progress, const CheckOptions& options = {});

 private:
  Result<LoadStats> LoadWhole(std::span<const LoadRequest> requests);
  Status ReadPlan(const RestorePlan& plan, const TakePayload& take, LoadStats* stats);
  Status WithContext(const RestorePlan& plan, const std::function<Status(ReadContext*)>& run);
  Result<std::unique_ptr<ReadContext>> Borrow(const RestorePlan& plan);
  void Return(std::unique_ptr<ReadContext> context);

  SegmentFiles* const files_;
  const ChunkSources sources_;
  io::Executor* const executor_;
  const DiskFactory make_disk_;
  io::Mutex mutex_;
  std::vector<std::unique_ptr<ReadContext>> idle_ STEPWELL_GUARDED_BY(mutex_);  // oldest first
};

}  // namespace stepwell::db
