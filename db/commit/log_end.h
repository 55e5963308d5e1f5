// SPDX-License-Identifier: Apache-2.0
// Where the log ends: the segments that exist, the chain's tip, where the next block or frame goes,
// and which segments recovery still needs. Engine thread only, where nothing else is said.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "db/commit/engine_options.h"
#include "db/commit/reclaim.h"
#include "db/commit/slot_marks.h"
#include "db/log/catalog.h"
#include "db/log/log_writer.h"
#include "db/log/recovery.h"
#include "io/buffer.h"
#include "io/mutex.h"

namespace stepwell::db {

// A frame on its way to the log.
struct FrameWrite : SegmentWrite {
  io::AlignedBuffer buffer;
  int64_t submitted_ns = 0;
};

class LogEnd {
 public:
  LogEnd(const EngineOptions* options, SlotMarks* marks);

  // ---- before anything is placed -----------------------------------------------------------
  // Goes on behind what recovery found, in a new epoch.
  void Load(const LogState& state);
  // Headers that a power cut took, of segments that only steps in doubt need.
  Status MendHeaders(const LogState& state);
  // Makes the first segment. `losses` outlives this: catalogs name what is lost.
  Status Start(const std::vector<format::LossRecord>* losses);

  // ---- placing -----------------------------------------------------------------------------
  // Where a frame goes, with the copies behind it.
  struct Run {
    LogWriter::Placement spot;
    size_t bytes = 0;
  };
  // Room for a frame. With `may_drop_ballast` also what is reserved for deletes, and what is held
  // back for them.
  Result<Run> PlaceFrame(format::FrameKind kind, size_t payload_bytes, uint64_t step_bytes,
                         bool may_drop_ballast);
  // Undoes the last PlaceFrame.
  void GiveBack(const Run& run) { log_->GiveBack(run.spot); }
  // Encodes the frame into `write`, for the caller to submit. A chain frame takes the next commit
  // number, and becomes the tip.
  Result<format::FramePlace> EncodeFrame(format::FrameKind kind, const std::string& payload,
                                         const Run& run, FrameWrite* write);
  Result<LogWriter::Placement> PlaceBlock(uint64_t bytes, uint64_t step_bytes) {
    return log_->Place(bytes, step_bytes, /*may_use_reserve=*/false);
  }
  // Gives back what is held for a full disk: spares, then the ballast. False: there is nothing.
  bool MakeRoom();
  // A killed writer's last frame, or one whose bytes are at hand: goes behind a next frame.
  void AddCopy(format::FrameCopy copy) { log_->AddCopy(std::move(copy)); }

  uint64_t epoch() const { return epoch_; }
  uint64_t tip_commit() const { return tip_commit_; }  // of the last frame placed
  const std::string& tip_copy() const { return tip_copy_; }
  Segment* current() { return log_->current(); }
  const std::map<uint64_t, std::unique_ptr<Segment>>& open_segments() const {
    return log_->open_segments();
  }
  bool started() const { return log_ != nullptr; }
  // Any thread: what blocks are padded to; fixed once Start() has run.
  size_t block_bytes() const { return block_bytes_.load(); }

  // ---- segments ----------------------------------------------------------------------------
  // Takes note of segments that were begun, and of where those that are open end.
  void NoteSegments();
  // The segment was synced, and with it its catalog.
  void NoteCatalog(const Segment& segment);
  void NoteChange(const LiveSteps::Change& change) { catalogs_.Note(change); }
  // Adds to `suspects` the segments that newer catalogs have made needless; true: recovery needs
  // less than at the call before.
  bool TakeSuspects(std::set<uint64_t>* suspects);
  // A segment that is being written and has another name (of a copy of the store made by links)
  // stays as it is: what follows goes elsewhere, so that the copy does not grow with it.
  void LeaveLinkedSegment();
  // Writes of failed saves and of moves need no flush, and keep no segment open.
  void NoteFailedWrites() { has_failed_writes_ = true; }
  void ForgetFailedWrites(const std::set<uint64_t>& in_use);
  bool has_failed_writes() const { return has_failed_writes_; }
  // Begins a new segment if the current one is among these.
  Status LeaveSegments(const std::set<uint64_t>& segments);
  // Syncs what is open and has nothing in flight: of `only`, or all of them where it is null.
  Status SyncOpen(const std::set<uint64_t>* only);
  // Seals what is not written any more; with `all`, the current segment, too.
  Status SealIdle(bool all) { return log_->SealIdle(all); }
  // Begins two segments where so many dead bytes from `guard` on can go then that it is worth it;
  // false: it is not, or there is no room. No commit is in flight.
  Result<bool> Roll(uint64_t guard);
  // Closes the segments that could not be sealed.
  void CloseFiles() {
    if (log_ != nullptr) log_->CloseFiles();
  }

  // ---- reclaim -----------------------------------------------------------------------------
  // The lowest segment that recovery may need.
  uint64_t GuardSegment();
  const std::map<uint64_t, format::SegmentEntry>& segments() const { return segments_; }
  uint64_t newest_segment() const;  // 0: none yet
  void SegmentGone(uint64_t segment);
  void AddSpare(LogWriter::Spare spare) { log_->AddSpare(std::move(spare)); }
  // Without segments and gains.
  ReclaimRequest NewReclaimRequest();

  // Any thread: where the segments that are open end, as of the last commit, and what recovery may
  // read of catalogs.
  void FillQuery(SpaceQuery* query) const;

 private:
  bool WorthRolling(uint64_t guard) const;
  Result<CatalogPayload> MakeCatalog(uint64_t block_bytes, bool short_of_space) const;

  const EngineOptions* const options_;
  SlotMarks* const marks_;
  std::unique_ptr<LogWriter> log_;
  const std::vector<format::LossRecord>* losses_ = nullptr;
  uint64_t epoch_ = 0;
  uint64_t highest_ = 0;  // segment of before
  uint64_t tip_commit_ = 0;
  format::FramePlace tip_place_;
  std::string tip_copy_;          // of the tip's frame, for the slot
  uint64_t old_tip_ = 0;          // the tip when this session began
  std::deque<ChainPlace> chain_;  // of the frames behind the second-newest durable catalog
  CatalogWriter catalogs_;
  std::map<uint64_t, format::SegmentEntry> segments_;  // all that exist
  std::set<uint64_t> suspects_;                        // see TakeSuspects
  bool guard_moved_ = false;
  bool has_failed_writes_ = false;  // of saves and moves; no flush need ever cover them
  std::atomic<size_t> block_bytes_{4096};
  mutable io::Mutex ends_mutex_;
  std::map<uint64_t, uint64_t> open_ends_ STEPWELL_GUARDED_BY(ends_mutex_);
  std::map<uint64_t, ByteRange> catalog_ranges_ STEPWELL_GUARDED_BY(ends_mutex_);
};

}  // namespace stepwell::db
