// SPDX-License-Identifier: Apache-2.0
#include "db/commit/reclaim.h"

#include <algorithm>
#include <utility>

#include "db/commit/engine_options.h"
#include "db/layout.h"
#include "db/log/pins.h"
#include "db/log/segment_files.h"
#include "io/invariant.h"

namespace stepwell::db {
namespace {

constexpr uint32_t kOwnerWrites = 0200;

// A link took the write mode away (export/orbax/bytes.cc).
bool WasShown(const io::FileInfo& info) { return (info.mode & kOwnerWrites) == 0; }

// A spare's space is to be there already: one with many holes is as slow as a new file.
constexpr uint64_t kSpareShareAllocated = 8;  // at most 1/8 missing

ReclaimDecision DecideDead(const SegmentState& segment, const ReclaimLimits& limits) {
  ReclaimDecision decision;
  const bool whole =
      segment.allocated_bytes + segment.size_bytes / kSpareShareAllocated >= segment.size_bytes;
  // With another link its bytes have another owner, too.
  const bool fits = segment.link_count == 1 && !segment.was_shown && segment.size_bytes > 0 &&
                    whole && segment.size_bytes <= limits.spare_bytes_max;
  decision.action = fits ? ReclaimAction::kRecycle : ReclaimAction::kRemove;
  return decision;
}

}  // namespace

Reclaimer::Reclaimer(const EngineOptions* options, const format::Id128& store_id,
                     const std::atomic<bool>* stop)
    : options_(*options),
      store_id_(store_id),
      file_system_(options->environment.file_system),
      stop_(stop) {}

ReclaimResult Reclaimer::Run(const ReclaimRequest& request) {
  ReclaimResult result;
  result.looked_at = request.segments;
  result.status = Pass(request, &result);
  if (!result.status.ok()) {
    for (const uint64_t id : request.segments) result.later.insert(id);
    for (const uint64_t id : result.gone) result.later.erase(id);
  }
  if (result.status.code() == StatusCode::kCancelled) result.status = OkStatus();
  return result;
}

Status Reclaimer::Pass(const ReclaimRequest& request, ReclaimResult* result) {
  for (const std::string& path : request.unwanted_spares) {
    STEPWELL_RETURN_IF_ERROR(options_.freeze->Check());
    file_system_->Remove(path).IgnoreError("the next open tries again");
  }
  {
    STEPWELL_ASSIGN_OR_RETURN(
        const auto lock,
        ReclaimLock::Acquire(file_system_, options_.store_path, io::LockKind::kExclusive, stop_));
    STEPWELL_ASSIGN_OR_RETURN(pins_, ReadPins(file_system_, options_.store_path));
  }
  // Readers that come from here on see what was live at `published` or later.
  const LiveSteps::Use use = options_.live->UseOf(request.segments, pins_, request.published);
  options_.footprints->ForgetCommits(use.forgotten);
  result->bytes_pinned = use.pinned_bytes;
  if (!use.known) return OkStatus();
  const SegmentUse unused;
  // Segments that need no reading come first: they give most back.
  for (const bool whole : {true, false}) {
    for (const uint64_t id : request.segments) {
      const auto used = use.segments.find(id);
      if ((used == use.segments.end()) != whole) continue;
      if (stop_->load()) return CancelledError("the store is being closed");
      STEPWELL_RETURN_IF_ERROR(Handle(request, whole ? unused : used->second, id, result));
    }
    if (whole && !result->spares.empty()) {
      // Before one of them gets a new name and is written to.
      STEPWELL_RETURN_IF_ERROR(file_system_->SyncDirectory(SegmentsPath(options_.store_path)));
    }
  }
  return OkStatus();
}

// Which dead steps older sessions left is not known here: a reader from before this session keeps
// the segments that have anything of its time. A step's frame is never before its payloads, and
// frames are numbered in the order of the log: what a segment holds is of its first chain frame's
// commit or later; in one without any, of that of the next one that has some.
bool Reclaimer::MayBeReadFromBefore(const ReclaimRequest& request, uint64_t id) {
  if (id >= request.first_id) return false;
  if (pins_.unknown) return true;
  if (pins_.commits.empty() || pins_.commits.front() >= request.old_tip) return false;
  for (uint64_t at = id; at < request.first_id; ++at) {
    const auto edges = options_.footprints->EdgesOf(at);
    if (edges.status().code() == StatusCode::kNotFound) continue;  // removed, or holds nothing
    if (!edges.ok() || !edges->sealed) return true;
    if (edges->commit_min == 0) continue;
    const auto pin =
        std::lower_bound(pins_.commits.begin(), pins_.commits.end(), edges->commit_min);
    return pin != pins_.commits.end() && *pin < request.old_tip;
  }
  return false;
}

// The state of a segment now; `gone` when there is no such file any more.
Result<SegmentState> Reclaimer::Look(const ReclaimRequest& request, const SegmentUse& use,
                                     uint64_t id, bool* gone, bool* foreign) {
  SegmentState state;
  const auto info = file_system_->Stat(SegmentPath(options_.store_path, id));
  *gone = info.status().code() == StatusCode::kNotFound;
  if (*gone) return state;
  if (!info.ok()) return info.status();
  state.link_count = info->link_count;
  state.was_shown = WasShown(*info);
  state.size_bytes = info->size_bytes;
  state.allocated_bytes = info->allocated_bytes;
  state.block_bytes = std::max<uint64_t>(4096, info->block_bytes);
  state.punchable = can_punch_;
  state.pinned = !use.pinned.empty();
  *foreign = info->is_directory;
  if (*foreign) return state;
  const auto edges = options_.footprints->EdgesOf(id);
  if (edges.ok()) {
    *foreign = edges->store_id != store_id_;
    state.sealed = edges->sealed;
    state.needed = edges->ranges;
  } else if (edges.status().code() != StatusCode::kNotFound) {
    return edges.status();
  }
  const auto catalog = request.catalogs.find(id);
  state.has_catalog = catalog != request.catalogs.end();
  if (state.has_catalog) {
    state.needed.push_back(catalog->second);
    state.needed = Normalize(std::move(state.needed));
  }
  state.has_live = !use.live.empty();
  state.referenced = use.referenced;
  if (!state.has_live && !state.pinned && !state.has_catalog) return state;
  // Without reading records: what the steps' extents say they own may leave nothing to gain.
  uint64_t stored = TotalBytes(state.needed);
  const auto count = [&](const std::vector<format::SegmentExtent>& extents,
                         const format::FramePlace& place) {
    for (const auto& extent : extents) {
      if (extent.segment != id) continue;
      stored += AlignUp(extent.stored_bytes - extent.referenced_bytes, kGrainBytes);
    }
    if (place.segment == id) stored += AlignUp(place.length_bytes, kGrainBytes);
  };
  for (const auto& live : use.live) count(live->record.extents, live->place);
  for (const DeadCommit& dead : use.pinned) count(dead.extents, dead.place);
  if (state.allocated_bytes < stored + request.punch_gain_min) return state;
  state.known = edges.ok() && edges->own;
  LookInside(use, id, &state);
  return state;
}

// Adds what live steps, and dead ones that are read, need of the segment.
void Reclaimer::LookInside(const SegmentUse& use, uint64_t id, SegmentState* state) {
  const auto add = [&](uint64_t commit, const format::FramePlace& place, bool live) {
    const auto footprint = options_.footprints->Get(commit, place);
    if (!footprint.ok()) {
      state->known = false;  // damaged: everything of it is kept
      return;
    }
    const auto part = (*footprint)->segments.find(id);
    if (part == (*footprint)->segments.end()) return;
    const auto& ranges = part->second.ranges;
    if (live) state->moved_bytes += part->second.moved_bytes;
    state->needed.insert(state->needed.end(), ranges.begin(), ranges.end());
  };
  for (const auto& live : use.live) add(live->record.commit, live->place, /*live=*/true);
  for (const DeadCommit& dead : use.pinned) add(dead.commit, dead.place, /*live=*/false);
  state->needed = Normalize(std::move(state->needed));
}

// RECLAIM, held while the segment is changed; null when a reader has come that this pass does not
// know, which cannot be (it would have read a slot of before `published`).
Result<std::unique_ptr<ReclaimLock>> Reclaimer::LockAndCheck(const ReclaimRequest& request,
                                                             uint64_t id, ReclaimResult* result) {
  STEPWELL_ASSIGN_OR_RETURN(auto lock, ReclaimLock::Acquire(file_system_, options_.store_path,
                                                            io::LockKind::kExclusive, stop_));
  STEPWELL_ASSIGN_OR_RETURN(const auto pins, ReadPins(file_system_, options_.store_path));
  const bool expected =
      pins.unknown <= pins_.unknown &&
      std::all_of(pins.commits.begin(), pins.commits.end(), [&](uint64_t pin) {
        return pin >= request.published ||
               std::binary_search(pins_.commits.begin(), pins_.commits.end(), pin);
      });
  if (expected) return lock;
  result->later.insert(id);
  return std::unique_ptr<ReclaimLock>();
}

Status Reclaimer::Handle(const ReclaimRequest& request, const SegmentUse& use, uint64_t id,
                         ReclaimResult* result) {
  const bool used = !use.live.empty() || !use.pinned.empty() || request.catalogs.contains(id);
  if (use.blocked || (used && !request.settled.contains(id)) || MayBeReadFromBefore(request, id)) {
    result->later.insert(id);
    return OkStatus();
  }
  if (!use.pinned.empty()) result->later.insert(id);  // until they are let go
  ReclaimLimits limits;
  limits.settled = request.settled.contains(id);
  limits.punch_gain_min = request.punch_gain_min;
  limits.evacuate_gain_min = request.evacuate_gain_min;
  uint64_t spares = 0;
  for (const auto& spare : result->spares) spares += spare.bytes;
  const bool wanted = result->spares.size() < request.spares_max;
  limits.spare_bytes_max =
      wanted && request.spare_bytes_max > spares ? request.spare_bytes_max - spares : 0;
  // Twice at most: after a punch, what is left may be worth moving.
  for (int round = 0; round < 3; ++round) {
    bool gone = false;
    bool foreign = false;
    STEPWELL_ASSIGN_OR_RETURN(const SegmentState state, Look(request, use, id, &gone, &foreign));
    if (gone) {
      result->gone.push_back(id);
      return OkStatus();
    }
    if (foreign) {
      result->foreign.push_back(id);
      return OkStatus();
    }
    const ReclaimDecision decision = DecideSegment(state, limits);
    const uint64_t needed = TotalBytes(state.needed);
    if (round == 0 && state.link_count > 1 && state.allocated_bytes > needed) {
      result->bytes_linked +=
          state.has_live || state.pinned ? state.allocated_bytes - needed : state.allocated_bytes;
    }
    switch (decision.action) {
      case ReclaimAction::kNothing:
        return OkStatus();
      case ReclaimAction::kLater:
        result->later.insert(id);
        return OkStatus();
      case ReclaimAction::kRemove:
      case ReclaimAction::kRecycle:
        return RemoveWhole(request, id, state, decision.action, result);
      case ReclaimAction::kPunch: {
        const Status status = Punch(request, id, decision.holes, result);
        if (status.code() == StatusCode::kUnimplemented) can_punch_ = false;
        if (!status.ok() && status.code() != StatusCode::kUnimplemented) return status;
        // Another call would not free what this one could not.
        limits.punch_gain_min = ~uint64_t{0};
        break;
      }
      case ReclaimAction::kEvacuate:
        Evacuate(use, id, result);
        return OkStatus();
    }
  }
  return OkStatus();
}

void Reclaimer::Evacuate(const SegmentUse& use, uint64_t id, ReclaimResult* result) {
  // An undecided step stays where it is, so the segment would not become empty.
  for (const auto& live : use.live) {
    const auto& group = live->record.group;
    if (!group || group->state != format::GroupState::kPrepared) continue;
    result->later.insert(id);
    return;
  }
  result->evacuate.insert(id);
  for (const auto& live : use.live) result->steps_to_move[live->record.step] = live->record.commit;
}

Status Reclaimer::RemoveWhole(const ReclaimRequest& request, uint64_t id, const SegmentState& state,
                              ReclaimAction action, ReclaimResult* result) {
  STEPWELL_ASSIGN_OR_RETURN(const auto lock, LockAndCheck(request, id, result));
  if (lock == nullptr) return OkStatus();
  const std::string path = SegmentPath(options_.store_path, id);
  STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo info, file_system_->Stat(path));
  STEPWELL_RETURN_IF_ERROR(options_.freeze->Check());
  options_.files->Drop(id);
  options_.footprints->Forget(id);
  if (action == ReclaimAction::kRecycle && info.link_count == 1 && !WasShown(info)) {
    const std::string spare = SparePath(options_.store_path, id);
    STEPWELL_RETURN_IF_ERROR(file_system_->Rename(path, spare));
    result->spares.push_back({spare, state.size_bytes});
  } else {
    const Status status = file_system_->Remove(path);
    if (!status.ok() && status.code() != StatusCode::kNotFound) return status;
    ++result->segments_removed;
  }
  result->gone.push_back(id);
  return OkStatus();
}

