// SPDX-License-Identifier: Apache-2.0
// The chain: applying its frames, and following it from the slot's marks.
#include "db/recovery.h"

#include <algorithm>

namespace stepwell::db {

using format::FrameHeader;
using format::FrameKind;
using format::FramePlace;

namespace {

void Kill(const std::vector<uint64_t>& commits, uint64_t killer, LogState* state) {
  for (const uint64_t commit : commits) {
    for (auto it = state->live.begin(); it != state->live.end(); ++it) {
      if (it->second.record.commit != commit) continue;
      state->dead.push_back({commit, killer, it->second.record.extents});
      state->live.erase(it);
      break;
    }
  }
}

Status Prepare(format::Commit commit, const FramePlace& place, LogState* state) {
  const auto& group = commit.step.group;
  if (!group || group->state != format::GroupState::kPrepared || !commit.kills.empty()) {
    return DataLossError("a prepared frame that is of no group");
  }
  const uint64_t number = commit.step.commit;
  commit.step.metadata_json.clear();
  commit.step.metrics_json.clear();
  state->undecided[number] = {std::move(commit.step), place};
  return OkStatus();
}

Status Decide(const format::Decided& decided, uint64_t number, LogState* state) {
  const auto it = state->undecided.find(decided.commit);
  if (it == state->undecided.end() || it->second.record.group->save_id != decided.group.save_id) {
    return DataLossError(
        StrCat("a decision about commit ", decided.commit, ", which is not prepared"));
  }
  LogStep step = std::move(it->second);
  state->undecided.erase(it);
  if (!decided.committed) {
    state->dead.push_back({decided.commit, number, std::move(step.record.extents)});
    return OkStatus();
  }
  Kill(decided.kills, number, state);
  step.record.group = decided.group;
  state->live[step.record.step] = std::move(step);
  return OkStatus();
}

void Change(const format::MetaChange& change, LogState* state) {
  for (auto& [step, live] : state->live) {
    if (live.record.commit == change.commit && change.pinned) live.record.pinned = *change.pinned;
  }
}

Status LoadCatalog(const FramePlace& place, SegmentFiles& files, LogState* state) {
  STEPWELL_ASSIGN_OR_RETURN(const Frame frame, ReadFrame(files, place, FrameKind::kCatalog));
  auto catalog = format::DecodeCatalog(AsBytes(frame.payload));
  if (!catalog.ok()) {
    return catalog.status().WithContext(
        StrCat(files.PathOf(place.segment), ": offset ", place.offset_bytes));
  }
  for (const auto& entry : catalog->segments) {
    SegmentInfo info;
    info.segment = entry.segment;
    info.nonce = entry.nonce;
    info.header_ok = true;
    info.sealed = entry.length_bytes > 0;
    info.length_bytes = entry.length_bytes;
    state->segments.push_back(info);
  }
  AdoptCatalog(std::move(*catalog), place, state);
  return OkStatus();
}

}  // namespace

void AdoptCatalog(format::Catalog catalog, const FramePlace& place, LogState* state) {
  for (auto& live : catalog.live) {
    const bool prepared =
        live.step.group && live.step.group->state == format::GroupState::kPrepared;
    auto& there = prepared ? state->undecided[live.step.commit] : state->live[live.step.step];
    there = {std::move(live.step), live.place};
  }
  state->epoch = state->epoch_max = catalog.epoch;
  state->tip_commit = state->catalog_commit = catalog.last_commit;
  state->tip_place = catalog.last_place;
  state->catalog_place = place;
}

Status ApplyChainFrame(const FrameHeader& header, const FramePlace& place,
                       const std::string& payload, LogState* state) {
  switch (header.kind) {
    case FrameKind::kCommit: {
      STEPWELL_ASSIGN_OR_RETURN(auto commit, format::DecodeCommit(AsBytes(payload)));
      if (commit.step.commit != header.commit) {
        return DataLossError("a commit frame's two commit numbers differ");
      }
      Kill(commit.kills, header.commit, state);
      const uint64_t step = commit.step.step;
      commit.step.metadata_json.clear();
      commit.step.metrics_json.clear();
      state->live[step] = {std::move(commit.step), place};
      break;
    }
    case FrameKind::kPrepared: {
      STEPWELL_ASSIGN_OR_RETURN(auto commit, format::DecodeCommit(AsBytes(payload)));
      if (commit.step.commit != header.commit) {
        return DataLossError("a prepared frame's two commit numbers differ");
      }
      STEPWELL_RETURN_IF_ERROR(Prepare(std::move(commit), place, state));
      break;
    }
    case FrameKind::kDecided: {
      STEPWELL_ASSIGN_OR_RETURN(const auto decided, format::DecodeDecided(AsBytes(payload)));
      STEPWELL_RETURN_IF_ERROR(Decide(decided, header.commit, state));
      break;
    }
    case FrameKind::kDelete: {
      STEPWELL_ASSIGN_OR_RETURN(const auto deletion, format::DecodeDelete(AsBytes(payload)));
      Kill(deletion.kills, header.commit, state);
      break;
    }
    case FrameKind::kMeta: {
      STEPWELL_ASSIGN_OR_RETURN(const auto meta, format::DecodeMeta(AsBytes(payload)));
      for (const format::MetaChange& change : meta.changes) Change(change, state);
      break;
    }
    case FrameKind::kEpoch:
      break;
    default:
      return DataLossError("a frame in the chain is of no chain kind");
  }
  state->tip_commit = header.commit;
  state->tip_place = place;
  state->epoch = std::max(state->epoch, header.epoch);
  state->epoch_max = std::max(state->epoch_max, header.epoch);
  state->chain.emplace_back(header.commit, place.segment);
  return OkStatus();
}

namespace {

Result<LogState> FollowMarks(const format::StoreSlot& slot, SegmentFiles& files,
                             const LogState* known) {
  // Back from the durable frame, until something known or the catalog's last commit is met. The
  // chain is bounded: each frame's number is one less than its successor's.
  struct Link {
    Frame frame;
    FramePlace place;
  };
  std::vector<Link> links;
  FramePlace place = slot.durable_place;
  uint64_t commit = slot.durable_commit;
  LogState state;
  if (known != nullptr && known->tip_commit <= commit && known->tip_commit >= 1) {
    state = *known;
  } else {
    STEPWELL_RETURN_IF_ERROR(LoadCatalog(slot.catalog_place, files, &state));
  }
  while (commit > state.tip_commit) {
    STEPWELL_ASSIGN_OR_RETURN(Frame frame, ReadFrame(files, place, FrameKind{}));
    if (frame.header.commit != commit || !format::IsChainFrame(frame.header.kind)) {
      return DataLossError(StrCat(files.PathOf(place.segment), ": offset ", place.offset_bytes,
                                  ": not the frame of commit ", commit));
    }
    const FramePlace previous = frame.header.previous;
    links.push_back({std::move(frame), place});
    place = previous;
    --commit;
  }
  if (commit == state.tip_commit && commit > 0 && !links.empty() && place != state.tip_place) {
    return DataLossError("the chain of frames does not meet its catalog");
  }
  for (auto link = links.rbegin(); link != links.rend(); ++link) {
    Status status = ApplyChainFrame(link->frame.header, link->place, link->frame.payload, &state);
    if (!status.ok()) {
      return status.WithContext(
          StrCat(files.PathOf(link->place.segment), ": offset ", link->place.offset_bytes));
    }
  }
  return state;
}

}  // namespace

Result<LogState> RecoverByMarks(const format::StoreSlot& slot, SegmentFiles& files,
                                const LogState* known) {
  auto state = FollowMarks(slot, files, known);
  if (state.ok() || known == nullptr) return state;
  // The chain from there may be gone (reclaim keeps what is newer than the second-newest catalog),
  // or cut by a recovery since: start from the catalog.
  return FollowMarks(slot, files, nullptr);
}

}  // namespace stepwell::db
