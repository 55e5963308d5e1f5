// SPDX-License-Identifier: Apache-2.0
#include "db/log/log_writer.h"

#include <algorithm>
#include <cstring>

#include "db/layout.h"
#include "db/log/segment_files.h"
#include "io/buffer.h"
#include "io/invariant.h"

namespace stepwell::db {
namespace {

using format::FrameHeader;
using format::FrameKind;
using format::FramePlace;

// Small states get small segments, so that retention gives space back soon: a segment holds about
// four steps.
constexpr uint64_t kStepsPerSegment = 4;
constexpr uint64_t kSegmentBytesMin = uint64_t{16} << 20;
constexpr size_t kSparesMax = 4;
// Space is reserved a step at a time, and of small steps as much as the session has written, so
// that a small store stays small; and in one piece: fallocate waits for the direct writes in flight
// to the file (measured: 2 to 26 ms on ext4).
constexpr uint64_t kReserveBytesMax = uint64_t{256} << 20;
constexpr uint64_t kReserveBytesMin = uint64_t{64} << 10;
constexpr uint64_t kReserveOfSmallSteps = uint64_t{1} << 20;
constexpr uint64_t kFooterShareOfFile = 16;
constexpr uint64_t kReservedBlocks = 2;  // for the frame of a delete on a full disk

Status WriteAligned(io::File& file, uint64_t offset, const std::string& bytes) {
  io::AlignedBuffer buffer(bytes.size());
  if (!buffer) return ResourceExhaustedError("no memory for a frame");
  std::memcpy(buffer.data(), bytes.data(), bytes.size());
  return file.WriteAt(offset, ConstBytes(buffer.data(), bytes.size()));
}

void PutCopy(const format::FrameCopy& copy, const format::Id128& nonce, std::string* run) {
  run->resize(AlignUp(run->size(), format::kCopyAlignment));
  const size_t at = run->size();
  run->resize(at + format::FrameCopySpace(copy.bytes.size()));
  format::EncodeFrameCopy(
      copy, nonce,
      MutableBytes(reinterpret_cast<std::byte*>(run->data()), run->size()).subspan(at));
}

size_t BlockBytesOf(const io::File& file, const io::FileInfo& info) {
  return std::max<size_t>(
      {4096, info.block_bytes > (1U << 16) ? 0U : info.block_bytes, file.alignment().offset_bytes});
}

// Footer, with copies behind it, and trailer at `end_bytes`; the file then ends with the trailer's
// block.
Status WriteSeal(io::File& file, uint64_t segment, const format::Id128& nonce, uint64_t epoch,
                 uint64_t end_bytes, size_t block_bytes,
                 const std::vector<format::FooterEntry>& frames,
                 const std::vector<format::FrameCopy>& copies) {
  format::Trailer trailer;
  for (const auto& entry : frames) {
    if (!format::IsChainFrame(static_cast<FrameKind>(entry.kind))) continue;
    trailer.commit_min =
        trailer.commit_min == 0 ? entry.commit : std::min(trailer.commit_min, entry.commit);
    trailer.commit_max = std::max(trailer.commit_max, entry.commit);
  }
  FrameHeader header;
  header.nonce = nonce;
  header.epoch = epoch;
  header.commit = trailer.commit_max;
  header.kind = FrameKind::kFooter;
  const std::string payload = format::EncodeFooter({frames});
  std::string seal = format::EncodeFrame(header, payload, /*block_bytes=*/1, &trailer.footer.crc);
  for (const format::FrameCopy& copy : copies) PutCopy(copy, nonce, &seal);
  seal.resize(AlignUp(seal.size(), block_bytes));
  trailer.footer.segment = segment;
  trailer.footer.offset_bytes = end_bytes;
  trailer.footer.length_bytes = static_cast<uint32_t>(format::kFrameHeaderBytes + payload.size());
  header.kind = FrameKind::kTrailer;
  seal += format::EncodeFrame(header, format::EncodeTrailer(trailer), block_bytes, nullptr);
  // First what was reserved and not used goes back: on a full disk the seal needs it.
  STEPWELL_RETURN_IF_ERROR(file.Truncate(end_bytes));
  STEPWELL_RETURN_IF_ERROR(WriteAligned(file, end_bytes, seal));
  return file.Truncate(end_bytes + seal.size());
}

}  // namespace

Status CheckFrameSize(std::string_view payload) {
  if (payload.size() <= format::kFramePayloadBytesMax) return OkStatus();
  return InvalidArgumentError(StrCat("a record of ", payload.size(), " bytes; the limit is ",
                                     format::kFramePayloadBytesMax));
}

format::SegmentHeader NewSegmentHeader(const Environment& environment,
                                       const format::StoreSlot& slot, uint64_t segment) {
  format::SegmentHeader header;
  header.store_id = slot.store_id;
  header.segment = segment;
  header.nonce = RandomId(environment.random);
  header.created_ns = environment.clock->WallNanos();
  header.group_id = slot.group_id;
  header.part = slot.part;
  return header;
}

Status LogWriter::Start() {
  first_id_ = next_id_;
  return Roll(0);
}

Result<LogWriter::Placement> LogWriter::Place(uint64_t length_bytes, uint64_t step_bytes,
                                              bool may_use_reserve) {
  auto placement = PlaceOnce(length_bytes, step_bytes, may_use_reserve);
  if (placement.status().code() == StatusCode::kResourceExhausted && DropSpares()) {
    placement = PlaceOnce(length_bytes, step_bytes, may_use_reserve);
  }
  return placement;
}

Result<LogWriter::Placement> LogWriter::PlaceOnce(uint64_t length_bytes, uint64_t step_bytes,
                                                  bool may_use_reserve) {
  // A segment that has nothing but its catalog takes whatever comes, else none would; one with a
  // large catalog has room for half of a segment of steps all the same.
  const uint64_t begin = current_->catalog.end_bytes;
  // The process may not write files as large as that: the rest is for the footer.
  const uint64_t file_bytes_max = AlignDown(io::FileBytesMax(), block_bytes_);
  const uint64_t full = std::min(std::max(target_bytes_, begin + target_bytes_ / 2),
                                 file_bytes_max - file_bytes_max / kFooterShareOfFile);
  if (current_->end_bytes > std::max<uint64_t>(4 * block_bytes_, begin) &&
      current_->end_bytes + length_bytes > full) {
    // A disk without room for another segment may have room for a frame in this one.
    const Status status = Roll(step_bytes);
    if (!status.ok() && status.code() != StatusCode::kResourceExhausted) return status;
  }
  Segment* segment = current_;
  const uint64_t end = segment->end_bytes + length_bytes;
  if (end > file_bytes_max) {
    return ResourceExhaustedError(StrCat("this process may write files of ", io::FileBytesMax(),
                                         " bytes (RLIMIT_FSIZE, ulimit -f); ",
                                         segment->file->path(), " needs ", end,
                                         " bytes to take this step"));
  }
  const uint64_t needed =
      std::min(may_use_reserve ? end : end + kReservedBlocks * block_bytes_, file_bytes_max);
  if (needed > segment->allocated_bytes) {
    const uint64_t least = std::clamp(placed_bytes_, kReserveBytesMin, kReserveOfSmallSteps);
    const uint64_t ahead = std::clamp(AlignUp(step_bytes, block_bytes_), least, kReserveBytesMax);
    uint64_t wanted = std::max(needed, std::min(full, segment->end_bytes + ahead));
    wanted = std::min(AlignUp(wanted, block_bytes_), file_bytes_max);
    Status status =
        segment->file->Allocate(segment->allocated_bytes, wanted - segment->allocated_bytes);
    if (status.code() == StatusCode::kResourceExhausted && wanted > needed) {
      wanted = AlignUp(needed, block_bytes_);
      status = segment->file->Allocate(segment->allocated_bytes, wanted - segment->allocated_bytes);
    }
    STEPWELL_RETURN_IF_ERROR(status);
    segment->allocated_bytes = wanted;
  }
  STEPWELL_DCHECK(end <= segment->allocated_bytes, "placed beyond what is reserved");
  STEPWELL_DCHECK(segment->end_bytes % block_bytes_ == 0 && length_bytes % block_bytes_ == 0,
                  "placed across blocks");
  Placement placement{segment, segment->end_bytes};
  segment->end_bytes = end;
  placed_bytes_ += length_bytes;
  return placement;
}

Status LogWriter::Roll(uint64_t step_bytes) {
  auto segment = std::make_unique<Segment>();
  segment->id = next_id_;
  const format::SegmentHeader header =
      NewSegmentHeader(options_.environment, options_.slot, segment->id);
  segment->nonce = header.nonce;
  const std::string path = SegmentPath(options_.store_path, segment->id);
  const uint64_t target = TargetBytes(step_bytes);
  // The next try takes another name: this one's file may stay.
  const auto give_up = [&](const Status& status) {
    segment->file.reset();
    options_.environment.file_system->Remove(path).IgnoreError(
        "best effort: an empty segment is harmless");
    ++next_id_;
    return status;
  };
  if (const Status opened = OpenFile(segment.get(), path, target); !opened.ok()) {
    if (opened.code() == StatusCode::kAlreadyExists) ++next_id_;  // not ours to remove
    return opened;
  }
  const Result<io::FileInfo> info_or = segment->file->Info();
  if (!info_or.ok()) return give_up(info_or.status());
  const io::FileInfo& info = *info_or;
  block_bytes_ = BlockBytesOf(*segment->file, info);
  // The blocks of a recycled file are there and were written before: nothing to reserve.
  if (info.allocated_bytes >= info.size_bytes) {
    segment->allocated_bytes = AlignDown(info.size_bytes, block_bytes_);
  }
  FramePlace header_place;
  Status status = WriteFrameNow(segment.get(), FrameKind::kSegmentHeader, 0,
                                format::EncodeSegmentHeader(header), &header_place);
  if (status.ok()) {
    status = WriteCatalog(segment.get(), /*short_of_space=*/false);
    // A full disk need not have room for all that is live to take a delete.
    if (status.code() == StatusCode::kResourceExhausted) {
      status = WriteCatalog(segment.get(), /*short_of_space=*/true);
    }
  }
  if (status.ok()) {
    status = options_.environment.file_system->SyncDirectory(SegmentsPath(options_.store_path));
    // Without a descriptor for the directory, or room in it, nothing was synced, and nothing
    // failed.
    if (!status.ok() && !LacksResources(status) &&
        status.code() != StatusCode::kResourceExhausted) {
      options_.freeze->Trip(status);
    }
  }
  // Nothing was acknowledged in it; on a full disk this gives the blocks back.
  if (!status.ok()) return give_up(status);
  ++next_id_;
  segment->dirty = true;
  // Those of earlier segments are behind their footers.
  std::erase_if(copies_, [](const WaitingCopy& waiting) { return waiting.start; });
  // Pages have theirs behind the footer alone.
  for (const format::FrameCopy& copy : segment->start_copies) {
    const bool is_root = copy.place == segment->catalog.place;
    if (is_root || copy.place.offset_bytes == 0) copies_.push_back({copy, true});
  }
  if (options_.disk != nullptr) options_.disk->RegisterFile(segment->file.get());
  if (current_ != nullptr) current_->current = false;
  current_ = segment.get();
  target_bytes_ = target;
  step_bytes_ = step_bytes;
  segments_[segment->id] = std::move(segment);
  return OkStatus();
}

uint64_t LogWriter::TargetBytes(uint64_t step_bytes) const {
  return std::clamp(kStepsPerSegment * step_bytes,
                    std::min(kSegmentBytesMin, options_.segment_bytes_max),
                    options_.segment_bytes_max);
}

Status LogWriter::OpenFile(Segment* segment, const std::string& path, uint64_t target_bytes) {
  STEPWELL_ASSIGN_OR_RETURN(const bool recycled, OpenSpare(segment, path, target_bytes));
  if (recycled) return OkStatus();
  STEPWELL_ASSIGN_OR_RETURN(
      segment->file, options_.environment.file_system->Open(path, {.write = true,
                                                                   .create = true,
                                                                   .exclusive = true,
                                                                   .direct = true,
                                                                   .freeze = options_.freeze}));
  return OkStatus();
}

// From the rename on the file is an empty segment: what it holds has other nonces, its first frame
// another number. The directory is synced with the new header, before anything is acknowledged.
Result<bool> LogWriter::OpenSpare(Segment* segment, const std::string& path,
                                  uint64_t target_bytes) {
  // A much larger one would be cut to size at its seal.
  const auto fits = std::find_if(spares_.begin(), spares_.end(), [&](const Spare& spare) {
    return spare.bytes <= 2 * target_bytes;
  });
  if (fits == spares_.end()) return false;
  const Spare spare = std::move(*fits);
  spares_.erase(fits);
  STEPWELL_RETURN_IF_ERROR(options_.freeze->Check());
  const auto info = options_.environment.file_system->Stat(spare.path);
  if (!info.ok()) return false;
  if (info->link_count != 1) {
    options_.environment.file_system->Remove(spare.path).IgnoreError("the next open tries again");
    return false;
  }
  STEPWELL_RETURN_IF_ERROR(options_.environment.file_system->Rename(spare.path, path));
  auto file = options_.environment.file_system->Open(
      path, {.write = true, .direct = true, .freeze = options_.freeze});
  if (!file.ok()) {
    options_.environment.file_system->Remove(path).IgnoreError("best effort: it holds nothing");
    if (file.status().code() == StatusCode::kPermissionDenied) return false;
    return file.status();
  }
  segment->file = std::move(*file);
  return true;
}

void LogWriter::FindSpares() {
  const auto names = options_.environment.file_system->List(SegmentsPath(options_.store_path));
  if (!names.ok()) return;
  uint64_t bytes = 0;
  for (const std::string& name : *names) {
    if (!IsSpareName(name)) continue;
    const std::string path = SegmentsPath(options_.store_path) + "/" + name;
    const auto info = options_.environment.file_system->Stat(path);
    if (!info.ok() || info->is_directory) continue;
    bytes += info->size_bytes;
    if (info->link_count == 1 && info->size_bytes > 0 && spares_.size() < kSparesMax &&
        info->allocated_bytes >= info->size_bytes && bytes <= 2 * options_.segment_bytes_max) {
      spares_.push_back({path, info->size_bytes});
    } else {
      options_.environment.file_system->Remove(path).IgnoreError("the next open tries again");
    }
  }
}

uint64_t LogWriter::spare_bytes_wanted() const {
  uint64_t bytes = 0;
  for (const Spare& spare : spares_) bytes += spare.bytes;
  // The seal of a full segment goes a little beyond its target.
  const uint64_t wanted = 2 * target_bytes_ + target_bytes_ / 2;
  return spares_.size() < kSparesMax && bytes < wanted ? wanted - bytes : 0;
}

size_t LogWriter::spares_wanted() const {
  return kSparesMax - std::min(kSparesMax, spares_.size());
}

std::vector<std::string> LogWriter::TakeExcessSpares() {
  std::vector<std::string> excess;
  uint64_t bytes = 0;
  for (const Spare& spare : spares_) bytes += spare.bytes;
  // After states became much smaller.
  while (step_bytes_ > 0 && bytes > 4 * target_bytes_) {
    bytes -= spares_.front().bytes;
    excess.push_back(std::move(spares_.front().path));
    spares_.erase(spares_.begin());
  }
  return excess;
}

bool LogWriter::DropSpares() {
  if (spares_.empty() || options_.freeze->frozen()) return false;
  for (const Spare& spare : spares_) {
    options_.environment.file_system->Remove(spare.path).IgnoreError("the next open tries again");
  }
  spares_.clear();
  return true;
}

Status LogWriter::WriteFrameNow(Segment* segment, FrameKind kind, uint64_t offset_bytes,
                                const std::string& payload, FramePlace* place) {
  STEPWELL_RETURN_IF_ERROR(CheckFrameSize(payload));
  FrameHeader header;
  header.kind = kind;
  header.nonce = segment->nonce;
  header.epoch = epoch_;
  const std::string bytes = format::EncodeFrame(header, payload, block_bytes_, &place->crc);
  place->segment = segment->id;
  place->offset_bytes = offset_bytes;
  place->length_bytes = static_cast<uint32_t>(format::kFrameHeaderBytes + payload.size());
  const uint64_t end = offset_bytes + bytes.size();
  if (end > segment->allocated_bytes) {
    STEPWELL_RETURN_IF_ERROR(
        segment->file->Allocate(segment->allocated_bytes, end - segment->allocated_bytes));
    segment->allocated_bytes = end;
  }
  STEPWELL_RETURN_IF_ERROR(WriteAligned(*segment->file, offset_bytes, bytes));
  segment->frames.push_back({static_cast<uint16_t>(kind), 0, *place});
  segment->end_bytes = std::max(segment->end_bytes, end);
  if (place->length_bytes <= format::kCopyBytesMax) {
    segment->start_copies.push_back({*place, bytes.substr(0, place->length_bytes)});
  }
  return OkStatus();
}

// The root lies before its pages, since recovery looks for it there, and is written after them,
// since it names them.
Status LogWriter::WriteCatalog(Segment* segment, bool short_of_space) {
  STEPWELL_ASSIGN_OR_RETURN(CatalogPayload catalog,
                            options_.make_catalog(block_bytes_, short_of_space));
  const uint64_t begin = segment->frames.front().place.offset_bytes + block_bytes_;
  segment->frames.resize(1);  // an earlier attempt's
  segment->start_copies.resize(1);
  segment->end_bytes = begin;
  uint64_t at =
      begin +
      AlignUp(format::kFrameHeaderBytes + format::EncodeCatalog(catalog.root).size(), block_bytes_);
  for (size_t i = 0; i < catalog.pages.size(); ++i) {
    STEPWELL_RETURN_IF_ERROR(WriteFrameNow(segment, FrameKind::kCatalogPage, at, catalog.pages[i],
                                           &catalog.root.pages[i]));
    at = segment->end_bytes;
  }
  CatalogNote& note = segment->catalog;
  STEPWELL_RETURN_IF_ERROR(WriteFrameNow(segment, FrameKind::kCatalog, begin,
                                         format::EncodeCatalog(catalog.root), &note.place));
  // A footer lists frames in the order of their offsets.
  std::sort(segment->frames.begin(), segment->frames.end(), [](const auto& a, const auto& b) {
    return a.place.offset_bytes < b.place.offset_bytes;
  });
  note.last_commit = catalog.root.last_commit;
  note.first_segment = catalog.first_segment == 0 ? segment->id : catalog.first_segment;
  note.end_bytes = segment->end_bytes;
  note.bytes = segment->end_bytes - begin;
  note.clock = catalog.clock;
  return OkStatus();
}

void LogWriter::AddCopy(format::FrameCopy copy) {
  if (!copy.bytes.empty()) copies_.push_back({std::move(copy), false});
}

size_t LogWriter::CopySpace(size_t frame_bytes) const {
  size_t space = AlignUp(frame_bytes, format::kCopyAlignment) - frame_bytes;
  for (const WaitingCopy& waiting : copies_) {
    space += format::FrameCopySpace(waiting.copy.bytes.size());
  }
  return copies_.empty() ? 0 : space;
}

void LogWriter::PutCopies(const format::Id128& nonce, size_t frame_bytes, MutableBytes run) {
  size_t at = AlignUp(frame_bytes, format::kCopyAlignment);
  size_t done = 0;
  for (; done < copies_.size(); ++done) {
    const format::FrameCopy& copy = copies_[done].copy;
    const size_t space = format::FrameCopySpace(copy.bytes.size());
    if (at + space > run.size()) break;
    format::EncodeFrameCopy(copy, nonce, run.subspan(at, space));
    at += space;
  }
  copies_.erase(copies_.begin(), copies_.begin() + static_cast<ptrdiff_t>(done));
}

Status LogWriter::Seal(Segment* segment, bool last) {
  STEPWELL_DCHECK(segment->writes_in_flight == 0 && !segment->dirty,
                  "a segment is sealed over what is not durable");
  if (options_.disk != nullptr) options_.disk->UnregisterFile(segment->file.get());
  // A copy of the store has it, too, and may have gone on with it. Unsealed, it is scanned.
  const auto info = segment->file->Info();
  if (!info.ok() || info->link_count > 1) return OkStatus();
  std::vector<format::FrameCopy> copies = segment->start_copies;
  for (const WaitingCopy& waiting : copies_) {
    if (last && !waiting.start) copies.push_back(waiting.copy);
  }
  return WriteSeal(*segment->file, segment->id, segment->nonce, epoch_, segment->end_bytes,
                   block_bytes_, segment->frames, copies);
}

Status LogWriter::SealIdle(bool all) {
  for (auto it = segments_.begin(); it != segments_.end();) {
    Segment* segment = it->second.get();
    if ((segment->current && !all) || segment->writes_in_flight > 0 || segment->dirty) {
      ++it;
      continue;
    }
    const Status status = Seal(segment, /*last=*/all);
    // A full disk may refuse the seal: the segment is then scanned when it matters.
    if (!status.ok() && status.code() != StatusCode::kResourceExhausted) return status;
    if (segment == current_) current_ = nullptr;
    it = segments_.erase(it);
  }
  return OkStatus();
}

Status RewriteHeader(io::FileSystem* file_system, const std::string& store_path,
                     const format::SegmentHeader& header, uint64_t epoch,
                     std::shared_ptr<io::Freeze> freeze) {
  STEPWELL_ASSIGN_OR_RETURN(const auto file,
                            file_system->Open(SegmentPath(store_path, header.segment),
                                              {.write = true, .freeze = std::move(freeze)}));
  FrameHeader frame;
  frame.kind = FrameKind::kSegmentHeader;
  frame.nonce = header.nonce;
  frame.epoch = epoch;
  // The frame and nothing behind it: the block size of the time when the file was made is not
  // known.
  const std::string bytes =
      format::EncodeFrame(frame, format::EncodeSegmentHeader(header), /*block_bytes=*/1, nullptr);
  STEPWELL_RETURN_IF_ERROR(file->WriteAt(0, AsBytes(bytes)));
  return file->Sync();
}

Status SealAbandoned(io::FileSystem* file_system, const std::string& store_path, uint64_t segment,
                     const format::Id128& nonce, uint64_t epoch, uint64_t end_bytes, bool keep_tail,
                     std::shared_ptr<io::Freeze> freeze,
                     const std::vector<format::FooterEntry>& frames) {
  STEPWELL_ASSIGN_OR_RETURN(
      const auto file,
      file_system->Open(SegmentPath(store_path, segment),
                        {.write = true, .direct = true, .freeze = std::move(freeze)}));
  STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo info, file->Info());
  const size_t block = BlockBytesOf(*file, info);
  uint64_t end = AlignUp(keep_tail ? std::max(end_bytes, info.size_bytes) : end_bytes, block);
  if (!keep_tail && end < info.size_bytes) STEPWELL_RETURN_IF_ERROR(file->Truncate(end));
  return WriteSeal(*file, segment, nonce, epoch, end, block, frames, {});
}

}  // namespace stepwell::db
