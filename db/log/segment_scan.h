// SPDX-License-Identifier: Apache-2.0
// Reads the contents of one segment from its own bytes: header, catalog, seal, frames.
//
// Every function tells damage (bytes that were read and are wrong, IsDamage) from what could not be
// read: the first is part of the answer; the second is returned as an error, or where the answer
// has a place for it, as that.
#pragma once

#include <cstdint>
#include <vector>

#include "db/log/segment_files.h"
#include "format/frame.h"
#include "format/records.h"

namespace stepwell::db {

struct SegmentInfo {
  uint64_t segment = 0;
  format::Id128 nonce{};
  bool header_ok = false;
  bool sealed = false;
  bool foreign = false;       // belongs to another store: left alone
  uint64_t length_bytes = 0;  // of the file
};

// The ids of the directory's segments, ascending.
Result<std::vector<uint64_t>> SegmentIds(io::FileSystem* file_system,
                                         const std::string& store_path);
// Segments of the directory with their headers and seals, ascending. A damaged header is taken from
// its copy.
Result<std::vector<SegmentInfo>> ListSegments(io::FileSystem* file_system,
                                              const std::string& store_path,
                                              const format::StoreSlot& slot, SegmentFiles& files);

// A segment's header, or the copy of it. One that names another segment is of an earlier life of
// the file, or of another store. kNotFound: there is none.
Result<format::SegmentHeader> ReadSegmentHeader(io::File& file, uint64_t segment,
                                                uint64_t length_bytes);

// kNotFound: the segment is not sealed (or its trailer is damaged).
Result<format::Trailer> ReadTrailer(const SegmentInfo& info, SegmentFiles& files);
// Finds the root of the segment's catalog. If it is damaged, the files remember the copy.
// kNotFound: there is neither.
Result<format::FramePlace> FindCatalog(const SegmentInfo& info, SegmentFiles& files);

// A chain frame, from its place or from a copy.
struct FoundFrame {
  Frame frame;
  format::FramePlace place;
  bool copied = false;
  bool whole = true;  // else a brief: what it did to the live set, not the step's records
};
// A place that the device cannot read: it may have held a frame.
struct UnreadablePlace {
  uint64_t segment = 0;
  uint64_t offset_bytes = 0;
  Status status;
};
struct SegmentScan {
  std::vector<FoundFrame> frames;
  std::vector<format::FrameCopy> copies;
  std::vector<UnreadablePlace> unreadable;
};
// Every valid chain frame of an unsealed segment: looks at each block for a frame with the
// segment's nonce. Bounded by the file's size.
Status ScanSegment(const SegmentInfo& info, SegmentFiles& files, SegmentScan* scan);
// Chain frames newer than `after_commit` of a sealed segment, by its footer. kNotFound or
// kDataLoss: the footer cannot be had, and the segment has to be scanned.
Status ReadSealed(const SegmentInfo& info, uint64_t after_commit, SegmentFiles& files,
                  SegmentScan* scan);

// The frames around a segment: its header, its catalog, and its footer once it is sealed.
struct SegmentEdges {
  format::SegmentHeader header;
  uint64_t catalog_end_bytes = 0;    // without padding; of the header where no catalog is readable
  uint64_t footer_offset_bytes = 0;  // 0: not sealed
  uint64_t commit_min = 0;           // the lowest chain frame in a sealed one; 0: has none
  uint64_t size_bytes = 0;
};
// kNotFound: the file has no header (its first flush never came). A header that names another
// segment comes alone: an earlier life of a recycled file, or another store's.
Result<SegmentEdges> ReadSegmentEdges(SegmentFiles& files, uint64_t segment);

// The copies behind the frame at `place` of a segment with this nonce. Damaged ones are left out;
// other errors than damage are returned.
Result<std::vector<format::FrameCopy>> ReadCopiesBehind(io::File& file,
                                                        const format::FramePlace& place,
                                                        const format::Id128& nonce);

// Returns the end of the last copy, or of the frame if it has none.
Result<uint64_t> EndOfCopies(SegmentFiles& files, const format::FramePlace& place,
                             const format::Id128& nonce);

// The chain frames of a segment, and its footer: behind them lie copies.
struct SegmentFrames {
  format::Id128 nonce{};
  std::vector<format::FramePlace> places;
};
// kNotFound: no header of this segment.
Result<SegmentFrames> ListFrames(SegmentFiles& files, uint64_t segment);

// Looks for a whole copy of the frame at `place` behind itself, then behind the frames of its own
// segment and of the few that follow. kNotFound: there is none. For frames that were found to be
// damaged: it may read much.
Result<Frame> FindFrameCopy(SegmentFiles& files, const format::FramePlace& place);

}  // namespace stepwell::db
