// SPDX-License-Identifier: Apache-2.0
// Recovery from the segments themselves.
#include <algorithm>
#include <iterator>
#include <optional>
#include <set>

#include "db/layout.h"
#include "db/log/recovery.h"

namespace stepwell::db {
namespace {

using format::FrameHeader;
using format::FrameKind;
using format::FramePlace;

// The newest catalog that can be read, from its place or its copy: each segment begins with one.
// kNotFound: none.
Status LoadNewestCatalog(const std::vector<SegmentInfo>& segments, SegmentFiles& files,
                         std::vector<UnreadablePlace>* unreadable, LogState* state) {
  for (auto info = segments.rbegin(); info != segments.rend(); ++info) {
    if (!info->header_ok) continue;
    const auto place = FindCatalog(*info, files);
    Status status = place.status();
    if (place.ok()) status = LoadCatalog(*place, files, state);
    if (status.ok()) return status;
    // Something in the catalog's lineage is damaged, so the catalog before it is tried.
    if (IsUnreadable(status)) {
      unreadable->push_back({info->segment, 0, status});
    } else if (!IsDamage(status)) {
      return status;
    }
  }
  return NotFoundError("no segment of the store has a readable catalog");
}

class ChainBuilder {
 public:
  ChainBuilder(std::vector<FoundFrame> found, uint64_t durable_commit, LogState* state)
      : state_(state), durable_(durable_commit) {
    for (FoundFrame& one : found) {
      const FrameHeader& header = one.frame.header;
      state->epoch_max = std::max(state->epoch_max, header.epoch);
      // A frame says what was flushed when it was written; a frame of any epoch says the truth.
      durable_ = std::max(durable_, header.durable_through);
      by_commit_[header.commit].push_back(std::move(one));
    }
  }

  uint64_t durable() const { return durable_; }

  // The next frame: the one that links to the tip (of the highest epoch, should there be several).
  // Up to the durable mark a gap is damage: noted, and the chain goes on behind it.
  const FoundFrame* Next() {
    const auto next = by_commit_.find(state_->tip_commit + 1);
    if (next != by_commit_.end()) {
      if (const FoundFrame* best = Best(next->second, /*linked=*/true)) return best;
    }
    while (state_->tip_commit < durable_) {
      const auto later = by_commit_.upper_bound(state_->tip_commit);
      const FoundFrame* best = nullptr;
      if (later != by_commit_.end() && later->first <= durable_) {
        best = Best(later->second, /*linked=*/false);
        if (later->first > state_->tip_commit + 1 || best == nullptr) {
          AddGap(best == nullptr ? later->first : later->first - 1);
        }
      } else {
        AddGap(durable_);
      }
      if (best != nullptr) return best;
    }
    return nullptr;
  }

  uint64_t FramesAfter(uint64_t commit) const {
    uint64_t count = 0;
    for (auto it = by_commit_.upper_bound(commit); it != by_commit_.end(); ++it) ++count;
    return count;
  }

 private:
  // The original before its copy, the whole copy before the brief.
  static int Rank(const FoundFrame& one) { return one.copied ? (one.whole ? 1 : 0) : 2; }

  const FoundFrame* Best(const std::vector<FoundFrame>& candidates, bool linked) const {
    const FoundFrame* best = nullptr;
    for (const FoundFrame& one : candidates) {
      const FrameHeader& header = one.frame.header;
      if (header.epoch < state_->epoch) continue;  // void since a later epoch began
      // A frame that is not known to be flushed counts only where it lies: see FollowChain.
      if (one.copied && header.commit > durable_) continue;
      if (linked &&
          (header.previous_commit != state_->tip_commit || header.previous != state_->tip_place)) {
        continue;
      }
      if (best == nullptr || header.epoch > best->frame.header.epoch ||
          (header.epoch == best->frame.header.epoch && Rank(one) > Rank(*best))) {
        best = &one;
      }
    }
    return best;
  }

  // The frames behind the tip up to `last` are gone. Their numbers are not used again.
  void AddGap(uint64_t last) {
    format::LossRecord loss;
    loss.first_commit = state_->tip_commit + 1;
    loss.last_commit = last;
    state_->losses.push_back(std::move(loss));
    state_->tip_commit = last;
    state_->tip_place = {};
  }

