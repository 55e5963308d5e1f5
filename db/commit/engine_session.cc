// SPDX-License-Identifier: Apache-2.0
// The beginning and the end of a session, marks, and what reclaim asks of the engine.
#include <algorithm>
#include <set>
#include <utility>

#include "db/commit/engine.h"
#include "db/layout.h"
#include "db/log/pins.h"
#include "db/log/segment_scan.h"
#include "io/guard.h"

namespace stepwell::db {

using format::FrameKind;
using format::FramePlace;

namespace {

// The bytes of the newest frame, for a copy of it; empty where there is none any more: behind newer
// catalogs it may have been erased.
std::string TipFrame(SegmentFiles& files, const format::FramePlace& place) {
  if (place.length_bytes == 0) return {};
  const auto frame = ReadOriginalFrame(files, place, FrameKind{});
  if (!frame.ok()) return {};
  return format::EncodeFrame(frame->header, frame->payload, /*block_bytes=*/1, nullptr);
}

Result<uint64_t> EndOfCatalog(const SegmentInfo& info, SegmentFiles& files) {
  STEPWELL_ASSIGN_OR_RETURN(const FramePlace root, FindCatalog(info, files));
  STEPWELL_ASSIGN_OR_RETURN(const Frame frame, ReadFrame(files, root, FrameKind::kCatalog));
  STEPWELL_ASSIGN_OR_RETURN(const auto catalog, format::DecodeCatalog(AsBytes(frame.payload)));
  uint64_t end = root.offset_bytes + root.length_bytes;
  for (const FramePlace& page : catalog.pages) {
    end = std::max(end, page.offset_bytes + page.length_bytes);
  }
  return end;
}

constexpr uint64_t kRollGainBytes = uint64_t{1} << 20;

Status SlotBehindError() {
  return ResourceExhaustedError(
      "the disk is full: STEPWELL cannot be written, and nothing is erased that it names; remove "
      "other files");
}

}  // namespace

// The segment was synced, and with it its catalog.
void Engine::NoteCatalog(const Segment& segment) {
  const CatalogNote* newest = catalogs_.newest();
  if (newest != nullptr && newest->place.segment >= segment.id) return;
  uint64_t oldest_in_flight = segment.id;
  for (const auto& [id, open] : log_->open_segments()) {
    oldest_in_flight = std::min(oldest_in_flight, open->catalog.first_segment);
  }
  for (const uint64_t id : catalogs_.Durable(segment.catalog, oldest_in_flight)) {
    reclaim_.Suspect(id);
  }
  slot_.catalog_place = segment.catalog.place;
  reclaim_.GuardMoved();
  const std::lock_guard lock(ends_mutex_);
  catalog_ranges_ = catalogs_.Needed();
}

Status Engine::WriteSlot(bool sync) {
  STEPWELL_RETURN_IF_ERROR(LeaveCopiedSlots());
  Status status = options_.slot_file->Write(slot_, sync);
  // Where writes go to new blocks (btrfs) also this one needs room.
  while (status.code() == StatusCode::kResourceExhausted && MakeRoom()) {
    status = options_.slot_file->Write(slot_, sync);
  }
  return status;
}

// STEPWELL is not written to while a copy of the store has it, too.
Status Engine::LeaveCopiedSlots() {
  io::File* const before = options_.slot_file->file();
  STEPWELL_RETURN_IF_ERROR(
      options_.slot_file->LeaveCopies(options_.environment.file_system, options_.store_path));
  io::File* const file = options_.slot_file->file();
  if (file == before) return OkStatus();
  Log(options_.log, LogLevel::kInfo,
      StrCat(file->path(), " had another name, of a copy of the store: it is made anew"));
  if (options_.disk != nullptr) options_.disk->RegisterFile(file);
  if (options_.slots_made_anew) options_.slots_made_anew(file);
  return OkStatus();
}

// Without a new slot on a full disk the one before is true still: other processes see later what
// was committed, and a crash is recovered from by a scan. What the old slot names must stay
// (MayErase).
bool Engine::UpdateSlot() {
  const Status status = WriteSlot(/*sync=*/false);
  slot_behind_ = !status.ok();
  if (!status.ok() && status.code() != StatusCode::kResourceExhausted)
    options_.freeze->Trip(status);
  return status.ok();
}

// Files that were removed take writes and syncs without an error, until they are closed: that would
// acknowledge steps that can never be opened.
Status Engine::CheckNotRemoved() {
  std::vector<io::File*> files = {options_.slot_file->file()};
  for (const Segment* segment : batch_->touched) files.push_back(segment->file.get());
  for (io::File* file : files) {
    STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo info, file->Info());
    if (info.link_count > 0) continue;
    return NotFoundError(StrCat(file->path(), " was removed while the store is open for writing: ",
                                "what is saved now would be lost"));
  }
  return OkStatus();
}

