// SPDX-License-Identifier: Apache-2.0
#include "db/reader_store.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "db/group_status.h"
#include "db/layout.h"
#include "db/lock.h"
#include "db/space.h"
#include "db/step_reader.h"
#include "db/step_records.h"

namespace stepwell::db {
namespace {

// The slot may move on, and old segments with it, while a view is made.
constexpr int kRefreshAttempts = 20;
constexpr std::chrono::milliseconds kSlotInterval{1};
// Before a step that is not pinned is called damaged.
constexpr int kExplainLooks = 3;
constexpr std::chrono::milliseconds kExplainInterval{5};

Status ReadOnly(const std::string& path) {
  return FailedPreconditionError(path + ": the store is open for reading only (mode=\"r\")");
}

}  // namespace

ReaderStore::ReaderStore(const std::string& path, const StoreOptions& options,
                         Environment environment)
    : options_(options), pid_(getpid()), core_(std::make_shared<Core>()) {
  core_->path = path;
  core_->environment = std::move(environment);
  core_->files = std::make_unique<SegmentFiles>(core_->environment.file_system, path);
  core_->footprints = std::make_unique<FootprintCache>(core_->files.get());
  core_->restorer = std::make_unique<Restorer>(core_->files.get(), core_->environment.workers.get(),
                                               core_->environment.make_disk);
  core_->parts = std::make_shared<GroupParts>(path, core_->environment, core_->files.get());
}

ReaderStore::~ReaderStore() {
  if (getpid() == pid_) {
    io::Quietly([this] { views_.Close(/*keep=*/false); });
    io::Quietly([this] { core_->Close(); });
    return;
  }
  // A forked child: the threads are not here; leave everything as it is.
  (void)new std::shared_ptr<Core>(std::move(core_));
  (void)slot_file_.release();
}

Result<std::unique_ptr<Store>> ReaderStore::Open(const std::string& path,
                                                 const StoreOptions& options,
                                                 Environment environment) {
  STEPWELL_ASSIGN_OR_RETURN(auto store, OpenPart(path, options, std::move(environment)));
  if (store->part_.part != 0 && !options.group) {
    Log(options.log, LogLevel::kWarning,
        StrCat(DescribePart(path, store->part_), " and has only its share of each step; open ",
               ParentOf(path), " for whole ones"));
  }
  return std::unique_ptr<Store>(std::move(store));
}

Result<std::unique_ptr<ReaderStore>> ReaderStore::OpenPart(const std::string& path,
                                                           const StoreOptions& options,
                                                           Environment environment) {
  std::unique_ptr<ReaderStore> store(new ReaderStore(path, options, std::move(environment)));
  STEPWELL_ASSIGN_OR_RETURN(store->slot_file_,
                            SlotFile::Open(store->core_->environment.file_system, path,
                                           /*write=*/false, nullptr));
  STEPWELL_ASSIGN_OR_RETURN(const format::StoreSlot slot, store->slot_file_->Read());
  STEPWELL_RETURN_IF_ERROR(CheckPart(path, slot, options.group));
  store->id_ = slot.store_id;
  store->part_ = {slot.group_id, slot.part};
  STEPWELL_ASSIGN_OR_RETURN(const auto view, store->Refresh());
  store->recovery_ = view->log->report;
  // A scan has said them.
  if (store->recovery_.clean) {
    for (const format::LossRecord& loss : view->log->losses) {
      store->recovery_.problems.push_back(DescribeLoss(loss));
    }
  }
  for (const std::string& problem : store->recovery_.problems) {
    Log(options.log, LogLevel::kError, StrCat(path, ": ", problem));
  }
  return store;
}

Result<bool> ReaderStore::Core::WriterLives(SlotFile* slot_file) {
  STEPWELL_ASSIGN_OR_RETURN(const bool locked, slot_file->file()->LockedByOther());
  if (locked) return true;
  // From the moment it has this lock.
  auto lock = environment.file_system->Open(LockFilePath(path), {});
  if (lock.status().code() == StatusCode::kNotFound) return false;
  if (!lock.ok()) return lock.status();
  return (*lock)->LockedByOther();
}

Result<LogState> ReaderStore::Core::ReadLog(const format::StoreSlot& slot, bool writer_lives,
                                            const LogState* known) {
  if (slot.durable_commit == 0) {
    // A new store; or a STEPWELL from when this was one.
    if (writer_lives) return LogState{};
    const auto names = environment.file_system->List(SegmentsPath(path));
    if (!names.ok() && names.status().code() != StatusCode::kNotFound) return names.status();
    const auto is_segment = [](const std::string& name) {
      return ParseSegmentName(name).has_value();
    };
    if (!names.ok() || std::none_of(names->begin(), names->end(), is_segment)) return LogState{};
  }
  bool by_marks = writer_lives;
  if (slot.clean && !writer_lives) {
    STEPWELL_ASSIGN_OR_RETURN(by_marks, LogEndsAt(slot, environment.file_system, path, *files));
  }
  if (by_marks) {
    auto state = RecoverByMarks(slot, *files, known);
    if (state.ok() || writer_lives) return state;
  }
  // The writer is gone without closing: what it acknowledged may be newer than the slot.
  ScanOptions scan;
  scan.writer = false;
  scan.check_payloads = [this](const auto& leaves, const auto& bad) {
    return restorer->Check(leaves, bad, [](uint64_t) { return true; });
  };
  return RecoverByScan(environment.file_system, path, slot, *files, scan);
}

Result<std::map<uint64_t, LogStep>> ReaderStore::Core::LookAgain() {
  STEPWELL_ASSIGN_OR_RETURN(const auto slot_file, SlotFile::Open(environment.file_system, path,
                                                                 /*write=*/false, nullptr));
  Status status;
  for (int attempt = 0; attempt < kRefreshAttempts; ++attempt) {
    STEPWELL_ASSIGN_OR_RETURN(const bool lives, WriterLives(slot_file.get()));
    STEPWELL_ASSIGN_OR_RETURN(const format::StoreSlot slot, slot_file->Read());
    auto state = ReadLog(slot, lives, nullptr);
    if (state.ok()) return std::move(state->live);
    status = state.status();
    if (!lives && attempt > 0) break;
  }
  return status;
}

Status ReaderStore::Core::Explain(const Status& error, uint64_t step, uint64_t commit) {
  // File systems have their own words for a file that is gone (ESTALE, EIO).
  if (error.code() != StatusCode::kDataLoss && error.code() != StatusCode::kNotFound &&
      error.os_error() == 0) {
    return error;
  }
  // Nothing is erased before the slot names what killed it, so a look from now on sees that. More
  // than one: a slot that is being written shows the one before it.
  for (int look = 0; look < kExplainLooks; ++look) {
    if (look > 0) std::this_thread::sleep_for(kExplainInterval);
    const auto live = LookAgain();
    if (!live.ok()) {
      // A file that is not there is damage only of a step that is.
      const bool unread =
          error.code() != StatusCode::kDataLoss && error.code() != StatusCode::kNotFound;
      return {unread ? error.code() : StatusCode::kDataLoss,
              StrCat(error.message(),
                     "; or it was deleted while it was being read, which could not be looked up: ",
                     live.status().message()),
              error.os_error()};
    }
    const auto it = live->find(step);
    if (it == live->end()) {
      return NotFoundError(
          StrCat(path, ": step ", step, " was deleted while it was being read; load another step"));
    }
    if (it->second.record.commit != commit) {
      return NotFoundError(StrCat(path, ": step ", step,
                                  " was replaced, changed or moved while it was being read; load "
                                  "it again"));
    }
  }
  return ExplainPinned(error);
}

std::unique_ptr<ReaderPin> ReaderStore::Core::TakePin() {
  {
    const std::lock_guard lock(pin_mutex_);
    if (resting_ != nullptr) return std::move(resting_);
  }
  auto pin = ReaderPin::Create(environment.file_system, path, environment.random());
  return pin.ok() ? std::move(*pin) : nullptr;
}

void ReaderStore::Core::GiveBack(std::unique_ptr<ReaderPin> pin) {
  if (pin == nullptr) return;
  const std::lock_guard lock(pin_mutex_);
  if (!closed_ && resting_ == nullptr && pin->Rest().ok()) resting_ = std::move(pin);
}

void ReaderStore::Core::Close() {
  const std::lock_guard lock(pin_mutex_);
  closed_ = true;
  resting_.reset();
  parts->Close();
  files->KeepNone();
}

Result<std::shared_ptr<const ReaderStore::View>> ReaderStore::Refresh() {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  const std::lock_guard lock(mutex_);
  if (closed_) return FailedPreconditionError(core_->path + ": the store is closed");
  io::FileSystem* file_system = core_->environment.file_system;
  Status status;
  for (int attempt = 0; attempt < kRefreshAttempts; ++attempt) {
    STEPWELL_ASSIGN_OR_RETURN(const bool lives, core_->WriterLives(slot_file_.get()));
    STEPWELL_ASSIGN_OR_RETURN(format::StoreSlot slot, slot_file_->Read());
    const std::shared_ptr<const View> newest = newest_.lock();
    const bool same_writer = log_ != nullptr && lives == log_live_;
    // The newest slot is being written at this moment. What was seen once stays seen.
    const auto is_behind = [&] { return same_writer && lives && slot.sequence < log_sequence_; };
    const auto is_same = [&] { return same_writer && slot.sequence == log_sequence_; };
    if (newest != nullptr && (is_same() || is_behind())) return newest;
    auto view = std::make_shared<View>(core_);
    const bool may_pin = !core_->environment.without_pins;
    const auto reclaim = may_pin
                             ? ReclaimLock::Acquire(file_system, core_->path, io::LockKind::kShared)
                             : Result<std::unique_ptr<ReclaimLock>>(nullptr);
    if (may_pin && reclaim.ok()) view->pin = core_->TakePin();
    if (view->pin != nullptr) {
      // Under RECLAIM: what the slot names now cannot go away before the pin is written.
      STEPWELL_ASSIGN_OR_RETURN(slot, slot_file_->Read());
      if (newest != nullptr && (is_same() || is_behind())) return newest;
      // A full disk must not keep anybody from reading.
      if (!view->pin->Set(slot.durable_commit).ok()) view->pin = nullptr;
    }
    if (is_behind()) {
      status = UnavailableError(core_->path + ": STEPWELL is older than it was");
      std::this_thread::sleep_for(kSlotInterval);
      continue;
    }
    if (may_pin && view->pin == nullptr && !said_no_pin_) {
      said_no_pin_ = true;
      Log(options_.log, LogLevel::kInfo,
          StrCat(core_->path, ": reading without a pin (",
                 reclaim.ok() ? "readers/ cannot be written" : reclaim.status().message(),
                 "): a step may be deleted while it is read"));
    }
    if (!is_same()) {
      auto state = core_->ReadLog(slot, lives, log_live_ ? log_.get() : nullptr);
      status = state.status();
      if (!state.ok()) {
        // Beside a writer the log moves; and a writer may have come or gone meanwhile.
        if (!lives && attempt > 0) break;
        continue;
      }
      // Only a writer needs these; they would grow while a reader follows a run.
      state->dead.clear();
      state->chain.clear();
      state->scanned.clear();
      state->changed.clear();
      log_ = std::make_shared<const LogState>(std::move(*state));
      log_sequence_ = slot.sequence;
      log_live_ = lives;
      core_->files->DropRemoved();
    }
    // The writer is gone, and the log has more than the slot says: what is seen is of its tip.
    if (view->pin != nullptr && log_->tip_commit > slot.durable_commit &&
        !view->pin->Set(log_->tip_commit).ok()) {
      view->pin = nullptr;
    }
    view->log = log_;
    newest_ = view;
    return std::shared_ptr<const View>(std::move(view));
  }
  return status;
}

Result<std::vector<StepSummary>> ReaderStore::Steps() {
  STEPWELL_ASSIGN_OR_RETURN(const auto view, Refresh());
  std::vector<StepSummary> steps;
  for (const auto& [step, live] : view->log->live) steps.push_back({live.record});
  return steps;
}

Result<std::optional<uint64_t>> ReaderStore::Newest() {
  STEPWELL_ASSIGN_OR_RETURN(const auto view, Refresh());
  STEPWELL_RETURN_IF_ERROR(NewestMayBeLost(core_->path, view->log->losses));
  const auto& live = view->log->live;
  return live.empty() ? std::nullopt : std::optional(live.rbegin()->first);
}

Result<std::shared_ptr<StepReader>> ReaderStore::ReadOwn(std::shared_ptr<const View> view,
                                                         const LogStep& step) {
  const uint64_t number = step.record.step;
  if (const auto* loss = LossAfter(view->log->losses, step.record.commit)) {
    return LossError(core_->path, number, *loss);
  }
  ReadErrorExplainer explain = ExplainPinned;
  if (view->pin == nullptr) {
    explain = [core = core_, number, commit = step.record.commit](const Status& error) {
      return core->Explain(error, number, commit);
    };
  }
  auto records = StepRecords::Open(core_->files.get(), step.place);
  if (!records.ok()) {
    return explain(records.status().WithContext(StrCat(core_->path, ": step ", number)));
  }
  struct Keep {
    std::shared_ptr<Core> core;
    std::shared_ptr<const View> view;
    std::shared_ptr<StepRecords> records;
  };
  auto keep = std::make_shared<Keep>(Keep{core_, std::move(view), std::move(*records)});
  const auto leaves = [keep](const format::KeyRange& range) { return keep->records->In(range); };
  format::StepRecord record = keep->records->step();
  TakeState(step.record, &record);
  Restorer* restorer = core_->restorer.get();
  return MakeStepReader(std::move(record), leaves, restorer, core_->path, std::move(explain), keep);
}

bool ReaderStore::Has(const format::StepRecord& step) {
  const auto live = core_->LookAgain();
  if (!live.ok()) return true;
  const auto it = live->find(step.step);
  return it != live->end() && it->second.record.commit == step.commit;
}

Result<std::shared_ptr<StepReader>> ReaderStore::Read(uint64_t step) {
  STEPWELL_ASSIGN_OR_RETURN(const auto view, Refresh());
  const auto it = view->log->live.find(step);
  if (it == view->log->live.end()) {
    std::vector<uint64_t> known;
    for (const auto& [number, live] : view->log->live) known.push_back(number);
    return MissingStep(StepNotFound(core_->path, step, known), view->log->losses);
  }
  const LogStep& found = it->second;
  STEPWELL_ASSIGN_OR_RETURN(auto own, ReadOwn(view, found));
  if (!HasOtherParts(found.record)) return own;
  return ReadWithParts(std::move(own), core_->parts, core_->restorer.get(), core_->path,
                       [&] { return Has(found.record); });
}

namespace {

// The step of a part that belongs to `step` of part 0; null: none.
const LogStep* FindShare(const LogState& state, const format::StepRecord& step) {
  const auto is_it = [&](const format::StepRecord& mine) {
    return mine.step == step.step && mine.group && mine.group->save_id == step.group->save_id;
  };
  const auto live = state.live.find(step.step);
  if (live != state.live.end() && is_it(live->second.record)) return &live->second;
  for (const auto& [commit, undecided] : state.undecided) {
    if (is_it(undecided.record)) return &undecided;
  }
  return nullptr;
}

}  // namespace

Result<std::shared_ptr<StepReader>> ReaderStore::ReadShare(const format::StepRecord& step) {
  STEPWELL_ASSIGN_OR_RETURN(const auto view, Refresh());
  const LogStep* found = FindShare(*view->log, step);
  if (found == nullptr) {
    return NotFoundError(StrCat(core_->path, " has no part of step ", step.step));
  }
  return ReadOwn(view, *found);
}

Result<VerifyReport> ReaderStore::VerifyShare(const format::StepRecord& step,
                                              const VerifyOptions& options) {
  STEPWELL_ASSIGN_OR_RETURN(const auto view, Refresh());
  const LogStep* found = FindShare(*view->log, step);
  if (found == nullptr) {
    return NotFoundError(StrCat(core_->path, " has no part of step ", step.step));
  }
  STEPWELL_ASSIGN_OR_RETURN(VerifyReport report,
                            VerifySteps({*found}, *core_->files, *core_->restorer, options));
  AddLosses(view->log->losses, &report);
  return report;
}

std::shared_ptr<SegmentFiles> ReaderStore::files() const {
  return std::shared_ptr<SegmentFiles>(core_, core_->files.get());
}

Result<PartShares> ReaderStore::Shares() {
  STEPWELL_ASSIGN_OR_RETURN(auto view, Refresh());
  PartShares shares;
  const auto add = [&](const format::StepRecord& step) {
    if (step.group) shares.by_save[step.group->save_id] = {step.commit, step.stored_bytes};
  };
  for (const auto& [step, live] : view->log->live) add(live.record);
  for (const auto& [commit, undecided] : view->log->undecided) add(undecided.record);
  if (view->pin != nullptr) shares.pins.push_back(std::move(view));
  return shares;
}

Result<std::shared_ptr<const StoreSnapshot>> ReaderStore::Snapshot() {
  const auto own = [this]() -> Result<StoreSnapshot> {
    STEPWELL_ASSIGN_OR_RETURN(auto view, Refresh());
    StoreSnapshot snapshot;
    for (const auto& [step, live] : view->log->live) {
      snapshot.steps.push_back(BriefOf(live.record));
    }
    if (view->pin != nullptr) snapshot.pin = std::move(view);
    return snapshot;
  };
  return SnapshotWithParts(*core_->parts, own);
}

Result<VerifyReport> ReaderStore::Verify(const VerifyOptions& options) {
  STEPWELL_ASSIGN_OR_RETURN(const auto view, Refresh());
  std::vector<LogStep> steps;
  for (const auto& [step, live] : view->log->live) {
    if (!options.step || step == *options.step) steps.push_back(live);
  }
  if (options.step && steps.empty()) return Read(*options.step).status();
  STEPWELL_ASSIGN_OR_RETURN(VerifyReport report,
                            VerifySteps(steps, *core_->files, *core_->restorer, options));
  AddLosses(view->log->losses, &report);
  const auto read = [this](uint64_t step) { return Read(step); };
  STEPWELL_RETURN_IF_ERROR(VerifyOtherParts(steps, *core_->parts, read, options, &report));
  if (view->pin != nullptr) return report;
  // Deleted is not damaged.
  for (const LogStep& step : steps) {
    const uint64_t number = step.record.step;
    const auto is_its = [number](const VerifyProblem& problem) { return problem.step == number; };
    if (std::none_of(report.problems.begin(), report.problems.end(), is_its)) continue;
    const Status status = core_->Explain(DataLossError(""), number, step.record.commit);
    if (status.code() != StatusCode::kNotFound) continue;
    if (options.step) return status;
    std::erase_if(report.problems, is_its);
  }
  return report;
}

StoreStats ReaderStore::Stats() {
  StoreStats stats;
  SpaceQuery query;
  std::shared_ptr<const View> view;
  if (auto refreshed = Refresh(); refreshed.ok()) view = std::move(*refreshed);
  if (view != nullptr) {
    for (const CatalogNote& note : view->log->catalogs) {
      query.catalogs[note.place.segment] = {0, note.end_bytes};
    }
    for (const auto& [step, log] : view->log->live) {
      auto live = std::make_shared<LiveStep>();
      live->record = log.record;
      live->place = log.place;
      stats.pinned_steps += log.record.pinned ? 1 : 0;
      query.live.push_back(std::move(live));
    }
    stats.steps = query.live.size();
    for (const auto& [commit, log] : view->log->undecided) {
      auto prepared = std::make_shared<LiveStep>();
      prepared->record = log.record;
      prepared->place = log.place;
      query.live.push_back(std::move(prepared));
    }
  }
  query.file_system = core_->environment.file_system;
  query.store_path = core_->path;
  query.footprints = core_->footprints.get();
  query.files = core_->files.get();
  core_->footprints->Keep(query.live);
  stats.space = AccountSpace(query);
  CountSegments(core_->environment.file_system, core_->path, &stats);
  if (view != nullptr) {
    stats.old_pins = DescribeOldPins(core_->environment.file_system, core_->path,
                                     view->log->tip_commit, core_->environment.clock->WallNanos());
  }
  stats.index_state = "log";
  stats.views = views_.Stats();
  return stats;
}

Result<SaveHandle> ReaderStore::Save(SaveRequest) { return ReadOnly(core_->path); }
Status ReaderStore::Delete(std::span<const uint64_t>) { return ReadOnly(core_->path); }
Result<Decided> ReaderStore::Decide(const Decision&) { return ReadOnly(core_->path); }

Result<GroupStatus> ReaderStore::Group() {
  STEPWELL_ASSIGN_OR_RETURN(const auto view, Refresh());
  std::vector<format::StepRecord> live;
  std::vector<format::StepRecord> undecided;
  for (const auto& [step, log] : view->log->live) live.push_back(log.record);
  for (const auto& [commit, log] : view->log->undecided) undecided.push_back(log.record);
  return MakeGroupStatus(id_, part_, view->log->tip_commit, live, undecided);
}

Status ReaderStore::DeleteItems(uint64_t, std::span<const std::string>) {
  return ReadOnly(core_->path);
}
Status ReaderStore::SetPinned(std::span<const uint64_t>, bool) { return ReadOnly(core_->path); }
Result<RepairReport> ReaderStore::Repair(bool) { return ReadOnly(core_->path); }
Result<ReclaimReport> ReaderStore::Reclaim() { return ReadOnly(core_->path); }

Status ReaderStore::Close() {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  views_.Close(/*keep=*/false);  // nobody would take away what the writer deletes
  const std::lock_guard lock(mutex_);
  closed_ = true;
  log_.reset();
  slot_file_.reset();
  core_->Close();
  return OkStatus();
}

}  // namespace stepwell::db
