// SPDX-License-Identifier: Apache-2.0
// The chain: applying its frames, and following it from the slot's marks.
#include "db/log/recovery.h"

#include <algorithm>

#include "db/layout.h"

namespace stepwell::db {

using format::FrameHeader;
using format::FrameKind;
using format::FramePlace;

namespace {

void Kill(const std::vector<uint64_t>& commits, uint64_t killer, LogState* state) {
  for (const uint64_t commit : commits) {
    if (!state->step_of.contains(commit)) continue;
    const auto killed = RemoveLive(commit, state);
    state->changed[commit] = killed->record.step;
    state->dead.push_back({commit, killer, killed->record.extents, killed->place});
  }
}

// A commit frame, or a prepared one, which is visible once it is decided.
Status Commit(const FrameHeader& header, const FramePlace& place, const std::string& payload,
              LogState* state) {
  STEPWELL_ASSIGN_OR_RETURN(auto commit, format::DecodeCommit(AsBytes(payload)));
  format::StepRecord& step = commit.step;
  if (step.commit != header.commit) {
    const char* const kind = header.kind == FrameKind::kPrepared ? "prepared" : "commit";
    return DataLossError(StrCat("a ", kind, " frame's two commit numbers differ"));
  }
  if (header.kind == FrameKind::kPrepared &&
      (!step.group || step.group->state != format::GroupState::kPrepared ||
       !commit.kills.empty())) {
    return DataLossError("a prepared frame that is of no group");
  }
  Kill(commit.kills, header.commit, state);
  step.metadata_json.clear();
  step.metrics_json.clear();
  state->changed[header.commit] = step.step;
  AddLive({std::move(step), place}, state);
  return OkStatus();
}

Status Decide(const format::Decided& decided, uint64_t number, LogState* state) {
  const auto it = state->undecided.find(decided.commit);
  if (it == state->undecided.end() || it->second.record.group->save_id != decided.group.save_id) {
    return DataLossError(
        StrCat("a decision about commit ", decided.commit, ", which is not prepared"));
  }
  LiveStep step = std::move(it->second);
  state->undecided.erase(it);
  state->changed[decided.commit] = step.record.step;
  if (!decided.committed) {
    state->dead.push_back({decided.commit, number, std::move(step.record.extents), step.place});
    return OkStatus();
  }
  Kill(decided.kills, number, state);
  step.record.group = decided.group;
  AddLive(std::move(step), state);
  return OkStatus();
}

void Change(const format::MetaChange& change, LogState* state) {
  const auto step = state->step_of.find(change.commit);
  if (step == state->step_of.end()) return;
  if (!format::ApplyChange(change, &state->live.at(step->second).record)) return;
  state->changed[change.commit] = step->second;
}

// A loss ends when a later record of it is accepted; else the newer record of the same frames
// counts.
void AddLoss(const format::LossRecord& loss, LogState* state) {
  std::erase_if(state->losses, [&](const format::LossRecord& known) {
    return known.first_commit >= loss.first_commit && known.last_commit <= loss.last_commit;
  });
  if (!loss.accepted) state->losses.push_back(loss);
}

Status MayBeLost(std::string_view what, const format::LossRecord& loss) {
  return DataLossError(StrCat(what, DescribeLoss(loss),
                              ". `stepwell repair --accept` takes what is there as it is"));
}

Result<LogState> FollowMarks(const format::StoreSlot& slot, SegmentFiles& files, LogState* known) {
  // Back from the durable frame, until something known or the catalog's last commit is met. The
  // chain is bounded: each frame's number is one less than its successor's.
  std::vector<FoundFrame> links;
  FramePlace place = slot.durable_place;
  uint64_t commit = slot.durable_commit;
  LogState loaded;
  LogState* base = &loaded;
  if (known != nullptr && known->tip_commit <= commit && known->tip_commit >= 1) {
    base = known;
  } else {
    STEPWELL_RETURN_IF_ERROR(LoadCatalog(slot.catalog_place, files, &loaded));
    for (const auto& [id, entry] : loaded.catalog_segments) {
      loaded.segments.push_back({.segment = id,
                                 .nonce = entry.nonce,
                                 .header_ok = true,
                                 .sealed = entry.length_bytes > 0,
                                 .length_bytes = entry.length_bytes});
    }
  }
  while (commit > base->tip_commit) {
    STEPWELL_ASSIGN_OR_RETURN(Frame frame, ReadFrame(files, place, FrameKind{}));
    if (frame.header.commit != commit || !format::IsChainFrame(frame.header.kind)) {
      return DataLossError(StrCat(files.PathOf(place.segment), ": offset ", place.offset_bytes,
                                  ": not the frame of commit ", commit));
    }
    const FramePlace previous = frame.header.previous;
    links.push_back({.frame = std::move(frame), .place = place});
    place = previous;
    --commit;
  }
  if (commit == base->tip_commit && commit > 0 && !links.empty() && place != base->tip_place) {
    return DataLossError("the chain of frames does not meet its catalog");
  }
  LogState state = std::move(*base);
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

void AddLive(LiveStep step, LogState* state) {
  const uint64_t commit = step.record.commit;
  const auto& group = step.record.group;
  if (group && group->state == format::GroupState::kPrepared) {
    state->undecided[commit] = std::move(step);
    return;
  }
  const uint64_t number = step.record.step;
  state->undecided.erase(commit);
  const auto it = state->live.lower_bound(number);
  if (it != state->live.end() && it->first == number) {
    state->step_of.erase(it->second.record.commit);
    it->second = std::move(step);
  } else {
    state->live.emplace_hint(it, number, std::move(step));
  }
  state->step_of[commit] = number;
}

std::optional<LiveStep> RemoveLive(uint64_t commit, LogState* state) {
  if (auto undecided = state->undecided.extract(commit)) return std::move(undecided.mapped());
  const auto step = state->step_of.find(commit);
  if (step == state->step_of.end()) return std::nullopt;
  auto live = state->live.extract(step->second);
  state->step_of.erase(step);
  return std::move(live.mapped());
}

const format::LossRecord* LossAfter(const std::vector<format::LossRecord>& losses,
                                    uint64_t commit) {
  for (const format::LossRecord& loss : losses) {
    if (commit < loss.first_commit) return &loss;
  }
  return nullptr;
}

std::string DescribeLoss(const format::LossRecord& loss) {
  std::string text = StrCat("data loss: the frames of commits ", loss.first_commit, " to ",
                            loss.last_commit, " are damaged or missing");
  if (!loss.reason.empty()) text += StrCat(" (", loss.reason, ")");
  return text + "; what they saved, replaced, deleted or pinned is not known";
}

Status NewestMayBeLost(const std::string& store_path,
                       const std::vector<format::LossRecord>& losses) {
  if (losses.empty()) return OkStatus();
  return MayBeLost(StrCat(store_path, ": the newest step may be lost: "), losses[0]);
}

void AddLosses(const std::vector<format::LossRecord>& losses, VerifyReport* report) {
  for (const format::LossRecord& loss : losses) {
    report->problems.emplace_back().message = DescribeLoss(loss);
  }
}

void MarkLosses(const std::string& store_path, const std::vector<format::LossRecord>& losses,
                std::vector<StepTexts>* texts) {
  for (StepTexts& each : *texts) {
    const format::LossRecord* const loss = LossAfter(losses, each.commit);
    if (loss != nullptr) each.status = LossError(store_path, each.step, *loss);
  }
}

Status MissingStep(const Status& not_found, const std::vector<format::LossRecord>& losses) {
  if (losses.empty()) return not_found;
  return MayBeLost(StrCat(not_found.message(), "; it may be lost: "), losses[0]);
}

Status LossError(const std::string& store_path, uint64_t step, const format::LossRecord& loss) {
  return MayBeLost(
      StrCat(store_path, ": step ", step, " may not be the newest version of itself, or deleted: "),
      loss);
}

Status ApplyChainFrame(const FrameHeader& header, const FramePlace& place,
                       const std::string& payload, LogState* state) {
  switch (header.kind) {
    case FrameKind::kCommit:
    case FrameKind::kPrepared:
      STEPWELL_RETURN_IF_ERROR(Commit(header, place, payload, state));
      break;
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
    case FrameKind::kLoss: {
      STEPWELL_ASSIGN_OR_RETURN(const auto loss, format::DecodeLoss(AsBytes(payload)));
      AddLoss(loss, state);
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
  state->chain.push_back({header.commit, place.segment});
  return OkStatus();
}

Result<format::StoreSlot> SlotFromLog(io::FileSystem* file_system, const std::string& store_path) {
  STEPWELL_ASSIGN_OR_RETURN(auto ids, SegmentIds(file_system, store_path));
  SegmentFiles files(file_system, store_path);
  std::reverse(ids.begin(), ids.end());
  for (const uint64_t id : ids) {
    STEPWELL_ASSIGN_OR_RETURN(const auto file, files.Get(id));
    STEPWELL_ASSIGN_OR_RETURN(const auto info, file->Info());
    if (info.is_directory) continue;
    const auto header = ReadSegmentHeader(*file, id, info.size_bytes);
    if (!header.ok() && !IsDamage(header.status())) return header.status();
    if (!header.ok() || header->segment != id) continue;
    format::StoreSlot slot;
    slot.store_id = header->store_id;
    slot.group_id = header->group_id;
    slot.part = header->part;
    return slot;
  }
  return NotFoundError(StrCat(store_path, ": STEPWELL is lost, and no segment has a header"));
}

Result<bool> LogEndsAt(const format::StoreSlot& slot, io::FileSystem* file_system,
                       const std::string& store_path, SegmentFiles& files) {
  STEPWELL_ASSIGN_OR_RETURN(const auto ids, SegmentIds(file_system, store_path));
  for (const uint64_t id : ids) {
    if (id < slot.durable_place.segment) continue;
    STEPWELL_ASSIGN_OR_RETURN(const auto file, files.Get(id));
    STEPWELL_ASSIGN_OR_RETURN(const auto info, file->Info());
    if (info.is_directory) continue;
    const auto header = ReadSegmentHeader(*file, id, info.size_bytes);
    if (!header.ok() && !IsDamage(header.status())) return header.status();
    if (!header.ok()) return false;
    if (header->store_id != slot.store_id) continue;
    const SegmentInfo segment{
        .segment = id, .nonce = header->nonce, .length_bytes = info.size_bytes};
    const auto trailer = ReadTrailer(segment, files);
    if (!trailer.ok() && !IsDamage(trailer.status())) return trailer.status();
    if (!trailer.ok() || trailer->commit_max > slot.durable_commit) return false;
  }
  return true;
}

Result<LogState> RecoverByMarks(const format::StoreSlot& slot, SegmentFiles& files,
                                LogState* known) {
  auto state = FollowMarks(slot, files, known);
  if (state.ok() || known == nullptr) return state;
  // The chain from there may be gone (reclaim keeps what is newer than the second-newest catalog),
  // or cut by a recovery since: start from the catalog.
  return FollowMarks(slot, files, nullptr);
}

}  // namespace stepwell::db
