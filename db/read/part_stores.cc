// SPDX-License-Identifier: Apache-2.0
#include "db/read/part_stores.h"

#include <utility>

#include "db/group.h"
#include "db/log/slot_file.h"
#include "db/read/step_reader.h"

namespace stepwell::db {
namespace {

std::string PartsText(const std::vector<uint32_t>& parts) {
  std::string text;
  for (const uint32_t part : parts) text += StrCat(text.empty() ? "" : ", ", part);
  return text;
}

// Why a step cannot be read without a part.
Status WithoutPart(uint32_t part, const format::StepRecord& step, const std::string& why) {
  return DataLossError(StrCat("step ", step.step, " was saved by parts ",
                              PartsText(step.group->parts), "; part ", part, " ", why));
}

// The step of a part that belongs to `step` of part 0; null: none.
const LiveStep* FindShare(const LogState& state, const format::StepRecord& step) {
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

Status NoShare(const LogFollower& store, const format::StepRecord& step) {
  return NotFoundError(StrCat(store.path(), " has no part of step ", step.step));
}

// This part's share of a step of part 0, decided or still prepared. kNotFound: it has none.
Result<std::shared_ptr<StepReader>> ReadShare(LogFollower& store, const format::StepRecord& step) {
  STEPWELL_ASSIGN_OR_RETURN(const auto view, store.Refresh());
  const LiveStep* found = FindShare(*view->log, step);
  if (found == nullptr) return NoShare(store, step);
  return store.Read(view, *found);
}

// Then what is missing is no damage: where a full disk keeps STEPWELL from being written, part 0's
// or this one's, a part shows an older state than the other.
bool IsBesideWriter(const LogFollower& store) {
  const auto slot = SlotFile::Open(store.source()->environment.file_system, store.path(),
                                   /*write=*/false, nullptr);
  if (!slot.ok()) return false;
  const auto lives = store.source()->WriterLives(slot->get());
  return lives.ok() && *lives;
}

}  // namespace

PartStores::PartStores(std::string root, Environment environment, SegmentFiles* files)
    : root_(std::move(root)), environment_(std::move(environment)), files_(files) {}

Result<std::shared_ptr<LogFollower>> PartStores::Get(uint32_t part,
                                                     const format::StepRecord& step) {
  const io::MutexLock lock(&mutex_);
  if (const auto it = stores_.find(part); it != stores_.end()) return it->second;
  const std::string path = PartPath(root_, part);
  auto store = LogFollower::Open(path, /*group=*/std::nullopt, environment_, /*log=*/nullptr);
  if (store.status().code() == StatusCode::kNotFound) {
    return WithoutPart(part, step, StrCat("is missing: there is no ", path));
  }
  if (!store.ok()) {
    return store.status().WithContext(
        StrCat("step ", step.step, ", saved by parts ", PartsText(step.group->parts)));
  }
  const std::shared_ptr<LogFollower> shared = std::move(*store);
  if (shared->part().part != part || shared->part().group_id != step.group->group_id) {
    return WithoutPart(
        part, step,
        StrCat("is missing: ", path, " is of another store (part ", shared->part().part, ")"));
  }
  const std::shared_ptr<LogSource>& source = shared->source();
  files_->SetPart(part, std::shared_ptr<SegmentFiles>(source, source->files.get()));
  stores_[part] = shared;
  return shared;
}

void PartStores::Close() {
  const io::MutexLock lock(&mutex_);
  for (const auto& [part, store] : stores_) store->source()->files->KeepNone();
  stores_.clear();
}

void PartStores::Forget(uint32_t part) {
  const io::MutexLock lock(&mutex_);
  stores_.erase(part);
}

Result<std::shared_ptr<StepReader>> PartStores::Read(uint32_t part,
                                                     const format::StepRecord& step) {
  // Its directory may have been replaced since it was opened.
  for (int attempt = 0;; ++attempt) {
    STEPWELL_ASSIGN_OR_RETURN(const auto store, Get(part, step));
    auto reader = ReadShare(*store, step);
    if (reader.ok() || attempt > 0) {
      if (reader.status().code() != StatusCode::kNotFound) return reader;
      if (IsBesideWriter(*store)) {
        return UnavailableError(
            StrCat("step ", step.step, " was saved by parts ", PartsText(step.group->parts),
                   "; part ", part, " (", store->path(),
                   ") does not show it now: its STEPWELL, or that of part 0, may be older than its "
                   "log, as a full disk leaves it; try again when there is room, or when the "
                   "processes that write are gone"));
      }
      return WithoutPart(part, step,
                         StrCat("(", store->path(),
                                ") does not have it: it is older, or the step "
                                "was deleted there"));
    }
    Forget(part);
  }
}

Result<PartShares> PartStores::Shares(uint32_t part, const format::StepRecord& step) {
  STEPWELL_ASSIGN_OR_RETURN(const auto store, Get(part, step));
  STEPWELL_ASSIGN_OR_RETURN(auto view, store->Refresh());
  PartShares shares;
  const auto add = [&](const format::StepRecord& mine) {
    if (mine.group) shares.by_save[mine.group->save_id] = mine.commit;
  };
  for (const auto& [number, live] : view->log->live) add(live.record);
  for (const auto& [commit, undecided] : view->log->undecided) add(undecided.record);
  if (view->pin != nullptr) shares.pins.push_back(std::move(view));
  return shares;
}

Status PartStores::Verify(uint32_t part, const format::StepRecord& step,
                          const VerifyOptions& options, VerifyReport* report) {
  STEPWELL_ASSIGN_OR_RETURN(const auto store, Get(part, step));
  STEPWELL_ASSIGN_OR_RETURN(const auto view, store->Refresh());
  const LiveStep* found = FindShare(*view->log, step);
  if (found == nullptr) return NoShare(*store, step);
  VerifyOptions share_options;
  // Progress counts part 0's bytes, which are done. The callback may still cancel.
  share_options.progress = [&](uint64_t, uint64_t) {
    return !options.progress || options.progress(1, 1);
  };
  const LogSource& source = *store->source();
  STEPWELL_ASSIGN_OR_RETURN(VerifyReport share,
                            VerifySteps({*found}, *source.files, *source.restorer, share_options));
  AddLosses(view->log->losses, &share);
  report->chunks += share.chunks;
  report->bytes += share.bytes;
  report->problems.insert(report->problems.end(), share.problems.begin(), share.problems.end());
  return OkStatus();
}

}  // namespace stepwell::db
