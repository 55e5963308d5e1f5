// SPDX-License-Identifier: Apache-2.0
#include "db/store/reader_store.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "db/commit/retention_report.h"
#include "db/group.h"
#include "db/index/keeper.h"
#include "db/layout.h"
#include "db/log/footprint.h"
#include "db/log/frees_bytes.h"
#include "db/log/lock.h"
#include "db/log/step_records.h"
#include "db/read/step_reader.h"

namespace stepwell::db {
namespace {

Status ReadOnly(const std::string& path) {
  return FailedPreconditionError(path + ": the store is open for reading only");
}

}  // namespace

ReaderStore::ReaderStore(const StoreOptions& options, std::unique_ptr<LogFollower> log)
    : options_(options),
      log_(std::move(log)),
      footprints_(log_->source()->files.get()),
      parts_(std::make_shared<PartStores>(log_->path(), log_->source()->environment,
                                          log_->source()->files.get())) {}

ReaderStore::~ReaderStore() {
  if (getpid() != log_->pid()) {
    // A forked child: the threads are not here; leave everything as it is.
    (void)new std::shared_ptr<PartStores>(std::move(parts_));
    return;
  }
  io::Quietly([this] { views_.Close(/*keep=*/false); });
  io::Quietly([this] { parts_->Close(); });
}

Result<std::unique_ptr<Store>> ReaderStore::Open(const std::string& path,
                                                 const StoreOptions& options,
                                                 Environment environment, bool beside_writer) {
  STEPWELL_ASSIGN_OR_RETURN(
      auto log, LogFollower::Open(path, options.group, std::move(environment), options.log));
  std::unique_ptr<ReaderStore> store(new ReaderStore(options, std::move(log)));
  if (beside_writer) {
    STEPWELL_ASSIGN_OR_RETURN(store->writer_, WriterClient::Connect(store.get()));
  } else if (store->part().part != 0 && !options.group) {
    Log(options.log, LogLevel::kWarning,
        StrCat(DescribePart(path, store->part()), " and has only its share of each step; open ",
               ParentOf(path), " for whole ones"));
  }
  return std::unique_ptr<Store>(std::move(store));
}

Result<std::vector<format::StepRecord>> ReaderStore::Steps() {
  STEPWELL_ASSIGN_OR_RETURN(const auto view, log_->Refresh());
  std::vector<format::StepRecord> steps;
  for (const auto& [step, live] : view->log->live) steps.push_back(live.record);
  return steps;
}

Result<std::vector<uint64_t>> ReaderStore::StepNumbers(size_t last, bool with_tainted) {
  STEPWELL_ASSIGN_OR_RETURN(const auto view, log_->Refresh());
  return LastNumbers(view->log->live, last, with_tainted);
}

// Anew for each question: it is as of now, keeps no descriptors, and a writer may have made the
// index anew meanwhile. Null: there is none that can be read, and the log has all.
std::unique_ptr<Index> ReaderStore::OpenIndex() const {
  if (options_.untrusted || source().environment.without_index) return nullptr;
  Index::Options options;
  options.file_system = source().environment.file_system;
  options.path = IndexPath(path());
  options.store_id = id();
  options.freeze = std::make_shared<io::Freeze>();
  auto index = Index::OpenToRead(options);
  return index.ok() ? *std::move(index) : nullptr;
}

Result<std::vector<StepTexts>> ReaderStore::Texts(size_t last) {
  STEPWELL_ASSIGN_OR_RETURN(const auto view, log_->Refresh());
  const auto& live = view->log->live;
  std::vector<const LiveStep*> steps;
  for (auto it = LastOf(live, last); it != live.end(); ++it) steps.push_back(&it->second);
  const auto index = steps.size() > source().environment.steps_before_index ? OpenIndex() : nullptr;
  Status damage;
  auto texts = ReadTexts(steps, *source().files, index.get(), &damage);
  damage.IgnoreError("then the frames were read; its writer makes it anew");
  MarkLosses(path(), view->log->losses, &texts);
  if (view->pin != nullptr) return texts;
  std::erase_if(texts, [this](const StepTexts& each) {
    if (each.status.ok()) return false;
    const Status status = source().Explain(each.status, each.step, each.commit);
    return status.code() == StatusCode::kNotFound;
  });
  return texts;
}

Result<std::optional<uint64_t>> ReaderStore::Newest() {
  STEPWELL_ASSIGN_OR_RETURN(const auto view, log_->Refresh());
  STEPWELL_RETURN_IF_ERROR(NewestMayBeLost(path(), view->log->losses));
  const auto newest = NewestOf(view->log->live);
  return newest == view->log->live.end() ? std::nullopt : std::optional(newest->first);
}

Result<std::shared_ptr<StepReader>> ReaderStore::ReadShare(uint64_t step) {
  STEPWELL_ASSIGN_OR_RETURN(const auto view, log_->Refresh());
  const auto it = view->log->live.find(step);
  if (it == view->log->live.end()) return NoStep(*view, step);
  return log_->Read(view, it->second);
}

Status ReaderStore::NoStep(const LogView& view, uint64_t step) const {
  std::vector<uint64_t> known;
  for (const auto& [number, live] : view.log->live) known.push_back(number);
  return MissingStep(StepNotFound(path(), step, known), view.log->losses);
}

Result<std::shared_ptr<StepReader>> ReaderStore::Read(uint64_t step) {
  STEPWELL_ASSIGN_OR_RETURN(auto own, ReadShare(step));
  return WithOtherParts(std::move(own));
}

Result<std::shared_ptr<StepReader>> ReaderStore::ReadNewestNow() {
  STEPWELL_ASSIGN_OR_RETURN(const auto view, log_->Refresh());
  STEPWELL_RETURN_IF_ERROR(NewestMayBeLost(path(), view->log->losses));
  const auto newest = NewestOf(view->log->live);
  if (newest == view->log->live.end()) return std::shared_ptr<StepReader>();
  STEPWELL_ASSIGN_OR_RETURN(auto own, log_->Read(view, newest->second));
  return WithOtherParts(std::move(own));
}

Result<std::shared_ptr<StepReader>> ReaderStore::WithOtherParts(std::shared_ptr<StepReader> own) {
  const format::StepRecord record = own->step();
  if (!HasOtherParts(record)) return own;
  return ReadWithParts(std::move(own), parts_, source().restorer.get(), path(),
                       [&] { return source().Has(record); });
}

Result<std::shared_ptr<const StoreSnapshot>> ReaderStore::Snapshot() {
  const auto own = [this]() -> Result<StoreSnapshot> {
    STEPWELL_ASSIGN_OR_RETURN(auto view, log_->Refresh());
    StoreSnapshot snapshot;
    for (const auto& [step, live] : view->log->live) {
      snapshot.steps.push_back(BriefOf(live.record));
    }
    if (view->pin != nullptr) snapshot.pin = std::move(view);
    return snapshot;
  };
  return SnapshotWithParts(*parts_, own);
}

Result<VerifyReport> ReaderStore::VerifyWith(const VerifyOptions& options, bool others) {
  STEPWELL_ASSIGN_OR_RETURN(const auto view, log_->Refresh());
  std::vector<LiveStep> steps;
  for (const auto& [step, live] : view->log->live) {
    if (!options.step || step == *options.step) steps.push_back(live);
  }
  if (options.step && steps.empty()) return Read(*options.step).status();
  STEPWELL_ASSIGN_OR_RETURN(VerifyReport report,
                            VerifySteps(steps, *source().files, *source().restorer, options));
  AddLosses(view->log->losses, &report);
  if (others) {
    const auto read = [this](uint64_t step) { return Read(step); };
    STEPWELL_RETURN_IF_ERROR(VerifyOtherParts(steps, *parts_, read, options, &report));
  }
  if (view->pin != nullptr) return report;
  // Deleted is not damaged.
  for (const LiveStep& step : steps) {
    const uint64_t number = step.record.step;
    const auto is_its = [number](const VerifyProblem& problem) { return problem.step == number; };
    if (std::none_of(report.problems.begin(), report.problems.end(), is_its)) continue;
    const Status status = source().Explain(DataLossError(""), number, step.record.commit);
    if (status.code() != StatusCode::kNotFound) continue;
    if (options.step) return status;
    std::erase_if(report.problems, is_its);
  }
  return report;
}

StoreStats ReaderStore::Stats() {
  StoreStats stats;
  SpaceQuery query;
  std::shared_ptr<const LogView> view;
  if (auto refreshed = log_->Refresh(); refreshed.ok()) view = std::move(*refreshed);
  if (view != nullptr) {
    for (const CatalogNote& note : view->log->catalogs) {
      query.catalogs[note.place.segment] = {0, note.end_bytes};
    }
    stats.steps = view->log->live.size();
    for (const auto* steps : {&view->log->live, &view->log->undecided}) {
      for (const auto& [number, log] : *steps) {
        auto live = std::make_shared<LiveStep>();
        live->record = log.record;
        live->place = log.place;
        if (steps == &view->log->live && log.record.pinned) ++stats.pinned_steps;
        query.live.push_back(std::move(live));
      }
    }
  }
  query.file_system = source().environment.file_system;
  query.store_path = path();
  query.footprints = &footprints_;
  AccountSpace(query, &stats);
  if (view != nullptr) {
    stats.old_pins =
        DescribeOldPins(source().environment.file_system, path(), view->log->tip_commit,
                        source().environment.clock->WallNanos());
  }
  stats.index_state = "log";
  stats.views = views_.Stats();
  return stats;
}

Result<RetentionReport> ReaderStore::Retention() {
  STEPWELL_ASSIGN_OR_RETURN(const auto view, log_->Refresh());
  AppliedRules applied{0, options_.keep};
  if (applied.rules.empty()) {
    STEPWELL_ASSIGN_OR_RETURN(applied, ReadRules(source().environment.file_system, path()));
  }
  const LiveStep* newest = nullptr;
  for (const auto& [step, live] : view->log->live) {
    if (newest == nullptr || live.record.commit > newest->record.commit) newest = &live;
  }
  std::vector<StepTexts> texts;
  if (NeedsMetrics(applied.rules)) {
    STEPWELL_ASSIGN_OR_RETURN(texts, Texts(view->log->live.size()));
  }
  std::map<uint64_t, StepTexts*> known;  // by commit
  for (StepTexts& each : texts) known[each.commit] = &each;
  std::vector<KeepCandidate> candidates;
  for (const auto& [step, live] : view->log->live) {
    KeepCandidate& candidate = candidates.emplace_back(CandidateOf(live));
    candidate.time_ns = AgeTimeOf(live.record, newest->record);
    candidate.is_old = live.record.commit <= applied.since;
    if (!NeedsMetrics(applied.rules)) continue;
    const auto found = known.find(live.record.commit);
    candidate.metrics_unknown = found == known.end() || !found->second->status.ok();
    if (!candidate.metrics_unknown) {
      candidate.metrics_json = std::move(found->second->metrics_json);
    }
  }
  return ReportRetention(std::move(applied.rules), std::move(candidates),
                         !view->log->losses.empty());
}

Result<std::map<uint64_t, std::optional<uint64_t>>> ReaderStore::FreesBytes(
    std::span<const uint64_t> steps) {
  STEPWELL_ASSIGN_OR_RETURN(const auto view, log_->Refresh());
  const auto listed = [&view](const std::map<uint64_t, LiveStep>& all) {
    LiveSteps::List list;
    for (const auto& [number, live] : all) list.emplace_back(view, &live);
    return list;
  };
  auto frees =
      db::FreesBytes(*source().files, listed(view->log->live), listed(view->log->undecided), steps);
  for (const uint64_t step : steps) {
    if (!frees.contains(step)) return NoStep(*view, step);
  }
  return frees;
}

Result<SaveHandle> ReaderStore::Save(SaveRequest) { return ReadOnly(path()); }
Result<Decided> ReaderStore::Decide(const Decision&) { return ReadOnly(path()); }

Result<GroupStatus> ReaderStore::Group() {
  STEPWELL_ASSIGN_OR_RETURN(const auto view, log_->Refresh());
  std::vector<format::StepRecord> live;
  std::vector<format::StepRecord> undecided;
  for (const auto& [step, log] : view->log->live) live.push_back(log.record);
  for (const auto& [commit, log] : view->log->undecided) undecided.push_back(log.record);
  return MakeGroupStatus(id(), part(), view->log->tip_commit, live, std::move(undecided));
}

Result<RepairReport> ReaderStore::Repair(bool) { return ReadOnly(path()); }

Result<ReclaimReport> ReaderStore::SendToWriter(const WriterRequest& request) {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(log_->pid()));
  if (writer_ == nullptr) return ReadOnly(path());
  return writer_->Send(request);
}

