// SPDX-License-Identifier: Apache-2.0
#include "db/read/log_view.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "db/group.h"
#include "db/layout.h"
#include "db/log/live_steps.h"
#include "db/log/lock.h"
#include "db/log/step_records.h"
#include "db/read/step_reader.h"

namespace stepwell::db {
namespace {

// The slot may move on, and old segments with it, while a view is made.
constexpr int kRefreshAttempts = 20;
constexpr std::chrono::milliseconds kSlotInterval{1};
// Before a step that is not pinned is called damaged.
constexpr int kExplainLooks = 3;
constexpr std::chrono::milliseconds kExplainInterval{5};

}  // namespace

LogSource::LogSource(std::string store_path, Environment machine)
    : path(std::move(store_path)),
      environment(std::move(machine)),
      files(std::make_unique<SegmentFiles>(environment.file_system, path)),
      restorer(std::make_unique<Restorer>(files.get(), environment.workers.get(),
                                          environment.make_disk)) {}

Result<bool> LogSource::WriterLives(SlotFile* slot_file) {
  // Where files cannot be locked, nobody can write. (A writer on a machine that can lock them there
  // is not noticed. Its newest step may then be one that it has not flushed yet.)
  const auto locked = slot_file->file()->LockedByOther();
  if (io::LacksLocks(locked.status())) return false;
  STEPWELL_RETURN_IF_ERROR(locked.status());
  if (*locked) return true;
  // From the moment it has this lock.
  auto lock = environment.file_system->Open(LockFilePath(path), {});
  if (lock.status().code() == StatusCode::kNotFound) return false;
  if (!lock.ok()) return lock.status();
  return (*lock)->LockedByOther();
}

Result<LogState> LogSource::ReadLog(const format::StoreSlot& slot, bool writer_lives,
                                    LogState* known) {
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
    return restorer->Check(leaves, bad, [](uint64_t) { return true; }, {.skip_referenced = true});
  };
  return RecoverByScan(environment.file_system, path, slot, *files, scan);
}

