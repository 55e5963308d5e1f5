// SPDX-License-Identifier: Apache-2.0
#include "db/store/run_store.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "db/commit/retention_report.h"
#include "db/log/lock.h"
#include "db/read/step_reader.h"
#include "io/for_each.h"
#include "io/open_disk.h"

namespace stepwell::db {
namespace {

// Reads in flight: enough to hide the latency of an object store.
constexpr size_t kReadThreads = 16;
// Steps whose lists are kept: those that a tree is brought from and to, and a newer one.
constexpr size_t kListsMax = 3;
// How often steps may be deleted while the newest one is looked up.
constexpr int kLooksMax = 20;

Status Gone(const std::string& run, uint64_t step) {
  return NotFoundError(
      StrCat(run, ": step ", step, " was deleted while it was being read; load another step"));
}

std::string_view HeaderOf(const std::string& list) {
  return std::string_view(list).substr(0, format::kPushedHeaderBytes);
}

}  // namespace

RunStore::Source::Source(std::shared_ptr<RunObjects> of, Environment machine)
    : objects(std::move(of)),
      environment(std::move(machine)),
      files(objects),
      restorer(&files, environment.workers.get(), environment.make_disk) {}

Status RunStore::Source::Explain(const Status& error, uint64_t step,
                                 const std::string& header) const {
  if (!IsDamage(error) && error.code() != StatusCode::kDataLoss) return error;
  const auto head = objects->ListHead(step);
  if (head.status().code() == StatusCode::kNotFound) return Gone(objects->name(), step);
  if (head.ok() && HeaderOf(*head) != header) {
    return NotFoundError(StrCat(objects->name(), ": step ", step,
                                " was replaced while it was being read; load it again"));
  }
  if (head.ok()) {
    return error.code() == StatusCode::kNotFound ? DataLossError(error.message()) : error;
  }
  return DataLossError(
      StrCat(error.message(),
             "; or it was deleted while it was being read, which could not be looked up: ",
             head.status().message()));
}

RunStore::RunStore(std::shared_ptr<Source> source)
    : pid_(getpid()), source_(std::move(source)), id_(RandomId(source_->environment.random)) {}

Result<std::unique_ptr<Store>> RunStore::Open(std::shared_ptr<RunObjects> objects,
                                              const StoreOptions& options) {
  STEPWELL_ASSIGN_OR_RETURN(Environment environment, MakeEnvironment(options));
  environment.make_disk = [] { return io::MakeBlockingDisk(kReadThreads); };
  return std::unique_ptr<Store>(
      new RunStore(std::make_shared<Source>(std::move(objects), environment.ForReaders())));
}

Status RunStore::ReadOnly() const {
  return FailedPreconditionError(path() + ": a pushed run is open for reading only");
}

Status RunStore::Check() const {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  const io::MutexLock lock(&mutex_);
  return closed_ ? FailedPreconditionError(path() + ": the store is closed") : OkStatus();
}

Result<format::StepRecord> RunStore::Record(uint64_t step) const {
  STEPWELL_ASSIGN_OR_RETURN(const std::string bytes, source_->objects->ListHead(step));
  auto head = format::DecodePushedHead(AsBytes(bytes));
  Status status = head.status();
  if (head.ok() && (!head->step || head->step->step != step)) {
    status = DataLossError("it is not the list of this step");
  }
  if (!status.ok()) return status.WithContext(StrCat(path(), ": the list of step ", step));
  return *std::move(head->step);
}

Result<std::vector<RunStore::Found>> RunStore::Find(std::span<const uint64_t> steps) const {
  std::vector<std::optional<Result<format::StepRecord>>> found(steps.size());
  STEPWELL_ASSIGN_OR_RETURN(const auto threads,
                            io::MakeThreadPool(std::min(kReadThreads, steps.size() + 1)));
  io::ForEach(threads.get(), steps.size(),
              [&](size_t i, size_t) { found[i].emplace(Record(steps[i])); });
  std::vector<Found> records;
  for (size_t i = 0; i < steps.size(); ++i) {
    const StatusCode code = found[i]->status().code();
    if (code == StatusCode::kNotFound) continue;
    const bool has_answer = found[i]->ok() || code == StatusCode::kDataLoss;
    if (!has_answer) return found[i]->status();
    records.push_back({steps[i], *std::move(found[i])});
  }
  return records;
}

Result<std::vector<format::StepRecord>> RunStore::Records(std::span<const uint64_t> steps) const {
  STEPWELL_ASSIGN_OR_RETURN(auto found, Find(steps));
  std::vector<format::StepRecord> records;
  for (Found& each : found) {
    STEPWELL_RETURN_IF_ERROR(each.record.status());
    records.push_back(*std::move(each.record));
  }
  return records;
}

Result<std::vector<uint64_t>> RunStore::Numbers() {
  STEPWELL_RETURN_IF_ERROR(Check());
  STEPWELL_ASSIGN_OR_RETURN(std::vector<uint64_t> steps, source_->objects->Steps());
  std::optional<uint64_t> seen;
  {
    const io::MutexLock lock(&mutex_);
    if (!steps.empty()) highest_ = std::max(highest_.value_or(0), steps.back());
    seen = highest_;
  }
  // A listing may be older than one before it: no step goes away by that.
  if (!seen || (!steps.empty() && steps.back() == *seen)) return steps;
  const auto head = source_->objects->ListHead(*seen);
  if (head.ok()) {
    steps.push_back(*seen);
    return steps;
  }
  if (head.status().code() != StatusCode::kNotFound) return head.status();
  const io::MutexLock lock(&mutex_);
  if (highest_ == seen) {
    highest_ = steps.empty() ? std::nullopt : std::optional(steps.back());
  }
  return steps;
}

Result<std::vector<format::StepRecord>> RunStore::Steps() {
  STEPWELL_ASSIGN_OR_RETURN(const auto steps, Numbers());
  return Records(steps);
}

Result<std::vector<uint64_t>> RunStore::StepNumbers(size_t last, bool with_tainted) {
  STEPWELL_ASSIGN_OR_RETURN(std::vector<uint64_t> steps, Numbers());
  if (!with_tainted && last > 1) {
    STEPWELL_ASSIGN_OR_RETURN(const auto found, Find(steps));
    steps.clear();
    for (const Found& each : found) {
      if (!each.record.ok() || each.record->taint.empty()) steps.push_back(each.step);
    }
  } else if (!with_tainted) {
    STEPWELL_ASSIGN_OR_RETURN(const auto newest, Newest());
    steps.clear();
    if (newest) steps.push_back(*newest);
  }
  if (steps.size() > last) steps.erase(steps.begin(), steps.end() - static_cast<ptrdiff_t>(last));
  return steps;
}

Result<std::vector<StepTexts>> RunStore::Texts(size_t last) {
  STEPWELL_ASSIGN_OR_RETURN(const auto steps, StepNumbers(last, /*with_tainted=*/true));
  STEPWELL_ASSIGN_OR_RETURN(auto found, Find(steps));
  std::vector<StepTexts> texts;
  for (Found& each : found) {
    if (each.record.ok()) {
      texts.push_back({each.step, each.record->commit, std::move(each.record->metadata_json),
                       std::move(each.record->metrics_json), OkStatus()});
    } else {
      texts.push_back({each.step, 0, {}, {}, each.record.status()});
    }
  }
  return texts;
}

Result<std::optional<uint64_t>> RunStore::NewestBy(const LookUp& look_up) {
  std::set<uint64_t> missing;  // listed, but not there: a listing may be old, or list a link
  for (int look = 0; look < kLooksMax; ++look) {
    STEPWELL_ASSIGN_OR_RETURN(const auto steps, Numbers());
    bool gone = false;
    for (auto step = steps.rbegin(); step != steps.rend() && !gone; ++step) {
      if (missing.contains(*step)) continue;
      const auto tainted = look_up(*step);
      gone = tainted.status().code() == StatusCode::kNotFound;
      if (gone) missing.insert(*step);
      if (gone) continue;
      STEPWELL_RETURN_IF_ERROR(tainted.status());
      if (!*tainted) return std::optional(*step);
    }
    if (!gone) return std::optional<uint64_t>();
  }
  return UnavailableError(path() + ": its newest steps are deleted faster than they are read");
}

Result<std::optional<uint64_t>> RunStore::Newest() {
  return NewestBy([this](uint64_t step) -> Result<bool> {
    STEPWELL_ASSIGN_OR_RETURN(const auto record, Record(step));
    return !record.taint.empty();
  });
}

Result<std::shared_ptr<const RunStore::ListedStep>> RunStore::List(uint64_t step) {
  STEPWELL_ASSIGN_OR_RETURN(std::string bytes, source_->objects->ListHead(step));
  {
    const io::MutexLock lock(&mutex_);
    for (const auto& each : recent_) {
      if (each->list.step->step == step && each->header == HeaderOf(bytes)) return each;
    }
  }
  auto listed = std::make_shared<ListedStep>();
  const auto decode = [&]() -> Status {
    STEPWELL_ASSIGN_OR_RETURN(const auto header, format::DecodePushedHeader(AsBytes(bytes)));
    if (bytes.size() != header.size_bytes()) {
      STEPWELL_ASSIGN_OR_RETURN(bytes, source_->objects->List(step));
    }
    STEPWELL_ASSIGN_OR_RETURN(listed->list, format::DecodePushedStep(AsBytes(bytes)));
    if (listed->list.step->step != step) return DataLossError("it is not the list of this step");
    STEPWELL_ASSIGN_OR_RETURN(listed->objects, source_->files.Number(&listed->list));
    return OkStatus();
  };
  STEPWELL_RETURN_IF_ERROR(decode().WithContext(StrCat(path(), ": the list of step ", step)));
  listed->header = HeaderOf(bytes);
  listed->list.base_hashes = {};
  const io::MutexLock lock(&mutex_);
  recent_.push_back(listed);
  if (recent_.size() > kListsMax) recent_.pop_front();
  return std::shared_ptr<const ListedStep>(std::move(listed));
}

Result<std::shared_ptr<StepReader>> RunStore::Read(uint64_t step) {
  STEPWELL_RETURN_IF_ERROR(Check());
  auto listed = List(step);
  if (listed.status().code() == StatusCode::kNotFound) {
    STEPWELL_ASSIGN_OR_RETURN(const auto steps, Numbers());
    return StepNotFound(path(), step, steps);
  }
  STEPWELL_RETURN_IF_ERROR(listed.status());
  return ReaderOf(*listed);
}

std::shared_ptr<StepReader> RunStore::ReaderOf(const std::shared_ptr<const ListedStep>& listed) {
  const auto leaves = [listed](const format::KeyRange& range) {
    const auto& all = listed->list.leaves;
    const auto first = std::ranges::lower_bound(all, range.first, {}, &format::LeafRecord::key);
    const auto end = range.end.empty() ? all.end()
                                       : std::ranges::lower_bound(first, all.end(), range.end, {},
                                                                  &format::LeafRecord::key);
    return Result<std::vector<format::LeafRecord>>(std::vector(first, end));
  };
  const auto explain = [listed, source = source_](const Status& error) {
    return source->Explain(error, listed->list.step->step, listed->header);
  };
  return MakeStepReader(*listed->list.step, leaves, &source_->restorer, path(), explain, source_);
}

Result<std::shared_ptr<StepReader>> RunStore::ReadNewestNow() {
  std::shared_ptr<const ListedStep> last;
  STEPWELL_ASSIGN_OR_RETURN(const auto newest,
                            NewestBy([this, &last](uint64_t step) -> Result<bool> {
                              STEPWELL_ASSIGN_OR_RETURN(last, List(step));
                              return !last->list.step->taint.empty();
                            }));
  if (!newest) return std::shared_ptr<StepReader>();
  return ReaderOf(last);
}

Result<std::shared_ptr<const StoreSnapshot>> RunStore::Snapshot() {
  STEPWELL_ASSIGN_OR_RETURN(const auto records, Steps());
  auto snapshot = std::make_shared<StoreSnapshot>();
  for (const auto& record : records) snapshot->steps.push_back(BriefOf(record));
  return std::shared_ptr<const StoreSnapshot>(std::move(snapshot));
}

Result<VerifyReport> RunStore::VerifyWith(const VerifyOptions& options, bool) {
  std::vector<uint64_t> steps;
  if (options.step) {
    steps = {*options.step};
  } else {
    STEPWELL_ASSIGN_OR_RETURN(steps, Numbers());
  }
  STEPWELL_ASSIGN_OR_RETURN(const auto found, Find(steps));
  if (options.step && found.empty()) return Read(*options.step).status();
  VerifyReport report;
  StepChecks checks;
  for (const Found& each : found) {
    if (each.record.ok()) checks.total_bytes += each.record->stored_bytes;
  }
  for (const Found& each : found) {
    const size_t known = report.problems.size();
    auto listed = List(each.step);
    if (!listed.ok()) {
      const Status& status = listed.status();
      if (status.code() == StatusCode::kNotFound) continue;  // deleted meanwhile
      if (!IsDamage(status) && status.code() != StatusCode::kDataLoss) return status;
      VerifyProblem& problem = report.problems.emplace_back();
      problem.step = each.step;
      problem.file = path();
      problem.message = status.message();
      continue;
    }
    const format::StepRecord& record = *(*listed)->list.step;
    ++report.steps;
    STEPWELL_RETURN_IF_ERROR(VerifyLeaves(record, (*listed)->list.leaves, {}, source_->files,
                                          source_->restorer, options, &checks, &report));
    if (report.problems.size() == known) continue;
    // Deleted is not damaged.
    const Status status = source_->Explain(DataLossError(""), record.step, (*listed)->header);
    if (status.code() != StatusCode::kNotFound) continue;
    if (options.step) return status;
    report.problems.resize(known);
  }
  return report;
}

StoreStats RunStore::Stats() {
  StoreStats stats;
  if (const auto steps = Numbers(); steps.ok()) stats.steps = steps->size();
  stats.index_state = "lists";
  return stats;
}

Result<RetentionReport> RunStore::Retention() {
  STEPWELL_ASSIGN_OR_RETURN(const auto records, Steps());
  std::vector<KeepCandidate> candidates;
  for (const auto& record : records) {
    KeepCandidate& candidate = candidates.emplace_back();
    candidate.step = record.step;
    candidate.time_ns = record.time_ns;
    candidate.stored_bytes = record.stored_bytes;
    candidate.referenced_bytes = record.referenced_bytes;
    candidate.pinned = record.pinned;
    candidate.tainted = !record.taint.empty();
    candidate.is_old = true;
  }
  return ReportRetention({}, std::move(candidates), /*lost=*/false);
}

Result<std::map<uint64_t, std::optional<uint64_t>>> RunStore::FreesBytes(
    std::span<const uint64_t> steps) {
  STEPWELL_ASSIGN_OR_RETURN(const auto there, Numbers());
  std::map<uint64_t, std::optional<uint64_t>> frees;
  for (const uint64_t step : steps.empty() ? std::span<const uint64_t>(there) : steps) {
    if (!std::ranges::binary_search(there, step)) return StepNotFound(path(), step, there);
    frees[step] = std::nullopt;
  }
  return frees;
}

Status RunStore::Close() {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  const io::MutexLock lock(&mutex_);
  closed_ = true;
  recent_.clear();
  return OkStatus();
}

}  // namespace stepwell::db
