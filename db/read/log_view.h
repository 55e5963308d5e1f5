// SPDX-License-Identifier: Apache-2.0
// A store's log as a reader sees it, in any process, also beside a live writer and on read-only
// media: the durable slot names the newest commit and catalog, the chain between them is the rest
// (DESIGN.md, "Readers"). Takes no lock on the store, creates nothing but its pin.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "db/environment.h"
#include "db/log/pins.h"
#include "db/log/recovery.h"
#include "db/log/slot_file.h"
#include "db/read/restore.h"
#include "db/store.h"
#include "io/guard.h"
#include "io/mutex.h"

namespace stepwell::db {

// The state that the views of one store share. Step readers keep it, so it may outlive the store.
// Thread-safe.
class LogSource {
 public:
  LogSource(std::string store_path, Environment machine);

  Result<bool> WriterLives(SlotFile* slot_file);
  // The log as `slot` has it. `known`, an earlier state read beside a live writer, may be null;
  // what it has is taken.
  Result<LogState> ReadLog(const format::StoreSlot& slot, bool writer_lives, LogState* known);
  // The steps that are live now.
  Result<std::map<uint64_t, LiveStep>> ReadLive();
  // Returns true if this commit of a step is live now, or if that cannot be read.
  bool Has(const format::StepRecord& step);
  // Explains `error`, which came from reading a commit that is not pinned. kNotFound if the step
  // was deleted, replaced or moved since (its bytes may be gone); else damage.
  Status Explain(const Status& error, uint64_t step, uint64_t commit);
  // A pin that is not Set; null: readers/ is not writable. Given back it rests, for the next one.
  std::unique_ptr<ReaderPin> TakePin();
  void GiveBack(std::unique_ptr<ReaderPin> pin);
  void Close();

  const std::string path;
  const Environment environment;
  const std::unique_ptr<SegmentFiles> files;
  const std::unique_ptr<Restorer> restorer;

 private:
  io::Mutex pin_mutex_;
  std::unique_ptr<ReaderPin> resting_ STEPWELL_GUARDED_BY(pin_mutex_);  // null: none
  bool closed_ STEPWELL_GUARDED_BY(pin_mutex_) = false;
};

// The live steps at one instant. Step readers and calls under way share it, and it is pinned while
// one of them has it. A store that only looked keeps nothing (Read looks again).
struct LogView {
  explicit LogView(std::shared_ptr<LogSource> of) : source(std::move(of)) {}
  ~LogView() {
    io::Quietly([this] { source->GiveBack(std::move(pin)); });
  }
  LogView(const LogView&) = delete;
  LogView& operator=(const LogView&) = delete;

  const std::shared_ptr<LogSource> source;
  std::shared_ptr<const LogState> log;
  std::unique_ptr<ReaderPin> pin;  // null: readers/ is not writable
};

// Follows a store's log. Thread-safe. After fork every call fails in the child.
class LogFollower {
 public:
  // kFailedPrecondition where the store is another part than `group` says (null: any).
  static Result<std::unique_ptr<LogFollower>> Open(const std::string& path,
                                                   const std::optional<StoreGroup>& group,
                                                   Environment environment, LogSink log);
  ~LogFollower();

  // The newest view; made anew when nothing pins it any more or the slot has moved on.
  Result<std::shared_ptr<const LogView>> Refresh();
  // A step of a view, which the reader keeps; of a group's step what this store has of it.
  Result<std::shared_ptr<StepReader>> Read(std::shared_ptr<const LogView> view,
                                           const LiveStep& step);
  // Views and step readers that are out go on.
  Status Close();

  const std::shared_ptr<LogSource>& source() const { return source_; }
  const std::string& path() const { return source_->path; }
  const format::Id128& id() const { return id_; }
  const StoreGroup& part() const { return part_; }
  const RecoveryReport& recovery() const { return recovery_; }
  int pid() const { return pid_; }

 private:
  LogFollower(const std::string& path, Environment environment, LogSink log);
  // kFailedPrecondition if STEPWELL is of another store or directory now.
  Status FollowSlotFile() STEPWELL_REQUIRES(mutex_);

  const int pid_;
  const LogSink log_sink_;
  std::shared_ptr<LogSource> source_;
  RecoveryReport recovery_;
  format::Id128 id_{};
  StoreGroup part_;
  io::Mutex mutex_;
  std::unique_ptr<SlotFile> slot_file_ STEPWELL_GUARDED_BY(mutex_);
  std::unique_ptr<io::File> directory_ STEPWELL_GUARDED_BY(mutex_);  // null: cannot be opened
  std::weak_ptr<const LogView> newest_ STEPWELL_GUARDED_BY(mutex_);
  std::shared_ptr<LogState> log_
      STEPWELL_GUARDED_BY(mutex_);                         // the log's state; null: not read yet
  uint64_t log_sequence_ STEPWELL_GUARDED_BY(mutex_) = 0;  // sequence of the slot that log_ is of
  bool log_live_ STEPWELL_GUARDED_BY(mutex_) = false;      // read beside a writer
  bool warned_no_pin_ STEPWELL_GUARDED_BY(mutex_) = false;
  bool closed_ STEPWELL_GUARDED_BY(mutex_) = false;
};

}  // namespace stepwell::db
