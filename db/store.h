// SPDX-License-Identifier: Apache-2.0
// The engine's door: open a store, save steps, read any part of them, delete, verify.
//
// A store opened for writing has one engine thread, a few workers and one index thread. Every call
// here is thread-safe. After fork the child must not use the store: every call there fails with
// kFailedPrecondition (the message says "fork"), and the child holds neither ring nor lock.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <stepwell/keep.h>
#include <stepwell/open_options.h>
#include <stepwell/reports.h>
#include <stepwell/save_handle.h>

#include "db/group.h"
#include "format/key.h"
#include "format/records.h"
#include "io/log.h"
#include "io/open_disk.h"
#include "io/result.h"

namespace stepwell::db {

using stepwell::CodecPolicy;
using stepwell::IfExists;
using stepwell::KeepRule;
using stepwell::LatencyStats;
using stepwell::LoadStats;
using stepwell::OnNonfinite;
using stepwell::ReclaimReport;
using stepwell::RecoveryReport;
using stepwell::RepairReport;
using stepwell::RetentionReport;
using stepwell::SaveHandle;
using stepwell::SaveStats;
using stepwell::SpaceStats;
using stepwell::StoreStats;
using stepwell::VerifyOptions;
using stepwell::VerifyProblem;
using stepwell::VerifyReport;
using stepwell::ViewStats;

// The options of the engine besides OpenOptions.
struct StoreOptions : OpenOptions {
  StoreOptions() = default;
  StoreOptions(OpenOptions options)  // NOLINT(google-explicit-constructor)
      : OpenOptions(std::move(options)) {}

  io::DiskKind disk = io::DiskKind::kAuto;
  uint64_t segment_bytes = uint64_t{256} << 20;  // upper bound; small states get smaller ones
  // Of the copies of one FarSource no more are there at any time, or one larger box alone.
  uint64_t far_window_bytes = uint64_t{256} << 20;
  // The index is opened where there are more live steps: of so few, frames are read sooner.
  size_t steps_before_index = 32;
  // The store is new and small, lies in the temporary directory of a DurableFolder
  // (db/export/durable.h), and is closed before Commit, which syncs it. The store and its exports
  // sync nothing. One thread at a time uses the store, and does all its work.
  bool unpublished = false;
  // This store is (or, where there is none yet, is to be) this part of a group. Needed to write to
  // a part, and to save parts of steps, on part 0 too.
  std::optional<StoreGroup> group;
};

// Boxes of arrays whose bytes are not in memory yet, as those on an accelerator: Save has copies
// made, a few at a time, and lets each go once it has the bytes. Called from one thread at a time,
// never from the engine's.
class FarSource {
 public:
  struct Copy {
    const std::byte* data = nullptr;
    std::vector<int64_t> strides_bytes;  // any sign
  };