Status Reclaimer::Punch(const ReclaimRequest& request, uint64_t id,
                        const std::vector<ByteRange>& holes, ReclaimResult* result) {
  STEPWELL_ASSIGN_OR_RETURN(const auto lock, LockAndCheck(request, id, result));
  if (lock == nullptr) return OkStatus();
  const std::string path = SegmentPath(options_.store_path, id);
  auto file = file_system_->Open(path, {.write = true, .freeze = options_.freeze});
  // Not ours to change.
  if (file.status().code() == StatusCode::kPermissionDenied) return OkStatus();
  if (!file.ok()) return file.status();
  STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo before, (*file)->Info());
  if (before.link_count != 1 || WasShown(before)) return OkStatus();
  for (const ByteRange& hole : holes) {
    STEPWELL_DCHECK(hole.begin < hole.end && hole.end <= before.size_bytes,
                    "a hole is not in its segment");
    if (stop_->load()) break;
    STEPWELL_RETURN_IF_ERROR((*file)->PunchHole(hole.begin, hole.end - hole.begin));
  }
  STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo after, (*file)->Info());
  if (before.allocated_bytes > after.allocated_bytes) {
    result->bytes_punched += before.allocated_bytes - after.allocated_bytes;
  }
  return OkStatus();
}

std::vector<ByteRange> HolesBetween(const std::vector<ByteRange>& needed, uint64_t size_bytes,
                                    uint64_t block_bytes) {
  std::vector<ByteRange> holes;
  uint64_t at = 0;
  const auto add = [&](uint64_t end) {
    const uint64_t begin = AlignUp(at, block_bytes);
    end = AlignDown(end, block_bytes);
    if (begin < end) holes.push_back({begin, end});
  };
  for (const ByteRange& range : needed) {
    STEPWELL_DCHECK(range.begin <= range.end, "what is needed ends before it begins");
    STEPWELL_DCHECK(&range == needed.data() || (&range - 1)->end <= range.begin,
                    "what is needed is not in order");
    if (range.begin > at) add(std::min(range.begin, size_bytes));
    at = std::max(at, range.end);
  }
  if (at < size_bytes) add(size_bytes);
  return holes;
}

