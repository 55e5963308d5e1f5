// SPDX-License-Identifier: Apache-2.0
// A pushed run as a store that is open for reading only, wherever its objects are. It looks at them
// for each call, reads the ranges that a load needs, and keeps no copy.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "db/environment.h"
#include "db/read/restore.h"
#include "db/store.h"
#include "db/transfer/object_files.h"
#include "db/transfer/run_objects.h"
#include "db/view/view_set.h"
#include "io/mutex.h"

namespace stepwell::db {

class RunStore final : public Store {
 public:
  static Result<std::unique_ptr<Store>> Open(std::shared_ptr<RunObjects> objects,
                                             const StoreOptions& options);

  Result<std::vector<format::StepRecord>> Steps() override;
  Result<std::vector<uint64_t>> StepNumbers(size_t last, bool with_tainted) override;
  Result<std::vector<StepTexts>> Texts(size_t last) override;
  Result<std::optional<uint64_t>> Newest() override;
  Result<std::shared_ptr<StepReader>> Read(uint64_t step) override;
  // It is all that there is of it.
  Result<std::shared_ptr<StepReader>> ReadShare(uint64_t step) override { return Read(step); }
  Result<std::shared_ptr<const StoreSnapshot>> Snapshot() override;
  void OnChange(const void*, std::function<void()>) override {}
  Result<bool> SealSegments(const std::set<uint64_t>&) override { return true; }
  ViewSet& views() override { return views_; }
  StoreStats Stats() override;
  Result<RetentionReport> Retention() override;
  // What other steps have in common with these, no list says.
  Result<std::map<uint64_t, std::optional<uint64_t>>> FreesBytes(
      std::span<const uint64_t> steps) override;
  const RecoveryReport& recovery() const override { return recovery_; }
  const std::string& path() const override { return source_->objects->name(); }
  const format::Id128& id() const override { return id_; }
  const StoreGroup& part() const override { return part_; }
  bool read_only() const override { return true; }
  io::FileSystem* file_system() override { return source_->environment.file_system; }

  Result<SaveHandle> Save(SaveRequest) override { return ReadOnly(); }
  Status Wait() override { return OkStatus(); }
  Status TakeError() override { return OkStatus(); }
  Status Delete(std::span<const uint64_t>) override { return ReadOnly(); }
  Status DeleteItems(uint64_t, std::span<const std::string>) override { return ReadOnly(); }
  Status SetPinned(std::span<const uint64_t>, bool) override { return ReadOnly(); }
  Status SetTaint(std::span<const uint64_t>, std::string_view) override { return ReadOnly(); }
  Result<ReclaimReport> Reclaim() override { return ReadOnly(); }
  Result<RepairReport> Repair(bool) override { return ReadOnly(); }
  Result<Decided> Decide(const Decision&) override { return ReadOnly(); }
  Result<GroupStatus> Group() override { return ReadOnly(); }
  Status Close() override;

 private:
  // What readers of steps share with the store, which they may outlive.
  struct Source {
    Source(std::shared_ptr<RunObjects> of, Environment machine);
    // Explains an error from reading a step by this list: kNotFound if the list is not there any
    // more.
    Status Explain(const Status& error, uint64_t step, const std::string& header) const;

    const std::shared_ptr<RunObjects> objects;
    const Environment environment;
    ObjectFiles files;
    Restorer restorer;
  };
  // A step's list, decoded.
  struct ListedStep {
    std::string header;
    format::PushedStep list;
    std::shared_ptr<const void> objects;
  };

  explicit RunStore(std::shared_ptr<Source> source);
  Status ReadOnly() const;
  Status Check() const;
  // kNotFound: the step is not there.
  Result<format::StepRecord> Record(uint64_t step) const;
  struct Found {
    uint64_t step = 0;
    Result<format::StepRecord> record;  // or kDataLoss
  };
  // Those of `steps` that are there.
  Result<std::vector<Found>> Find(std::span<const uint64_t> steps) const;
  // The same; kDataLoss: the list of one is damaged.
  Result<std::vector<format::StepRecord>> Records(std::span<const uint64_t> steps) const;
  Result<std::vector<uint64_t>> Numbers() STEPWELL_EXCLUDES(mutex_);
  // Returns whether a step is tainted; kNotFound: it is not there.
  using LookUp = std::function<Result<bool>(uint64_t step)>;
  // The highest step that is not tainted, and the last one that was looked up.
  Result<std::optional<uint64_t>> NewestBy(const LookUp& look_up);
  Result<std::shared_ptr<const ListedStep>> List(uint64_t step) STEPWELL_EXCLUDES(mutex_);
  std::shared_ptr<StepReader> ReaderOf(const std::shared_ptr<const ListedStep>& listed);
  Result<std::shared_ptr<StepReader>> ReadNewestNow() override;
  Result<VerifyReport> VerifyWith(const VerifyOptions& options, bool others) override;

  const int pid_;
  const std::shared_ptr<Source> source_;
  const RecoveryReport recovery_;
  const format::Id128 id_;
  const StoreGroup part_;
  ViewSet views_;
  mutable io::Mutex mutex_;
  bool closed_ STEPWELL_GUARDED_BY(mutex_) = false;
  std::optional<uint64_t> highest_ STEPWELL_GUARDED_BY(mutex_);  // that was ever seen
  std::deque<std::shared_ptr<const ListedStep>> recent_ STEPWELL_GUARDED_BY(mutex_);
};

}  // namespace stepwell::db