  virtual ~FarSource() = default;
  // Begins to copy the boxes that ShardInput::far names so, and waits for none of them.
  virtual Status Start(std::span<const uint32_t> boxes) = 0;
  // Waits for their copies, in this order, which are there until Release. On error those of the
  // boxes before the one that could not be copied; or as many as boxes, where it names the array.
  virtual Status Wait(std::span<const uint32_t> boxes, std::vector<Copy>* copies) = 0;
  // Gives the memory of their copies back, also of those that were started and not waited for. An
  // error says that the caller was interrupted.
  virtual Status Release(std::span<const uint32_t> boxes) = 0;
};

// A box of an array, in memory of its own.
struct ShardInput {
  format::Shape origin;  // of its element 0, in the array
  format::Shape shape;
  const std::byte* data = nullptr;     // null for boxes without elements
  std::vector<int64_t> strides_bytes;  // any sign; empty: C order of the box
  // The number of the box in SaveRequest::far, which has the bytes; then `data` is unused. All
  // shards of a leaf have one, or none.
  std::optional<uint32_t> far = {};
};

// One leaf to save. `record` has key, kind, value type and what describes the leaf; the store fills
// codec and chunks, and the chunk shape unless an array that is not partial has one.
struct LeafInput {
  format::LeafRecord record;
  // kArray: element (0, 0, …) and byte strides; null for zero-size arrays.
  const std::byte* data = nullptr;
  std::vector<int64_t> strides_bytes;
  format::Shape
      shard_shape;  // chunks keep its borders; empty: the whole array, or that of `shards`
  // kArray, several boxes that do not overlap and together are the array: it is saved from them,
  // and never in memory as a whole; `data` and `strides_bytes` are unused. Empty: from `data`.
  std::vector<ShardInput> shards;
  // With SaveRequest::group: `shards` are some of the boxes only, or none; other parts save the
  // rest, with the same shard_shape, from which the grid follows. Every chunk then lies in one
  // shard. Part 0 gives every leaf of the step, also those of which it has nothing; the others only
  // those of which they have something.
  bool partial = false;
  // kArray: chunks of at most so many bytes (format::ChunkShapeWithin), cut along these axes. 0: of
  // the usual size, or with axes the largest there is.
  uint64_t chunk_bytes_max = 0;
  std::vector<uint32_t> chunk_axes;
  // Set: the bytes do not change while this reference is held, so they are read in the background;
  // dropped after the last read, on an engine thread. Null: the bytes are copied before Save
  // returns.
  std::shared_ptr<const void> hold;
  // kArray: chunks that are encoded already, one payload (format/codec.h) for each chunk of the
  // grid of record.chunk_shape, all of `codec`, checked by the caller and kept by `hold`. They
  // are stored as they are, whatever the store's codec policy; `data` is unused. Empty: `data` is
  // cut and encoded as the store sees fit. With `partial`: of the chunks of `shards`, whose borders
  // are the grid's, ascending by origin; their data is unused.
  std::vector<ConstBytes> payloads;
  format::CodecId codec = format::CodecId::kRaw;  // of `payloads`
  // kArray. The ticket of the first of the saves up to this one that all had the same bytes here,
  // as the caller knows without a look; 0: it does not know. They are read all the same unless this
  // save refers to one of those.
  uint64_t unchanged_since = 0;
  // kValue: the bytes (moved in). kArray: unused.
  std::string value;
};

struct ItemInput {
  std::string name;
  format::ItemKind kind = format::ItemKind::kTree;
  std::vector<LeafInput> leaves;  // any order; keys of this item, unique
};

struct SaveRequest {
  uint64_t step = 0;  // 0 … 2^63 − 1
  std::vector<ItemInput> items;
  std::string metadata_json;
  std::string metrics_json;
  IfExists if_exists = IfExists::kError;
  // Set: this is a part of a step of many processes. Its handle completes when it is prepared:
  // durable, and not visible before Decide. Items may be without leaves.
  std::optional<GroupSave> group;
  // Other steps that end in this commit, as those that retention drops: pinned ones, and those that
  // are not there by then, are passed over. Not with `group`: Decision::dead says it there.
  std::vector<uint64_t> retire;
  // Tainted from the beginning, as a copy of a tainted step is; "": it is not.
  std::string taint;
  // The caller's number for this save, for LeafInput::unchanged_since, ascending; 0: none.
  uint64_t ticket = 0;
  // The step is a copy of one that was saved elsewhere. What it holds is not the caller's doing, so
  // on_nonfinite does not apply, and nothing is said of a state that does not change.
  bool is_copy = false;
  // Has the bytes of shards with ShardInput::far. Save waits until all were copied, and fails where
  // one cannot be; with `far_behind` a thread of the store's has them copied when Save has
  // returned, and an error of one is the handle's.
  std::shared_ptr<FarSource> far;
  bool far_behind = false;
  // Asked about every 100 ms, on the caller's thread, while Save waits or copies; false ends it
  // with kCancelled, and nothing is saved. Empty: always true.
  std::function<bool()> keep_waiting;
};

// One leaf (or a box of it) into memory.
struct LoadRequest {
  const format::LeafRecord* leaf = nullptr;  // with its chunks, from StepReader::Leaves
  format::Box box;                           // kArray; format::WholeArray(shape) for all of it
  std::byte* out = nullptr;            // kArray: element box.start; kValue: logical_bytes long
  std::vector<int64_t> strides_bytes;  // of `out`; empty: C order of the box
};

// A committed step, as it was when it was opened; pinned (not reclaimed) while this lives. Only a
// read-only store that cannot write into readers/ does not pin: there, kNotFound says that the step
// was deleted (replaced, changed, moved) while it was being read. Thread-safe.
class StepReader {
 public:
  virtual ~StepReader() = default;
  virtual const format::StepRecord& step() const = 0;
  // Explains an error from reading the step's segments by other means than these: it is damage, or
  // kNotFound if nothing pins the step and it was deleted or moved meanwhile.
  virtual Status Explain(const Status& error) const = 0;
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

// The texts that the caller gave a committed step. The index has them beside the log, so that
// reading all of them costs one scan.
struct StepTexts {
  uint64_t step = 0;
  uint64_t commit = 0;
  std::string metadata_json;
  std::string metrics_json;
  Status status;  // why there is no text
};

// The committed steps of one instant. While it lives nothing of them is reclaimed, with
// StepReader's reservation.
struct StoreSnapshot {
  struct Step {
    uint64_t step = 0;
    uint64_t commit = 0;
    int64_t time_ns = 0;
    // Only for a step that other parts have shares of. `shares` are their commits, in the order of
    // group->parts. A share that is not to be had is 0, and nothing keeps it.
    std::optional<format::GroupRecord> group = {};
    std::vector<uint64_t> shares = {};
  };
  std::vector<Step> steps;          // ascending
  std::shared_ptr<const void> pin;  // null: nothing keeps them
};

inline StoreSnapshot::Step BriefOf(const format::StepRecord& record) {
  StoreSnapshot::Step step{record.step, record.commit, record.time_ns};
  if (HasOtherParts(record)) step.group = record.group;
  return step;
}

class ViewSet;

// Reads the committed steps of a store. No call changes them.
class StoreReader {
 public:
  virtual ~StoreReader() = default;

