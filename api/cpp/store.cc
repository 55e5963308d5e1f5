// SPDX-License-Identifier: Apache-2.0
#include <stepwell/store.h>

#include <utility>

#include "api/cpp/core.h"
#include "api/cpp/leaf_info.h"
#include "api/cpp/step.h"
#include "db/export/archive/archive.h"
#include "db/export/export.h"
#include "db/import/import.h"
#include "db/store/roll_back.h"
#include "db/view/view.h"
#include "io/open_disk.h"

namespace stepwell {
// Every call looks first whether there is a store that may be used.
#define STEPWELL_CHECK_OPEN_()                                                      \
  if (core_ == nullptr) return FailedPreconditionError("the store was moved from"); \
  STEPWELL_RETURN_IF_ERROR(core_->Check())

Result<Store> Store::Open(const std::string& path, const OpenOptions& options) {
  if (path.empty()) return InvalidArgumentError("a store's path is empty");
  STEPWELL_ASSIGN_OR_RETURN(auto opened, db::Store::Open(path, options));
  return Store(std::make_shared<Core>(std::move(opened)));
}

Store::Store(std::shared_ptr<Core> core) : core_(std::move(core)) {}
Store::Store(Store&& other) noexcept = default;
Store& Store::operator=(Store&& other) noexcept {
  if (this != &other) {
    Close().IgnoreError("as the destructor");
    core_ = std::move(other.core_);
  }
  return *this;
}
Store::~Store() { Close().IgnoreError("call Close for the error"); }

const std::string& Store::path() const {
  static const std::string moved_from;
  return core_ == nullptr ? moved_from : core_->store->path();
}

Result<SaveHandle> Store::Save(SaveRequest request) {
  STEPWELL_CHECK_OPEN_();
  STEPWELL_ASSIGN_OR_RETURN(db::SaveRequest engine_request, Core::ToEngine(std::move(request)));
  return core_->store->Save(std::move(engine_request));
}

Status Store::Wait() {
  STEPWELL_CHECK_OPEN_();
  return core_->store->Wait();
}

Result<std::vector<StepInfo>> Store::Steps() {
  STEPWELL_CHECK_OPEN_();
  STEPWELL_ASSIGN_OR_RETURN(const auto records, core_->store->Steps());
  std::vector<StepInfo> steps;
  steps.reserve(records.size());
  for (const format::StepRecord& record : records) steps.push_back(ToPublic(record));
  return steps;
}

Result<std::vector<StepInfo>> Store::StepsWithTexts(size_t last) {
  STEPWELL_ASSIGN_OR_RETURN(std::vector<StepInfo> steps, Steps());
  STEPWELL_ASSIGN_OR_RETURN(auto texts, core_->store->Texts(last));
  if (steps.size() > last) steps.erase(steps.begin(), steps.end() - static_cast<ptrdiff_t>(last));
  auto known = texts.begin();
  for (StepInfo& step : steps) {
    while (known != texts.end() && known->step < step.step) ++known;
    if (known == texts.end() || known->commit != step.commit || !known->status.ok()) continue;
    step.metadata_json = std::move(known->metadata_json);
    step.metrics_json = std::move(known->metrics_json);
  }
  return steps;
}

Result<Step> Store::Read(uint64_t step) {
  STEPWELL_CHECK_OPEN_();
  STEPWELL_ASSIGN_OR_RETURN(auto reader, core_->store->Read(step));
  return Step(std::make_shared<Step::Impl>(core_, std::move(reader)));
}

Result<Step> Store::ReadLatest() {
  STEPWELL_CHECK_OPEN_();
  STEPWELL_ASSIGN_OR_RETURN(auto reader, core_->store->ReadNewest());
  if (reader == nullptr) {
    STEPWELL_ASSIGN_OR_RETURN(const auto steps, core_->store->StepNumbers(1, true));
    return NotFoundError(StrCat(core_->store->path(),
                                steps.empty() ? " has no steps yet" : " has only tainted steps"));
  }
  return Step(std::make_shared<Step::Impl>(core_, std::move(reader)));
}

Status Store::Delete(const std::vector<uint64_t>& steps) {
  STEPWELL_CHECK_OPEN_();
  return core_->store->Delete(steps);
}

Status Store::DeleteItems(uint64_t step, const std::vector<std::string>& items) {
  STEPWELL_CHECK_OPEN_();
  return core_->store->DeleteItems(step, items);
}

Status Store::SetPinned(const std::vector<uint64_t>& steps, bool pinned) {
  STEPWELL_CHECK_OPEN_();
  return core_->store->SetPinned(steps, pinned);
}

Status Store::SetTaint(const std::vector<uint64_t>& steps, const std::string& why) {
  STEPWELL_CHECK_OPEN_();
  return core_->store->SetTaint(steps, why);
}

Result<std::vector<uint64_t>> Store::RollBack(uint64_t to, const std::string& taint) {
  STEPWELL_CHECK_OPEN_();
  return db::RollBack(*core_->store, to, taint);
}

Result<ExportReport> Store::Export(uint64_t step, const std::string& destination,
                                   const ExportOptions& options, const Path& path) {
  STEPWELL_CHECK_OPEN_();
  db::ExportOptions engine_options = options;
  STEPWELL_ASSIGN_OR_RETURN(engine_options.subtree_key, SubtreeKey(step, path));
  return db::Export(*core_->store, step, destination, engine_options);
}

Result<ExportReport> Store::ExportArchive(uint64_t step, const std::string& destination,
                                          const ArchiveOptions& options, const Path& path) {
  STEPWELL_CHECK_OPEN_();
  db::ArchiveOptions engine_options = options;
  STEPWELL_ASSIGN_OR_RETURN(engine_options.subtree_key, SubtreeKey(step, path));
  return db::ExportArchive(*core_->store, step, destination, engine_options);
}

// The engine's name of what stands at `path`; "" for the whole step.
Result<std::string> Store::SubtreeKey(uint64_t step, const Path& path) {
  if (!path.item() && path.ToText().empty()) return std::string();
  STEPWELL_ASSIGN_OR_RETURN(const Step reader, Read(step));
  return reader.KeyOf(path);
}

Result<std::shared_ptr<View>> Store::OpenView(const std::string& directory,
                                              const ViewOptions& options) {
  STEPWELL_CHECK_OPEN_();
  struct Kept {
    std::shared_ptr<Core> core;  // before the view, which uses it to its end
    std::shared_ptr<db::OrbaxView> view;
  };
  STEPWELL_ASSIGN_OR_RETURN(auto view, db::OpenView(*core_->store, directory, options));
  View* const opened = view.get();
  return std::shared_ptr<View>(std::make_shared<Kept>(Kept{core_, std::move(view)}), opened);
}

Result<SaveHandle> Store::Import(const std::string& checkpoint, uint64_t step,
                                 const ImportOptions& options) {
  STEPWELL_CHECK_OPEN_();
  STEPWELL_ASSIGN_OR_RETURN(const auto found,
                            db::OrbaxCheckpoint::Open(io::LocalFileSystem(), checkpoint));
  STEPWELL_ASSIGN_OR_RETURN(db::SaveRequest request, db::ImportRequest(found, step, options));
  return core_->store->Save(std::move(request));
}

Status Store::VerifyImport(const std::string& checkpoint, uint64_t step,
                           const ImportOptions& options) {
  STEPWELL_CHECK_OPEN_();
  return db::VerifyImport(*core_->store, step, checkpoint, options, io::LocalFileSystem());
}

Result<ReclaimReport> Store::Reclaim() {
  STEPWELL_CHECK_OPEN_();
  return core_->store->Reclaim();
}

Result<VerifyReport> Store::Verify(const VerifyOptions& options) {
  STEPWELL_CHECK_OPEN_();
  return core_->store->Verify(options);
}

Result<RepairReport> Store::Repair(bool accept_losses) {
  STEPWELL_CHECK_OPEN_();
  return core_->store->Repair(accept_losses);
}

Result<RetentionReport> Store::Retention() {
  STEPWELL_CHECK_OPEN_();
  return core_->store->Retention();
}

Result<std::map<uint64_t, std::optional<uint64_t>>> Store::FreesBytes(
    const std::vector<uint64_t>& steps) {
  STEPWELL_CHECK_OPEN_();
  return core_->store->FreesBytes(steps);
}

Result<StoreStats> Store::Stats() {
  STEPWELL_CHECK_OPEN_();
  return core_->store->Stats();
}

Result<RecoveryReport> Store::Recovery() {
  STEPWELL_CHECK_OPEN_();
  return core_->store->recovery();
}

Status Store::Close() {
  if (core_ == nullptr || core_->closed.exchange(true)) return OkStatus();
  return core_->store->Close();
}

#undef STEPWELL_CHECK_OPEN_

}  // namespace stepwell
