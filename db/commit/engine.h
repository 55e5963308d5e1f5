// SPDX-License-Identifier: Apache-2.0
// The engine: takes encoded blocks to the log, commits steps in order, retires old ones.
// DESIGN.md has the protocol as numbered steps. One thread (the one that calls Step) owns all of
// it; other threads only Post.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "db/commit/reclaim_scheduler.h"
#include "db/commit/retention.h"
#include "db/commit/save_job.h"
#include "db/environment.h"
#include "db/index/keeper.h"
#include "db/log/catalog.h"
#include "db/log/footprint.h"
#include "db/log/live_steps.h"
#include "db/log/log_writer.h"
#include "db/log/recovery.h"
#include "db/log/slot_file.h"
#include "io/buffer.h"
#include "io/disk.h"

namespace stepwell::db {

struct EngineOptions {
  Environment environment;
  std::string store_path;
  format::StoreSlot slot;
  std::shared_ptr<io::Freeze> freeze;  // of the log
  SlotFile* slot_file = nullptr;
  SegmentFiles* files = nullptr;
  LiveSteps* live = nullptr;
  IndexKeeper* index = nullptr;
  Instruments* instruments = nullptr;
  io::BufferPool* pool = nullptr;
  io::Disk* disk = nullptr;
  std::vector<KeepRule> keep;
  uint64_t segment_bytes_max = 0;
  uint64_t reclaim_bytes_per_second = 0;
  FootprintCache* footprints = nullptr;
  LogSink log;
  // The slot file is another one, which forked children must let go of, too.
  std::function<void(io::File*)> slots_made_anew;
  // Ends all changes that did not end, as of unknown outcome, without an allocation: see Panic.
  std::function<void()> end_changes;
};

class Engine {
 public:
  explicit Engine(EngineOptions options);

  // ---- any thread --------------------------------------------------------------------------
  // Throws where there is no memory, as does all that is not said to work without.
  void Post(std::function<void()> task);
  // An exception lost some of the engine's work, so what remains to be done is unknown. The store
  // freezes; what is on its way to the disk ends there, then every change and every call that waits
  // for the engine ends with an error. Works without memory; any thread.
  void Panic(const Status& why) noexcept;
  bool panicked() const { return panicked_.load(); }
  // A block was encoded (or the encoding failed) into `block`.
  void PostEncoded(std::shared_ptr<SaveJob> job, bool held, size_t index,
                   io::BufferPool::Block* block, EncodedBlock encoded);

  // ---- before the engine thread starts -----------------------------------------------------
  // Begins a new epoch after recovery: new segment, epoch frame, marks; all durable. Then seals or
  // removes what the last writer left open.
  Status Start(const LogState& state);

  // ---- engine thread -----------------------------------------------------------------------
  // Runs posted tasks and completions; with `wait`, sleeps until there is something.
  void Step(bool wait);
  void Begin(std::shared_ptr<SaveJob> job);
  void StagingDone(SaveJob* job, size_t expected, const Status& status);
  // A staged block that must be encoded into another one.
  void NeedOutput(std::shared_ptr<SaveJob> job, size_t index, io::BufferPool::Block* staged);
  void HeldPlanned(SaveJob* job, const Status& status);
  // After the last Step, before the disk goes: what is still posted wakes no thread.
  void LeaveDisk();
  // And when it is gone.
  void CloseFiles() {
    if (log_ != nullptr) log_->CloseFiles();
  }
  // Start() went through.
  bool started() const { return started_; }
  // No new work for the index and reclaim workers from here on; what runs there ends soon.
  void BeginClose();
  ReclaimScheduler& reclaim() { return reclaim_; }
  // Begins a new segment if the current one is among these, and seals what has nothing in flight.
  // False: some are still to be sealed.
  Result<bool> SealSegments(const std::set<uint64_t>& segments);
  // Seals, syncs and marks the store clean; nothing may be in flight.
  Status Finish();

  // ---- engine thread, for reclaim ----------------------------------------------------------
  // Why nothing may be erased or moved now.
  Status MayErase();
  bool closing() const { return closing_; }
  bool CommitInFlight() const { return batch_ != nullptr || slot_sync_ != nullptr; }
  // Whether something died by a commit that a slot sync under way is to vouch for.
  bool DeathsAwaitSlot() const;
  // The lowest segment that recovery may need.
  uint64_t GuardSegment();
  // Segments that are open, or hold what is not committed yet: of saves, commits, moves.
  std::set<uint64_t> BusySegments() const;
  // Without segments and gains.
  ReclaimRequest NewReclaimRequest();
  const std::map<uint64_t, format::SegmentEntry>& segments() const { return segments_; }
  uint64_t newest_segment() const;                             // 0: none yet
  uint64_t first_segment() const { return log_->first_id(); }  // of this session
  void SegmentGone(uint64_t segment);
  void AddSpare(LogWriter::Spare spare) { log_->AddSpare(std::move(spare)); }
  // Begins two segments where so many dead bytes from `guard` on can go then that it is worth it.
  // No commit is in flight.
  Status RollSegments(uint64_t guard);
  Result<LogWriter::Placement> PlaceBlock(uint64_t bytes, uint64_t step_bytes) {
    return log_->Place(bytes, step_bytes, /*may_use_reserve=*/false);
  }
  void NoteWritten(uint64_t bytes) { bytes_written_ += bytes; }
  // What was written for nothing needs no flush.
  void NoteFailedWrites() { has_failed_writes_ = true; }
  // Before the saves in flight: on a full disk they wait for the space that this gives back.
  void CommitNext(std::shared_ptr<SaveJob> job);