  // Committed steps, ascending. Of a step of many processes: the record of this store's part. A
  // read-only store looks for new ones each time.
  virtual Result<std::vector<format::StepRecord>> Steps() = 0;
  // The numbers of the `last` highest steps, or of all there are, ascending; with or without those
  // that are tainted.
  virtual Result<std::vector<uint64_t>> StepNumbers(size_t last, bool with_tainted) = 0;
  // Their texts. Of a step of many processes: what this store's part has. Steps that are deleted
  // meanwhile are left out.
  virtual Result<std::vector<StepTexts>> Texts(size_t last) = 0;
  // The highest committed step that is not tainted; none where there is none. kDataLoss: frames are
  // lost and not accepted (see Repair); it may have been in them, whatever else is there.
  virtual Result<std::optional<uint64_t>> Newest() = 0;
  // kNotFound names the nearest steps.
  virtual Result<std::shared_ptr<StepReader>> Read(uint64_t step) = 0;
  // That step of one instant, whatever is deleted or replaced meanwhile; null where there is none.
  // kDataLoss as Newest().
  virtual Result<std::shared_ptr<StepReader>> ReadNewest() = 0;
  virtual Result<std::shared_ptr<const StoreSnapshot>> Snapshot() = 0;
  // A store that is open for writing records which commits were found whole, and which damaged
  // (StepRecord::verified); in a group part 0 does. That is durable on return, or while saves are
  // under way, after them. A full disk keeps it from being recorded; another failure is logged.
  virtual Result<VerifyReport> Verify(const VerifyOptions& options) = 0;
  // `changed` is called after every commit; it must only post, as it runs under a lock of the
  // store's. One an owner; null ends it, and no call is under way any more when this returns. A
  // store that is open for reading only never calls.
  virtual void OnChange(const void* owner, std::function<void()> changed) = 0;
  // For an export that is about to give segments a second name: seals those that are
  // written here, after waiting for writes in flight; whether none of them is written any more.
  // Some may stay unsealed: look at the files. Nothing to do for a store that is open for reading
  // only.
  virtual Result<bool> SealSegments(const std::set<uint64_t>& segments) = 0;

  // The views of this store (view.h). They are closed with it.
  virtual ViewSet& views() = 0;

  virtual StoreStats Stats() = 0;
  // By the rules that this was opened with; without, in a store that is open for reading, by those
  // of the last process that saved.
  virtual Result<RetentionReport> Retention() = 0;
  // Returns for each of these steps, or for all if none is named, the bytes that deleting it alone
  // would free: those of the payloads that no other step has, whether it wrote or refers to them.
  // kNotFound: one is not there. No value: the records of the step, or of one that has payloads in
  // the same segments, cannot be read. Reads the records of these steps, and no arrays. In a group:
  // of this store's part.
  virtual Result<std::map<uint64_t, std::optional<uint64_t>>> FreesBytes(
      std::span<const uint64_t> steps) = 0;
  virtual const RecoveryReport& recovery() const = 0;
  virtual const std::string& path() const = 0;
  // Random, made with the store; of part 0 the id of its group.
  virtual const format::Id128& id() const = 0;
  virtual bool read_only() const = 0;
  virtual bool untrusted() const { return false; }
  // For what lies below path(): it follows no links there.
  virtual io::FileSystem* file_system() = 0;
  // For exports of it.
  virtual io::FileSystem* export_file_system();
};

// Changes a store. A store that is open for reading only refuses: kFailedPrecondition.
class StoreWriter {
 public:
  virtual ~StoreWriter() = default;