void Engine::NoteSegments() {
  std::map<uint64_t, uint64_t> ends;
  for (const auto& [id, segment] : log_->open_segments()) {
    if (!segments_.contains(id)) catalogs_.NoteSegment(id);
    segments_[id] = {.segment = id, .nonce = segment->nonce, .length_bytes = 0};
    ends[id] = segment->end_bytes;
  }
  const std::lock_guard lock(ends_mutex_);
  open_ends_ = std::move(ends);
}

// Before this epoch makes the steps in doubt durable: then only damage takes a header away. A
// segment that an export has a link to does not change, and keeps what it has.
Status Engine::MendHeaders(const LogState& state) {
  for (const uint64_t id : state.torn_headers) {
    const auto file = options_.environment.file_system->Stat(options_.files->PathOf(id));
    if (!file.ok() || file->link_count > 1) continue;
    const format::SegmentHeader header = NewSegmentHeader(options_.environment, slot_, id);
    const Status status = RewriteHeader(options_.environment.file_system, options_.store_path,
                                        header, epoch_, options_.freeze);
    // Where writes go to new blocks (btrfs) a full disk has no room for it; the step is whole.
    if (status.code() == StatusCode::kResourceExhausted) continue;
    STEPWELL_RETURN_IF_ERROR(status);
    segments_[id].nonce = header.nonce;
    options_.files->Drop(id);
  }
  return OkStatus();
}

