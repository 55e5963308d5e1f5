// SPDX-License-Identifier: Apache-2.0
#include "db/commit/log_end.h"

#include <algorithm>
#include <utility>

#include "db/layout.h"
#include "io/invariant.h"

namespace stepwell::db {

using format::FrameKind;
using format::FramePlace;

namespace {

constexpr uint64_t kRollGainBytes = uint64_t{1} << 20;

}  // namespace

LogEnd::LogEnd(const EngineOptions* options, SlotMarks* marks)
    : options_(options), marks_(marks), catalogs_(options->live, options->segment_bytes_max) {}

void LogEnd::Load(const LogState& state) {
  old_tip_ = tip_commit_ = state.tip_commit;
  tip_place_ = state.tip_place;
  epoch_ = std::max(state.epoch_max, marks_->slot().epoch) + 1;
  chain_.assign(state.chain.begin(), state.chain.end());
  for (const SegmentInfo& info : state.segments) {
    highest_ = std::max(highest_, info.segment);
    if (info.foreign) continue;
    suspects_.insert(info.segment);
    segments_[info.segment] = {.segment = info.segment,
                               .nonce = info.nonce,
                               .length_bytes = info.sealed ? info.length_bytes : 0};
  }
  catalogs_.Begin(state, segments_);
}

// Before this epoch makes the steps in doubt durable: then only damage takes a header away. A
// segment that an export has a link to does not change, and keeps what it has.
Status LogEnd::MendHeaders(const LogState& state) {
  for (const uint64_t id : state.torn_headers) {
    const auto file = options_->environment.file_system->Stat(options_->files->PathOf(id));
    if (!file.ok() || file->link_count > 1) continue;
    const format::SegmentHeader header =
        NewSegmentHeader(options_->environment, marks_->slot(), id);
    const Status status = RewriteHeader(options_->environment.file_system, options_->store_path,
                                        header, epoch_, options_->freeze);
    // Where writes go to new blocks (btrfs) a full disk has no room for it; the step is whole.
    if (status.code() == StatusCode::kResourceExhausted) continue;
    STEPWELL_RETURN_IF_ERROR(status);
    segments_[id].nonce = header.nonce;
    options_->files->Drop(id);
  }
  return OkStatus();
}

Result<CatalogPayload> LogEnd::MakeCatalog(uint64_t block_bytes, bool short_of_space) const {
  format::Catalog head;
  head.epoch = epoch_;
  head.last_commit = marks_->slot().durable_commit;
  head.last_place = marks_->slot().durable_place;
  head.losses = *losses_;
  return catalogs_.Make(std::move(head), segments_, block_bytes, short_of_space);
}

Status LogEnd::Start(const std::vector<format::LossRecord>* losses) {
  losses_ = losses;
  LogWriterOptions log;
  log.environment = options_->environment;
  log.store_path = options_->store_path;
  log.slot = marks_->slot();
  log.freeze = options_->freeze;
  log.segment_bytes_max = options_->segment_bytes_max;
  log.make_catalog = [this](uint64_t block_bytes, bool short_of_space) {
    return MakeCatalog(block_bytes, short_of_space);
  };
  log.disk = options_->disk;
  log_ = std::make_unique<LogWriter>(std::move(log), highest_ + 1, epoch_);
  log_->FindSpares();
  Status status = log_->Start();
  // Spares that are too large for the first segment have the room that it lacks.
  while (status.code() == StatusCode::kResourceExhausted && MakeRoom()) status = log_->Start();
  block_bytes_ = log_->block_bytes();
  return status;
}

// Room for a frame with what lies behind it: chain frames take copies of those before along, where
// the disk has room for them. Copies that come up later wait for the next frame. A frame of records
// has its own copy behind it.
Result<LogEnd::Run> LogEnd::PlaceFrame(FrameKind kind, size_t payload_bytes, uint64_t step_bytes,
                                       bool may_drop_ballast) {
  const size_t frame_bytes = format::kFrameHeaderBytes + payload_bytes;
  Run run;
  run.bytes =
      AlignUp(kind == FrameKind::kRecords ? format::BytesWithCopy(frame_bytes) : frame_bytes,
              log_->block_bytes());
  if (format::IsChainFrame(kind) && log_->CopySpace(frame_bytes) > 0) {
    const size_t with_copies =
        AlignUp(frame_bytes + log_->CopySpace(frame_bytes), log_->block_bytes());
    auto spot = log_->Place(with_copies, step_bytes, /*may_use_reserve=*/false);
    if (spot.ok()) return Run{*spot, with_copies};
    if (spot.status().code() != StatusCode::kResourceExhausted) return spot.status();
  }
  auto spot = log_->Place(run.bytes, step_bytes, /*may_use_reserve=*/may_drop_ballast);
  // A delete must work on a full disk: that is how space comes back.
  if (may_drop_ballast && spot.status().code() == StatusCode::kResourceExhausted) {
    MakeRoom();
    spot = log_->Place(run.bytes, step_bytes, /*may_use_reserve=*/true);
  }
  STEPWELL_ASSIGN_OR_RETURN(run.spot, std::move(spot));
  return run;
}

Result<FramePlace> LogEnd::EncodeFrame(FrameKind kind, const std::string& payload, const Run& run,
                                       FrameWrite* write) {
  STEPWELL_RETURN_IF_ERROR(CheckFrameSize(payload));
  Segment* segment = run.spot.segment;
  format::FrameHeader header;
  header.kind = kind;
  header.nonce = segment->nonce;
  header.epoch = epoch_;
  header.commit = tip_commit_;
  header.durable_through = marks_->slot().durable_commit;
  if (format::IsChainFrame(kind)) {
    header.commit = tip_commit_ + 1;
    header.previous = tip_place_;
    header.previous_commit = tip_commit_;
  }
  FramePlace place;
  write->buffer = io::AlignedBuffer(run.bytes);
  if (!write->buffer) return ResourceExhaustedError("no memory for a frame");
  format::EncodeFrameTo(header, payload, write->buffer.bytes(), &place.crc);
  place.segment = segment->id;
  place.offset_bytes = run.spot.offset_bytes;
  place.length_bytes = static_cast<uint32_t>(format::kFrameHeaderBytes + payload.size());
  STEPWELL_DCHECK(place.length_bytes <= run.bytes, "a frame is larger than its place");
  STEPWELL_DCHECK(header.durable_through <= tip_commit_, "a frame vouches for what comes later");
  write->BeginWrite(run.spot, write->buffer.bytes());
  segment->frames.push_back({static_cast<uint16_t>(kind), header.commit, place});
  if (kind == FrameKind::kRecords) {
    format::EncodeOwnCopy(place, segment->nonce, write->buffer.bytes());
  }
  if (format::IsChainFrame(kind)) {
    log_->PutCopies(segment->nonce, place.length_bytes, write->buffer.bytes());
    const std::string_view frame(reinterpret_cast<const char*>(write->buffer.data()),
                                 place.length_bytes);
    log_->AddCopy({place, format::MakeFrameCopy(frame, format::kCopyBytesMax)});
    tip_copy_ = format::MakeFrameCopy(frame, format::kSlotTipBytesMax);
    tip_commit_ = header.commit;
    tip_place_ = place;
    chain_.push_back({header.commit, segment->id});
  }
  return place;
}

// Spares first: they make writes faster, the ballast makes them possible.
bool LogEnd::MakeRoom() {
  if (log_ != nullptr && log_->DropSpares()) return true;
  return options_->environment.file_system->Remove(BallastFilePath(options_->store_path)).ok();
}

void LogEnd::NoteSegments() {
  std::map<uint64_t, uint64_t> ends;
  for (const auto& [id, segment] : log_->open_segments()) {
    if (!segments_.contains(id)) catalogs_.NoteSegment(id);
    segments_[id] = {.segment = id, .nonce = segment->nonce, .length_bytes = 0};
    ends[id] = segment->end_bytes;
  }
  const io::MutexLock lock(&ends_mutex_);
  open_ends_ = std::move(ends);
}

void LogEnd::NoteCatalog(const Segment& segment) {
  const CatalogNote* newest = catalogs_.newest();
  if (newest != nullptr && newest->place.segment >= segment.id) return;
  uint64_t oldest_in_flight = segment.id;
  for (const auto& [id, open] : log_->open_segments()) {
    oldest_in_flight = std::min(oldest_in_flight, open->catalog.first_segment);
  }
  for (const uint64_t id : catalogs_.Durable(segment.catalog, oldest_in_flight)) {
    suspects_.insert(id);
  }
  marks_->slot().catalog_place = segment.catalog.place;
  guard_moved_ = true;
  const io::MutexLock lock(&ends_mutex_);
  catalog_ranges_ = catalogs_.Needed();
}

bool LogEnd::TakeSuspects(std::set<uint64_t>* suspects) {
  suspects->merge(suspects_);
  suspects_.clear();
  return std::exchange(guard_moved_, false);
}

void LogEnd::LeaveLinkedSegment() {
  const Segment* current = log_ == nullptr ? nullptr : log_->current();
  if (current == nullptr || options_->freeze->frozen()) return;
  const auto info = current->file->Info();
  if (!info.ok() || info->link_count < 2) return;
  // On a full disk it grows.
  const Status status = log_->StartNext();
  if (status.ok()) return NoteSegments();
  Log(options_->log, LogLevel::kWarning,
      StrCat(options_->files->PathOf(current->id),
             " has another name, but no new segment can be begun: ", status.message()));
}

void LogEnd::ForgetFailedWrites(const std::set<uint64_t>& in_use) {
  has_failed_writes_ = false;
  for (const auto& [id, segment] : log_->open_segments()) {
    if (in_use.contains(id) || (!segment->dirty && segment->writes_in_flight == 0)) continue;
    if (segment->current || segment->writes_in_flight > 0) {
      has_failed_writes_ = true;  // later
    } else {
      segment->dirty = false;
    }
  }
}

Status LogEnd::LeaveSegments(const std::set<uint64_t>& segments) {
  if (log_->current() == nullptr || !segments.contains(log_->current()->id)) return OkStatus();
  STEPWELL_RETURN_IF_ERROR(log_->StartNext());
  NoteSegments();
  return OkStatus();
}

Status LogEnd::SyncOpen(const std::set<uint64_t>* only) {
  for (const auto& [id, segment] : log_->open_segments()) {
    if (!segment->dirty) continue;
    if (only != nullptr && (!only->contains(id) || segment->writes_in_flight > 0)) continue;
    STEPWELL_RETURN_IF_ERROR(segment->file->Sync());
    segment->dirty = false;
  }
  return OkStatus();
}

bool LogEnd::WorthRolling(uint64_t guard) const {
  uint64_t used = 0;
  for (const auto& [id, segment] : segments_) {
    if (id < guard) continue;
    const auto open = log_->open_segments().find(id);
    if (open != log_->open_segments().end()) {
      const uint64_t own = open->second->catalog.end_bytes;
      used += open->second->end_bytes - std::min(open->second->end_bytes, own);
    } else if (const auto info =
                   options_->environment.file_system->Stat(options_->files->PathOf(id));
               info.ok()) {
      used += info->allocated_bytes;
    }
  }
  const uint64_t live = options_->live->StoredBytesFrom(guard);
  return used >= live + std::min(kRollGainBytes, options_->segment_bytes_max / 4);
}

Result<bool> LogEnd::Roll(uint64_t guard) {
  if (!WorthRolling(guard)) return false;
  for (int i = 0; i < 2; ++i) {
    Status status = log_->StartNext();
    if (status.code() == StatusCode::kResourceExhausted) return false;  // then without
    STEPWELL_RETURN_IF_ERROR(status);
    Segment* segment = log_->current();
    STEPWELL_RETURN_IF_ERROR(segment->file->Sync());
    segment->dirty = false;
    NoteCatalog(*segment);
    if (!marks_->Update()) return marks_->NotWritten();
  }
  return true;
}

// Returns the lowest segment of the second-newest durable catalog and of the chain frames after it.
uint64_t LogEnd::GuardSegment() {
  const CatalogNote* catalog = catalogs_.second_newest();
  if (catalog == nullptr) return 0;
  while (!chain_.empty() && chain_.front().commit <= catalog->last_commit) chain_.pop_front();
  // The newest frame of a segment stands for all of its frames, which may be very many.
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

uint64_t LogEnd::newest_segment() const {
  return log_ == nullptr || log_->current() == nullptr ? 0 : log_->current()->id;
}

void LogEnd::SegmentGone(uint64_t segment) {
  STEPWELL_DCHECK(!log_->open_segments().contains(segment), "an open segment is gone");
  catalogs_.NoteSegment(segment);
  segments_.erase(segment);
}

ReclaimRequest LogEnd::NewReclaimRequest() {
  ReclaimRequest request;
  request.catalogs = catalogs_.Needed();
  request.published = marks_->durable_mark();
  request.old_tip = old_tip_;
  request.first_id = log_->first_id();
  request.spare_bytes_max = log_->spare_bytes_wanted();
  request.spares_max = log_->spares_wanted();
  request.unwanted_spares = log_->TakeExcessSpares();
  return request;
}

void LogEnd::FillQuery(SpaceQuery* query) const {
  const io::MutexLock lock(&ends_mutex_);
  query->open_ends = open_ends_;
  query->catalogs = catalog_ranges_;
}

}  // namespace stepwell::db
