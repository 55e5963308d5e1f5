// SPDX-License-Identifier: Apache-2.0
#include "db/log/segment_scan.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "db/layout.h"
#include "format/crc32c.h"
#include "io/buffer.h"

namespace stepwell::db {
namespace {

using format::FrameHeader;
using format::FrameKind;
using format::FramePlace;

// Frames start on this boundary at least.
constexpr uint64_t kScanStepBytes = 4096;
constexpr size_t kScanBufferBytes = size_t{1} << 20;
// Blocks may be larger than 4 KiB: where the second frame of a segment may begin, the last one.
constexpr uint64_t kBlockBytesMax = 16 * kScanStepBytes;

Result<format::SegmentHeader> HeaderOf(const Frame& frame) {
  if (frame.header.kind != FrameKind::kSegmentHeader) return NotFoundError("no segment header");
  STEPWELL_ASSIGN_OR_RETURN(const auto header, format::DecodeSegmentHeader(AsBytes(frame.payload)));
  if (header.nonce != frame.header.nonce) return DataLossError("a segment header of two nonces");
  return header;
}

using UnreadablePlaces = std::vector<UnreadablePlace>;

// Fills `buffer` from `base`; returns where the file ends in it. Blocks that the device cannot read
// become zeros, and are noted.
Result<size_t> ReadBlocks(io::File& file, uint64_t segment, uint64_t base, MutableBytes buffer,
                          UnreadablePlaces* unreadable) {
  auto read = ReadWhole(file, base, buffer);
  if (read.ok() || !IsUnreadable(read.status())) return read;
  std::fill(buffer.begin(), buffer.end(), std::byte{});
  size_t end = 0;
  for (size_t at = 0; at < buffer.size(); at += kScanStepBytes) {
    read = ReadWhole(file, base + at, buffer.subspan(at, kScanStepBytes));
    if (read.ok()) {
      end = at + *read;
      if (*read < kScanStepBytes) break;
      continue;
    }
    if (!IsUnreadable(read.status())) return read.status();
    end = at + kScanStepBytes;
    unreadable->push_back({segment, base + at, read.status()});
  }
  return end;
}

// Calls `visit` with (place, frame) for each valid frame on a block boundary; it returns false to
// end the walk. `wanted` sees the header first.
template <typename Wanted, typename Visit>
Status WalkFrames(io::File& file, uint64_t segment, uint64_t length_bytes,
                  UnreadablePlaces* unreadable, const Wanted& wanted, const Visit& visit) {
  io::AlignedBuffer buffer(kScanBufferBytes);
  if (!buffer) return ResourceExhaustedError("no memory to scan a segment");
  uint64_t skip_until = 0;
  for (uint64_t base = 0; base < length_bytes; base += kScanBufferBytes) {
    STEPWELL_ASSIGN_OR_RETURN(const size_t size,
                              ReadBlocks(file, segment, base, buffer.bytes(), unreadable));
    for (uint64_t i = 0; i + format::kFrameHeaderBytes <= size; i += kScanStepBytes) {
      if (base + i < skip_until) continue;
      const auto header = format::DecodeFrameHeader({buffer.data() + i, format::kFrameHeaderBytes});
      if (!header.ok() || !wanted(*header)) continue;
      FramePlace place;
      auto frame = ReadFrameAt(file, segment, base + i, &place);
      if (!frame.ok() && IsUnreadable(frame.status())) {
        unreadable->push_back({segment, base + i, frame.status()});
        continue;
      }
      if (!frame.ok() && !IsDamage(frame.status())) return frame.status();
      if (!frame.ok()) continue;  // torn, or damaged: its payload is not what was written
      skip_until = base + i + place.length_bytes;
      if (!visit(place, std::move(*frame))) return OkStatus();
    }
    if (size < kScanBufferBytes) break;
  }
  return OkStatus();
}

// A copy that cannot be read may be the one that is needed.
Status AddCopiesBehind(io::File& file, const SegmentInfo& info, const FramePlace& place,
                       SegmentScan* scan) {
  auto copies = ReadCopiesBehind(file, place, info.nonce);
  if (!copies.ok() && IsUnreadable(copies.status())) {
    scan->unreadable.push_back({info.segment, place.offset_bytes, copies.status()});
    return OkStatus();
  }
  STEPWELL_RETURN_IF_ERROR(copies.status());
  std::move(copies->begin(), copies->end(), std::back_inserter(scan->copies));
  return OkStatus();
}

// Unreadable counts as missing: the segment is then scanned, and says so.
Result<format::Footer> ReadFooter(const SegmentInfo& info, const format::Trailer& trailer,
                                  SegmentFiles& files) {
  if (trailer.footer.segment != info.segment) return DataLossError("another segment's footer");
  const auto frame = ReadOriginalFrame(files, trailer.footer, FrameKind::kFooter);
  if (frame.ok()) return format::DecodeFooter(AsBytes(frame->payload));
  if (IsUnreadable(frame.status())) return DataLossError(frame.status().message());
  return frame.status();
}

using format::FrameCopy;
using format::FramePlace;

// Bounds the copies behind one frame: the chain frames of a batch before it, a header and a
// catalog.
constexpr size_t kCopiesMax = 1024;
// A copy is written with the next flush, and so in the same segment or one of the next.
constexpr uint64_t kSegmentsAhead = 3;

// Appends the copies that are whole; returns where the last one ends, or the frame.
Result<uint64_t> WalkCopies(io::File& file, const FramePlace& place, const format::Id128& nonce,
                            std::vector<FrameCopy>* copies) {
  uint64_t end = place.offset_bytes + place.length_bytes;
  uint64_t at = AlignUp(end, format::kCopyAlignment);
  for (size_t count = 0; count < kCopiesMax; ++count) {
    auto head = ReadRange(file, at, format::kCopyHeaderBytes);
    if (!head.ok() && IsDamage(head.status())) break;  // the file ends
    STEPWELL_RETURN_IF_ERROR(head.status());
    const auto header = format::DecodeFrameCopyHeader(AsBytes(*head), nonce);
    if (!header.ok()) break;
    auto bytes = ReadRange(file, at + format::kCopyHeaderBytes, header->length_bytes);
    if (!bytes.ok() && !IsDamage(bytes.status())) return bytes.status();
    if (bytes.ok() && format::Crc32c(AsBytes(*bytes)) == header->crc) {
      copies->push_back({header->place, std::move(*bytes)});
    }
    at += format::FrameCopySpace(header->length_bytes);
    end = at;
  }
  return end;
}

}  // namespace

Result<format::SegmentHeader> ReadSegmentHeader(io::File& file, uint64_t segment,
                                                uint64_t length_bytes) {
  FramePlace place;
  const auto first = ReadFrameAt(file, segment, 0, &place);
  // A frame of another kind is not where it belongs.
  const bool misplaced = first.ok() && first->header.kind != FrameKind::kSegmentHeader;
  if (first.ok() && !misplaced) return HeaderOf(*first);
  if (!misplaced && !IsDamage(first.status()) && !IsUnreadable(first.status())) {
    return first.status();
  }
  if (!misplaced && first.status().code() == StatusCode::kNotFound &&
      length_bytes < kScanStepBytes) {
    return NotFoundError("no segment header");
  }
  // The first chain frame has a copy of it, and so has the footer. Without it none of the segment's
  // frames are found, so it counts as missing only if all could be read.
  Result<format::SegmentHeader> found = NotFoundError("no segment header");
  UnreadablePlaces unreadable;
  if (IsUnreadable(first.status())) found = first.status();
  STEPWELL_RETURN_IF_ERROR(WalkFrames(
      file, segment, length_bytes, &unreadable, [](const FrameHeader&) { return true; },
      [&](const FramePlace& at, const Frame& frame) {
        auto copies = ReadCopiesBehind(file, at, frame.header.nonce);
        if (!copies.ok()) {
          found = copies.status();
          return true;
        }
        for (const auto& copy : *copies) {
          if (copy.place.segment != segment || copy.place.offset_bytes != 0) continue;
          auto opened = format::OpenFrameCopy(copy);
          if (!opened.ok() || !opened->whole) continue;
          auto header = HeaderOf({opened->header, std::move(opened->payload)});
          if (!header.ok() || header->segment != segment) continue;
          if (header->nonce != frame.header.nonce) continue;
          found = std::move(header);
          return false;
        }
        return true;
      }));
  if (!found.ok() && !unreadable.empty()) return unreadable.front().status;
  return found;
}

Result<format::Trailer> ReadTrailer(const SegmentInfo& info, SegmentFiles& files) {
  if (info.length_bytes < 2 * kScanStepBytes || info.length_bytes % kScanStepBytes != 0) {
    return NotFoundError("no trailer");
  }
  STEPWELL_ASSIGN_OR_RETURN(const auto file, files.Get(info.segment));
  // The trailer is the last block; blocks may be larger than 4 KiB, so look back a little.
  for (uint64_t back = kScanStepBytes; back <= kBlockBytesMax && back < info.length_bytes;
       back *= 2) {
    FramePlace place;
    auto frame = ReadFrameAt(*file, info.segment, info.length_bytes - back, &place);
    if (!frame.ok() && !IsDamage(frame.status()) && !IsUnreadable(frame.status())) {
      return frame.status();
    }
    if (frame.ok() && frame->header.kind == FrameKind::kTrailer &&
        frame->header.nonce == info.nonce) {
      return format::DecodeTrailer(AsBytes(frame->payload));
    }
  }
  return NotFoundError("no trailer");
}

Result<FramePlace> FindCatalog(const SegmentInfo& info, SegmentFiles& files) {
  STEPWELL_ASSIGN_OR_RETURN(const auto file, files.Get(info.segment));
  const auto is_it = [&](const Frame& frame) {
    return frame.header.kind == FrameKind::kCatalog && frame.header.nonce == info.nonce;
  };
  Status missing;
  // Behind the header, which takes one block.
  for (uint64_t at = kScanStepBytes; at <= kBlockBytesMax; at *= 2) {
    FramePlace place;
    const auto frame = ReadFrameAt(*file, info.segment, at, &place);
    if (!frame.ok() && IsUnreadable(frame.status())) missing = frame.status();
    if (!frame.ok() && !IsDamage(frame.status()) && missing.ok()) return frame.status();
    if (frame.ok() && is_it(*frame)) return place;
  }
  STEPWELL_ASSIGN_OR_RETURN(const auto frames, ListFrames(files, info.segment));
  for (const FramePlace& one : frames.places) {
    const auto copies = ReadCopiesBehind(*file, one, frames.nonce);
    if (!copies.ok()) {
      missing = copies.status();
      continue;
    }
    for (const auto& copy : *copies) {
      if (copy.place.segment != info.segment) continue;
      auto opened = format::OpenFrameCopy(copy);
      if (!opened.ok() || !opened->whole) continue;
      Frame frame{opened->header, std::move(opened->payload)};
      if (!is_it(frame)) continue;
      files.Remember(copy.place, std::move(frame));
      return copy.place;
    }
  }
  STEPWELL_RETURN_IF_ERROR(missing);
  return NotFoundError(StrCat(file->path(), ": the segment's catalog is damaged"));
}

Status ScanSegment(const SegmentInfo& info, SegmentFiles& files, SegmentScan* scan) {
  STEPWELL_ASSIGN_OR_RETURN(const auto file, files.Get(info.segment));
  Status status;
  STEPWELL_RETURN_IF_ERROR(WalkFrames(
      *file, info.segment, info.length_bytes, &scan->unreadable,
      [&](const FrameHeader& header) { return header.nonce == info.nonce; },
      [&](const FramePlace& place, Frame frame) {
        const bool in_chain = format::IsChainFrame(frame.header.kind);
        if (frame.header.kind == FrameKind::kFooter || in_chain) {
          status = AddCopiesBehind(*file, info, place, scan);
        }
        if (in_chain) scan->frames.push_back({std::move(frame), place});
        return status.ok();
      }));
  return status;
}

Status ReadSealed(const SegmentInfo& info, uint64_t after_commit, SegmentFiles& files,
                  SegmentScan* scan) {
  STEPWELL_ASSIGN_OR_RETURN(const auto trailer, ReadTrailer(info, files));
  STEPWELL_ASSIGN_OR_RETURN(const auto file, files.Get(info.segment));
  // A copy of the last frame before may lie here although nothing newer does.
  STEPWELL_RETURN_IF_ERROR(AddCopiesBehind(*file, info, trailer.footer, scan));
  if (trailer.commit_max <= after_commit) return OkStatus();
  STEPWELL_ASSIGN_OR_RETURN(const auto footer, ReadFooter(info, trailer, files));
  std::set<uint64_t> seen;
  for (const auto& entry : footer.frames) {
    if (!format::IsChainFrame(static_cast<FrameKind>(entry.kind))) continue;
    if (entry.commit <= after_commit) continue;
    // Each of its own frames once: what is taken into memory stays within the segment's length.
    if (entry.place.segment != info.segment || !seen.insert(entry.place.offset_bytes).second) {
      continue;
    }
    STEPWELL_RETURN_IF_ERROR(AddCopiesBehind(*file, info, entry.place, scan));
    auto frame = ReadOriginalFrame(files, entry.place, static_cast<FrameKind>(entry.kind));
    if (!frame.ok() && IsUnreadable(frame.status())) {
      scan->unreadable.push_back({info.segment, entry.place.offset_bytes, frame.status()});
      continue;
    }
    if (!frame.ok() && !IsDamage(frame.status())) return frame.status();
    if (!frame.ok()) continue;  // its copy, or the gap in the chain, will show
    scan->frames.push_back({std::move(*frame), entry.place});
  }
  return OkStatus();
}

Result<SegmentFrames> ListFrames(SegmentFiles& files, uint64_t segment) {
  STEPWELL_ASSIGN_OR_RETURN(const auto file, files.Get(segment));
  STEPWELL_ASSIGN_OR_RETURN(const auto file_info, file->Info());
  if (file_info.is_directory) return NotFoundError(file->path() + ": not a segment");
  STEPWELL_ASSIGN_OR_RETURN(const auto header,
                            ReadSegmentHeader(*file, segment, file_info.size_bytes));
  if (header.segment != segment) return NotFoundError(file->path() + ": not this segment");
  const SegmentInfo info{
      .segment = segment, .nonce = header.nonce, .length_bytes = file_info.size_bytes};
  SegmentFrames frames;
  frames.nonce = header.nonce;
  const auto trailer = ReadTrailer(info, files);
  if (!trailer.ok() && !IsDamage(trailer.status())) return trailer.status();
  if (trailer.ok()) {
    const auto footer = ReadFooter(info, *trailer, files);
    if (!footer.ok() && !IsDamage(footer.status())) return footer.status();
    if (footer.ok()) {
      for (const auto& entry : footer->frames) {
        if (format::IsChainFrame(static_cast<FrameKind>(entry.kind))) {
          frames.places.push_back(entry.place);
        }
      }
      frames.places.push_back(trailer->footer);
      return frames;
    }
  }
  UnreadablePlaces unreadable;
  STEPWELL_RETURN_IF_ERROR(WalkFrames(
      *file, segment, info.length_bytes, &unreadable,
      [&](const FrameHeader& one) { return one.nonce == header.nonce; },
      [&](const FramePlace& place, const Frame& frame) {
        if (frame.header.kind == FrameKind::kFooter || format::IsChainFrame(frame.header.kind)) {
          frames.places.push_back(place);
        }
        return true;
      }));
  return frames;
}

Result<std::vector<uint64_t>> SegmentIds(io::FileSystem* file_system,
                                         const std::string& store_path) {
  STEPWELL_ASSIGN_OR_RETURN(const auto names, file_system->List(SegmentsPath(store_path)));
  std::vector<uint64_t> ids;
  for (const std::string& name : names) {
    if (const auto id = ParseSegmentName(name)) ids.push_back(*id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

Result<std::vector<SegmentInfo>> ListSegments(io::FileSystem* file_system,
                                              const std::string& store_path,
                                              const format::StoreSlot& slot, SegmentFiles& files) {
  STEPWELL_ASSIGN_OR_RETURN(const auto ids, SegmentIds(file_system, store_path));
  std::vector<SegmentInfo> segments;
  for (const uint64_t id : ids) {
    SegmentInfo& info = segments.emplace_back();
    info.segment = id;
    STEPWELL_ASSIGN_OR_RETURN(const auto file, files.Get(id));
    STEPWELL_ASSIGN_OR_RETURN(const auto file_info, file->Info());
    info.foreign = file_info.is_directory;
    if (info.foreign) continue;
    info.length_bytes = file_info.size_bytes;
    const auto header = ReadSegmentHeader(*file, id, info.length_bytes);
    if (!header.ok() && !IsDamage(header.status())) return header.status();
    if (!header.ok()) continue;
    info.foreign = header->store_id != slot.store_id;
    info.header_ok = !info.foreign && header->segment == id;
    info.nonce = header->nonce;
    if (!info.header_ok) continue;
    const auto trailer = ReadTrailer(info, files);
    if (!trailer.ok() && !IsDamage(trailer.status())) return trailer.status();
    info.sealed = trailer.ok();
  }
  return segments;
}

Result<SegmentEdges> ReadSegmentEdges(SegmentFiles& files, uint64_t segment) {
  STEPWELL_ASSIGN_OR_RETURN(const auto file, files.Get(segment));
  STEPWELL_ASSIGN_OR_RETURN(const auto file_info, file->Info());
  SegmentEdges edges;
  edges.size_bytes = file_info.size_bytes;
  FramePlace place;
  const auto none = [&] { return NotFoundError(file->path() + ": no header of this segment"); };
  if (file_info.is_directory) return none();
  const auto frame = ReadFrameAt(*file, segment, 0, &place);
  if (!frame.ok()) {
    if (IsDamage(frame.status())) return none();
    return frame.status();
  }
  if (frame->header.kind != FrameKind::kSegmentHeader) return none();
  const auto header = format::DecodeSegmentHeader(AsBytes(frame->payload));
  if (!header.ok() || header->nonce != frame->header.nonce) return none();
  edges.header = *header;
  if (header->segment != segment) return edges;
  edges.catalog_end_bytes = place.length_bytes;
  for (uint64_t at = AlignUp(place.length_bytes, kScanStepBytes); at <= kBlockBytesMax; at *= 2) {
    const auto catalog = ReadFrameAt(*file, segment, at, &place);
    if (!catalog.ok() && !IsDamage(catalog.status())) return catalog.status();
    if (!catalog.ok() || catalog->header.kind != FrameKind::kCatalog ||
        catalog->header.nonce != header->nonce) {
      continue;
    }
    edges.catalog_end_bytes = at + place.length_bytes;
    break;
  }
  const SegmentInfo info{
      .segment = segment, .nonce = header->nonce, .length_bytes = edges.size_bytes};
  const auto trailer = ReadTrailer(info, files);
  if (!trailer.ok() && !IsDamage(trailer.status())) return trailer.status();
  if (trailer.ok()) {
    edges.footer_offset_bytes = trailer->footer.offset_bytes;
    edges.commit_min = trailer->commit_min;
  }
  return edges;
}

Result<std::vector<FrameCopy>> ReadCopiesBehind(io::File& file, const FramePlace& place,
                                                const format::Id128& nonce) {
  std::vector<FrameCopy> copies;
  STEPWELL_RETURN_IF_ERROR(WalkCopies(file, place, nonce, &copies).status());
  return copies;
}

Result<uint64_t> EndOfCopies(SegmentFiles& files, const FramePlace& place,
                             const format::Id128& nonce) {
  STEPWELL_ASSIGN_OR_RETURN(const auto file, files.Get(place.segment));
  std::vector<FrameCopy> copies;
  return WalkCopies(*file, place, nonce, &copies);
}

Result<Frame> FindFrameCopy(SegmentFiles& files, const FramePlace& place) {
  Status status = NotFoundError("no copy of the frame");
  const auto whole = [&](const std::vector<FrameCopy>& copies) -> std::optional<Frame> {
    for (const FrameCopy& copy : copies) {
      if (copy.place != place || !copy.whole()) continue;
      auto opened = format::OpenFrameCopy(copy);
      if (opened.ok()) return Frame{opened->header, std::move(opened->payload)};
    }
    return std::nullopt;
  };
  // A frame of records has it right behind itself.
  if (const auto file = files.Get(place.segment); file.ok()) {
    const auto info = (*file)->Info();
    const auto header = info.ok() ? ReadSegmentHeader(**file, place.segment, info->size_bytes)
                                  : Result<format::SegmentHeader>(info.status());
    const auto own = header.ok() ? ReadCopiesBehind(**file, place, header->nonce)
                                 : Result<std::vector<FrameCopy>>(header.status());
    if (own.ok()) {
      if (auto frame = whole(*own)) return *std::move(frame);
    }
  }
  for (uint64_t segment = place.segment; segment <= place.segment + kSegmentsAhead; ++segment) {
    auto frames = ListFrames(files, segment);
    if (!frames.ok()) {
      if (!IsDamage(frames.status())) status = frames.status();
      continue;
    }
    const auto file = files.Get(segment);
    if (!file.ok()) continue;
    for (const FramePlace& one : frames->places) {
      auto copies = ReadCopiesBehind(**file, one, frames->nonce);
      if (!copies.ok()) {
        status = copies.status();
        continue;
      }
      if (auto frame = whole(*copies)) return *std::move(frame);
    }
  }
  return status;
}

}  // namespace stepwell::db
