// SPDX-License-Identifier: Apache-2.0
// A store open for reading, in any process, also beside a live writer and on read-only media.
//
// It reads the log alone: the durable slot names the newest commit and catalog, the chain between
// them is the rest (DESIGN.md, "Readers", has why no RocksDB is involved). Takes no lock on the
// store, creates nothing but its pin.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "db/environment.h"
#include "db/footprint.h"
#include "db/group_read.h"
#include "db/pins.h"
#include "db/recovery.h"
#include "db/restore.h"
#include "db/slot_file.h"
#include "db/store.h"
#include "db/view_set.h"
#include "io/guard.h"

namespace stepwell::db {

class ReaderStore final : public Store {
 public:
  static Result<std::unique_ptr<Store>> Open(const std::string& path, const StoreOptions& options,
                                             Environment environment);
  // The same for a part of a group, as the other parts read it.
  static Result<std::unique_ptr<ReaderStore>> OpenPart(const std::string& path,
                                                       const StoreOptions& options,
                                                       Environment environment);
  ~ReaderStore() override;

  // This part's share of a step of part 0: the step with its save id, decided or still prepared.
  // kNotFound when there is none.
  Result<std::shared_ptr<StepReader>> ReadShare(const format::StepRecord& step);
  // Of all of them.
  Result<PartShares> Shares();
  Result<VerifyReport> VerifyShare(const format::StepRecord& step, const VerifyOptions& options);
  // They outlive the store.
  std::shared_ptr<SegmentFiles> files() const;

  Result<SaveHandle> Save(SaveRequest request) override;
  Status Wait() override { return OkStatus(); }
  Status TakeError() override { return OkStatus(); }
  Result<std::vector<StepSummary>> Steps() override;
  Result<std::optional<uint64_t>> Newest() override;
  Result<std::shared_ptr<StepReader>> Read(uint64_t step) override;
  Result<std::shared_ptr<const StoreSnapshot>> Snapshot() override;
  void OnChange(const void*, std::function<void()>) override {}
  ViewSet& views() override { return views_; }
  Status Delete(std::span<const uint64_t> steps) override;
  Result<Decided> Decide(const Decision& decision) override;
  Result<GroupStatus> Group() override;
  Status DeleteItems(uint64_t step, std::span<const std::string> items) override;
  Status SetPinned(std::span<const uint64_t> steps, bool pinned) override;
  Result<ReclaimReport> Reclaim() override;
  Status SealSegments(const std::set<uint64_t>&) override { return OkStatus(); }
  Result<VerifyReport> Verify(const VerifyOptions& options) override;
  Result<RepairReport> Repair(bool accept_losses) override;
  StoreStats Stats() override;
  const RecoveryReport& recovery() const override { return recovery_; }
  const std::string& path() const override { return core_->path; }
  const format::Id128& id() const override { return id_; }
  const StoreGroup& part() const override { return part_; }
  bool read_only() const override { return true; }
  bool untrusted() const override { return options_.untrusted; }
  io::FileSystem* file_system() override { return core_->environment.file_system; }
  Status Close() override;

 private:
  // What step readers need, too; they may outlive the store. Thread-safe.
  struct Core {
    Result<bool> WriterLives(SlotFile* slot_file);
    // The log as `slot` has it. `known`, an earlier state read beside a live writer, may be null.
    Result<LogState> ReadLog(const format::StoreSlot& slot, bool writer_lives,
                             const LogState* known);
    // The steps that are live now.
    Result<std::map<uint64_t, LogStep>> LookAgain();
    // What `error`, of reading a commit that is not pinned, means: kNotFound when the step was
    // deleted, replaced or moved since (its bytes may be gone); else damage.
    Status Explain(const Status& error, uint64_t step, uint64_t commit);
    // A pin that is not Set; null: readers/ is not writable. Given back it rests, for the next one.
    std::unique_ptr<ReaderPin> TakePin();
    void GiveBack(std::unique_ptr<ReaderPin> pin);
    void Close();

    std::string path;
    Environment environment;
    std::unique_ptr<SegmentFiles> files;
    std::unique_ptr<FootprintCache> footprints;
    std::unique_ptr<Restorer> restorer;
    std::shared_ptr<GroupParts> parts;  // of part 0's group

   private:
    std::mutex pin_mutex_;
    std::unique_ptr<ReaderPin> resting_;  // guarded by pin_mutex_; null: none
    bool closed_ = false;                 // guarded by pin_mutex_
  };
  // What was live at one instant. Step readers and calls under way share it, and it is pinned as
  // long as one of them does: a store that only looked keeps nothing (Read looks again).
  struct View {
    explicit View(std::shared_ptr<Core> of) : core(std::move(of)) {}
    ~View() {
      io::Quietly([this] { core->GiveBack(std::move(pin)); });
    }
    View(const View&) = delete;
    View& operator=(const View&) = delete;

    const std::shared_ptr<Core> core;
    std::shared_ptr<const LogState> log;
    std::unique_ptr<ReaderPin> pin;  // null: readers/ is not writable
  };

  ReaderStore(const std::string& path, const StoreOptions& options, Environment environment);
  Result<std::shared_ptr<StepReader>> ReadOwn(std::shared_ptr<const View> view,
                                              const LogStep& step);
  bool Has(const format::StepRecord& step);
  // The newest view; made anew when nothing pins it any more or the slot has moved on.
  Result<std::shared_ptr<const View>> Refresh();

  const StoreOptions options_;
  const int pid_;
  std::shared_ptr<Core> core_;
  std::unique_ptr<SlotFile> slot_file_;
  RecoveryReport recovery_;
  format::Id128 id_{};
  StoreGroup part_;
  std::mutex mutex_;
  std::weak_ptr<const View> newest_;     // guarded by mutex_, as all below
  std::shared_ptr<const LogState> log_;  // what it has; null: not read yet
  uint64_t log_sequence_ = 0;            // of the slot that it is of
  bool log_live_ = false;                // read beside a writer
  bool said_no_pin_ = false;
  bool closed_ = false;
  ViewSet views_;
};

}  // namespace stepwell::db
