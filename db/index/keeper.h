// SPDX-License-Identifier: Apache-2.0
// Keeps the index in step with the log, on the index worker: opens it, brings it to what the log
// says, applies commits, rebuilds it when it is lost or damaged. The store never depends on it.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "db/environment.h"
#include "db/index/index.h"
#include "db/log/live_steps.h"
#include "db/log/segment_files.h"
#include "db/stats/instruments.h"

namespace stepwell::db {

class IndexKeeper {
 public:
  struct Options {
    Environment environment;
    std::string store_path;
    format::Id128 store_id{};
    SegmentFiles* files = nullptr;
    LiveSteps* live = nullptr;
    LogSink log;
    std::shared_ptr<Instruments> instruments;
    // Called on the index worker: everything through `commit` is in the index (or the index is
    // gone); with `durable`, flushed too.
    std::function<void(uint64_t commit, bool durable)> reached;
  };
  explicit IndexKeeper(Options options) : options_(std::move(options)) {}

  // The index as it is, before it follows the log: StartOpen comes when the caller is done with it.
  Result<std::unique_ptr<Index>> OpenAsItIs() const { return Index::Open(IndexOptions()); }

  // Any thread: queue work for the index worker.
  void StartOpen();
  // Any thread: nothing reads or writes it in this session, or not any more.
  void GiveUp(const Status& why);
  void Apply(const LiveSteps::Change& change);
  // Any thread: nothing more is queued, but for Close.
  void BeginClose();
  // Index worker, nothing else queued: flushes and closes. OK also without an index.
  void Close();
  // Lets go of the index as it is, where that did not run; no task of it is left.
  void GiveBack();

  // Leaf records of a live step with keys in `range`, from its overlay or the index; none when
  // neither has them: then the log does. Any thread.
  std::optional<std::vector<format::LeafRecord>> Leaves(const LiveStep& step,
                                                        const format::KeyRange& range);
  // The step's record with its texts; none when the index does not have it. Any thread.
  std::optional<format::StepRecord> Record(const LiveStep& step);
  std::string Describe() const;

 private:
  enum class State { kOpening, kReady, kGone };

  Index::Options IndexOptions() const;
  void Open();
  Status OpenAndSync();
  Status SyncWithLog(Index* index);
  void ApplyNow(const LiveSteps::Change& change);
  Status ApplyTo(const LiveSteps::Change& change, bool* durable);
  void Rebuild(const Status& why);
  std::shared_ptr<Index> current() const;

  const Options options_;
  mutable std::mutex mutex_;
  std::shared_ptr<Index> index_;   // guarded by mutex_; null: serve from the log
  State state_ = State::kOpening;  // guarded by mutex_
  uint64_t applied_ = 0;           // guarded by mutex_
  bool rebuild_queued_ = false;    // guarded by mutex_
  bool closing_ = false;           // guarded by mutex_
};

}  // namespace stepwell::db
