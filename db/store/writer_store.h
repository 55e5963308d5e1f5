// SPDX-License-Identifier: Apache-2.0
// A store open for writing: callers' side of the engine, and the threads. Private to db/.
#pragma once

#include <atomic>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "db/commit/engine.h"
#include "db/environment.h"
#include "db/index/keeper.h"
#include "db/log/live_steps.h"
#include "db/log/slot_file.h"
#include "db/read/part_merge.h"
#include "db/read/restore.h"
#include "db/stats/instruments.h"
#include "db/store.h"
#include "db/store/mailbox.h"
#include "db/view/view_set.h"
#include "io/mutex.h"

namespace stepwell::db {

// On a caller's thread that has told others of what it begins: should it throw (no memory) before
// the engine has all of it, nothing else would end that.
class PanicOnUnwind {
 public:
  explicit PanicOnUnwind(Engine* engine) : engine_(engine) {}
  ~PanicOnUnwind();
  PanicOnUnwind(const PanicOnUnwind&) = delete;
  PanicOnUnwind& operator=(const PanicOnUnwind&) = delete;

 private:
  Engine* const engine_;
  const int exceptions_ = std::uncaught_exceptions();
};

// Holds everything that reads need. Readers share it, so it outlives the store.
struct ReadCore {
  Environment environment;  // without the threads of the engine
  std::unique_ptr<SegmentFiles> files;
  std::unique_ptr<FootprintCache> footprints;
  std::unique_ptr<Restorer> restorer;
  std::shared_ptr<PartStores> parts;  // of part 0's group
  LiveSteps live;
  std::unique_ptr<IndexKeeper> index;
};

class WriterStore final : public Store {
 public:
  // The lock is held and the directory has been made or checked.
  static Result<std::unique_ptr<Store>> Open(const std::string& path, const StoreOptions& options,
                                             Environment environment,
                                             std::unique_ptr<io::File> lock_file);
  ~WriterStore() override;

  Result<SaveHandle> Save(SaveRequest request) override;
  Status Wait() override;
  Status TakeError() override;
  Result<std::vector<format::StepRecord>> Steps() override;
  Result<std::vector<uint64_t>> StepNumbers(size_t last) override;
  Result<std::vector<StepTexts>> Texts(size_t last) override;
  Result<std::optional<uint64_t>> Newest() override;
  Result<std::shared_ptr<StepReader>> Read(uint64_t step) override;
  Result<std::shared_ptr<StepReader>> ReadShare(uint64_t step) override;
  Result<std::shared_ptr<const StoreSnapshot>> Snapshot() override;
  void OnChange(const void* owner, std::function<void()> changed) override;
  ViewSet& views() override { return views_; }
  Status Delete(std::span<const uint64_t> steps) override;
  Result<Decided> Decide(const Decision& decision) override;
  Result<GroupStatus> Group() override;
  Status DeleteItems(uint64_t step, std::span<const std::string> items) override;
  Status SetPinned(std::span<const uint64_t> steps, bool pinned) override;
  Result<ReclaimReport> Reclaim() override;
  Result<bool> SealSegments(const std::set<uint64_t>& segments) override;
  Result<RepairReport> Repair(bool accept_losses) override;
  StoreStats Stats() override;
  Result<RetentionReport> Retention() override;
  const RecoveryReport& recovery() const override { return recovery_; }
  const std::string& path() const override { return path_; }
  const format::Id128& id() const override { return slot_.store_id; }
  const StoreGroup& part() const override { return part_; }
  bool read_only() const override { return false; }
  io::FileSystem* file_system() override { return environment_.file_system; }
  Status Close() override;

 private:
  WriterStore(std::string path, const StoreOptions& options, Environment environment,
              std::unique_ptr<io::File> lock_file);

  class CallInFlight;

