// SPDX-License-Identifier: Apache-2.0
// A store open for reading, in any process, also beside a live writer and on read-only media. It
// reads the log; of the index only the texts of many steps at once (DESIGN.md, "The index").
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "db/environment.h"
#include "db/index/index.h"
#include "db/log/footprint.h"
#include "db/read/log_view.h"
#include "db/read/part_merge.h"
#include "db/store.h"
#include "db/store/mailbox.h"
#include "db/view/view_set.h"

namespace stepwell::db {

class ReaderStore final : public Store {
 public:
  // `beside_writer`: for OpenOptions::through_writer. kUnavailable: the process that writes takes
  // no requests of this.
  static Result<std::unique_ptr<Store>> Open(const std::string& path, const StoreOptions& options,
                                             Environment environment, bool beside_writer);
  ~ReaderStore() override;

  Result<SaveHandle> Save(SaveRequest request) override;
  Status Wait() override { return OkStatus(); }
  Status TakeError() override { return OkStatus(); }
  Result<std::vector<format::StepRecord>> Steps() override;
  Result<std::vector<uint64_t>> StepNumbers(size_t last, bool with_tainted) override;
  Result<std::vector<StepTexts>> Texts(size_t last) override;
  Result<std::optional<uint64_t>> Newest() override;
  Result<std::shared_ptr<StepReader>> Read(uint64_t step) override;
  Result<std::shared_ptr<StepReader>> ReadShare(uint64_t step) override;
  Result<std::shared_ptr<const StoreSnapshot>> Snapshot() override;
  void OnChange(const void*, std::function<void()>) override {}
  ViewSet& views() override { return views_; }
  Status Delete(std::span<const uint64_t> steps) override;
  Result<Decided> Decide(const Decision& decision) override;
  Result<GroupStatus> Group() override;
  Status DeleteItems(uint64_t step, std::span<const std::string> items) override;
  Status SetPinned(std::span<const uint64_t> steps, bool pinned) override;
  Status SetTaint(std::span<const uint64_t> steps, std::string_view why) override;
  Result<ReclaimReport> Reclaim() override;
  Result<bool> SealSegments(const std::set<uint64_t>&) override { return true; }
  Result<RepairReport> Repair(bool accept_losses) override;
  StoreStats Stats() override;
  Result<RetentionReport> Retention() override;
  Result<std::map<uint64_t, std::optional<uint64_t>>> FreesBytes(
      std::span<const uint64_t> steps) override;
  const RecoveryReport& recovery() const override { return log_->recovery(); }
  const std::string& path() const override { return log_->path(); }
  const format::Id128& id() const override { return log_->id(); }
  const StoreGroup& part() const override { return log_->part(); }
  bool read_only() const override { return true; }
  bool untrusted() const override { return options_.untrusted; }
  io::FileSystem* file_system() override { return source().environment.file_system; }
  Status Close() override;

 private:
  ReaderStore(const StoreOptions& options, std::unique_ptr<LogFollower> log);
  Result<std::shared_ptr<StepReader>> ReadNewestNow() override;
  Result<std::shared_ptr<StepReader>> WithOtherParts(std::shared_ptr<StepReader> own);
  Result<VerifyReport> VerifyWith(const VerifyOptions& options, bool others) override;
  Result<ReclaimReport> SendToWriter(const WriterRequest& request);
  LogSource& source() const { return *log_->source(); }
  std::unique_ptr<Index> OpenIndex() const;
  Status NoStep(const LogView& view, uint64_t step) const;

  const StoreOptions options_;
  const std::unique_ptr<LogFollower> log_;
  FootprintCache footprints_;
  std::shared_ptr<PartStores> parts_;  // step readers keep it, too
  ViewSet views_;
  std::unique_ptr<WriterClient> writer_;  // null: nothing is changed through this store
};

}  // namespace stepwell::db
