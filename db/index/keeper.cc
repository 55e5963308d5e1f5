// SPDX-License-Identifier: Apache-2.0
#include "db/index/keeper.h"

#include <algorithm>

#include "db/layout.h"
#include "db/log/step_records.h"
#include "io/guard.h"

namespace stepwell::db {
namespace {

// A reader of another process sees what was flushed, and reads a frame for each other step.
constexpr uint64_t kFlushRows = 1024;
constexpr uint64_t kFlushBytes = uint64_t{4} << 20;
constexpr size_t kBatchRows = 256;
// Texts of more steps than this are not kept for an index that does not keep up.
constexpr size_t kPendingTextsMax = 1024;

bool IsOf(const IndexRow& row, const LiveStep& live) {
  return row.step == live.record.step && row.commit == live.record.commit &&
         row.frame_crc == live.place.crc;
}

// A step that is live, with its texts.
struct NewRow {
  std::shared_ptr<const LiveStep> live;
  StepTexts texts;
};

IndexRow RowOf(const NewRow& of) {
  IndexRow row;
  row.step = of.live->record.step;
  row.commit = of.live->record.commit;
  row.frame_crc = of.live->place.crc;
  const size_t bytes = of.texts.metadata_json.size() + of.texts.metrics_json.size();
  row.has_texts = bytes <= kIndexTextBytesMax;
  row.metadata_json = of.texts.metadata_json;
  row.metrics_json = of.texts.metrics_json;
  return row;
}

}  // namespace

std::vector<StepTexts> ReadTexts(const std::vector<const LiveStep*>& steps, SegmentFiles& files,
                                 Index* index, Status* damage) {
  std::vector<StepTexts> texts(steps.size());
  std::vector<bool> known(steps.size());
  if (index != nullptr && !steps.empty()) {
    size_t next = 0;
    *damage = index->Scan(steps.front()->record.step, [&](const IndexRow& row) {
      while (next < steps.size() && steps[next]->record.step < row.step) ++next;
      if (next == steps.size()) return false;
      if (!row.has_texts || !IsOf(row, *steps[next])) return true;
      texts[next].metadata_json = row.metadata_json;
      texts[next].metrics_json = row.metrics_json;
      known[next] = true;
      return true;
    });
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!known[i]) texts[i] = TextsInLog(*steps[i], files);
    texts[i].step = steps[i]->record.step;
    texts[i].commit = steps[i]->record.commit;
  }
  return texts;
}

// ---- behind the commits ---------------------------------------------------------------------

void IndexKeeper::Note(const LiveSteps::Change& change) {
  if (options_.environment.without_index) return;
  // Queries read the frames of so few steps. Opening the index scans the log for the changes that
  // were not noted.
  const bool few = options_.live->CountNeeding() <= options_.environment.steps_before_index;
  {
    const io::MutexLock lock(&mutex_);
    if (state_ == State::kGone || (state_ == State::kUnused && few)) return;
    for (const auto& killed : change.killed) pending_[killed->record.step] = nullptr;
    if (change.added != nullptr) {
      const bool keep = pending_.size() < kPendingTextsMax;
      pending_[change.added->record.step] = keep ? change.texts : nullptr;
    }
  }
  Queue();
}

void IndexKeeper::Queue() {
  const io::MutexLock lock(&mutex_);
  if (queued_ || closing_ || state_ == State::kGone) return;
  queued_ = true;
  const auto catch_up = [this] { CatchUp(); };
  if (options_.environment.inline_mode) {  // then it runs here and now
    const io::MutexUnlock unlocked(&mutex_);
    options_.environment.index_worker->Run(catch_up);
  } else {  // under the mutex, hence before what Close queues
    options_.environment.index_worker->Run(catch_up);
  }
}

