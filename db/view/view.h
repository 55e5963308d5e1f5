// SPDX-License-Identifier: Apache-2.0
// <stepwell/view.h> over a store (DESIGN.md, "The view").
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include <stepwell/view.h>

#include "db/export/export.h"
#include "db/store.h"
#include "db/view/folder.h"
#include "io/mutex.h"

namespace stepwell::db {

using stepwell::View;
using stepwell::ViewOptions;

class OrbaxView final : public View {
 public:
  // Takes the directory, which must be empty, absent (its parent is there), or a view of this
  // store, and removes from it what the store does not have. `store` outlives this or its Close.
  //
  // kFailedPrecondition: the directory has files that are not a view's, or is another store's view;
  // kUnavailable: another process serves it; kInvalidArgument: options, or a place inside the
  // store. Beside its store it may have other files.
  //
  // `before`: ViewHome::before.
  static Result<std::shared_ptr<OrbaxView>> Open(StoreReader& store, const std::string& path,
                                                 const ViewOptions& options,
                                                 const std::string& before = "");
  ~OrbaxView() override;  // Close(/*keep=*/true)

  // An error where no thread can be started; Close is then all that is left.
  Status Start();
  // Something was committed. Only posts.
  void Changed();
  using View::WaitUntilCurrent;
  Result<bool> WaitUntilCurrent(std::chrono::milliseconds timeout,
                                const std::function<bool()>& keep_waiting) override;
  void StopMaking() override { making_ = false; }
  Status Close(bool keep) override;
  const std::string& path() const override { return folder_->path(); }
  std::string PathOf(uint64_t step) const override;
  ViewStats Stats() const override;
  const std::string& options_text() const { return folder_->options_text(); }
  bool closed() const;

 private:
  using Clock = std::chrono::steady_clock;
  // A directory of the view.
  struct Shown {
    std::string identity;
    bool held = false;  // the step is dead, but a reader holds its directory
  };
  struct Refused {
    std::string identity;
    bool is_taken = false;  // the name, by another program
  };
  using Wanted = std::map<std::string, StoreSnapshot::Step>;  // by name
  enum class Outcome : uint8_t { kDone, kAgain, kRetry };

  OrbaxView(StoreReader& store, const ViewOptions& options, std::unique_ptr<ViewFolder> folder);
  Status Begin();
  void Run() STEPWELL_EXCLUDES(mutex_);
  Outcome Pass(uint64_t asked);
  Status FindRemoved();
  bool RemoveDead(const Wanted& wanted, bool held_too);
  bool ReplaceMoved(const Wanted& wanted);
  Outcome MakeMissing(const Wanted& wanted, uint64_t asked, Clock::duration looked);
  Outcome Make(const std::string& name, const StoreSnapshot::Step& step, bool replace);
  bool IsShown(const std::string& name, const StoreSnapshot::Step& step) const;
  bool IsRefused(const std::string& name, const StoreSnapshot::Step& step) const;
  bool IsGone(const std::string& name, const StoreSnapshot::Step& step) const;
  Wanted WantedOf(const StoreSnapshot& snapshot) const;
  void WaitForWork(uint64_t asked, Outcome outcome) STEPWELL_REQUIRES(mutex_);
  bool Polls() const;
  bool AskedSince(uint64_t asked) const STEPWELL_EXCLUDES(mutex_);
  void Failed(const Status& status);
  void RemoveAll();
  void Publish() STEPWELL_EXCLUDES(mutex_);

  StoreReader* const store_;
  const ViewOptions options_;
  const int pid_;
  std::unique_ptr<ViewFolder> folder_;

  // The thread owns these; Begin owns them before it starts, and Close after it ended.
  std::shared_ptr<const StoreSnapshot> snapshot_;  // pins what is shown, or being made
  std::map<std::string, Shown> shown_;             // by name
  std::map<std::string, Refused> refused_;         // by name: cannot be shown
  std::map<std::string, std::string> gone_;        // name to identity: removed by others
  bool lost_ = false;                              // the directory is not there any more
  int retries_ = 0;                                // in a row
  int vanished_ = 0;
  std::string last_logged_;
  ViewStats counts_;

  std::atomic<bool> making_{true};

  io::Mutex close_mutex_ STEPWELL_ACQUIRED_BEFORE(mutex_);  // held by Start and Close
  std::unique_ptr<std::thread> thread_ STEPWELL_GUARDED_BY(close_mutex_);

  mutable io::Mutex mutex_;
  io::CondVar changed_;
  uint64_t asked_ STEPWELL_GUARDED_BY(mutex_) = 1;
  // `asked_` when the newest pass began that has come to its end.
  uint64_t done_ STEPWELL_GUARDED_BY(mutex_) = 0;
  bool stop_ STEPWELL_GUARDED_BY(mutex_) = false;
  bool closed_ STEPWELL_GUARDED_BY(mutex_) = false;
  ViewStats stats_ STEPWELL_GUARDED_BY(mutex_);
};

// Opens a view and lets it follow the store until the store is closed.
Result<std::shared_ptr<OrbaxView>> OpenView(StoreReader& store, const std::string& path,
                                            const ViewOptions& options);

}  // namespace stepwell::db
