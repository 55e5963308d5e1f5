// SPDX-License-Identifier: Apache-2.0
#include "db/index/keeper.h"

#include <algorithm>
#include <map>

#include "db/layout.h"
#include "io/guard.h"

namespace stepwell::db {
namespace {

// Memtable bytes after which the index is flushed.
constexpr uint64_t kFlushBytes = uint64_t{16} << 20;

}  // namespace

std::shared_ptr<Index> IndexKeeper::current() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::kReady ? index_ : nullptr;
}

void IndexKeeper::StartOpen() {
  if (options_.environment.without_index) {
    const std::lock_guard lock(mutex_);
    state_ = State::kGone;
    return;
  }
  options_.environment.index_worker->Run([this] { Open(); });
}

void IndexKeeper::Open() {
  const Status status = io::Guarded("open the index", [this] { return OpenAndSync(); });
  if (!status.ok()) {
    GiveUp(status);
    return;
  }
  const std::lock_guard lock(mutex_);
  state_ = State::kReady;
  rebuild_queued_ = false;
}

Index::Options IndexKeeper::IndexOptions() const {
  Index::Options options;
  options.file_system = options_.environment.file_system;
  options.path = IndexPath(options_.store_path);
  options.store_id = options_.store_id;
  options.freeze = std::make_shared<io::Freeze>();
  return options;
}

Status IndexKeeper::OpenAndSync() {
  Status status;
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (attempt > 0) {
      {
        const std::lock_guard lock(mutex_);
        index_.reset();
      }
      Log(options_.log, LogLevel::kWarning,
          StrCat(options_.store_path,
                 ": the index is being rebuilt from the log: ", status.message()));
      STEPWELL_RETURN_IF_ERROR(
          Index::Destroy(options_.environment.file_system, IndexPath(options_.store_path)));
    }
    auto index = Index::Open(IndexOptions());
    if (!index.ok()) {
      status = index.status();
      if (status.code() == StatusCode::kResourceExhausted) return status;
      continue;
    }
    const std::shared_ptr<Index> shared = std::move(*index);
    {
      const std::lock_guard lock(mutex_);
      index_ = shared;
    }
    status = SyncWithLog(shared.get());
    if (status.ok()) return status;
  }
  return status;
}

// Brings the index to the set of live steps, whatever it holds: a step is right when commit number
// and frame CRC agree, else it is taken out, and put in again from the log. Complete it is only
// then, and not where the log cannot say what is live.
Status IndexKeeper::SyncWithLog(Index* index) {
  const auto [tip, tip_crc] = options_.live->TipAndCrc();
  bool complete = options_.live->Losses().empty();
  STEPWELL_ASSIGN_OR_RETURN(const auto indexed, index->Steps());
  std::map<uint64_t, std::shared_ptr<const LiveStep>> missing;
  for (auto& live : options_.live->All()) missing[live->record.step] = live;
  IndexBatch as_of_tip;
  as_of_tip.through_commit = tip;
  as_of_tip.through_crc = tip_crc;
  IndexBatch stale = as_of_tip;
  for (const IndexedStep& step : indexed) {
    const auto it = missing.find(step.step);
    if (it != missing.end() && it->second->record.commit == step.commit &&
        it->second->place.crc == step.frame_crc) {
      const bool pinned = it->second->record.pinned;
      if (pinned != step.pinned) stale.pins.push_back({step.step, pinned});
      missing.erase(it);
    } else {
      stale.removed_steps.push_back(step.step);
    }
  }
  stale.complete = complete && missing.empty();
  STEPWELL_RETURN_IF_ERROR(index->Apply(stale));
  for (const auto& [step, live] : missing) {
    // Reclaim goes on meanwhile, on another thread.
    const LiveSteps::Pinned pinned = options_.live->FindAndPin(step);
    if (pinned.step == nullptr || pinned.step->record.commit != live->record.commit) continue;
    std::vector<format::LeafRecord> from_log;
    format::StepRecord record = live->record;
    const auto* leaves = live->records.get();
    if (leaves == nullptr) {
      auto read = ReadStepRecords(*options_.files, live->place, "", &record);
      // A damaged commit frame: the step stays out of the index; reading it says what is wrong.
      if (!read.ok()) {
        complete = false;
        continue;
      }
      from_log = std::move(*read);
      leaves = &from_log;
      TakeState(live->record, &record);
    }
    IndexBatch batch = as_of_tip;
    batch.added.push_back({&record, live->place.crc, leaves});
    STEPWELL_RETURN_IF_ERROR(index->Apply(batch));
    if (index->unflushed_bytes() >= kFlushBytes) STEPWELL_RETURN_IF_ERROR(index->Flush());
    options_.live->DropOverlay(step, live->record.commit);
  }
  if (!missing.empty() && complete) {
    as_of_tip.complete = true;
    STEPWELL_RETURN_IF_ERROR(index->Apply(as_of_tip));
  }
  const std::lock_guard lock(mutex_);
  applied_ = tip;
  return OkStatus();
}

void IndexKeeper::Apply(const LiveSteps::Change& change) {
  options_.environment.index_worker->Run([this, change] { ApplyNow(change); });
}