  LogState* const state_;
  uint64_t durable_;
  std::map<uint64_t, std::vector<FoundFrame>> by_commit_;
};

// A segment that a crash cut off before its first flush has no header, and holds nothing that was
// acknowledged. Without one that a step needs from before the last known flush, damage has been
// there; of one that only newer steps need, the header may not have arrived.
void ReportHeaders(uint64_t durable_commit, SegmentFiles& files, LogState* state) {
  std::set<uint64_t> durable;
  std::set<uint64_t> in_doubt;
  for (const auto* steps : {&state->live, &state->undecided}) {
    for (const auto& [number, step] : *steps) {
      const bool newer = step.record.commit > durable_commit && state->losses.empty();
      for (const auto& extent : step.record.extents) {
        (newer ? in_doubt : durable).insert(extent.segment);
      }
    }
  }
  for (const SegmentInfo& info : state->segments) {
    const bool needed = durable.contains(info.segment) || in_doubt.contains(info.segment);
    if (info.header_ok || !needed) continue;
    if (info.foreign) {
      state->report.problems.push_back(
          StrCat(files.PathOf(info.segment), " belongs to another store"));
    } else if (durable.contains(info.segment)) {
      state->report.problems.push_back(
          StrCat(files.PathOf(info.segment), ": the segment's header is damaged"));
    } else {
      state->torn_headers.insert(info.segment);
    }
  }
}

// In-doubt steps that are torn, until a later frame of the chain ends them: what a store has erased
// of a step that was replaced or deleted does not count against the frame that ended it.
class TornSteps {
 public:
  explicit TornSteps(LogState* state) : state_(state) {}

  // Before the frame of this commit is applied.
  void Add(uint64_t commit) {
    if (commits_.empty()) before_ = *state_;
    commits_.insert(commit);
  }
  bool Has(uint64_t commit) const { return commits_.contains(commit); }
  // After a frame was applied.
  void Settle() {
    std::erase_if(commits_, [&](uint64_t commit) {
      return !state_->step_of.contains(commit) && !state_->undecided.contains(commit);
    });
    if (commits_.empty()) before_.reset();
  }
  // At the end of the chain: without the first of them, and all behind it.
  void Reject() {
    if (before_) *state_ = std::move(*before_);
  }

 private:
  LogState* const state_;
  std::set<uint64_t> commits_;
  std::optional<LogState> before_;
};

// Decides whether damage to a payload of an in-doubt step can be a tear. It cannot where the
// payload was durable before the step's frame was written: a segment is sealed behind its sync, and
// a step that is committed again keeps the payloads that it has.
class OldPayloads {
 public:
  OldPayloads(const format::Commit& commit, SegmentFiles& files, const LogState& state,
              const TornSteps& torn) {
    for (const SegmentInfo& info : state.segments) {
      if (info.sealed) sealed_.insert(info.segment);
    }
    const auto old = state.live.find(commit.step.step);
    if (old == state.live.end() || torn.Has(old->second.record.commit)) return;
    const auto records = ReadStepRecords(files, old->second.place, "");
    if (!records.ok()) return;
    for (const format::LeafRecord& leaf : *records) {
      for (const auto& chunk : leaf.chunks) {
        format::EachPayload(chunk, [this](const format::StoredPayload& payload) {
          places_.emplace(payload.segment, payload.offset_bytes);
        });
      }
    }
  }
  bool Has(const BadChunk& chunk) const {
    if (chunk.payload == nullptr) return false;
    return sealed_.contains(chunk.payload->segment) ||
           places_.contains({chunk.payload->segment, chunk.payload->offset_bytes});
  }

