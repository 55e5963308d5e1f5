// SPDX-License-Identifier: Apache-2.0
// A directory in which every committed step is an Orbax checkpoint: it appears when the step is
// committed and goes when the step does (DESIGN.md, "The view"). Metadata only: the checkpoints
// have symbolic links to the store's segments, so a view is of use only beside its store.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "db/export/export.h"
#include "db/store.h"
#include "db/view/folder.h"
#include "io/log.h"

namespace stepwell::db {

struct ViewOptions {
  // How checkpoints look, as in exports: layout, leaves, zarr_format, items, step_prefix,
  // step_digits, unnamed_default, file_mode. Every layout has one directory a step, named as in
  // the root of a CheckpointManager. A step that on_unsupported does not let pass is not shown.
  ExportOptions checkpoint;
  // How often a store is looked at that is open for reading only, or has steps of which other
  // processes have parts: nobody tells what those do.
  std::chrono::milliseconds poll{200};
  LogSink log;
};

// Everything is done on a thread of the view's own; nothing of it ever fails or delays a save.
// Errors are logged, counted, and tried again. Thread-safe.
class OrbaxView {
 public:
  // Takes the directory, which must be empty, absent (its parent is there), or a view of this
  // store, and removes from it what the store does not have. Until Close nothing that the
  // directory shows is reclaimed. `store` outlives this or its Close.
  //
  // kFailedPrecondition: the directory has files that are not a view's, or is another store's view;
  // kUnavailable: somebody serves it; kInvalidArgument: options, or a place inside the store.
  static Result<std::shared_ptr<OrbaxView>> Open(Store& store, const std::string& path,
                                                 const ViewOptions& options);
  ~OrbaxView();  // Close(/*keep=*/true)
  OrbaxView(const OrbaxView&) = delete;
  OrbaxView& operator=(const OrbaxView&) = delete;

  // An error where no thread can be started; Close is then all that is left.
  Status Start();
  // Something was committed. Only posts.
  void Changed();
  // Waits until the directory has what was committed when this was called, as far as it can have
  // it. False: not within `timeout`.
  Result<bool> WaitUntilCurrent(std::chrono::milliseconds timeout);
  // Nothing more is made: what is being made is given up within a few chunks, and Close ends soon.
  // What is dead still goes.
  void StopMaking() { making_ = false; }
  // Ends it, after a last look at the store. Without `keep` the steps' directories go (those that
  // readers hold stay), and the directory is nobody's view any more. Idempotent.
  Status Close(bool keep);

  const std::string& path() const { return folder_->path(); }
  // Of a step, shown or not.
  std::string PathOf(uint64_t step) const;
  const std::string& options_text() const { return folder_->options_text(); }
  ViewStats Stats() const;
  bool closed() const;

 private:
  // What is in the directory.
  struct Shown {
    std::string identity;
    std::shared_ptr<const StoreSnapshot> kept;  // the step is dead, but a reader holds it
  };
  using Wanted = std::map<std::string, StoreSnapshot::Step>;  // by name
  enum class Outcome : uint8_t { kDone, kAgain, kRetry };

  OrbaxView(Store& store, const ViewOptions& options, std::unique_ptr<ViewFolder> folder);
  Status Begin();
  void Run();
  Outcome Pass(uint64_t asked);
  bool RemoveDead(const Wanted& wanted, bool held_too);
  bool ReplaceMoved(const Wanted& wanted);
  Outcome MakeMissing(const Wanted& wanted, uint64_t asked);
  Outcome Make(const std::string& name, const StoreSnapshot::Step& step, bool replace);
  bool IsShown(const std::string& name, const StoreSnapshot::Step& step) const;
  bool IsRefused(const std::string& name, const StoreSnapshot::Step& step) const;
  Wanted WantedOf(const StoreSnapshot& snapshot) const;
  void WaitForWork(std::unique_lock<std::mutex>* lock, uint64_t asked, Outcome outcome);
  bool HoldsAny() const;
  bool Polls() const;
  bool AskedSince(uint64_t asked) const;
  void Failed(const Status& status);
  void RemoveAll();
  void Publish();

  Store* const store_;
  const ViewOptions options_;
  const int pid_;
  std::unique_ptr<ViewFolder> folder_;
  std::unique_ptr<std::thread> thread_;

  // Of the thread; of Begin before it starts, of Close after it ended.
  std::shared_ptr<const StoreSnapshot> snapshot_;  // pins what is shown
  std::map<std::string, Shown> shown_;             // by name
  std::map<std::string, std::string> refused_;     // name to identity: cannot be shown
  bool lost_ = false;                              // the directory is not there any more
  int retries_ = 0;                                // in a row
  int surprises_ = 0;
  std::string last_logged_;
  ViewStats counts_;

  std::atomic<bool> making_{true};

  std::mutex close_mutex_;  // held by Close
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t asked_ = 1;  // guarded by mutex_, as all below
  uint64_t done_ = 0;   // `asked_` when the newest pass began that has come to its end
  bool stop_ = false;
  bool closed_ = false;
  ViewStats stats_;
};

// Opens a view and lets it follow the store until the store is closed.
Result<std::shared_ptr<OrbaxView>> OpenView(Store& store, const std::string& path,
                                            const ViewOptions& options);

}  // namespace stepwell::db
