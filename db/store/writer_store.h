// SPDX-License-Identifier: Apache-2.0
// A store open for writing: its session from open to close. Private to db/.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "db/commit/engine.h"
#include "db/environment.h"
#include "db/log/live_steps.h"
#include "db/log/slot_file.h"
#include "db/save/far.h"
#include "db/stats/instruments.h"
#include "db/store.h"
#include "db/store/changes_in_flight.h"
#include "db/store/mailbox.h"
#include "db/store/read_core.h"
#include "db/store/retention_notices.h"
#include "db/view/view_set.h"

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

// Sets store_copied_into.
class CopiedInto {
 public:
  explicit CopiedInto(const Store* store) : before_(std::exchange(store_copied_into, store)) {}
  ~CopiedInto() { store_copied_into = before_; }
  CopiedInto(const CopiedInto&) = delete;
  CopiedInto& operator=(const CopiedInto&) = delete;

 private:
  const Store* const before_;
};

// Owns the engine and its thread, recovers the log before and closes everything in order, and takes
// callers' changes to the engine and their reads to the log.
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
  Result<std::vector<uint64_t>> StepNumbers(size_t last, bool with_tainted) override;
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
  Status SetTaint(std::span<const uint64_t> steps, std::string_view why) override;
  Result<ReclaimReport> Reclaim() override;
  Result<bool> SealSegments(const std::set<uint64_t>& segments) override;
  Result<RepairReport> Repair(bool accept_losses) override;
  StoreStats Stats() override;
  Result<RetentionReport> Retention() override;
  Result<std::map<uint64_t, std::optional<uint64_t>>> FreesBytes(
      std::span<const uint64_t> steps) override;
  const RecoveryReport& recovery() const override { return recovery_; }
  const std::string& path() const override { return path_; }
  const format::Id128& id() const override { return slot_.store_id; }
  const StoreGroup& part() const override { return part_; }
  bool read_only() const override { return false; }
  io::FileSystem* file_system() override { return environment_.file_system; }
  io::FileSystem* export_file_system() override {
    return options_.unpublished ? file_system() : StoreReader::export_file_system();
  }
  Status Close() override;

 private:
  WriterStore(std::string path, const StoreOptions& options, Environment environment,
              std::unique_ptr<io::File> lock_file);

  Result<std::shared_ptr<StepReader>> ReadNewestNow() override;
  Result<std::shared_ptr<StepReader>> ReadPinned(LiveSteps::Pinned pinned);
  Result<std::shared_ptr<StepReader>> WithOtherParts(std::shared_ptr<StepReader> own);
  Result<VerifyReport> VerifyWith(const VerifyOptions& options, bool others) override;
  ChangesInFlight::Options ChangesOptions();
  void ScopeTasks();
  Status Recover();
  void MakeIndex();
  Status StartEngine(const LogState& state);
  // Runs it on the engine thread and waits.
  Status OnEngine(const std::function<Status()>& task);
  Status CloseInOrder();
  void EndThreads();
  Status CheckUsable() const;
  Status Stage(const std::shared_ptr<SaveJob>& job, size_t first,
               const std::function<bool()>& keep_waiting, size_t* dispatched);
  Status StageFar(const std::shared_ptr<SaveJob>& job, const FarCopies& far,
                  const std::function<bool()>& keep_waiting, size_t* dispatched);
  io::Executor* FarThread();
  Status ChangeSteps(SaveJob::Kind kind, std::span<const uint64_t> steps, format::MetaChange meta);
  void RecordVerified(const std::vector<LiveStep>& steps, bool others, const VerifyReport& report);
  void SetVerified(const std::vector<const LiveStep*>& steps, bool verified);
  Status Rewrite(uint64_t step, std::span<const std::string> without_items);
  Result<bool> RewriteIfDamaged(const LiveStep& live);
  Status Begin(const std::shared_ptr<SaveJob>& job,
               const std::function<Status(const ChangesInFlight::Saves&)>& check = {});
  // And waits for it.
  Status Do(const std::shared_ptr<SaveJob>& job);
  Status NoStep(uint64_t step) const;
  void RewriteDamaged(const std::vector<uint64_t>& commits);
  void OpenMailbox();
  void WaitForReclaim();
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
  ChangesInFlight changes_;
  std::unique_ptr<RetentionNotices> notices_;
  std::shared_ptr<io::BufferPool> pool_;
  std::unique_ptr<RecentChunks> recent_;  // null: no differences are stored
  std::unique_ptr<io::Disk> disk_;
  std::unique_ptr<NewestBases> bases_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<std::thread> thread_;
  std::unique_ptr<Mailbox> mailbox_;
  // The engine's stand-ins for the executors of environment_. Tasks of this store and of its engine
  // hold plain pointers to both, and Close waits for all tasks (DESIGN.md, "Threads").
  std::shared_ptr<io::TaskScope> worker_tasks_, encoder_tasks_, index_tasks_, reclaim_tasks_;
  std::once_flag far_once_;
  std::shared_ptr<io::TaskScope> far_tasks_;  // null: no save has needed the thread
  std::atomic<bool> stop_{false};
  std::atomic<bool> warned_staging_{false};
  ViewSet views_;
};

}  // namespace stepwell::db
