// SPDX-License-Identifier: Apache-2.0
// Reading in a store that is open for writing.
#include <set>
#include <utility>

#include "db/group.h"
#include "db/layout.h"
#include "db/log/frees_bytes.h"
#include "db/log/lock.h"
#include "db/log/step_records.h"
#include "db/read/step_reader.h"
#include "db/store/writer_store.h"

namespace stepwell::db {

Result<std::vector<format::StepRecord>> WriterStore::Steps() {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  std::vector<format::StepRecord> steps;
  for (const auto& live : core_->live.All()) steps.push_back(live->record);
  return steps;
}

Result<std::vector<uint64_t>> WriterStore::StepNumbers(size_t last, bool with_tainted) {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  return core_->live.Numbers(last, with_tainted);
}

Result<std::vector<StepTexts>> WriterStore::Texts(size_t last) {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  auto [live, pin] = core_->live.AllAndPin();
  if (live.size() > last) live.erase(live.begin(), live.end() - static_cast<ptrdiff_t>(last));
  auto texts = core_->index->Texts(live);
  MarkLosses(path_, core_->live.Losses(), &texts);
  return texts;
}

Result<std::optional<uint64_t>> WriterStore::Newest() {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  STEPWELL_RETURN_IF_ERROR(NewestMayBeLost(path_, core_->live.Losses()));
  return core_->live.NewestStep();
}

Result<std::shared_ptr<StepReader>> WriterStore::Read(uint64_t step) {
  STEPWELL_ASSIGN_OR_RETURN(auto own, ReadShare(step));
  return WithOtherParts(std::move(own));
}

Result<std::shared_ptr<StepReader>> WriterStore::ReadNewestNow() {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  STEPWELL_RETURN_IF_ERROR(NewestMayBeLost(path_, core_->live.Losses()));
  LiveSteps::Pinned pinned = core_->live.FindNewestAndPin();
  if (pinned.step == nullptr) return std::shared_ptr<StepReader>();
  STEPWELL_ASSIGN_OR_RETURN(auto own, ReadPinned(std::move(pinned)));
  return WithOtherParts(std::move(own));
}

Result<std::shared_ptr<StepReader>> WriterStore::WithOtherParts(std::shared_ptr<StepReader> own) {
  if (!HasOtherParts(own->step())) return own;
  const auto is_there = [this, step = own->step().step, commit = own->step().commit] {
    const auto live = core_->live.Find(step);
    return live != nullptr && live->record.commit == commit;
  };
  return ReadWithParts(std::move(own), core_->parts, core_->restorer.get(), path_, is_there);
}

Result<std::shared_ptr<StepReader>> WriterStore::ReadShare(uint64_t step) {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  LiveSteps::Pinned pinned = core_->live.FindAndPin(step);
  if (pinned.step == nullptr) return MissingStep(NoStep(step), core_->live.Losses());
  return ReadPinned(std::move(pinned));
}

Result<std::shared_ptr<StepReader>> WriterStore::ReadPinned(LiveSteps::Pinned pinned) {
  const uint64_t step = pinned.step->record.step;
  const auto losses = core_->live.Losses();
  if (const auto* loss = LossAfter(losses, pinned.step->record.commit)) {
    return LossError(path_, step, *loss);
  }
  auto records = StepRecords::Open(core_->files.get(), pinned.step->place);
  if (!records.ok()) {
    return ExplainPinned(records.status().WithContext(StrCat(path_, ": step ", step)));
  }
  format::StepRecord record = (*records)->step();
  TakeState(pinned.step->record, &record);
  // Core before pin: the pin is let go first.
  struct Keep {
    std::shared_ptr<ReadCore> core;
    LiveSteps::Pinned pinned;
    std::shared_ptr<StepRecords> records;
  };
  auto keep = std::make_shared<Keep>(Keep{core_, std::move(pinned), *std::move(records)});
  const auto leaves = [keep](const format::KeyRange& range) { return keep->records->In(range); };
  Restorer* restorer = core_->restorer.get();
  return MakeStepReader(std::move(record), leaves, restorer, path_, ExplainPinned, keep);
}

Result<GroupStatus> WriterStore::Group() {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  std::vector<format::StepRecord> live;
  std::vector<format::StepRecord> undecided;
  for (const auto& step : core_->live.All()) live.push_back(step->record);
  for (const auto& step : core_->live.Undecided()) undecided.push_back(step->record);
  return MakeGroupStatus(slot_.store_id, part_, core_->live.tip(), live, std::move(undecided));
}

Result<VerifyReport> WriterStore::VerifyWith(const VerifyOptions& options, bool others) {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  std::vector<LiveStep> steps;
  std::vector<LiveSteps::Pinned> pins;
  for (const auto& live : core_->live.All()) {
    if (options.step && live->record.step != *options.step) continue;
    auto pinned = core_->live.FindAndPin(live->record.step);
    if (pinned.step == nullptr) continue;
    steps.push_back(*pinned.step);
    pins.push_back(std::move(pinned));
  }
  if (options.step && steps.empty()) return ReadShare(*options.step).status();
  STEPWELL_ASSIGN_OR_RETURN(VerifyReport report,
                            VerifySteps(steps, *core_->files, *core_->restorer, options));
  AddLosses(core_->live.Losses(), &report);
  if (others) {
    const auto read = [this](uint64_t step) { return Read(step); };
    STEPWELL_RETURN_IF_ERROR(VerifyOtherParts(steps, *core_->parts, read, options, &report));
  }
  RecordVerified(steps, others, report);
  return report;
}

// Records which commits were found whole, and which damaged; what could not be read is neither.
// In a group part 0 has it, of what it read of all parts.
void WriterStore::RecordVerified(const std::vector<LiveStep>& steps, bool others,
                                 const VerifyReport& report) {
  if (part_.part != 0) return;
  std::set<uint64_t> with_problems;
  std::set<uint64_t> damaged;
  bool lost = false;  // frames are, in which any step may have been replaced
  for (const VerifyProblem& problem : report.problems) {
    lost = lost || !problem.step;
    if (!problem.step) continue;
    with_problems.insert(*problem.step);
    if (!problem.unchecked) damaged.insert(*problem.step);
  }
  std::vector<const LiveStep*> found[2];
  for (const LiveStep& step : steps) {
    const uint64_t number = step.record.step;
    const bool whole =
        !lost && !with_problems.contains(number) && (others || !HasOtherParts(step.record));
    if (!whole && !damaged.contains(number)) continue;
    if (whole != step.record.verified) found[whole ? 1 : 0].push_back(&step);
  }
  SetVerified(found[0], false);
  SetVerified(found[1], true);
}

Result<std::shared_ptr<const StoreSnapshot>> WriterStore::Snapshot() {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  struct Keep {
    std::shared_ptr<ReadCore> core;  // before the pin: the pin is let go first
    std::shared_ptr<LiveSteps::Pin> pin;
  };
  const auto own = [this]() -> Result<StoreSnapshot> {
    auto [live, pin] = core_->live.AllAndPin();
    StoreSnapshot snapshot;
    for (const auto& step : live) snapshot.steps.push_back(BriefOf(step->record));
    snapshot.pin = std::make_shared<Keep>(Keep{core_, std::move(pin)});
    return snapshot;
  };
  return SnapshotWithParts(*core_->parts, own);
}

Result<RetentionReport> WriterStore::Retention() {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  return notices_->Report();
}

Result<std::map<uint64_t, std::optional<uint64_t>>> WriterStore::FreesBytes(
    std::span<const uint64_t> steps) {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  // Before the others: what is decided in between is in both then, not in none.
  const LiveSteps::List undecided = core_->live.Undecided();
  const auto [live, pin] = core_->live.AllAndPin();
  auto frees = db::FreesBytes(*core_->files, live, undecided, steps);
  for (const uint64_t step : steps) {
    if (!frees.contains(step)) return MissingStep(NoStep(step), core_->live.Losses());
  }
  return frees;
}

void WriterStore::OnChange(const void* owner, std::function<void()> changed) {
  core_->live.OnCommit(owner, std::move(changed));
}

}  // namespace stepwell::db