  Result<std::shared_ptr<StepReader>> ReadNewestNow() override;
  Result<std::shared_ptr<StepReader>> ReadPinned(LiveSteps::Pinned pinned);
  Result<std::shared_ptr<StepReader>> WithOtherParts(std::shared_ptr<StepReader> own);
  Result<VerifyReport> VerifyWith(const VerifyOptions& options, bool others) override;
  void ScopeTasks();
  Status Recover();
  Result<LogState> ReadLog();
  void LoadMetrics();
  void MakeIndex();
  Status StartEngine(const LogState& state);
  // Runs it on the engine thread and waits.
  Status OnEngine(const std::function<Status()>& task);
  void EndChanges() STEPWELL_EXCLUDES(mutex_);
  void RecordChange(const std::shared_ptr<SaveHandle::State>& state) STEPWELL_REQUIRES(mutex_);
  Status CloseInOrder();
  void EndThreads();
  // False when `keep_waiting` (asked about every 100 ms) said so before `ready` did, which is
  // asked with the mutex held.
  bool WaitUntil(const std::function<bool()>& ready, const std::function<bool()>& keep_waiting = {})
      STEPWELL_REQUIRES(mutex_);
  Status CheckUsable() const;
  // Waits until there is a place in flight, which another save may take first.
  Status WaitForPlace(uint64_t step, const std::function<bool()>& keep_waiting);
  // Takes a place in flight for `step`; `skip` is set when there is nothing to do.
  Result<std::shared_ptr<SaveHandle::State>> Admit(uint64_t step, IfExists if_exists,
                                                   const std::function<bool()>& keep_waiting,
                                                   bool* skip);
  std::shared_ptr<SaveHandle::State> NewState(uint64_t step, bool is_save);
  void WarnOfRetention();
  void RecordRules();
  void WarnIfNotKept(uint64_t step, const std::string& metrics_json);
  Status Stage(const std::shared_ptr<SaveJob>& job, const std::function<bool()>& keep_waiting,
               size_t* dispatched);
  void Finished(SaveHandle::State* state, bool is_save, const std::function<bool()>& mark)
      STEPWELL_EXCLUDES(mutex_);
  void RecordFailure(const std::shared_ptr<SaveHandle::State>& state) STEPWELL_REQUIRES(mutex_);
  Status CheckGroupSave(const SaveRequest& request) const;
  bool IsPrepared(uint64_t step) const;
  Status ChangeSteps(SaveJob::Kind kind, std::span<const uint64_t> steps, bool pinned);
  Status Rewrite(uint64_t step, std::span<const std::string> without_items);
  Result<bool> RewriteIfDamaged(const LiveStep& live);
  Status Begin(const std::shared_ptr<SaveJob>& job, const std::function<Status()>& check = {})
      STEPWELL_EXCLUDES(mutex_);
  // And waits for it.
  Status Do(const std::shared_ptr<SaveJob>& job);
  Status Closed() const;
  Status NoStep(uint64_t step) const;
  Status AcceptLosses();
  void LogRecovery();
  void RewriteDamaged(const std::vector<uint64_t>& commits);
  Status WithoutItems(uint64_t step, std::span<const std::string> items, SaveJob* job);
  void OpenMailbox();
  Status StartTrace();
  void WriteTrace();
  void WaitForReclaim();
  uint64_t SegmentBytes() const;
  void LeakAfterFork();

  const std::string path_;
  const StoreOptions options_;
  const int pid_;
  Environment environment_;
  // Not in environment_: engine, index and readers have copies of that, which live on after Close.
  std::shared_ptr<const void> held_root_;
  std::unique_ptr<io::File> lock_file_;
  std::shared_ptr<io::Freeze> freeze_ = std::make_shared<io::Freeze>();
  std::unique_ptr<SlotFile> slot_file_;
  format::StoreSlot slot_;  // the slot when the store was opened
  StoreGroup part_;
  RecoveryReport recovery_;

  std::shared_ptr<ReadCore> core_;
  std::shared_ptr<Instruments> instruments_;
  std::shared_ptr<io::BufferPool> pool_;
  std::unique_ptr<io::Disk> disk_;
  std::unique_ptr<NewestBases> bases_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<std::thread> thread_;
  std::unique_ptr<Mailbox> mailbox_;
  // The engine's stand-ins for the executors of environment_. Tasks of this store and of its engine
  // hold plain pointers to both, and Close waits for all tasks (DESIGN.md, "Threads").
  std::shared_ptr<io::TaskScope> worker_tasks_, index_tasks_, reclaim_tasks_;
  const Status lost_;  // the error of a change that ended in a panic
  std::atomic<bool> stop_{false};
  std::atomic<bool> warned_staging_{false};
  std::atomic<bool> warned_not_kept_{false};
  std::atomic<bool> recorded_rules_{false};
  uint64_t tip_at_open_ = 0;  // the newest commit of the session before
  ViewSet views_;

  mutable io::Mutex mutex_;
  io::CondVar changed_;
  bool closed_ STEPWELL_GUARDED_BY(mutex_) = false;
  // Saves and deletes: the size of the next.
  size_t jobs_in_flight_ STEPWELL_GUARDED_BY(mutex_) = 0;
  std::vector<std::shared_ptr<SaveHandle::State>> unfinished_ STEPWELL_GUARDED_BY(mutex_);
  size_t saves_in_flight_ STEPWELL_GUARDED_BY(mutex_) = 0;
  // Counts calls of Reclaim() and SealSegments().
  size_t calls_in_flight_ STEPWELL_GUARDED_BY(mutex_) = 0;
  bool reclaim_idle_ STEPWELL_GUARDED_BY(mutex_) = false;  // since the store is being closed
  // The newest save of a step.
  std::map<uint64_t, std::shared_ptr<SaveHandle::State>> pending_ STEPWELL_GUARDED_BY(mutex_);
  static constexpr size_t kFailedMax = 100;
  // Errors perhaps unreported.
  std::vector<std::shared_ptr<SaveHandle::State>> failed_ STEPWELL_GUARDED_BY(mutex_);
};

}  // namespace stepwell::db