void IndexKeeper::ApplyNow(const LiveSteps::Change& change) {
  bool durable = false;
  const auto& added = change.added;
  const int64_t start_ns = options_.instruments->Now();
  const TraceSpan span(options_.instruments->trace.get(), Trace::Lane::kIndex, "index",
                       added == nullptr ? Trace::kNoStep : added->record.step);
  const Status status =
      io::Guarded("apply a commit to the index", [&] { return ApplyTo(change, &durable); });
  if (!status.ok()) GiveUp(status);
  if (added != nullptr) {
    // Without memory the overlay only holds memory for longer.
    io::Quietly([&] { options_.live->DropOverlay(added->record.step, added->record.commit); });
    options_.instruments->index.Record(options_.instruments->Now() - start_ns);
  }
  {
    const std::lock_guard lock(mutex_);
    applied_ = change.commit;
  }
  options_.reached(change.commit, durable);
}

Status IndexKeeper::ApplyTo(const LiveSteps::Change& change, bool* durable) {
  const std::shared_ptr<Index> index = current();
  if (index == nullptr) return OkStatus();
  IndexBatch batch;
  for (const auto& step : change.killed) batch.removed_steps.push_back(step->record.step);
  batch.pins = change.pins;
  batch.complete = index->complete();
  std::vector<format::LeafRecord> from_log;
  const auto& added = change.added;
  if (added != nullptr && added->records == nullptr) {
    // Prepared in an earlier session. Should it be damaged, or dead again, it stays out.
    auto read = ReadStepRecords(*options_.files, added->place, "");
    if (read.ok()) {
      from_log = std::move(*read);
      batch.added.push_back({&added->record, added->place.crc, &from_log});
    } else {
      batch.complete = false;
    }
  } else if (added != nullptr) {
    batch.added.push_back({&added->record, added->place.crc, added->records.get()});
  }
  batch.through_commit = change.commit;
  batch.through_crc = change.frame_crc;
  STEPWELL_RETURN_IF_ERROR(index->Apply(batch));
  if (index->unflushed_bytes() < kFlushBytes) return OkStatus();
  const Status flushed = index->Flush();
  *durable = flushed.ok();
  return flushed;
}

// Without its index the store goes on: the log answers everything. The next open rebuilds it.
void IndexKeeper::GiveUp(const Status& why) {
  Log(options_.log, LogLevel::kWarning,
      StrCat(options_.store_path,
             ": going on without an index (reads use the log): ", why.message()));
  {
    const std::lock_guard lock(mutex_);
    index_.reset();
    state_ = State::kGone;
  }
  options_.live->DropOverlays();
}

void IndexKeeper::BeginClose() {
  const std::lock_guard lock(mutex_);
  closing_ = true;
}

void IndexKeeper::Close() {
  std::shared_ptr<Index> index = current();
  if (index != nullptr) {
    uint64_t applied = 0;
    {
      const std::lock_guard lock(mutex_);
      applied = applied_;
    }
    if (Status status = index->Flush(); status.ok()) {
      options_.reached(applied, true);
    } else {
      Log(options_.log, LogLevel::kWarning,
          StrCat(options_.store_path, ": the index was not flushed: ", status.message()));
    }
  }
  GiveBack();
}

void IndexKeeper::GiveBack() {
  const std::lock_guard lock(mutex_);
  index_.reset();
  state_ = State::kGone;
}

std::optional<std::vector<format::LeafRecord>> IndexKeeper::Leaves(const LiveStep& step,
                                                                   const format::KeyRange& range) {
  if (step.records != nullptr) {
    std::vector<format::LeafRecord> leaves;
    const auto by_key = [](const format::LeafRecord& leaf, std::string_view key) {
      return std::string_view(leaf.key) < key;
    };
    auto it = std::lower_bound(step.records->begin(), step.records->end(),
                               std::string_view(range.first), by_key);
    for (; it != step.records->end() && (range.end.empty() || it->key < range.end); ++it) {
      leaves.push_back(*it);
    }
    return leaves;
  }
  if (const std::shared_ptr<Index> index = current()) {
    auto leaves = index->Read(step.record.step, step.record.commit, step.place.crc, range);
    if (leaves.ok()) return std::move(*leaves);
    Rebuild(leaves.status());
  }
  return std::nullopt;
}

std::optional<format::StepRecord> IndexKeeper::Record(const LiveStep& step) {
  const std::shared_ptr<Index> index = current();
  if (index == nullptr) return std::nullopt;
  auto record = index->ReadStep(step.record.step, step.record.commit, step.place.crc);
  if (record.ok()) return std::move(*record);
  Rebuild(record.status());
  return std::nullopt;
}

// Something in the index was wrong: the log serves until it has been made again.
void IndexKeeper::Rebuild(const Status& why) {
  Log(options_.log, LogLevel::kWarning,
      StrCat(options_.store_path, ": the index is damaged (", why.message(),
             "); reading from the log"));
  std::unique_lock lock(mutex_);
  // A reader may outlive the store, whose index worker it must not give work any more.
  if (closing_ || rebuild_queued_ || state_ != State::kReady) return;
  rebuild_queued_ = true;
  state_ = State::kOpening;
  index_.reset();
  // Under the mutex, hence before what Close queues; but in the simulation it runs here and now.
  if (options_.environment.inline_mode) lock.unlock();
  options_.environment.index_worker->Run([this] {
    Index::Destroy(options_.environment.file_system, IndexPath(options_.store_path))
        .IgnoreError("opening it will say what is wrong");
    Open();
  });
}

std::string IndexKeeper::Describe() const {
  const std::lock_guard lock(mutex_);
  if (state_ == State::kReady) return StrCat("rocksdb through commit ", applied_);
  return state_ == State::kOpening ? "opening" : "log";
}

}  // namespace stepwell::db
