// SPDX-License-Identifier: Apache-2.0
#include "db/reclaim.h"

#include <algorithm>
#include <utility>

#include "db/layout.h"
#include "db/pins.h"

namespace stepwell::db {
namespace {

constexpr uint32_t kOwnerWrites = 0200;
constexpr uint64_t kGrainBytes = 4096;

// An export that had a link took the write mode away (rule 18); it is gone.
void GiveWriteModeBack(io::FileSystem* file_system, const std::string& path,
                       const io::FileInfo& info) {
  if ((info.mode & kOwnerWrites) != 0 || info.link_count != 1) return;
  file_system->SetMode(path, info.mode | kOwnerWrites)
      .IgnoreError("then the segment cannot be opened, which is seen there");
}

}  // namespace

ReclaimResult Reclaimer::Run(const ReclaimRequest& request) {
  ReclaimResult result;
  result.status = Pass(request, &result);
  if (result.status.code() == StatusCode::kCancelled) result.status = OkStatus();
  return result;
}

Status Reclaimer::Pass(const ReclaimRequest& request, ReclaimResult* result) {
  for (const std::string& path : request.unwanted_spares) {
    STEPWELL_RETURN_IF_ERROR(options_.freeze->Check());
    options_.file_system->Remove(path).IgnoreError("the next open tries again");
  }
  const auto all = options_.live->Needing();
  options_.footprints->Keep(all);
  Users users;
  for (const auto& live : all) {
    // Every step has at least its commit frame's extent; without any, what it holds is not known.
    if (live->record.extents.empty()) return OkStatus();
    std::set<uint64_t> segments{live->place.segment};
    for (const auto& extent : live->record.extents) segments.insert(extent.segment);
    for (const uint64_t id : segments) {
      if (request.segments.contains(id)) users[id].push_back(live);
    }
  }
  // What needs no reading comes first: it gives most back.
  for (const bool whole : {true, false}) {
    for (const uint64_t id : request.segments) {
      if (users.contains(id) == whole) continue;
      if (options_.stop->load()) {
        result->later.insert(request.segments.begin(), request.segments.end());
        return CancelledError("the store is being closed");
      }
      if (Status status = Handle(request, users, id, result); !status.ok()) {
        result->later.insert(request.segments.begin(), request.segments.end());
        return status;
      }
    }
    if (whole && !result->spares.empty()) {
      // Before one of them gets a new name and is written to (rule 7).
      STEPWELL_RETURN_IF_ERROR(
          options_.file_system->SyncDirectory(SegmentsPath(options_.store_path)));
    }
  }
  return OkStatus();
}

// The state of a segment now; `gone` when there is no such file any more.
Result<SegmentState> Reclaimer::Look(const ReclaimRequest& request, const Users& users, uint64_t id,
                                     bool* gone, bool* foreign) {
  SegmentState state;
  const auto info = options_.file_system->Stat(SegmentPath(options_.store_path, id));
  *gone = info.status().code() == StatusCode::kNotFound;
  if (*gone) return state;
  if (!info.ok()) return info.status();
  state.link_count = info->link_count;
  state.size_bytes = info->size_bytes;
  state.allocated_bytes = info->allocated_bytes;
  state.block_bytes = std::max<uint64_t>(4096, info->block_bytes);
  state.punchable = can_punch_;
  *foreign = info->is_directory;
  if (*foreign) return state;
  const auto edges = options_.footprints->EdgesOf(id);
  if (edges.ok()) {
    *foreign = edges->store_id != options_.store_id;
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
  const auto it = users.find(id);
  state.has_live = it != users.end();
  static const Users::mapped_type kNone;
  const auto& steps = state.has_live ? it->second : kNone;
  if (!state.has_live && !state.has_catalog) return state;
  // Without reading records: what the steps' extents say may leave nothing to gain. Steps share no
  // block (rule 8).
  uint64_t stored = TotalBytes(state.needed);
  for (const auto& live : steps) {
    for (const auto& extent : live->record.extents) {
      if (extent.segment == id) stored += AlignUp(extent.stored_bytes, kGrainBytes);
    }
    if (live->place.segment == id) stored += AlignUp(live->place.length_bytes, kGrainBytes);
  }
  if (state.allocated_bytes < stored + request.punch_gain_min) return state;
  state.known = edges.ok() && edges->own;
  for (const auto& live : steps) {
    const auto footprint = options_.footprints->Get(live->record.commit, live->place);
    if (!footprint.ok()) {
      state.known = false;  // damaged: everything of it is kept
      break;
    }
    const auto part = (*footprint)->segments.find(id);
    if (part == (*footprint)->segments.end()) continue;
    state.payload_bytes += part->second.payload_bytes;
    state.needed.insert(state.needed.end(), part->second.ranges.begin(), part->second.ranges.end());
  }
  state.needed = Normalize(std::move(state.needed));
  return state;
}

// RECLAIM, held while the segment is changed; null when somebody may be reading dead steps of it,
// which is then noted.
Result<std::unique_ptr<ReclaimLock>> Reclaimer::LockUnpinned(const ReclaimRequest& request,
                                                             uint64_t id, ReclaimResult* result) {
  STEPWELL_ASSIGN_OR_RETURN(auto lock,
                            ReclaimLock::Acquire(options_.file_system, options_.store_path,
                                                 io::LockKind::kExclusive, options_.stop));
  STEPWELL_ASSIGN_OR_RETURN(const auto pin, LowestPin(options_.file_system, options_.store_path));
  const auto needed = options_.live->NeededBy(pin, request.published);
  result->bytes_pinned = needed.pinned_bytes;
  // Which dead steps older sessions left is not known here: a reader from before keeps all.
  const bool from_before = pin && *pin < request.old_tip && id < request.first_id;
  if (!from_before && !needed.pinned_segments.contains(id)) return lock;
  result->later.insert(id);
  return std::unique_ptr<ReclaimLock>();
}

Status Reclaimer::Handle(const ReclaimRequest& request, const Users& users, uint64_t id,
                         ReclaimResult* result) {
  if ((users.contains(id) || request.catalogs.contains(id)) && !request.settled.contains(id)) {
    result->later.insert(id);
    return OkStatus();
  }
  ReclaimLimits limits;
  limits.settled = request.settled.contains(id);
  limits.punch_gain_min = request.punch_gain_min;
  limits.evacuate_gain_min = request.evacuate_gain_min;
  uint64_t spares = 0;
  for (const auto& spare : result->spares) spares += spare.bytes;
  limits.spare_bytes_max = request.spare_bytes_max > spares ? request.spare_bytes_max - spares : 0;
  // Twice at most: after a punch, what is left may be worth moving.
  for (int round = 0; round < 3; ++round) {
    bool gone = false;
    bool foreign = false;
    STEPWELL_ASSIGN_OR_RETURN(const SegmentState state, Look(request, users, id, &gone, &foreign));
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
          state.has_live ? state.allocated_bytes - needed : state.allocated_bytes;
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
        if (result->later.contains(id)) return OkStatus();  // pinned
        // What one call could not free, another will not.
        limits.punch_gain_min = ~uint64_t{0};
        break;
      }
      case ReclaimAction::kEvacuate:
        if (!request.may_move) return OkStatus();
        // What is not decided yet stays where it is, so the segment would not become empty.
        for (const auto& live : users.at(id)) {
          const auto& group = live->record.group;
          if (!group || group->state != format::GroupState::kPrepared) continue;
          result->later.insert(id);
          return OkStatus();
        }
        result->evacuate.insert(id);
        for (const auto& live : users.at(id)) {
          result->steps_to_move[live->record.step] = live->record.commit;
        }
        return OkStatus();
    }
  }
  return OkStatus();
}

