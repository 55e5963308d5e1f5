// SPDX-License-Identifier: Apache-2.0
// Reading the second copies of frames (format/frame.h): the ones behind a frame, and the one
// of a frame that turned out to be damaged.
#pragma once

#include <vector>

#include "db/log/segment_files.h"
#include "format/frame.h"

namespace stepwell::db {

// The copies behind the frame at `place` of a segment with this nonce. Damaged ones are left out;
// other errors than damage are returned.
Result<std::vector<format::FrameCopy>> ReadCopiesBehind(io::File& file,
                                                        const format::FramePlace& place,
                                                        const format::Id128& nonce);

// Where the last of them ends; without any, the frame.
Result<uint64_t> EndOfCopies(SegmentFiles& files, const format::FramePlace& place,
                             const format::Id128& nonce);

// The chain frames of a segment, and its footer: behind them lie copies.
struct SegmentFrames {
  format::Id128 nonce{};
  std::vector<format::FramePlace> places;
};
// kNotFound: no header of this segment.
Result<SegmentFrames> ListFrames(SegmentFiles& files, uint64_t segment);

// Looks for a whole copy of the frame at `place` behind the frames of its own segment and of the
// few that follow. kNotFound: there is none. For frames that were found to be damaged: it may read
// much.
Result<Frame> FindFrameCopy(SegmentFiles& files, const format::FramePlace& place);

}  // namespace stepwell::db