void IndexKeeper::CatchUp() {
  {
    const io::MutexLock lock(&mutex_);
    queued_ = false;
  }
  const int64_t start_ns = options_.instruments->Now();
  const TraceSpan span(options_.instruments->trace.get(), Trace::Lane::kIndex, "index",
                       Trace::kNoStep);
  std::shared_ptr<Index> index;
  const Status status = io::Guarded("follow the commits",
                                    [&] { return ApplyPending(index = Opened(/*wait=*/true)); });
  if (status.code() == StatusCode::kDataLoss) {
    MakeAnew(index.get(), status);
  } else if (!status.ok()) {
    DropIndex(status);
  }
  options_.instruments->index.Record(options_.instruments->Now() - start_ns);
}

Status IndexKeeper::ApplyPending(const std::shared_ptr<Index>& index) {
  if (index == nullptr) return OkStatus();
  bool compared = false;
  {
    const io::MutexLock lock(&mutex_);
    compared = std::exchange(compared_, true);
  }
  if (!compared) STEPWELL_RETURN_IF_ERROR(FindDifferences(index.get()));
  for (bool more = true; more;) {
    std::vector<std::pair<uint64_t, std::shared_ptr<const StepTexts>>> changed;
    {
      const io::MutexLock lock(&mutex_);
      if (index_ != index) return OkStatus();  // damaged, a reader found
      while (!pending_.empty() && changed.size() < kBatchRows) {
        changed.emplace_back(*pending_.begin());
        pending_.erase(pending_.begin());
      }
      more = !pending_.empty();
    }
    IndexBatch batch;
    std::vector<NewRow> rows;
    for (const auto& [step, texts] : changed) {
      const LiveSteps::Pinned pinned = options_.live->FindAndPin(step);
      NewRow row{pinned.step, {}};
      if (row.live != nullptr) {
        const bool at_hand = texts != nullptr && texts->commit == row.live->record.commit;
        row.texts = at_hand ? *texts : TextsInLog(*row.live, *options_.files);
      }
      // A frame that cannot be read gets no row. Reading the step reports what is wrong.
      if (row.live == nullptr || !row.texts.status.ok()) {
        batch.removed_steps.push_back(step);
      } else {
        rows.push_back(std::move(row));
      }
    }
    for (const NewRow& row : rows) batch.rows.push_back(RowOf(row));
    STEPWELL_RETURN_IF_ERROR(index->Apply(batch));
    if (index->unflushed_rows() < kFlushRows && index->unflushed_bytes() < kFlushBytes) continue;
    STEPWELL_RETURN_IF_ERROR(index->Flush());
  }
  return OkStatus();
}

// Lists the steps whose rows differ from the live set: rows that a crash took before they were
// flushed, and changes by a writer that had no index.
Status IndexKeeper::FindDifferences(Index* index) {
  const LiveSteps::List live = options_.live->All();
  std::vector<uint64_t> different;
  auto next = live.begin();
  STEPWELL_RETURN_IF_ERROR(index->Scan(0, [&](const IndexRow& row) {
    for (; next != live.end() && (*next)->record.step < row.step; ++next) {
      different.push_back((*next)->record.step);
    }
    if (next == live.end() || !IsOf(row, **next)) different.push_back(row.step);
    if (next != live.end() && (*next)->record.step == row.step) ++next;
    return true;
  }));
  for (; next != live.end(); ++next) different.push_back((*next)->record.step);
  const io::MutexLock lock(&mutex_);
  for (const uint64_t step : different) pending_.emplace(step, nullptr);
  return OkStatus();
}

// ---- opening, damage, closing ---------------------------------------------------------------

Index::Options IndexKeeper::IndexOptions() const {
  Index::Options options;
  options.file_system = options_.environment.file_system;
  options.path = IndexPath(options_.store_path);
  options.store_id = options_.store_id;
  options.freeze = std::make_shared<io::Freeze>();
  return options;
}

std::shared_ptr<Index> IndexKeeper::Opened(bool wait) {
  if (wait) {
    open_mutex_.Lock();
  } else if (!open_mutex_.TryLock()) {
    return nullptr;
  }
  const io::MutexLock opening(&open_mutex_, std::adopt_lock);
  {
    const io::MutexLock lock(&mutex_);
    if (state_ != State::kUnused) return index_;
  }
  std::shared_ptr<Index> index;
  const Status status = io::Guarded("open the index", [&] { return OpenNow(&index); });
  if (!status.ok()) {
    DropIndex(status);
    return nullptr;
  }
  const io::MutexLock lock(&mutex_);
  if (closing_ || state_ != State::kUnused) return nullptr;
  state_ = State::kReady;
  compared_ = false;
  return index_ = std::move(index);
}