  // ---- any thread --------------------------------------------------------------------------
  // Where the segments that are open end, as of the last commit, and what recovery may read of
  // catalogs.
  void FillQuery(SpaceQuery* query) const;
  uint64_t bytes_written() const { return bytes_written_.load(); }
  uint64_t syncs() const { return syncs_.load(); }
  // What blocks are padded to; fixed once Start() has run.
  size_t block_bytes() const { return block_bytes_.load(); }

 private:
  // A block of a job: encoded, or staged and to be encoded into another one.
  struct JobBlock {
    std::shared_ptr<SaveJob> job;
    bool held = false;
    size_t index = 0;
    io::BufferPool::Block* block = nullptr;
    EncodedBlock encoded;
  };
  // Where a frame goes, with the copies behind it.
  struct Run {
    LogWriter::Placement spot;
    size_t bytes = 0;
  };

  // Operations in flight.
  struct BlockWrite final : SegmentWrite {
    Engine* engine = nullptr;
    JobBlock ready;
    int64_t submitted_ns = 0;
    void OnComplete() override { engine->BlockWritten(this); }
  };
  struct FrameWrite final : SegmentWrite {
    Engine* engine = nullptr;
    io::AlignedBuffer buffer;
    int64_t submitted_ns = 0;
    void OnComplete() override { engine->FrameWritten(this); }
  };
  struct SegmentSync final : io::Op {
    Engine* engine = nullptr;
    Segment* segment = nullptr;
    int64_t submitted_ns = 0;
    void OnComplete() override { engine->SegmentSynced(this); }
  };
  struct SlotSync final : io::Op {
    Engine* engine = nullptr;
    uint64_t commit = 0;  // that the slot names
    bool killed = false;  // something died by a commit that no earlier sync covers
    void OnComplete() override { engine->SlotSynced(); }
  };

  // A job whose chain frame is placed.
  struct BatchEntry {
    std::shared_ptr<SaveJob> job;
    format::FramePlace place;
    LiveSteps::Change change;
  };
  // By number, not by address: the same run submits the same operations.
  struct OlderSegment {
    bool operator()(const Segment* a, const Segment* b) const { return a->id < b->id; }
  };
  // Jobs that share one flush.
  struct CommitBatch {
    std::vector<BatchEntry> entries;
    std::vector<std::shared_ptr<SaveJob>> repeated;  // decisions an entry may have taken already
    std::vector<std::unique_ptr<FrameWrite>> frames;
    std::vector<std::unique_ptr<SegmentSync>> sync_ops;
    std::set<Segment*, OlderSegment> touched;
    size_t writes_left = 0;
    size_t syncs_left = 0;
    BatchTimes times;
    Status error;
    bool reached_disk = false;  // some frame, or a part of one: recovery may find it
  };

  int64_t AgeTime(int64_t wall_ns);
  bool RunPosted();
  bool MakeRoom();
  Status CheckNotRemoved();
  template <typename Work>
  void PanicOnThrow(Work work);
  void EndAll();
  void BeginDecision(std::shared_ptr<SaveJob> job);
  void LeaveLinkedSegment();
  void Pump();
  io::BufferPool::Block* AcquireOutput(SaveJob* job);
  void StartEncodes();
  void StartWrites();
  void Encode(std::shared_ptr<SaveJob> job, bool held, size_t index, io::BufferPool::Block* staged,
              io::BufferPool::Block* output);
  void BlockDone(const JobBlock& ready);
  void BlockWritten(BlockWrite* write);
  void Fail(SaveJob* job, const Status& status);
  void FailAll(const Status& status);
  void ReleaseHolds(SaveJob* job);

