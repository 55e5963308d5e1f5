// SPDX-License-Identifier: Apache-2.0
// Keeps the index behind the log, on the index worker: opens it when there are steps enough, brings
// it to what is live, follows commits, makes it anew when it is lost or damaged. No commit and no
// load waits for it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "db/environment.h"
#include "db/index/index.h"
#include "db/log/live_steps.h"
#include "db/log/segment_files.h"
#include "db/stats/instruments.h"
#include "db/store.h"
#include "io/mutex.h"

namespace stepwell::db {

// The texts of the steps (ascending), from the index's row where there is one of this commit, else
// from the step's frame. `index` may be null. `damage` receives an error of the index, which is OK
// otherwise; the frames then answer. A step whose frame cannot be read says so in its status.
std::vector<StepTexts> ReadTexts(const std::vector<const LiveStep*>& steps, SegmentFiles& files,
                                 Index* index, Status* damage);

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
  };
  explicit IndexKeeper(Options options) : options_(std::move(options)) {}

  // Any thread: the steps of a commit have changed. Only notes them.
  void Note(const LiveSteps::Change& change);
  // Any thread: the texts of these live steps, ascending, which the caller has pinned. Opens the
  // index where that is worth it.
  std::vector<StepTexts> Texts(const LiveSteps::List& steps);
  // Any thread: nothing more is queued, but for Close.
  void BeginClose();
  // Index worker, nothing else queued: flushes and closes. OK also without an index.
  void Close();
  // Lets go of the index as it is, where that did not run; no task of it is left.
  void GiveBack();
  std::string Describe() const;

 private:
  enum class State {
    kUnused,  // not opened yet
    kReady,
    kGone,  // in this session the log answers everything
  };

  Index::Options IndexOptions() const;
  void Queue() STEPWELL_EXCLUDES(mutex_);
  void CatchUp() STEPWELL_EXCLUDES(mutex_);
  Status ApplyPending(const std::shared_ptr<Index>& index);
  Status FindDifferences(Index* index) STEPWELL_EXCLUDES(mutex_);
  // Opens the index if need be; null: there is none, or another thread is opening it and this one
  // does not `wait`.
  std::shared_ptr<Index> Opened(bool wait) STEPWELL_EXCLUDES(open_mutex_, mutex_);
  Status OpenNow(std::shared_ptr<Index>* opened) STEPWELL_EXCLUDES(mutex_);
  void MakeAnew(const Index* index, const Status& why) STEPWELL_EXCLUDES(mutex_);
  void DropIndex(const Status& why) STEPWELL_EXCLUDES(mutex_);

  const Options options_;
  // Held while the index is opened.
  io::Mutex open_mutex_ STEPWELL_ACQUIRED_BEFORE(mutex_);
  mutable io::Mutex mutex_;
  State state_ STEPWELL_GUARDED_BY(mutex_) = State::kUnused;
  std::shared_ptr<Index> index_ STEPWELL_GUARDED_BY(mutex_);  // null: serve from the log
  // With what is live, since it was opened.
  bool compared_ STEPWELL_GUARDED_BY(mutex_) = false;
  // CatchUp is on the index worker's list.
  bool queued_ STEPWELL_GUARDED_BY(mutex_) = false;
  bool closing_ STEPWELL_GUARDED_BY(mutex_) = false;
  // Why the index was, or is to be, made anew in this session.
  Status damage_ STEPWELL_GUARDED_BY(mutex_);
  // Steps whose rows may differ from what is live, with their texts where these are at hand.
  std::map<uint64_t, std::shared_ptr<const StepTexts>> pending_ STEPWELL_GUARDED_BY(mutex_);
};

}  // namespace stepwell::db
