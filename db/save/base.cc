// SPDX-License-Identifier: Apache-2.0
#include "db/save/base.h"

#include <algorithm>
#include <span>
#include <utility>

#include "db/log/step_records.h"
#include "format/hash.h"

namespace stepwell::db {
namespace {

// A part of a step that is not decided yet is not live: then the one before is.
constexpr size_t kNewestMax = 2;

}  // namespace

bool SaveBase::Holds(const format::ChunkRecord& chunk, ConstBytes payload) const {
  if (records_->of_session) return true;
  const Result<std::string> there = sources_->Fetch(chunk, chunk.part);
  return there.ok() && std::ranges::equal(AsBytes(*there), payload);
}

Result<ConstBytes> SaveBase::BytesOf(const format::ChunkRecord& chunk, const RecentChunks& recent,
                                     RecentChunks::Held* held, std::string* read) const {
  if (records_->of_session) {
    *held = recent.Find(chunk.hash, chunk.logical_bytes);
    if (!held->bytes.empty()) return held->bytes;
  }
  STEPWELL_ASSIGN_OR_RETURN(*read, sources_->ReadChunk(chunk));
  return AsBytes(*read);
}

bool SaveBase::Refer() {
  State state = State::kUnused;
  return state_.compare_exchange_strong(state, State::kReferred) || state == State::kReferred;
}

bool SaveBase::Drop() {
  State state = State::kUnused;
  if (!state_.compare_exchange_strong(state, State::kDropped)) return false;
  pin_.reset();
  return true;
}

void NewestBases::Add(std::shared_ptr<const BaseRecords> records) {
  std::shared_ptr<const BaseRecords> oldest;  // destroyed after the lock is given back
  const io::MutexLock lock(&mutex_);
  newest_.push_back(std::move(records));
  if (newest_.size() <= kNewestMax) return;
  oldest = std::move(newest_.front());
  newest_.pop_front();
}

std::shared_ptr<SaveBase> NewestBases::Hold(const std::shared_ptr<const BaseRecords>& records) {
  LiveSteps::Pinned pinned = live_->FindAndPin(records->step);
  if (pinned.step == nullptr || pinned.step->record.commit != records->commit) return nullptr;
  return std::make_shared<SaveBase>(records, std::move(pinned.pin), &sources_);
}

std::shared_ptr<SaveBase> NewestBases::Take() {
  std::deque<std::shared_ptr<const BaseRecords>> newest;
  {
    const io::MutexLock lock(&mutex_);
    newest = newest_;
  }
  for (auto it = newest.rbegin(); it != newest.rend(); ++it) {
    if (auto base = Hold(*it)) return base;
  }
  // The first save of a session, or what the last ones left was deleted.
  LiveSteps::Pinned pinned = live_->FindNewestCommitAndPin();
  if (pinned.step == nullptr) return nullptr;
  auto leaves = ReadStepRecords(*files_, pinned.step->place, "");
  if (!leaves.ok()) return nullptr;  // damaged: nothing refers to it
  auto records = std::make_shared<BaseRecords>();
  records->step = pinned.step->record.step;
  records->commit = pinned.step->record.commit;
  for (format::LeafRecord& leaf : *leaves) {
    if (leaf.chunks.empty()) continue;
    const format::Hash128 grid = GridHash(leaf);
    records->leaves.push_back({.key = std::move(leaf.key),
                               .grid = grid,
                               .statistics = leaf.statistics,
                               .chunks = std::move(leaf.chunks)});
  }
  Add(records);
  return std::make_shared<SaveBase>(std::move(records), std::move(pinned.pin), &sources_);
}

format::Hash128 GridHash(const format::LeafRecord& leaf) {
  std::vector<uint64_t> words = {static_cast<uint64_t>(leaf.kind),
                                 static_cast<uint64_t>(leaf.dtype), leaf.logical_bytes,
                                 leaf.chunk_count, leaf.partial ? 1U : 0U};
  const auto add = [&words](const format::Shape& shape) {
    words.push_back(shape.size());
    words.insert(words.end(), shape.begin(), shape.end());
  };
  add(leaf.shape);
  add(leaf.chunk_shape);
  for (const format::PieceRecord& piece : leaf.pieces) {
    add(piece.origin);
    add(piece.shape);
    add(piece.chunk_shape);
  }
  return format::HashOf(std::as_bytes(std::span(words)));
}

}  // namespace stepwell::db
