// SPDX-License-Identifier: Apache-2.0
#include <stepwell/store.h>

#include <utility>

#include "api/cpp/core.h"
#include "api/cpp/step.h"
#include "db/export/export.h"

namespace stepwell {
namespace {

db::StoreOptions ToEngine(const OpenOptions& options) {
  db::StoreOptions out;
  out.read_only = options.read_only;
  out.create = options.create;
  out.untrusted = options.untrusted;
  out.private_files = options.private_files;
  out.staging_bytes = options.staging_bytes;
  out.threads = options.threads;
  out.keep = options.keep;
  out.codec = options.codec;
  out.lock_timeout = options.lock_timeout;
  out.reclaim_bytes_per_second = options.reclaim_bytes_per_second;
  out.trace_path = options.trace_path;
  out.log = options.log;
  return out;
}

}  // namespace

StepInfo ToPublic(const format::StepRecord& record) {
  StepInfo info;
  info.step = record.step;
  info.time = std::chrono::system_clock::time_point(
      std::chrono::duration_cast<std::chrono::system_clock::duration>(
          std::chrono::nanoseconds(record.time_ns)));
  info.pinned = record.pinned;
  for (const format::ItemRecord& item : record.items) {
    info.items.push_back({.name = item.name,
                          .leaves = item.leaf_count,
                          .logical_bytes = item.logical_bytes,
                          .stored_bytes = item.stored_bytes});
  }
  info.leaves = record.leaf_count;
  info.chunks = record.chunk_count;
  info.logical_bytes = record.logical_bytes;
  info.stored_bytes = record.stored_bytes;
  info.metadata_json = record.metadata_json;
  info.metrics_json = record.metrics_json;
  return info;
}

// Every call looks first whether there is a store that may be used.
#define STEPWELL_CHECK_OPEN_()                                                      \
  if (core_ == nullptr) return FailedPreconditionError("the store was moved from"); \
  STEPWELL_RETURN_IF_ERROR(core_->Check())

Result<Store> Store::Open(const std::string& path, const OpenOptions& options) {
  if (path.empty()) return InvalidArgumentError("a store's path is empty");
  STEPWELL_ASSIGN_OR_RETURN(auto opened, db::Store::Open(path, ToEngine(options)));
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
Store::~Store() { Close().IgnoreError("whoever wants it calls Close"); }

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
  STEPWELL_ASSIGN_OR_RETURN(const auto summaries, core_->store->Steps());
  std::vector<StepInfo> steps;
  steps.reserve(summaries.size());
  for (const db::StepSummary& summary : summaries) steps.push_back(ToPublic(summary.step));
  return steps;
}

Result<Step> Store::Read(uint64_t step) {
  STEPWELL_CHECK_OPEN_();
  STEPWELL_ASSIGN_OR_RETURN(auto reader, core_->store->Read(step));
  return Step(std::make_shared<Step::Impl>(core_, std::move(reader)));
}

Result<Step> Store::ReadLatest() {
  // The newest may be deleted between the two calls, once the next one is there.
  constexpr int kTriesMax = 16;
  Status status;
  for (int i = 0; i < kTriesMax; ++i) {
    STEPWELL_CHECK_OPEN_();
    STEPWELL_ASSIGN_OR_RETURN(const auto newest, core_->store->Newest());
    if (!newest) return NotFoundError(core_->store->path() + " has no step yet");
    Result<Step> step = Read(*newest);
    if (step.status().code() != StatusCode::kNotFound) return step;
    status = step.status();
  }
  return status;
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

Result<ExportReport> Store::Export(uint64_t step, const std::string& destination,
                                   const ExportOptions& options, const Path& path) {
  STEPWELL_CHECK_OPEN_();
  db::ExportOptions engine_options;
  static_cast<ExportOptions&>(engine_options) = options;
  if (path.item() || !path.ToText().empty()) {
    STEPWELL_ASSIGN_OR_RETURN(const Step reader, Read(step));
    STEPWELL_ASSIGN_OR_RETURN(engine_options.subtree_key, reader.KeyOf(path));
  }
  return db::Export(*core_->store, step, destination, engine_options);
}

Result<ReclaimReport> Store::Reclaim() {
  STEPWELL_CHECK_OPEN_();
  return core_->store->Reclaim();
}

Result<VerifyReport> Store::Verify(const VerifyOptions& options) {
  STEPWELL_CHECK_OPEN_();
  return core_->store->Verify(options);
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
