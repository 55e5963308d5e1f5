// SPDX-License-Identifier: Apache-2.0
// The engine's door: open a store, save steps, read any part of them, delete, verify.
//
// A store opened for writing has one engine thread, a few workers and one index thread. Every call
// here is thread-safe. After fork the child must not use the store: every call there fails with
// kFailedPrecondition (the message says "fork"), and the child holds neither ring nor lock.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "db/retention.h"
#include "format/key.h"
#include "format/records.h"
#include "io/log.h"
#include "io/open_disk.h"
#include "io/result.h"

namespace stepwell::db {

enum class CodecPolicy {
  kAuto,  // per array, from a sample: bitshuffle + LZ4 where it at least halves the bytes, else raw
  kRaw,
  kBlosc,
};

struct StoreOptions {
  bool read_only = false;      // takes no lock, creates nothing, works beside a live writer
  bool create = true;          // with write access: make the store where there is none
  uint64_t staging_bytes = 0;  // bound of all save buffers; 0: min(1 GiB, 1/8 of memory)
  size_t threads = 0;          // encode and decode workers; 0: min(4, cores)
  std::vector<KeepRule> keep;  // retention, applied with each commit; none: keep every step
  CodecPolicy codec = CodecPolicy::kAuto;
  io::DiskKind disk = io::DiskKind::kAuto;
  uint64_t segment_bytes = uint64_t{256} << 20;   // upper bound; small states get smaller ones
  std::chrono::milliseconds lock_timeout{10000};  // waited only while a dead holder's I/O drains
  // Reclaim moves at most this many bytes a second (evacuation), so that saves keep the disk.
  uint64_t reclaim_bytes_per_second = uint64_t{128} << 20;
  // A file for the save pipeline's spans in Chrome's trace format, made at Open and written at
  // Close (the newest 262,144 spans); empty: none. Not for read-only stores.
  std::string trace_path;
  LogSink log;
};

// One leaf to save. `record` has key, kind, value type and what describes the leaf; the store fills
// chunk shape, codec and chunks.
struct LeafInput {
  format::LeafRecord record;
  // kArray: element (0, 0, …) and byte strides; null for zero-size arrays.
  const std::byte* data = nullptr;
  std::vector<int64_t> strides_bytes;
  format::Shape shard_shape;  // chunks keep its borders; empty: the whole array
  // Set: the bytes do not change while this reference is held, so they are read in the background;
  // dropped after the last read, on an engine thread. Null: the bytes are copied before Save
  // returns.
  std::shared_ptr<const void> hold;
  // kValue: the bytes (moved in). kArray: unused.
  std::string value;
};

struct ItemInput {
  std::string name;
  format::ItemKind kind = format::ItemKind::kTree;
  std::vector<LeafInput> leaves;  // any order; keys of this item, unique
};

enum class IfExists { kError, kReplace, kSkip };

struct SaveRequest {
  uint64_t step = 0;  // 0 … 2^63 − 1
  std::vector<ItemInput> items;
  std::string metadata_json;
  std::string metrics_json;
  IfExists if_exists = IfExists::kError;
};

// A save under way. Copies share; dropping it is harmless.
class SaveHandle {
 public:
  struct State;
  SaveHandle() = default;
  explicit SaveHandle(std::shared_ptr<State> state) : state_(std::move(state)) {}

  uint64_t step() const;
  bool done() const;
  // Whether it finished within `timeout` (negative: wait without limit).
  bool WaitFor(std::chrono::milliseconds timeout) const;
  // Waits; OK means durable and visible.
  Status Wait() const;
  // The outcome of a finished save (kFailedPrecondition before).
  Status status() const;
  // True for if_exists=kSkip of a step that was there.
  bool skipped() const;
  // Runs `callback` once when done (at once if it is), on the store's callback thread, which may
  // call the store.
  void OnComplete(std::function<void(const Status&)> callback) const;

