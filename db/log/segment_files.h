// SPDX-License-Identifier: Apache-2.0
// Segments opened for reading, and frames read from them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "format/frame.h"
#include "io/disk.h"
#include "io/mutex.h"

namespace stepwell::db {

struct Frame {
  format::FrameHeader header;
  std::string payload;
};

// Returns true if a failed read found wrong or missing bytes. Any other failure (an error of the
// device, no memory, no descriptor, an unknown version) means that they could not be read. The
// bytes are then unknown, and nothing may be concluded from them.
bool IsDamage(const Status& status);
// Returns true for errors of IsDamage where the device cannot read this place (as btrfs reports
// rot), but perhaps others.
bool IsUnreadable(const Status& status);

// Returns true if the machine lacked descriptors or memory for an open. Nothing is wrong with the
// file then.
bool LacksResources(const Status& status);

// Keeps the files that were used last open, as many as leave the program most of its descriptors:
// all stores of the process together an eighth of RLIMIT_NOFILE, and none when three quarters are
// taken. A file that is in use stays open, and is not opened twice. Thread-safe.
class SegmentFiles {
 public:
  // With `direct`, files are opened O_DIRECT where possible (page cache untouched).
  SegmentFiles(io::FileSystem* file_system, std::string store_path, bool direct = true)
      : file_system_(file_system), store_path_(std::move(store_path)), direct_(direct) {}
  SegmentFiles(const SegmentFiles&) = delete;
  SegmentFiles& operator=(const SegmentFiles&) = delete;
  virtual ~SegmentFiles();

  // kNotFound (naming the file) when the segment is gone.
  Result<std::shared_ptr<io::File>> Get(uint64_t segment);
  // From here on also those of another part of the group; `files` is kept. In part 0's only.
  void SetPart(uint32_t part, std::shared_ptr<SegmentFiles> files);
  // Returns a segment of a part; part 0 is this store. kDataLoss if the part was never set: a
  // record that names it is damaged.
  Result<std::shared_ptr<io::File>> Get(uint32_t part, uint64_t segment);
  std::string PathOf(uint32_t part, uint64_t segment);
  // Forgets the open file; readers that hold it keep it.
  void Drop(uint64_t segment);
  // A copy of a frame whose original is damaged (segment_scan.h): ReadFrame takes it from here.
  void Remember(const format::FramePlace& place, Frame frame);
  std::optional<Frame> Remembered(const format::FramePlace& place);
  // Keeps none from now on, as after Close: readers that go on open what they need.
  void KeepNone();
  // Forgets those that were removed since: an open file keeps its space.
  void DropRemoved();
  // Forgets those whose name leads elsewhere now, also where readers use them.
  void DropReplaced();
  // Returns true if the file is open, and its name leads elsewhere now.
  bool IsReplaced(uint64_t segment);
  // For messages.
  virtual std::string PathOf(uint64_t segment) const;
  // Makes the next reads of a segment those of the medium: something has read wrong bytes. No file
  // of this machine keeps any.
  virtual void DropCached(uint64_t segment) { (void)segment; }

 private:
  struct Entry {
    std::weak_ptr<io::File> file;
    std::shared_ptr<io::File> kept;  // null: open only while it is in use
    uint64_t used = 0;               // when, by clock_
  };
  using Files = std::vector<std::shared_ptr<io::File>>;  // to be closed after the lock is free

  virtual Result<std::unique_ptr<io::File>> Open(uint64_t segment);
  std::shared_ptr<SegmentFiles> Part(uint32_t part) STEPWELL_EXCLUDES(mutex_);
  void Keep(Entry* entry, std::shared_ptr<io::File> file, Files* dropped) STEPWELL_REQUIRES(mutex_);
  void Forget(Entry* entry, Files* dropped) STEPWELL_REQUIRES(mutex_);
  void ForgetAll(Files* dropped) STEPWELL_REQUIRES(mutex_);

  io::FileSystem* const file_system_;
  const std::string store_path_;
  const bool direct_;
  io::Mutex mutex_;
  std::map<uint64_t, Entry> files_ STEPWELL_GUARDED_BY(mutex_);
  uint64_t clock_ STEPWELL_GUARDED_BY(mutex_) = 0;
  size_t kept_ STEPWELL_GUARDED_BY(mutex_) = 0;
  bool keep_none_ STEPWELL_GUARDED_BY(mutex_) = false;
  std::map<uint32_t, std::shared_ptr<SegmentFiles>> parts_ STEPWELL_GUARDED_BY(mutex_);
  // By segment, offset and CRC.
  std::map<std::tuple<uint64_t, uint64_t, uint32_t>, Frame> copies_ STEPWELL_GUARDED_BY(mutex_);
};

// Reads all that the file has of `out`; fewer bytes only where it ends. A device that says less
// than that is an error: nothing may be taken for missing because of it.
Result<size_t> ReadWhole(io::File& file, uint64_t offset_bytes, MutableBytes out);
// Reads any byte range of a (possibly direct) file; kDataLoss when the file ends before it.
Result<std::string> ReadRange(io::File& file, uint64_t offset_bytes, uint64_t length_bytes);
// Reads and checks the frame at `place`: kind (unless FrameKind{}), CRCs, length. kDataLoss names
// file and offset.
Result<Frame> ReadOriginalFrame(SegmentFiles& files, const format::FramePlace& place,
                                format::FrameKind kind);
// The same, or where that cannot be had the frame's second copy.
Result<Frame> ReadFrame(SegmentFiles& files, const format::FramePlace& place,
                        format::FrameKind kind);
// The frame at an offset, whatever it is; its place is returned too. kNotFound: no frame there.
Result<Frame> ReadFrameAt(io::File& file, uint64_t segment, uint64_t offset_bytes,
                          format::FramePlace* place);

// Frames begin at multiples of it, and space is given back by whole ones: a block of the disk.
inline constexpr uint64_t kGrainBytes = 4096;

inline constexpr size_t kLargePayloadBytes = size_t{64} << 10;  // from here on: kLargeAlignment
inline constexpr size_t kLargeAlignment = 4096;
inline constexpr size_t kSmallAlignment = 64;
constexpr size_t PayloadAlignment(size_t payload_bytes) {
  return payload_bytes >= kLargePayloadBytes ? kLargeAlignment : kSmallAlignment;
}

}  // namespace stepwell::db
