// SPDX-License-Identifier: Apache-2.0
// The commit whose chunks a save may refer to: a chunk of the same content, grid and codec is
// stored as a reference to the place that it has there (DESIGN.md, "Unchanged chunks").
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "db/log/chunk_source.h"
#include "db/log/live_steps.h"
#include "db/log/segment_files.h"
#include "db/save/recent.h"
#include "format/records.h"
#include "io/mutex.h"

namespace stepwell::db {

// A leaf that has chunks, as far as later saves compare theirs with it. A state has very many, so
// it is small.
struct BaseLeaf {
  std::string key;
  format::Hash128 grid;  // GridHash
  // Counts the saves in a row in which no chunk was stored as a difference, although deltas are on
  // (NextDenseSaves).
  uint8_t dense_saves = 0;
  // Counts the saves of this session in a row in which it changed (NotedChanges).
  uint8_t changed_saves = 0;
  std::optional<format::LeafStatistics> statistics = std::nullopt;
  std::vector<format::ChunkRecord> chunks;
};

// The leaves of one committed step, ascending by key.
struct BaseRecords {
  uint64_t step = 0;
  uint64_t commit = 0;
  uint64_t ticket = 0;      // of the save; 0: it had none
  bool of_session = false;  // this session has written or compared every payload
  std::vector<BaseLeaf> leaves;
};

// Holds the base of one save. Thread-safe.
class SaveBase {
 public:
  // `sources` outlive this.
  SaveBase(std::shared_ptr<const BaseRecords> records, std::shared_ptr<LiveSteps::Pin> pin,
           const ChunkSources* sources)
      : records_(std::move(records)), pin_(std::move(pin)), sources_(sources) {}

  uint64_t ticket() const { return records_->ticket; }
  uint64_t step() const { return records_->step; }
  const std::vector<BaseLeaf>& leaves() const { return records_->leaves; }

  // Returns true if `payload` lies at the chunk's place, byte for byte. Reads only payloads that
  // this session has neither written nor compared: they may have rotted since.
  bool Holds(const format::ChunkRecord& chunk, ConstBytes payload) const;
  // The bytes of a chunk of the base: those in `recent` if this session has written them, else read
  // from the disk, into `read`.
  Result<ConstBytes> BytesOf(const format::ChunkRecord& chunk, const RecentChunks& recent,
                             RecentChunks::Held* held, std::string* read) const;
  // Asked before a chunk is taken from the base: false once it was dropped.
  bool Refer();
  // Lets go of the base, for space that only it keeps; false: something of it is taken already, or
  // it was dropped before.
  bool Drop();

 private:
  enum class State : uint8_t { kUnused, kReferred, kDropped };

  const std::shared_ptr<const BaseRecords> records_;
  std::atomic<State> state_{State::kUnused};
  std::shared_ptr<LiveSteps::Pin> pin_;  // kDropped: null
  const ChunkSources* const sources_;
};

// The newest commits of a store, for the saves to come. Thread-safe.
class NewestBases {
 public:
  NewestBases(LiveSteps* live, SegmentFiles* files) : live_(live), files_(files), sources_(files) {}

  // A save was committed, or a step has its chunks elsewhere.
  void Add(std::shared_ptr<const BaseRecords> records);
  // The newest that lives, which stays on the disk as long as the result is held; null: there is
  // none, or it cannot be read.
  std::shared_ptr<SaveBase> Take();

 private:
  std::shared_ptr<SaveBase> Hold(const std::shared_ptr<const BaseRecords>& records);

  LiveSteps* const live_;
  SegmentFiles* const files_;
  const ChunkSources sources_;
  io::Mutex mutex_;
  std::deque<std::shared_ptr<const BaseRecords>> newest_ STEPWELL_GUARDED_BY(mutex_);
};

// Equal for leaves of the same kind, type, shape and grid: then chunk i of one is the same part of
// it as chunk i of the other.
format::Hash128 GridHash(const format::LeafRecord& leaf);

}  // namespace stepwell::db