Status Engine::Start(const LogState& state) {
  old_tip_ = tip_commit_ = state.tip_commit;
  tip_place_ = state.tip_place;
  epoch_ = std::max(state.epoch_max, slot_.epoch) + 1;
  chain_.assign(state.chain.begin(), state.chain.end());
  uint64_t highest = 0;
  for (const SegmentInfo& info : state.segments) {
    highest = std::max(highest, info.segment);
    if (info.foreign) continue;
    reclaim_.Suspect(info.segment);
    segments_[info.segment] = {.segment = info.segment,
                               .nonce = info.nonce,
                               .length_bytes = info.sealed ? info.length_bytes : 0};
  }
  catalogs_.Begin(state, segments_);
  const std::string tip = TipFrame(*options_.files, state.tip_place);
  // Of a damaged frame the slot may have the only copy.
  if (!tip.empty() || slot_.durable_place != state.tip_place) {
    slot_.tip = format::MakeFrameCopy(tip, format::kSlotTipBytesMax);
  }
  slot_.durable_commit = state.tip_commit;
  slot_.durable_place = state.tip_place;
  losses_ = state.losses;
  for (format::LossRecord& loss : losses_) {
    if (loss.found_ns == 0) loss.found_ns = options_.environment.clock->WallNanos();
  }

  // The clean mark goes durably before the first write. One that is gone already may be
  // gone from the page cache only, after a kill: a power cut would bring it back, and this epoch
  // with it.
  slot_.clean = false;
  STEPWELL_RETURN_IF_ERROR(WriteSlot(/*sync=*/true));
  STEPWELL_RETURN_IF_ERROR(MendHeaders(state));
  LogWriterOptions log;
  log.environment = options_.environment;
  log.store_path = options_.store_path;
  log.slot = slot_;
  log.freeze = options_.freeze;
  log.segment_bytes_max = options_.segment_bytes_max;
  log.make_catalog = [this](uint64_t block_bytes, bool short_of_space) {
    format::Catalog head;
    head.epoch = epoch_;
    head.last_commit = slot_.durable_commit;
    head.last_place = slot_.durable_place;
    head.losses = losses_;
    return catalogs_.Make(std::move(head), segments_, block_bytes, short_of_space);
  };
  log.disk = options_.disk;
  log_ = std::make_unique<LogWriter>(std::move(log), highest + 1, epoch_);
  log_->FindSpares();
  Status status = log_->Start();
  // Spares that are too large for the first segment have the room that it lacks.
  while (status.code() == StatusCode::kResourceExhausted && MakeRoom()) status = log_->Start();
  STEPWELL_RETURN_IF_ERROR(status);
  block_bytes_ = log_->block_bytes();
  // A killed writer's last frame has no copy yet.
  if (!state.report.clean && !tip.empty()) {
    log_->AddCopy({state.tip_place, format::MakeFrameCopy(tip, format::kCopyBytesMax)});
  }

  // The epoch frame, durable before anything else: older epochs' frames beyond the tip are void.
  batch_ = std::make_unique<CommitBatch>();
  format::EpochRecord record;
  record.epoch = epoch_;
  record.last_commit = state.tip_commit;
  record.last_place = state.tip_place;
  const auto append = [this](FrameKind kind, const std::string& payload) {
    return AppendFrame(kind, payload, 0, /*may_drop_ballast=*/true, /*taken=*/nullptr);
  };
  STEPWELL_ASSIGN_OR_RETURN(auto place, append(FrameKind::kEpoch, format::EncodeEpoch(record)));
  // Losses are a part of what this epoch begins with, and said from here on.
  for (const format::LossRecord& loss : losses_) {
    STEPWELL_ASSIGN_OR_RETURN(place, append(FrameKind::kLoss, format::EncodeLoss(loss)));
  }
  for (const auto& frame : batch_->frames) {
    STEPWELL_RETURN_IF_ERROR(frame->segment->file->WriteAt(
        frame->offset_bytes, ConstBytes(frame->buffer.data(), frame->buffer.size())));
    --frame->segment->writes_in_flight;
  }
  for (Segment* touched : batch_->touched) {
    STEPWELL_RETURN_IF_ERROR(touched->file->Sync());
    touched->dirty = false;
  }
  batch_.reset();
  NoteCatalog(*log_->current());
  slot_.epoch = epoch_;
  slot_.durable_commit = tip_commit_;
  slot_.durable_place = place;
  slot_.tip = tip_copy_;
  STEPWELL_RETURN_IF_ERROR(WriteSlot(/*sync=*/true));
  durable_mark_ = tip_commit_;
  NoteSegments();
  STEPWELL_RETURN_IF_ERROR(SettleAbandoned(state));
  started_ = true;
  reclaim_.Begin(slot_.store_id);
  return OkStatus();
}