Status Reclaimer::RemoveWhole(const ReclaimRequest& request, uint64_t id, const SegmentState& state,
                              ReclaimAction action, ReclaimResult* result) {
  STEPWELL_ASSIGN_OR_RETURN(const auto lock, LockUnpinned(request, id, result));
  if (lock == nullptr) return OkStatus();
  const std::string path = SegmentPath(options_.store_path, id);
  STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo info, options_.file_system->Stat(path));
  STEPWELL_RETURN_IF_ERROR(options_.freeze->Check());
  options_.files->Drop(id);
  options_.footprints->Forget(id);
  if (action == ReclaimAction::kRecycle && info.link_count == 1) {
    const std::string spare = SparePath(options_.store_path, id);
    GiveWriteModeBack(options_.file_system, path, info);
    STEPWELL_RETURN_IF_ERROR(options_.file_system->Rename(path, spare));
    result->spares.push_back({spare, state.size_bytes});
  } else {
    const Status status = options_.file_system->Remove(path);
    if (!status.ok() && status.code() != StatusCode::kNotFound) return status;
    ++result->segments_removed;
  }
  result->gone.push_back(id);
  return OkStatus();
}

Status Reclaimer::Punch(const ReclaimRequest& request, uint64_t id,
                        const std::vector<ByteRange>& holes, ReclaimResult* result) {
  STEPWELL_ASSIGN_OR_RETURN(const auto lock, LockUnpinned(request, id, result));
  if (lock == nullptr) return OkStatus();
  const std::string path = SegmentPath(options_.store_path, id);
  STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo named, options_.file_system->Stat(path));
  GiveWriteModeBack(options_.file_system, path, named);
  auto file = options_.file_system->Open(path, {.write = true, .freeze = options_.freeze});
  // Not ours to change.
  if (file.status().code() == StatusCode::kPermissionDenied) return OkStatus();
  if (!file.ok()) return file.status();
  STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo before, (*file)->Info());
  if (before.link_count != 1) return OkStatus();
  for (const ByteRange& hole : holes) {
    if (options_.stop->load()) break;
    STEPWELL_RETURN_IF_ERROR((*file)->PunchHole(hole.begin, hole.end - hole.begin));
  }
  STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo after, (*file)->Info());
  if (before.allocated_bytes > after.allocated_bytes) {
    result->bytes_punched += before.allocated_bytes - after.allocated_bytes;
  }
  return OkStatus();
}

}  // namespace stepwell::db