Status IndexKeeper::OpenNow(std::shared_ptr<Index>* opened) {
  Status damage;
  {
    const io::MutexLock lock(&mutex_);
    damage = damage_;
  }
  auto index = damage.ok() ? Index::Open(IndexOptions()) : damage;
  if (!index.ok() && index.status().code() != StatusCode::kResourceExhausted) {
    Log(options_.log, LogLevel::kWarning,
        StrCat(options_.store_path,
               ": the index is being made anew from the log: ", index.status().message()));
    STEPWELL_RETURN_IF_ERROR(
        Index::Destroy(options_.environment.file_system, IndexPath(options_.store_path)));
    index = Index::Open(IndexOptions());
  }
  STEPWELL_RETURN_IF_ERROR(index.status());
  *opened = std::move(*index);
  return OkStatus();
}

// Without its index the store goes on: the log answers everything. The next open makes it anew.
void IndexKeeper::DropIndex(const Status& why) {
  Log(options_.log, LogLevel::kWarning,
      StrCat(options_.store_path,
             ": going on without an index (the log answers): ", why.message()));
  const io::MutexLock lock(&mutex_);
  index_.reset();
  state_ = State::kGone;
  pending_.clear();
}

// The log answers until it has been made again: once in a session, a disk that goes on like that
// keeps none.
void IndexKeeper::MakeAnew(const Index* index, const Status& why) {
  bool again = false;
  {
    const io::MutexLock lock(&mutex_);
    // A reader may outlive the store, whose index worker it must not give work any more.
    if (closing_ || state_ != State::kReady || index_.get() != index) return;
    again = !damage_.ok();
    damage_ = why;
    index_.reset();
    state_ = State::kUnused;
  }
  if (again) return DropIndex(why);
  Queue();
}

std::vector<StepTexts> IndexKeeper::Texts(const LiveSteps::List& steps) {
  std::vector<const LiveStep*> live;
  live.reserve(steps.size());
  for (const auto& step : steps) live.push_back(step.get());
  const bool by_index =
      steps.size() > options_.environment.steps_before_index && !options_.environment.without_index;
  std::shared_ptr<Index> index;
  if (by_index) {
    bool closing = false;
    {
      const io::MutexLock lock(&mutex_);
      closing = closing_;
    }
    if (!closing) index = Opened(/*wait=*/false);
    if (index != nullptr) Queue();  // the first time there may be much to catch up with
  }
  Status damage;
  auto texts = ReadTexts(live, *options_.files, index.get(), &damage);
  if (!damage.ok()) MakeAnew(index.get(), damage);
  return texts;
}

void IndexKeeper::BeginClose() {
  const io::MutexLock lock(&mutex_);
  closing_ = true;
}

void IndexKeeper::Close() {
  const std::shared_ptr<Index> index = [this] {
    const io::MutexLock lock(&mutex_);
    return index_;
  }();
  if (index != nullptr) {
    if (const Status status = index->Flush(); !status.ok()) {
      Log(options_.log, LogLevel::kWarning,
          StrCat(options_.store_path, ": the index was not flushed: ", status.message()));
    }
  }
  GiveBack();
}

void IndexKeeper::GiveBack() {
  const io::MutexLock lock(&mutex_);
  index_.reset();
  state_ = State::kGone;
  pending_.clear();
}

std::string IndexKeeper::Describe() const {
  const io::MutexLock lock(&mutex_);
  if (options_.environment.without_index || state_ == State::kGone) return "log";
  if (state_ == State::kUnused) return "not opened";
  return pending_.empty() && compared_ && !queued_
             ? "rocksdb"
             : StrCat("rocksdb, ", pending_.size(), " steps behind");
}

}  // namespace stepwell::db