Status ReaderStore::Delete(std::span<const uint64_t> steps) {
  return SendToWriter({WriterRequest::Kind::kDelete, {steps.begin(), steps.end()}, {}}).status();
}

Status ReaderStore::DeleteItems(uint64_t step, std::span<const std::string> items) {
  return SendToWriter({WriterRequest::Kind::kDeleteItems, {step}, {items.begin(), items.end()}})
      .status();
}

Status ReaderStore::SetPinned(std::span<const uint64_t> steps, bool pinned) {
  const auto kind = pinned ? WriterRequest::Kind::kPin : WriterRequest::Kind::kUnpin;
  return SendToWriter({kind, {steps.begin(), steps.end()}, {}}).status();
}

Status ReaderStore::SetTaint(std::span<const uint64_t> steps, std::string_view why) {
  return SendToWriter(
             {WriterRequest::Kind::kTaint, {steps.begin(), steps.end()}, {std::string(why)}})
      .status();
}

Result<ReclaimReport> ReaderStore::Reclaim() {
  return SendToWriter({WriterRequest::Kind::kReclaim, {}, {}});
}

Status ReaderStore::Close() {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(log_->pid()));
  views_.Close(/*keep=*/false);  // only a writer takes away what it deletes
  parts_->Close();
  return log_->Close();
}

}  // namespace stepwell::db
