// SPDX-License-Identifier: Apache-2.0
#include "db/commit/abandoned.h"

#include <algorithm>
#include <set>
#include <vector>

#include "db/log/catalog.h"
#include "db/log/log_writer.h"
#include "db/log/pins.h"
#include "db/log/segment_scan.h"

namespace stepwell::db {

using format::FrameKind;
using format::FramePlace;

namespace {

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

// Returns true if a reader may need what no live step has, or if that cannot be known.
bool ReadersMayNeedTails(const EngineOptions& options) {
  const auto lock = ReclaimLock::Acquire(options.environment.file_system, options.store_path,
                                         io::LockKind::kExclusive);
  if (!lock.ok()) {
    Log(options.log, LogLevel::kWarning,
        StrCat(options.store_path,
               ": opened without giving space back: ", lock.status().message()));
    return true;
  }
  const auto pins = ReadPins(options.environment.file_system, options.store_path);
  return !pins.ok() || pins->any();
}

// The frames of a segment that recovery took, for its footer.
std::vector<format::FooterEntry> AcceptedFrames(uint64_t segment, const LogState& state,
                                                const std::set<ChainPlace>& accepted) {
  std::vector<format::FooterEntry> frames;
  const auto it = state.scanned.find(segment);
  if (it == state.scanned.end()) return frames;
  for (const format::FooterEntry& entry : it->second) {
    // Another frame of this number may have been accepted in its place.
    const bool known = entry.commit <= state.catalog_commit;
    if (known || accepted.contains({entry.commit, segment})) frames.push_back(entry);
  }
  return frames;
}

// Where what live steps have of the segment ends.
uint64_t EndOfLive(uint64_t segment, const LiveSteps& steps) {
  uint64_t end = 0;
  for (const auto& live : steps.Needing()) {
    for (const auto& extent : live->record.extents) {
      if (extent.segment == segment) end = std::max(end, extent.end_bytes);
    }
  }
  return end;
}

}  // namespace

std::string TipFrame(SegmentFiles& files, const format::FramePlace& place) {
  if (place.length_bytes == 0) return {};
  const auto frame = ReadOriginalFrame(files, place, FrameKind{});
  if (!frame.ok()) return {};
  return format::EncodeFrame(frame->header, frame->payload, /*block_bytes=*/1, nullptr);
}

Status SettleAbandoned(const EngineOptions& options, uint64_t epoch, const LogState& state,
                       bool keep_tails) {
  keep_tails = ReadersMayNeedTails(options) || keep_tails;
  const std::set<ChainPlace> accepted(state.chain.begin(), state.chain.end());
  for (const SegmentInfo& info : state.segments) {
    if (info.sealed || info.foreign || !info.header_ok || state.report.clean) continue;
    const auto frames = AcceptedFrames(info.segment, state, accepted);
    const auto frames_end = frames.empty()
                                ? EndOfCatalog(info, *options.files)
                                : EndOfCopies(*options.files, frames.back().place, info.nonce);
    if (!frames_end.ok()) continue;  // then it is scanned again
    options.files->Drop(info.segment);
    // A segment that an export has a link to was sealed, though that cannot be read just now, and
    // does not change.
    const auto file = options.environment.file_system->Stat(options.files->PathOf(info.segment));
    if (!file.ok() || file->link_count > 1) continue;
    // A record may name bytes beyond the end of the file. They must not make it larger.
    const uint64_t end =
        std::min(file->size_bytes, std::max(*frames_end, EndOfLive(info.segment, *options.live)));
    const Status sealed =
        SealAbandoned(options.environment.file_system, options.store_path, info.segment, info.nonce,
                      epoch, end, keep_tails, options.freeze, frames);
    // A full disk may refuse the seal and must open all the same: the segment is scanned again.
    if (!sealed.ok() && sealed.code() != StatusCode::kResourceExhausted) return sealed;
    options.files->Drop(info.segment);
  }
  return OkStatus();
}

}  // namespace stepwell::db