ReclaimDecision DecideSegment(const SegmentState& segment, const ReclaimLimits& limits) {
  ReclaimDecision decision;
  if (!segment.has_live && !segment.pinned && !segment.has_catalog) {
    return DecideDead(segment, limits);
  }
  if (!segment.known) return decision;
  const uint64_t needed = TotalBytes(segment.needed);
  const uint64_t gain = segment.allocated_bytes > needed ? segment.allocated_bytes - needed : 0;
  if (gain >= std::max<uint64_t>(limits.punch_gain_min, 1) && !limits.settled) {
    decision.action = ReclaimAction::kLater;
    return decision;
  }
  // A file that has another link, or had one, is never changed; an unsealed one has unknown frames.
  if (segment.punchable && segment.link_count == 1 && !segment.was_shown && segment.sealed &&
      gain >= std::max<uint64_t>(limits.punch_gain_min, 1)) {
    decision.holes = HolesBetween(segment.needed, segment.size_bytes, segment.block_bytes);
    if (!decision.holes.empty()) {
      decision.action = ReclaimAction::kPunch;
      return decision;
    }
  }
  const uint64_t moved_gain = segment.allocated_bytes > segment.moved_bytes
                                  ? segment.allocated_bytes - segment.moved_bytes
                                  : 0;
  if (segment.has_live && !segment.referenced && !segment.has_catalog &&
      segment.moved_bytes < segment.allocated_bytes / 2 &&
      moved_gain >= std::max<uint64_t>(limits.evacuate_gain_min, 1)) {
    decision.action = limits.settled ? ReclaimAction::kEvacuate : ReclaimAction::kLater;
  }
  return decision;
}

}  // namespace stepwell::db