  // Snapshots the state (this is what the caller waits for) and returns; the rest goes on in the
  // background. Errors in the request, and kAlreadyExists, come from here, before any I/O.
  // Blocks while the staging memory is full or three saves are in flight.
  virtual Result<SaveHandle> Save(SaveRequest request) = 0;
  // Waits for every save so far and returns the first error that no handle and no earlier call has
  // reported.
  virtual Status Wait() = 0;
  // The same without waiting: the first unreported error of the saves that have finished.
  virtual Status TakeError() = 0;

  // These are durable when they return. kNotFound (nothing changed) when a step or item is not
  // there.
  virtual Status Delete(std::span<const uint64_t> steps) = 0;
  // Takes items out of a step. kInvalidArgument when none would be left: delete the step instead.
  virtual Status DeleteItems(uint64_t step, std::span<const std::string> items) = 0;
  // Pinned steps are kept whatever the rules say; Delete and replacing them fail with
  // kFailedPrecondition until they are unpinned. Pinning twice is one pin.
  virtual Status SetPinned(std::span<const uint64_t> steps, bool pinned) = 0;
  // Taints steps: they are not to be resumed from, because of `why`, 1 to kTaintBytesMax bytes. So
  // Newest and ReadNewest pass them over, and retention keeps an untainted step. By number they are
  // read as any other. A new taint takes the place of the old one; "" takes it away.
  virtual Status SetTaint(std::span<const uint64_t> steps, std::string_view why) = 0;

  // Gives back all space that can be given back now, and waits for it. Reclaim also goes on by
  // itself, in the background.
  virtual Result<ReclaimReport> Reclaim() = 0;
  // Writes the frames of steps anew whose first copy is damaged. With `accept_losses`, ends the
  // losses that recovery has found: what is live then counts as it is.
  virtual Result<RepairReport> Repair(bool accept_losses) = 0;
};

// Takes part in steps of many processes (DESIGN.md, "Many processes").
class GroupPart {
 public:
  virtual ~GroupPart() = default;

  // The part that this store is; zero for part 0 and for stores that are no part of anything.
  virtual const StoreGroup& part() const = 0;
  // Applies the decision on a prepared step. Idempotent: committing again ends no further steps,
  // and aborting a step that is not prepared changes nothing. kNotFound: no such step is prepared
  // here. kFailedPrecondition: it is to be aborted and was committed; or a pinned step would be
  // replaced; or the store is open for reading only.
  virtual Result<Decided> Decide(const Decision& decision) = 0;
  // Steps that are prepared and not decided, in the order in which they were prepared.
  virtual Result<GroupStatus> Group() = 0;
  // For processes that cannot reach the others' stores: StoreReader::Read and Verify of this
  // store's records and chunks alone. Part 0 has a record of each leaf, and of arrays that others
  // have, too, those pieces that it wrote itself.
  virtual Result<std::shared_ptr<StepReader>> ReadShare(uint64_t step) = 0;
  virtual Result<VerifyReport> VerifyShare(const VerifyOptions& options) = 0;
};

class Store : public StoreReader, public StoreWriter, public GroupPart {
 public:
  static Result<std::unique_ptr<Store>> Open(const std::string& path, const StoreOptions& options);
  ~Store() override = default;  // Close()

  // Waits for saves, seals, marks the store clean, gives the lock back. Idempotent; later calls
  // fail with kFailedPrecondition. Returns the first error not yet reported.
  virtual Status Close() = 0;

  Result<std::shared_ptr<StepReader>> ReadNewest() final;
  Result<VerifyReport> Verify(const VerifyOptions& options) final {
    return VerifyWith(options, /*others=*/true);
  }
  Result<VerifyReport> VerifyShare(const VerifyOptions& options) final {
    return VerifyWith(options, /*others=*/false);
  }

 private:
  // kNotFound: it went while it was looked up, in another part's store or where there is no pin.
  virtual Result<std::shared_ptr<StepReader>> ReadNewestNow() = 0;
  // `others`: the other parts of steps of many processes, too.
  virtual Result<VerifyReport> VerifyWith(const VerifyOptions& options, bool others) = 0;
};

// Each catalog repeats the taints of what it names.
inline constexpr size_t kTaintBytesMax = 1024;

// The store whose step this thread copies at the moment; null: none. Save asks
// SaveRequest::keep_waiting while a step is partly copied. That callback must not wait for the
// store's changes or close the store: the step comes before them, and goes on when it returns.
inline thread_local const Store* store_copied_into = nullptr;

}  // namespace stepwell::db