 private:
  std::shared_ptr<State> state_;
};

// One leaf (or a box of it) into memory.
struct LoadRequest {
  const format::LeafRecord* leaf = nullptr;  // with its chunks, from StepReader::Leaves
  format::Box box;                           // kArray; format::WholeArray(shape) for all of it
  std::byte* out = nullptr;            // kArray: element box.start; kValue: logical_bytes long
  std::vector<int64_t> strides_bytes;  // of `out`; empty: C order of the box
};

struct LoadStats {
  uint64_t bytes_read = 0;    // from disk
  uint64_t bytes_needed = 0;  // stored bytes of the chunks touched
  uint64_t bytes_out = 0;     // put into `out`
  uint64_t reads = 0;
  uint64_t chunks = 0;
};

// A committed step, as it was when it was opened; pinned (not reclaimed) while this lives.
// Thread-safe.
class StepReader {
 public:
  virtual ~StepReader() = default;
  virtual const format::StepRecord& step() const = 0;
  // Records (nodes too, chunks included) whose leaf keys start with `key_prefix` (of
  // format::EncodeItem or EncodeLeafKey; "" for all), in key order.
  virtual Result<std::vector<format::LeafRecord>> Leaves(std::string_view key_prefix) = 0;
  // The record with exactly this key (of format::EncodeLeafKey), a node's too; none when there is
  // none. What it costs does not grow with the number of leaves.
  virtual Result<std::optional<format::LeafRecord>> Find(std::string_view key) = 0;
  // Reads, verifies every checksum, decodes; each chunk once. On error `out` is undefined; the
  // message of kDataLoss names step, leaf, file and offset.
  virtual Result<LoadStats> Load(std::span<const LoadRequest> requests) = 0;
};

struct StepSummary {
  format::StepRecord step;  // without metadata texts
};

struct VerifyProblem {
  std::optional<uint64_t> step;
  std::string item;
  std::string path;  // of the leaf; "" when it concerns no single leaf
  std::string file;
  uint64_t offset_bytes = 0;
  std::string message;
};
struct VerifyReport {
  uint64_t steps = 0;
  uint64_t leaves = 0;
  uint64_t chunks = 0;
  uint64_t bytes = 0;
  std::vector<VerifyProblem> problems;
};
struct VerifyOptions {
  std::optional<uint64_t> step;  // none: all
  // Called now and then with (bytes done, bytes in all); returning false stops with kCancelled.
  std::function<bool(uint64_t, uint64_t)> progress;
};

// How long something took, over the store's life in this process. Percentiles are of a histogram
// with steps of at most 12 %.
struct LatencyStats {
  uint64_t count = 0;
  uint64_t total_us = 0;
  uint64_t p50_us = 0;
  uint64_t p99_us = 0;
  uint64_t max_us = 0;
};

// Where the bytes of the store's directory are, as the file system allocates them. The parts add
// up to `total_bytes`.
struct SpaceStats {
  uint64_t total_bytes = 0;
  uint64_t live_bytes = 0;      // payloads of live steps
  uint64_t overhead_bytes = 0;  // frames, catalogs and padding that live steps and recovery need
  uint64_t dead_bytes = 0;      // nobody needs them, or only readers and recovery for a while
  uint64_t reserved_bytes = 0;  // allocated ahead: tails of open segments, spares, the ballast
  uint64_t index_bytes = 0;     // RocksDB
  uint64_t other_bytes = 0;     // STEPWELL, LOCK, readers' pins
  // Of which (not added again):
  uint64_t shared_bytes = 0;  // payloads that more than one live step refers to, counted once
  uint64_t pinned_by_readers_bytes = 0;  // payloads of dead steps that a reader still holds
  uint64_t linked_bytes = 0;             // of segments with another hard link
};

struct StoreStats {
  uint64_t steps = 0;
  uint64_t pinned_steps = 0;
  uint64_t segments = 0;
  uint64_t segment_bytes = 0;  // allocated on disk
  SpaceStats space;
  uint64_t staging_bytes = 0;  // memory held by save buffers now
  uint64_t staging_bytes_max = 0;
  uint64_t saves_in_flight = 0;