  void FailReadyHeads();
  // Ends a job of which nothing is in the log's chain.
  void Drop(SaveJob* job, const Status& status);
  void StartBatch();
  Status AddToBatch(const std::shared_ptr<SaveJob>& job);
  Status AddSave(SaveJob* job, BatchEntry* entry);
  Status AddRewrite(const SaveJob& job, BatchEntry* entry);
  Status AddRecords(const SaveJob& job, std::shared_ptr<LiveStep> live, BatchEntry* entry);
  Status AddCommit(std::map<uint64_t, format::SegmentExtent> extents, uint64_t step_bytes,
                   std::shared_ptr<LiveStep> live, std::span<const format::LeafRecord> records,
                   const std::shared_ptr<StepTexts>& texts, BatchEntry* entry);
  Status AddDelete(const SaveJob& job, BatchEntry* entry);
  Status AddDecision(SaveJob* job, BatchEntry* entry);  // change.commit is 0: taken already
  template <typename Wanted>
  std::shared_ptr<const LiveStep> FindUndecided(const Wanted& wanted) const;
  Status NotThere(uint64_t step) const;
  Status AddPins(const SaveJob& job, BatchEntry* entry);
  Status AddSmall(format::FrameKind kind, const std::string& payload, BatchEntry* entry);
  std::shared_ptr<const LiveStep> FindAsOf(uint64_t step) const;
  void AddRetired(const LiveStep& added, std::span<const uint64_t> asked,
                  LiveSteps::Change* change);
  void LoadRetention();
  void NoteRetention(const SaveJob& job, const LiveSteps::Change& change);
  Result<format::FramePlace> AppendFrame(format::FrameKind kind, const std::string& payload,
                                         uint64_t step_bytes, bool may_drop_ballast, Run* taken);
  Result<format::FramePlace> SubmitFrame(format::FrameKind kind, const std::string& payload,
                                         const Run& run);
  Result<Run> PlaceRun(format::FrameKind kind, size_t payload_bytes, uint64_t step_bytes,
                       bool may_drop_ballast);
  void FrameWritten(FrameWrite* write);
  void SyncBatch();
  void SegmentSynced(SegmentSync* sync);
  void Publish();
  void NoteCommitted(const CommitBatch& batch, const BatchEntry& entry);
  void FailBatch(const Status& status);
  void NoteSegments();
  std::set<uint64_t> InUse() const;
  void ForgetFailedWrites();
  Status MendHeaders(const LogState& state);
  Status SettleAbandoned(const LogState& state);
  Status WriteSlot(bool sync);
  Status LeaveCopiedSlots();
  // For others to see, not synced; false: not now, the next commit tries again.
  bool UpdateSlot();
  void NoteCatalog(const Segment& segment);
  void MarkDurable();
  void SlotSynced();
  Status AddAccepted(BatchEntry* entry);

  EngineOptions options_;
  std::mutex posted_mutex_;
  std::vector<std::function<void()>> posted_;  // guarded by posted_mutex_

  // ---- engine thread only ------------------------------------------------------------------
  std::unique_ptr<LogWriter> log_;
  format::StoreSlot slot_;
  uint64_t epoch_ = 0;
  uint64_t tip_commit_ = 0;  // of the last frame placed
  format::FramePlace tip_place_;
  std::string tip_copy_;       // of that frame, for the slot
  uint64_t durable_mark_ = 0;  // the newest commit that a synced slot names
  bool slot_behind_ = false;   // the disk was full: the slot is not that of the last commit
  std::unique_ptr<SlotSync> slot_sync_;
  bool slot_sync_again_ = false;
  bool killed_unmarked_ = false;            // by a commit that no slot sync covers yet
  std::vector<format::LossRecord> losses_;  // not accepted: nothing is erased or retired meanwhile
  std::deque<std::shared_ptr<SaveJob>> jobs_;  // in commit order
  std::deque<JobBlock> ready_;
  std::deque<JobBlock> pending_outputs_;
  size_t encodes_in_flight_ = 0;
  size_t writes_in_flight_ = 0;
  std::unique_ptr<CommitBatch> batch_;
  RetentionState retention_;  // as of the last frame placed
  std::deque<ChainPlace> chain_;
  CatalogWriter catalogs_;
  std::map<uint64_t, format::SegmentEntry> segments_;  // all that exist
  uint64_t old_tip_ = 0;                               // the tip when this session began
  bool started_ = false;
  bool has_failed_writes_ = false;  // of saves and moves; no flush need ever cover them
  ReclaimScheduler reclaim_;
  int64_t age_time_ns_ = 0;  // of the newest save, as LiveStep has it
  std::optional<std::pair<int64_t, int64_t>> last_commit_clocks_;  // wall, monotonic; its
  bool closing_ = false;
  bool frozen_reported_ = false;
  // Any thread.
  std::atomic<bool> panicked_{false};
  mutable std::mutex ends_mutex_;
  std::map<uint64_t, uint64_t> open_ends_;        // guarded by ends_mutex_
  std::map<uint64_t, ByteRange> catalog_ranges_;  // guarded by ends_mutex_
  std::atomic<size_t> block_bytes_{4096};
  std::atomic<uint64_t> bytes_written_{0};
  std::atomic<uint64_t> syncs_{0};
};

}  // namespace stepwell::db