// Segments that the last writer left open: sealed behind what they still hold, so that no rejected
// frame is found again, should those that took its number be lost. What the rejected tail took
// comes back here; reclaim then removes those that hold nothing.
Status Engine::SettleAbandoned(const LogState& state) {
  bool pinned = true;
  if (auto lock = ReclaimLock::Acquire(options_.environment.file_system, options_.store_path,
                                       io::LockKind::kExclusive);
      lock.ok()) {
    const auto pins = ReadPins(options_.environment.file_system, options_.store_path);
    pinned = !pins.ok() || pins->any();
  } else {
    Log(options_.log, LogLevel::kWarning,
        StrCat(options_.store_path,
               ": opened without giving space back: ", lock.status().message()));
  }
  const std::set<ChainPlace> accepted(state.chain.begin(), state.chain.end());
  for (const SegmentInfo& info : state.segments) {
    if (info.sealed || info.foreign || !info.header_ok || state.report.clean) continue;
    uint64_t end = 0;
    for (const auto& live : options_.live->Needing()) {
      for (const auto& extent : live->record.extents) {
        if (extent.segment == info.segment) end = std::max(end, extent.end_bytes);
      }
    }
    std::vector<format::FooterEntry> frames;
    if (const auto it = state.scanned.find(info.segment); it != state.scanned.end()) {
      for (const format::FooterEntry& entry : it->second) {
        // Another frame of this number may have been accepted in its place.
        const bool known = entry.commit <= state.catalog_commit;
        if (known || accepted.contains({entry.commit, info.segment})) frames.push_back(entry);
      }
    }
    const auto frames_end = frames.empty()
                                ? EndOfCatalog(info, *options_.files)
                                : EndOfCopies(*options_.files, frames.back().place, info.nonce);
    if (!frames_end.ok()) continue;  // then it is scanned again
    end = std::max(end, *frames_end);
    options_.files->Drop(info.segment);
    // A segment that an export has a link to was sealed, though that cannot be read just now, and
    // does not change.
    const auto file = options_.environment.file_system->Stat(options_.files->PathOf(info.segment));
    if (!file.ok() || file->link_count > 1) continue;
    // What a record says to lie beyond the file is not there, and must not make it larger.
    end = std::min(end, file->size_bytes);
    // Nothing is cut off while it is not known what was lost.
    const bool keep_tail = pinned || !losses_.empty();
    const Status sealed =
        SealAbandoned(options_.environment.file_system, options_.store_path, info.segment,
                      info.nonce, epoch_, end, keep_tail, options_.freeze, frames);
    // A full disk may refuse the seal and must open all the same: the segment is scanned again.
    if (!sealed.ok() && sealed.code() != StatusCode::kResourceExhausted) return sealed;
    options_.files->Drop(info.segment);
  }
  return OkStatus();
}

Status Engine::Finish() {
  while (slot_sync_ != nullptr && !panicked()) options_.disk->Poll(/*wait=*/true);
  STEPWELL_RETURN_IF_ERROR(options_.freeze->Check());
  for (const auto& [id, segment] : log_->open_segments()) {
    if (!segment->dirty) continue;
    STEPWELL_RETURN_IF_ERROR(segment->file->Sync());
    segment->dirty = false;
  }
  // A full disk may refuse the footers; the next open then scans these segments.
  log_->SealIdle(/*all=*/true).IgnoreError("an unsealed segment is scanned");
  STEPWELL_RETURN_IF_ERROR(options_.freeze->Check());
  slot_.clean = true;
  return WriteSlot(/*sync=*/true);
}

Status Engine::MayErase() {
  if (closing_ || !started_ || log_->current() == nullptr) {
    return FailedPreconditionError("the store is closed");
  }
  if (slot_behind_ && !options_.freeze->frozen()) MarkDurable();
  if (options_.freeze->frozen()) return options_.freeze->Check();
  if (slot_behind_) return SlotBehindError();
  if (losses_.empty()) return OkStatus();
  // What a lost frame kept alive is not known.
  return FailedPreconditionError(StrCat("nothing is erased while this is not accepted: ",
                                        DescribeLoss(losses_.front()), ". See `stepwell repair`"));
}

bool Engine::DeathsAwaitSlot() const {
  return slot_sync_ != nullptr && (slot_sync_->killed || killed_unmarked_);
}

uint64_t Engine::newest_segment() const {
  return log_ == nullptr || log_->current() == nullptr ? 0 : log_->current()->id;
}

void Engine::SegmentGone(uint64_t segment) {
  catalogs_.NoteSegment(segment);
  segments_.erase(segment);
}

// Of the second-newest durable catalog and of every chain frame after it.
uint64_t Engine::GuardSegment() {
  const CatalogNote* catalog = catalogs_.second_newest();
  if (catalog == nullptr) return 0;
  while (!chain_.empty() && chain_.front().commit <= catalog->last_commit) chain_.pop_front();
  // Of the frames in one segment the newest does: there may be very many.
  std::deque<ChainPlace> newest;
  uint64_t guard = catalog->place.segment;
  for (const ChainPlace& frame : chain_) {
    guard = std::min(guard, frame.segment);
    if (!newest.empty() && newest.back().segment == frame.segment) newest.pop_back();
    newest.push_back(frame);
  }
  chain_ = std::move(newest);
  return guard;
}