  // Counters since open.
  uint64_t saves = 0;  // committed
  uint64_t saves_failed = 0;
  uint64_t bytes_saved = 0;    // logical bytes of committed saves
  uint64_t bytes_written = 0;  // to segments: payloads, frames, moves
  uint64_t syncs = 0;          // fdatasyncs of segments
  uint64_t bytes_moved = 0;    // payloads that reclaim copied to give space back
  uint64_t bytes_punched = 0;
  uint64_t segments_removed = 0;
  uint64_t segments_recycled = 0;
  // Per committed save: the caller's wait, the workers' encoding (summed over them), first to last
  // write, the frame's write and flush, the index (item deletions, too), and save() to durable and
  // visible.
  LatencyStats snapshot, encode, write, commit, index, durable;

  std::string disk;                   // Disk::Describe()
  std::string index_state;            // "rocksdb through commit N", "log", "rebuilding"
  std::vector<std::string> old_pins;  // readers' pins that keep space: which, since when
};

// What one pass of reclaim did.
struct ReclaimReport {
  uint64_t bytes_before = 0;  // allocated by segments
  uint64_t bytes_after = 0;
  uint64_t segments_removed = 0;
  uint64_t segments_recycled = 0;  // kept for the next segments, within reserved bytes
  uint64_t bytes_punched = 0;
  uint64_t bytes_moved = 0;
  uint64_t bytes_pinned_by_readers = 0;  // dead, but a reader may be reading them
  uint64_t bytes_linked = 0;             // dead, but in segments with another hard link
};

// What Open found and did; also said in the log.
struct RecoveryReport {
  bool clean = true;               // the last writer closed it
  uint64_t commits_recovered = 0;  // accepted beyond the durable mark
  uint64_t commits_rejected = 0;   // frames that were not complete on disk
  bool index_rebuilt = false;
  std::vector<std::string> problems;  // damage found, in words
};

class Store {
 public:
  virtual ~Store() = default;  // Close()

  static Result<std::unique_ptr<Store>> Open(const std::string& path, const StoreOptions& options);

  // Snapshots the state (this is what the caller waits for) and returns; the rest goes on in the
  // background. Errors in the request, and kAlreadyExists, come from here, before any I/O.
  // Blocks while the staging memory is full or two saves are in flight.
  virtual Result<SaveHandle> Save(SaveRequest request) = 0;
  // Waits for every save so far and returns the first error that no handle and no earlier call has
  // reported.
  virtual Status Wait() = 0;
  // The same without waiting: the first unreported error of the saves that have finished.
  virtual Status TakeError() = 0;

  // Committed steps, ascending. A read-only store looks for new ones each time.
  virtual Result<std::vector<StepSummary>> Steps() = 0;
  // kNotFound names the nearest steps.
  virtual Result<std::shared_ptr<StepReader>> Read(uint64_t step) = 0;

  // These are durable when they return. kNotFound (nothing changed) when a step or item is not
  // there.
  virtual Status Delete(std::span<const uint64_t> steps) = 0;
  // Takes items out of a step. kInvalidArgument when none would be left: delete the step instead.
  virtual Status DeleteItems(uint64_t step, std::span<const std::string> items) = 0;
  // Pinned steps are kept whatever the rules say; Delete and replacing them fail with
  // kFailedPrecondition until they are unpinned. Pinning twice is one pin.
  virtual Status SetPinned(std::span<const uint64_t> steps, bool pinned) = 0;

  // Gives back all space that can be given back now, and waits for it. Reclaim also goes on by
  // itself, in the background.
  virtual Result<ReclaimReport> Reclaim() = 0;
  virtual Result<VerifyReport> Verify(const VerifyOptions& options) = 0;
  virtual StoreStats Stats() = 0;
  virtual const RecoveryReport& recovery() const = 0;
  virtual const std::string& path() const = 0;
  virtual bool read_only() const = 0;
  // Waits for saves, seals, marks the store clean, gives the lock back. Idempotent; later calls
  // fail with kFailedPrecondition. Returns the first error not yet reported.
  virtual Status Close() = 0;
};

}  // namespace stepwell::db
