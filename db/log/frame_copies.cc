// SPDX-License-Identifier: Apache-2.0
#include "db/log/frame_copies.h"

#include <algorithm>
#include <utility>

#include "format/crc32c.h"

namespace stepwell::db {
namespace {

using format::FrameCopy;
using format::FramePlace;

// What lies behind one frame: the chain frames of a batch before it, a header and a catalog.
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
      for (const FrameCopy& copy : *copies) {
        if (copy.place != place || !copy.whole()) continue;
        auto opened = format::OpenFrameCopy(copy);
        if (opened.ok()) return Frame{opened->header, std::move(opened->payload)};
      }
    }
  }
  return status;
}

}  // namespace stepwell::db
