// SPDX-License-Identifier: Apache-2.0
// Appends to the log: where blocks and frames go, new segments, seals. Engine thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "db/environment.h"
#include "db/log/catalog.h"
#include "format/frame.h"
#include "format/records.h"
#include "io/disk.h"
#include "io/log.h"

namespace stepwell::db {

// A segment that this process writes.
struct Segment {
  uint64_t id = 0;
  format::Id128 nonce{};
  std::unique_ptr<io::File> file;
  uint64_t end_bytes = 0;        // the end of the placed bytes
  uint64_t allocated_bytes = 0;  // the reserved bytes
  std::vector<format::FooterEntry> frames;
  CatalogNote catalog;
  std::vector<format::FrameCopy> start_copies;  // of header and catalog, for the footer
  size_t writes_in_flight = 0;
  bool dirty = false;  // has completed writes that no sync covers yet
  bool current = true;
};

struct LogWriterOptions {
  Environment environment;
  std::string store_path;
  format::StoreSlot slot;  // identifies the store and the part
  std::shared_ptr<io::Freeze> freeze;
  uint64_t segment_bytes_max = 0;
  // The catalog that a new segment begins with: (size of a block, whether it must be short).
  std::function<Result<CatalogPayload>(uint64_t, bool)> make_catalog;
  io::Disk* disk = nullptr;
};

class LogWriter {
 public:
  LogWriter(LogWriterOptions options, uint64_t next_segment_id, uint64_t epoch)
      : options_(std::move(options)), next_id_(next_segment_id), epoch_(epoch) {}

  // max(4 KiB, st_blksize, direct I/O alignment): every block and frame starts and ends on it.
  size_t block_bytes() const { return block_bytes_; }

  // Makes the first segment: header and catalog written, the name durable (not yet the contents).
  Status Start();

  // Space for `length_bytes` (a multiple of block_bytes()) in one piece; `step_bytes` is what the
  // whole step will take, which sizes a new segment. kResourceExhausted: no room, nothing changed.
  struct Placement {
    Segment* segment = nullptr;
    uint64_t offset_bytes = 0;
  };
  // Some blocks behind it stay reserved for the frames of deletes, which `may_use_reserve`.
  Result<Placement> Place(uint64_t length_bytes, uint64_t step_bytes, bool may_use_reserve);

  // Undoes the last Place().
  void GiveBack(const Placement& placement) {
    placement.segment->end_bytes = placement.offset_bytes;
  }

  // Begins a new segment now, for steps of the size that the last one was for.
  Status StartNext() { return Roll(step_bytes_); }

  // A dead segment that may become one of the next ones: a file of the segments' directory that
  // no other component knows, its name durable.
  struct Spare {
    std::string path;
    uint64_t bytes = 0;
  };
  // Takes over what an earlier session left; removes what makes no sense. Before Start().
  void FindSpares();
  void AddSpare(Spare spare) { spares_.push_back(std::move(spare)); }
  // Room for more spares: together they are to do for the next two segments.
  uint64_t spare_bytes_wanted() const;
  size_t spares_wanted() const;
  // Spares beyond that, for the caller to remove.
  std::vector<std::string> TakeExcessSpares();
  // Gives the space of all of them back; whether there was any.
  bool DropSpares();

  Segment* current() { return current_; }
  // Closes segments that could not be sealed. No write may be in flight, and none may follow.
  void CloseFiles() {
    current_ = nullptr;
    segments_.clear();
  }
  // Segments of this session that are not sealed yet, the current one included.
  const std::map<uint64_t, std::unique_ptr<Segment>>& open_segments() const { return segments_; }

  // Seals every segment that is no longer current, has no writes in flight and is not dirty. With
  // `all`, the current one too (at close).
  Status SealIdle(bool all);

  // Frames that have no second copy yet: each goes behind the next frame that has room for it
  // (format/frame.h), the last ones behind the footers of SealIdle(all).
  void AddCopy(format::FrameCopy copy);
  // Returns the space that the waiting copies take behind a frame of `frame_bytes`.
  size_t CopySpace(size_t frame_bytes) const;
  // Writes as many as fit behind the first `frame_bytes` of `run`.
  void PutCopies(const format::Id128& nonce, size_t frame_bytes, MutableBytes run);

  // The first segment of this session; fixed once Start() has run.
  uint64_t first_id() const { return first_id_; }

 private:
  Result<Placement> PlaceOnce(uint64_t length_bytes, uint64_t step_bytes, bool may_use_reserve);
  Status Roll(uint64_t step_bytes);
  uint64_t TargetBytes(uint64_t step_bytes) const;
  // Opens the file of a new segment: a spare under its new name, or a new file.
  Status OpenFile(Segment* segment, const std::string& path, uint64_t target_bytes);
  Result<bool> OpenSpare(Segment* segment, const std::string& path, uint64_t target_bytes);
  Status WriteFrameNow(Segment* segment, format::FrameKind kind, uint64_t offset_bytes,
                       const std::string& payload, format::FramePlace* place);
  Status WriteCatalog(Segment* segment, bool short_of_space);
  // The last ones take the copies that wait behind their footers.
  Status Seal(Segment* segment, bool last);

  const LogWriterOptions options_;
  uint64_t next_id_;
  const uint64_t epoch_;
  uint64_t first_id_ = 0;
  size_t block_bytes_ = 4096;
  uint64_t target_bytes_ = 0;  // size that the current segment was begun for
  uint64_t step_bytes_ = 0;    // the size of the step that the current segment was begun for
  uint64_t placed_bytes_ = 0;  // in this session
  std::vector<Spare> spares_;
  struct WaitingCopy {
    format::FrameCopy copy;
    bool start = false;  // of the current segment's header or catalog
  };
  std::vector<WaitingCopy> copies_;
  std::map<uint64_t, std::unique_ptr<Segment>> segments_;
  Segment* current_ = nullptr;
};

// A write into a segment; counted as in flight until EndWrite.
struct SegmentWrite : io::Op {
  Segment* segment = nullptr;
  iovec vector{};

  void BeginWrite(const LogWriter::Placement& place, MutableBytes bytes) {
    kind = Kind::kWrite;
    segment = place.segment;
    file = segment->file.get();
    offset_bytes = place.offset_bytes;
    vector = {bytes.data(), bytes.size()};
    vectors = {&vector, 1};
    ++segment->writes_in_flight;
  }
  void EndWrite() {
    --segment->writes_in_flight;
    segment->dirty = true;
  }
};

// kInvalidArgument for what no frame can hold: asked before it is encoded, which would abort.
Status CheckFrameSize(std::string_view payload);

// With a new nonce.
format::SegmentHeader NewSegmentHeader(const Environment& environment,
                                       const format::StoreSlot& slot, uint64_t segment);

// Gives a segment of an earlier process that has payloads, but neither a header nor a chain frame,
// a header, in place and synced. Its nonce is a new one: no frame of the segment carries the old
// one.
Status RewriteHeader(io::FileSystem* file_system, const std::string& store_path,
                     const format::SegmentHeader& header, uint64_t epoch,
                     std::shared_ptr<io::Freeze> freeze);

// Seals a segment that an earlier process left open: gives back what lies behind `end_bytes`
// (unless `keep_tail`), then appends a footer that lists `frames`, and the trailer.
Status SealAbandoned(io::FileSystem* file_system, const std::string& store_path, uint64_t segment,
                     const format::Id128& nonce, uint64_t epoch, uint64_t end_bytes, bool keep_tail,
                     std::shared_ptr<io::Freeze> freeze,
                     const std::vector<format::FooterEntry>& frames);

}  // namespace stepwell::db