 private:
  std::set<uint64_t> sealed_;
  std::set<std::pair<uint64_t, uint64_t>> places_;
};

// The first payload that may be torn.
Status CheckPayloads(const FoundFrame& next, const std::vector<format::LeafRecord>& records,
                     SegmentFiles& files, const ScanOptions& options, const LogState& state,
                     const TornSteps& torn) {
  if (!options.check_payloads) return OkStatus();
  std::vector<BadChunk> bad;
  STEPWELL_RETURN_IF_ERROR(
      options.check_payloads(records, [&](const BadChunk& chunk) { bad.push_back(chunk); }));
  if (bad.empty()) return OkStatus();
  STEPWELL_ASSIGN_OR_RETURN(const auto head, format::DecodeCommitHead(AsBytes(next.frame.payload)));
  const OldPayloads old(head.commit, files, state, torn);
  const auto first =
      std::find_if(bad.begin(), bad.end(), [&](const BadChunk& chunk) { return !old.Has(chunk); });
  return first == bad.end() ? OkStatus() : first->status;
}

// Returns true if an in-doubt frame is of a step that is proven to be torn. `synced` says whether
// the bytes that were read are durable. A step that is in the page cache alone is not served,
// because a power cut would take it back. An error of the device proves nothing, and the step may
// be acknowledged: then it is refused.
Result<bool> IsTorn(const std::string& store_path, const FoundFrame& next, const Status& synced,
                    SegmentFiles& files, const ScanOptions& options, const LogState& state,
                    const TornSteps& torn) {
  const FrameKind kind = next.frame.header.kind;
  const bool is_step = kind == FrameKind::kCommit || kind == FrameKind::kPrepared;
  Status status = synced;
  if (is_step && status.ok()) {
    auto records = ReadStepRecords(files, next.place, "");
    status = records.status();
    if (records.ok()) status = CheckPayloads(next, *records, files, options, state, torn);
  }
  if (status.ok()) return false;
  if (IsDamage(status)) return true;
  std::string what = StrCat("commit ", next.frame.header.commit);
  std::string advice = "open the store again when its disk can be read";
  const auto head = format::DecodeCommitHead(AsBytes(next.frame.payload));
  if (is_step && head.ok()) {
    const uint64_t step = head->commit.step.step;
    if (options.discard.contains(step)) return true;
    what = StrCat("step ", step);
    advice += StrCat(", or give the step up with `stepwell repair --discard ", step, "`");
  }
  return status.WithContext(StrCat(store_path, ": ", what,
                                   " was being written when the last writer ended, and whether it "
                                   "is whole cannot be told; ",
                                   advice));
}

// With another store's STEPWELL nothing here would be ours, but for the frame that it has a copy
// of.
Status CheckOwner(const std::string& store_path, const std::vector<SegmentInfo>& segments) {
  bool others = false;
  for (const SegmentInfo& info : segments) {
    if (!info.foreign) return OkStatus();
    others = others || info.length_bytes > 0;  // else a directory
  }
  if (!others) return OkStatus();
  return DataLossError(
      StrCat(store_path,
             ": STEPWELL is of another store than the segments; put the store's own in its place, "
             "or remove it and open the store for writing, which makes it again from the log"));
}

// Extends the state along the chain; in-doubt steps (newer than everything known flushed) are
// believed only when all of their payloads are there, or the chain goes on to end them.
Status FollowChain(const std::string& store_path, const Status& synced, ChainBuilder* chain,
                   SegmentFiles& files, const ScanOptions& options, LogState* state) {
  TornSteps torn(state);
  while (const FoundFrame* next = chain->Next()) {
    const FrameHeader& header = next->frame.header;
    const bool in_doubt = header.commit > chain->durable();
    if (in_doubt) {
      if (IsDamage(synced)) break;
      STEPWELL_ASSIGN_OR_RETURN(const bool is_torn,
                                IsTorn(store_path, *next, synced, files, options, *state, torn));
      if (is_torn && chain->FramesAfter(header.commit) == 0) break;
      if (is_torn) torn.Add(header.commit);
    }
    if (next->copied && next->whole) files.Remember(next->place, next->frame);
    if (Status status = ApplyChainFrame(header, next->place, next->frame.payload, state);
        !status.ok()) {
      if (in_doubt) break;
      format::LossRecord loss;
      loss.first_commit = loss.last_commit = header.commit;
      loss.reason = StrCat(files.PathOf(next->place.segment), ": offset ", next->place.offset_bytes,
                           ": ", status.message());
      state->losses.push_back(std::move(loss));
      state->tip_commit = header.commit;
      state->tip_place = next->place;
      continue;
    }
    torn.Settle();
    if (next->copied) {
      state->damaged_frames.push_back(header.commit);
      state->report.repaired.push_back(
          StrCat(files.PathOf(next->place.segment), ": offset ", next->place.offset_bytes,
                 ": the frame of commit ", header.commit, " is damaged; its copy was used",
                 next->whole ? "" : ", which does not have the step's records"));
    }
    if (in_doubt) ++state->report.commits_recovered;
  }
  torn.Reject();
  state->report.commits_rejected = chain->FramesAfter(state->tip_commit);
  return OkStatus();
}

// Makes what is read durable first.
Status SyncUnsealed(io::FileSystem* file_system, const std::string& store_path, SegmentFiles& files,
                    const LogState& state) {
  for (const SegmentInfo& info : state.segments) {
    if (info.sealed || info.foreign) continue;
    STEPWELL_ASSIGN_OR_RETURN(const auto file, files.Get(info.segment));
    // One that failed before stays failed: a second sync would say yes to what the first one lost.
    if (const Status status = file->Sync(); !status.ok()) {
      return file->freeze()->frozen() ? file->freeze()->first_error() : status;
    }
  }
  return file_system->SyncDirectory(SegmentsPath(store_path));
}

void AddFound(SegmentScan scan, std::vector<FoundFrame>* found) {
  std::move(scan.frames.begin(), scan.frames.end(), std::back_inserter(*found));
  for (const format::FrameCopy& copy : scan.copies) {
    auto opened = format::OpenFrameCopy(copy);
    if (!opened.ok() || !format::IsChainFrame(opened->header.kind)) continue;
    found->push_back(
        {{opened->header, std::move(opened->payload)}, copy.place, true, opened->whole});
  }
}

// The chain frames of all segments that are newer than the catalog, and the copies of such.
Status GatherFrames(const format::StoreSlot& slot, SegmentFiles& files, LogState* state,
                    std::vector<FoundFrame>* found, std::vector<UnreadablePlace>* unreadable) {
  const auto note = [&](SegmentScan* scan) {
    std::move(scan->unreadable.begin(), scan->unreadable.end(), std::back_inserter(*unreadable));
  };
  for (SegmentInfo& info : state->segments) {
    if (!info.header_ok) continue;
    SegmentScan scan;
    if (info.sealed) {
      const Status read = ReadSealed(info, state->tip_commit, files, &scan);
      if (!read.ok() && !IsDamage(read)) return read;
      note(&scan);
      if (read.ok()) {
        AddFound(std::move(scan), found);
        continue;
      }
      scan = {};
    }
    STEPWELL_RETURN_IF_ERROR(ScanSegment(info, files, &scan));
    note(&scan);
    info.sealed = false;
    auto& entries = state->scanned[info.segment];
    for (const FoundFrame& one : scan.frames) {
      const FrameHeader& header = one.frame.header;
      entries.push_back({static_cast<uint16_t>(header.kind), header.commit, one.place});
    }
    AddFound(std::move(scan), found);
  }
  if (!slot.tip.empty()) {
    auto tip = format::OpenFrameCopy({slot.durable_place, slot.tip});
    if (tip.ok() && tip->header.commit == slot.durable_commit) {
      found->push_back(
          {{tip->header, std::move(tip->payload)}, slot.durable_place, true, tip->whole});
    }
  }
  std::erase_if(*found, [&](const FoundFrame& one) {
    return one.frame.header.commit <= state->catalog_commit;
  });
  return OkStatus();
}

// A place that the device cannot read may have held a missing frame, or a newer frame than all that
// were found. The log is appended to, so only a place behind the tip can.
Status CheckUnreadable(const std::vector<UnreadablePlace>& places, SegmentFiles& files,
                       const LogState& state) {
  for (const UnreadablePlace& place : places) {
    const bool before_tip = std::pair(place.segment, place.offset_bytes) <
                            std::pair(state.tip_place.segment, state.tip_place.offset_bytes);
    if (before_tip && state.losses.empty()) continue;
    return place.status.WithContext(
        StrCat(files.PathOf(place.segment), ": offset ", place.offset_bytes,
               " cannot be read, and whether it holds a committed step cannot be told; open the "
               "store again when its disk can be read"));
  }
  return OkStatus();
}

}  // namespace

Result<LogState> RecoverByScan(io::FileSystem* file_system, const std::string& store_path,
                               const format::StoreSlot& slot, SegmentFiles& files,
                               const ScanOptions& options) {
  LogState state;
  STEPWELL_ASSIGN_OR_RETURN(state.segments, ListSegments(file_system, store_path, slot, files));
  STEPWELL_RETURN_IF_ERROR(CheckOwner(store_path, state.segments));
  // A reader needs it for what is in doubt alone.
  const Status synced = SyncUnsealed(file_system, store_path, files, state);
  if (!synced.ok() && options.writer) return synced;
  // Without any catalog the chain has to begin with the first frame; what is missing is a loss.
  std::vector<UnreadablePlace> unreadable;
  if (Status status = LoadNewestCatalog(state.segments, files, &unreadable, &state);
      !status.ok() && !IsDamage(status)) {
    return status.WithContext(store_path);
  }
  std::vector<FoundFrame> found;
  STEPWELL_RETURN_IF_ERROR(GatherFrames(slot, files, &state, &found, &unreadable));
  ChainBuilder chain(std::move(found), slot.durable_commit, &state);
  STEPWELL_RETURN_IF_ERROR(FollowChain(store_path, synced, &chain, files, options, &state));
  STEPWELL_RETURN_IF_ERROR(CheckUnreadable(unreadable, files, state));
  std::erase_if(state.damaged_frames,
                [&](uint64_t commit) { return !state.step_of.contains(commit); });
  ReportHeaders(chain.durable(), files, &state);
  for (const format::LossRecord& loss : state.losses) {
    state.report.problems.push_back(DescribeLoss(loss));
  }
  state.epoch_max = std::max(state.epoch_max, slot.epoch);
  state.report.clean = false;
  return state;
}

}  // namespace stepwell::db