Result<std::map<uint64_t, LiveStep>> LogSource::ReadLive() {
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

bool LogSource::Has(const format::StepRecord& step) {
  const auto live = ReadLive();
  if (!live.ok()) return true;
  const auto it = live->find(step.step);
  return it != live->end() && it->second.record.commit == step.commit;
}

Status LogSource::Explain(const Status& error, uint64_t step, uint64_t commit) {
  // File systems have their own words for a file that is gone (ESTALE, EIO).
  if (error.code() != StatusCode::kDataLoss && error.code() != StatusCode::kNotFound &&
      error.os_error() == 0) {
    return error;
  }
  // Nothing is erased before the slot names what killed it, so a look from now on sees that. More
  // than one: a slot that is being written shows the one before it.
  for (int look = 0; look < kExplainLooks; ++look) {
    if (look > 0) std::this_thread::sleep_for(kExplainInterval);
    const auto live = ReadLive();
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

std::unique_ptr<ReaderPin> LogSource::TakePin() {
  {
    const io::MutexLock lock(&pin_mutex_);
    if (resting_ != nullptr) return std::move(resting_);
  }
  auto pin = ReaderPin::Create(environment.file_system, path, environment.random());
  return pin.ok() ? std::move(*pin) : nullptr;
}

void LogSource::GiveBack(std::unique_ptr<ReaderPin> pin) {
  if (pin == nullptr) return;
  const io::MutexLock lock(&pin_mutex_);
  if (!closed_ && resting_ == nullptr && pin->Rest().ok()) resting_ = std::move(pin);
}

void LogSource::Close() {
  const io::MutexLock lock(&pin_mutex_);
  closed_ = true;
  resting_.reset();
  files->KeepNone();
}

LogFollower::LogFollower(const std::string& path, Environment environment, LogSink log)
    : pid_(getpid()),
      log_sink_(std::move(log)),
      source_(std::make_shared<LogSource>(path, std::move(environment))) {}

LogFollower::~LogFollower() {
  if (getpid() == pid_) {
    io::Quietly([this] { source_->Close(); });
    return;
  }
  // A forked child: the threads are not here; leave everything as it is.
  (void)new std::shared_ptr<LogSource>(std::move(source_));
  (void)slot_file_.release();
  (void)directory_.release();
}

Result<std::unique_ptr<LogFollower>> LogFollower::Open(const std::string& path,
                                                       const std::optional<StoreGroup>& group,
                                                       Environment environment, LogSink log) {
  std::unique_ptr<LogFollower> follower(
      new LogFollower(path, std::move(environment), std::move(log)));
  STEPWELL_ASSIGN_OR_RETURN(auto slot_file,
                            SlotFile::Open(follower->source_->environment.file_system, path,
                                           /*write=*/false, nullptr));
  STEPWELL_ASSIGN_OR_RETURN(const format::StoreSlot slot, slot_file->Read());
  {
    const io::MutexLock lock(&follower->mutex_);
    follower->slot_file_ = std::move(slot_file);
    // A descriptor, for a directory that is made anew may get its inode's number.
    auto directory = follower->source_->environment.file_system->Open(path, {});
    if (directory.ok()) follower->directory_ = std::move(*directory);
  }
  STEPWELL_RETURN_IF_ERROR(CheckPart(path, slot, group));
  follower->id_ = slot.store_id;
  follower->part_ = {slot.group_id, slot.part};
  STEPWELL_ASSIGN_OR_RETURN(const auto view, follower->Refresh());
  RecoveryReport& report = follower->recovery_;
  report = view->log->report;
  // A scan has said them.
  if (report.clean) {
    for (const format::LossRecord& loss : view->log->losses) {
      report.problems.push_back(DescribeLoss(loss));
    }
  }
  for (const std::string& problem : report.problems) {
    Log(follower->log_sink_, LogLevel::kError, StrCat(path, ": ", problem));
  }
  return follower;
}

// A writer makes STEPWELL anew where a copy of the store has it, too (SlotFile::LeaveCopies).
Status LogFollower::FollowSlotFile() {
  io::FileSystem* file_system = source_->environment.file_system;
  // A writer left a copy of the store its files, or a copy was put here file by file: then the log
  // that is known may be another one.
  const auto forget = [this]() STEPWELL_REQUIRES(mutex_) {
    log_.reset();
    log_sequence_ = 0;
    newest_.reset();
    source_->files->DropReplaced();
  };
  const auto named = io::IsNamed(file_system, slot_file_->file());
  if (!named.ok() || *named) {
    if (log_ != nullptr && source_->files->IsReplaced(log_->tip_place.segment)) forget();
    return OkStatus();
  }
  auto file = SlotFile::Open(file_system, source_->path, /*write=*/false, nullptr);
  // The store was removed: what is open goes on.
  if (file.status().code() == StatusCode::kNotFound) return OkStatus();
  STEPWELL_RETURN_IF_ERROR(file.status());
  STEPWELL_ASSIGN_OR_RETURN(const format::StoreSlot slot, (*file)->Read());
  // What is known and open here is of files that may have other content there.
  const auto same_directory =
      directory_ != nullptr ? io::IsNamed(file_system, directory_.get()) : Result<bool>(true);
  STEPWELL_RETURN_IF_ERROR(same_directory.status());
  if (!*same_directory || slot.store_id != id_ || slot.sequence < log_sequence_) {
    return FailedPreconditionError(source_->path +
                                   ": another store, or a copy of this one, has taken its place "
                                   "since it was opened: open it again");
  }
  slot_file_ = std::move(*file);
  forget();
  return OkStatus();
}

Result<std::shared_ptr<const LogView>> LogFollower::Refresh() {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  const io::MutexLock lock(&mutex_);
  if (closed_) return FailedPreconditionError(source_->path + ": the store is closed");
  io::FileSystem* file_system = source_->environment.file_system;
  Status status;
  for (int attempt = 0; attempt < kRefreshAttempts; ++attempt) {
    STEPWELL_RETURN_IF_ERROR(FollowSlotFile());
    STEPWELL_ASSIGN_OR_RETURN(const bool lives, source_->WriterLives(slot_file_.get()));
    STEPWELL_ASSIGN_OR_RETURN(format::StoreSlot slot, slot_file_->Read());
    const std::shared_ptr<const LogView> newest = newest_.lock();
    const bool same_writer = log_ != nullptr && lives == log_live_;
    // The newest slot is being written at this moment. What was seen once stays seen.
    const uint64_t seen_sequence = log_sequence_;
    const auto is_behind = [&] { return same_writer && lives && slot.sequence < seen_sequence; };
    // A writer that is only opening has written no slot yet, and the one that is there may be older
    // than what the scan without a writer has found: that stays seen.
    const bool just_opening = log_ != nullptr && lives && !log_live_;
    const auto is_same = [&] {
      return (same_writer || just_opening) && slot.sequence == seen_sequence;
    };
    if (newest != nullptr && (is_same() || is_behind())) return newest;
    auto view = std::make_shared<LogView>(source_);
    const bool may_pin = !source_->environment.without_pins;
    const auto reclaim =
        may_pin ? ReclaimLock::Acquire(file_system, source_->path, io::LockKind::kShared)
                : Result<std::unique_ptr<ReclaimLock>>(nullptr);
    if (may_pin && reclaim.ok()) view->pin = source_->TakePin();
    if (view->pin != nullptr) {
      // Under RECLAIM: what the slot names now cannot go away before the pin is written.
      STEPWELL_ASSIGN_OR_RETURN(slot, slot_file_->Read());
      if (newest != nullptr && (is_same() || is_behind())) return newest;
      // A full disk must not keep anybody from reading.
      if (!view->pin->Set(slot.durable_commit).ok()) view->pin = nullptr;
    }
    if (is_behind()) {
      status = UnavailableError(source_->path + ": STEPWELL is older than it was");
      std::this_thread::sleep_for(kSlotInterval);
      continue;
    }
    if (may_pin && view->pin == nullptr && !warned_no_pin_) {
      warned_no_pin_ = true;
      Log(log_sink_, LogLevel::kInfo,
          StrCat(source_->path, ": reading without a pin (",
                 reclaim.ok()                       ? "readers/ cannot be written"
                 : io::LacksLocks(reclaim.status()) ? "its files cannot be locked"
                                                    : reclaim.status().message(),
                 "): a step may be deleted while it is read"));
    }
    if (!is_same()) {
      // A state that no view shares is moved. Views that are in use keep theirs, and this takes a
      // copy.
      std::shared_ptr<LogState> known;
      if (log_ != nullptr && log_live_) {
        known = log_.use_count() == 1 ? std::exchange(log_, nullptr)
                                      : std::make_shared<LogState>(*log_);
      }
      auto state = source_->ReadLog(slot, lives, known.get());
      status = state.status();
      if (!state.ok()) {
        // Beside a writer the log moves; and a writer may have come or gone meanwhile.
        if (!lives && attempt > 0) break;
        source_->files->DropReplaced();
        continue;
      }
      // Only a writer needs these; they would grow while a reader follows a run.
      state->dead.clear();
      state->chain.clear();
      state->scanned.clear();
      state->changed.clear();
      log_ = std::make_shared<LogState>(std::move(*state));
      log_sequence_ = slot.sequence;
      log_live_ = lives;
      source_->files->DropRemoved();
    }
    // The writer is gone, and the log has more than the slot says: what is seen is of its tip.
    if (view->pin != nullptr && log_->tip_commit > slot.durable_commit &&
        !view->pin->Set(log_->tip_commit).ok()) {
      view->pin = nullptr;
    }
    view->log = log_;
    newest_ = view;
    return std::shared_ptr<const LogView>(std::move(view));
  }
  return status;
}

Result<std::shared_ptr<StepReader>> LogFollower::Read(std::shared_ptr<const LogView> view,
                                                      const LiveStep& step) {
  const uint64_t number = step.record.step;
  if (const auto* loss = LossAfter(view->log->losses, step.record.commit)) {
    return LossError(source_->path, number, *loss);
  }
  ReadErrorExplainer explain = ExplainPinned;
  if (view->pin == nullptr) {
    explain = [source = source_, number, commit = step.record.commit](const Status& error) {
      return source->Explain(error, number, commit);
    };
  }
  auto records = StepRecords::Open(source_->files.get(), step.place);
  if (!records.ok()) {
    return explain(records.status().WithContext(StrCat(source_->path, ": step ", number)));
  }
  struct Keep {
    std::shared_ptr<LogSource> source;
    std::shared_ptr<const LogView> view;
    std::shared_ptr<StepRecords> records;
  };
  auto keep = std::make_shared<Keep>(Keep{source_, std::move(view), std::move(*records)});
  const auto leaves = [keep](const format::KeyRange& range) { return keep->records->In(range); };
  format::StepRecord record = keep->records->step();
  TakeState(step.record, &record);
  Restorer* restorer = source_->restorer.get();
  return MakeStepReader(std::move(record), leaves, restorer, source_->path, std::move(explain),
                        keep);
}

Status LogFollower::Close() {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  const io::MutexLock lock(&mutex_);
  closed_ = true;
  log_.reset();
  slot_file_.reset();
  directory_.reset();
  source_->Close();
  return OkStatus();
}

}  // namespace stepwell::db