std::set<uint64_t> Engine::InUse() const {
  std::set<uint64_t> in_use = reclaim_.evacuator().segments_in_use();
  for (const auto& job : jobs_) {
    for (const auto& [id, extent] : job->extents) in_use.insert(id);
  }
  if (batch_ != nullptr) {
    for (const BatchEntry& entry : batch_->entries) {
      for (const auto& step : {entry.change.added, entry.change.prepared}) {
        if (step == nullptr) continue;
        for (const auto& extent : step->record.extents) in_use.insert(extent.segment);
      }
    }
  }
  return in_use;
}

// What failed saves and moves have written needs no flush, and keeps no segment open.
void Engine::ForgetFailedWrites() {
  if (batch_ != nullptr || !std::exchange(has_failed_writes_, false)) return;
  const std::set<uint64_t> in_use = InUse();
  for (const auto& [id, segment] : log_->open_segments()) {
    if (in_use.contains(id) || (!segment->dirty && segment->writes_in_flight == 0)) continue;
    if (segment->current || segment->writes_in_flight > 0) {
      has_failed_writes_ = true;  // later
    } else {
      segment->dirty = false;
    }
  }
}

std::set<uint64_t> Engine::BusySegments() const {
  std::set<uint64_t> busy = InUse();
  for (const auto& [id, segment] : log_->open_segments()) busy.insert(id);
  return busy;
}

ReclaimRequest Engine::NewReclaimRequest() {
  ReclaimRequest request;
  request.catalogs = catalogs_.Needed();
  request.published = durable_mark_;
  request.old_tip = old_tip_;
  request.first_id = log_->first_id();
  request.spare_bytes_max = log_->spare_bytes_wanted();
  request.unwanted_spares = log_->TakeExcessSpares();
  return request;
}

void Engine::CommitNext(std::shared_ptr<SaveJob> job) {
  if (frozen_reported_) Fail(job.get(), options_.freeze->Check());
  jobs_.push_front(std::move(job));
}

Status Engine::RollSegments(uint64_t guard) {
  uint64_t used = 0;
  for (const auto& [id, segment] : segments_) {
    if (id < guard) continue;
    const auto open = log_->open_segments().find(id);
    if (open != log_->open_segments().end()) {
      const uint64_t own = open->second->catalog.end_bytes;
      used += open->second->end_bytes - std::min(open->second->end_bytes, own);
    } else if (const auto info = options_.environment.file_system->Stat(options_.files->PathOf(id));
               info.ok()) {
      used += info->allocated_bytes;
    }
  }
  const uint64_t live = options_.live->StoredBytesFrom(guard);
  if (used < live + std::min(kRollGainBytes, options_.segment_bytes_max / 4)) return OkStatus();
  for (int i = 0; i < 2; ++i) {
    Status status = log_->StartNext();
    if (status.code() == StatusCode::kResourceExhausted) return OkStatus();  // then without
    STEPWELL_RETURN_IF_ERROR(status);
    Segment* segment = log_->current();
    STEPWELL_RETURN_IF_ERROR(segment->file->Sync());
    segment->dirty = false;
    NoteCatalog(*segment);
    if (!UpdateSlot()) {
      return options_.freeze->frozen() ? options_.freeze->Check() : SlotBehindError();
    }
  }
  ForgetFailedWrites();
  NoteSegments();
  return log_->SealIdle(/*all=*/false);
}

void Engine::BeginClose() {
  closing_ = true;
  reclaim_.Stop();
}

void Engine::FillQuery(SpaceQuery* query) const {
  const std::lock_guard lock(ends_mutex_);
  query->open_ends = open_ends_;
  query->catalogs = catalog_ranges_;
}

}  // namespace stepwell::db
