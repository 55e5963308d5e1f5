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
  std::optional<uint64_t> keep_latest;  // after each commit keep the n highest steps; none: all
  CodecPolicy codec = CodecPolicy::kAuto;
  io::DiskKind disk = io::DiskKind::kAuto;
  uint64_t segment_bytes = uint64_t{256} << 20;   // upper bound; small states get smaller ones
  std::chrono::milliseconds lock_timeout{10000};  // waited only while a dead holder's I/O drains
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

struct StoreStats {
  uint64_t steps = 0;
  uint64_t segments = 0;
  uint64_t segment_bytes = 0;  // allocated on disk
  uint64_t live_bytes = 0;     // payloads of live steps
  uint64_t staging_bytes = 0;  // memory held by save buffers now
  uint64_t staging_bytes_max = 0;
  uint64_t saves_in_flight = 0;
  uint64_t bytes_written = 0;  // to segments since open
  uint64_t syncs = 0;          // fdatasyncs of segments since open
  std::string disk;            // Disk::Describe()
  std::string index;           // "rocksdb through commit N", "log", "rebuilding"
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

  // Durable when it returns. kNotFound (nothing deleted) when one of them is not there.
  virtual Status Delete(std::span<const uint64_t> steps) = 0;
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
