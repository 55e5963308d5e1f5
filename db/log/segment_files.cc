// SPDX-License-Identifier: Apache-2.0
#include "db/log/segment_files.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "db/layout.h"
#include "db/log/segment_scan.h"
#include "io/buffer.h"

namespace stepwell::db {
namespace {

constexpr uint64_t kOffsetMax = uint64_t{1} << 62;          // above every file, far from overflow
constexpr uint64_t kUncheckedBytesMax = uint64_t{1} << 20;  // read without asking for the size
constexpr uint64_t kFrameBytesMax = format::kFrameHeaderBytes + format::kFramePayloadBytesMax;

Status EndsBefore(const io::File& file, uint64_t offset_bytes, uint64_t length_bytes) {
  return DataLossError(StrCat(file.path(), ": offset ", offset_bytes, ": the file ends before ",
                              length_bytes, " bytes from there"));
}

constexpr int kShortReadsMax = 3;

// Reads up to `length_bytes`; fewer only where the file ends.
Result<std::string> ReadUpTo(io::File& file, uint64_t offset_bytes, uint64_t length_bytes) {
  const io::Alignment alignment = file.alignment();
  const uint64_t begin = AlignDown(offset_bytes, alignment.offset_bytes);
  const uint64_t end = AlignUp(offset_bytes + length_bytes, alignment.offset_bytes);
  std::string out;
  if (alignment.offset_bytes == 1 && alignment.memory_bytes == 1) {
    out.resize(length_bytes);
    STEPWELL_ASSIGN_OR_RETURN(
        const size_t count,
        ReadWhole(file, offset_bytes, {reinterpret_cast<std::byte*>(out.data()), out.size()}));
    out.resize(count);
    return out;
  }
  io::AlignedBuffer scratch(end - begin);  // page-aligned: more than any device asks for
  if (!scratch) return ResourceExhaustedError(StrCat("no memory to read ", file.path()));
  STEPWELL_ASSIGN_OR_RETURN(const size_t count, ReadWhole(file, begin, scratch.bytes()));
  const uint64_t skip = offset_bytes - begin;
  if (count > skip) {
    out.assign(reinterpret_cast<const char*>(scratch.data()) + skip,
               std::min<uint64_t>(length_bytes, count - skip));
  }
  return out;
}

// The frame at `offset_bytes` of which `head` (at least a header) was read already.
Result<Frame> FinishFrame(io::File& file, uint64_t offset_bytes, std::string head) {
  const auto context = [&] { return StrCat(file.path(), ": offset ", offset_bytes); };
  const ConstBytes bytes = AsBytes(head);
  Result<format::FrameHeader> header =
      format::DecodeFrameHeader(bytes.first(std::min(bytes.size(), format::kFrameHeaderBytes)));
  if (!header.ok()) return header.status().WithContext(context());
  Frame frame;
  frame.header = *header;
  const size_t length = frame.header.payload_bytes;
  if (head.size() >= format::kFrameHeaderBytes + length) {
    head.resize(format::kFrameHeaderBytes + length);
    head.erase(0, format::kFrameHeaderBytes);
    frame.payload = std::move(head);
  } else {
    STEPWELL_ASSIGN_OR_RETURN(frame.payload,
                              ReadRange(file, offset_bytes + format::kFrameHeaderBytes, length));
  }
  const Status good = format::CheckFramePayload(frame.header, AsBytes(frame.payload));
  if (!good.ok()) return good.WithContext(context());
  return frame;
}

// Kept open by all stores of the process.
std::atomic<size_t> all_kept{0};
constexpr size_t kKeptByEach = 2;  // however many stores there are
constexpr uint64_t kKeptMax = 1024;

struct Limits {
  size_t kept_max;     // of all stores
  int descriptor_max;  // from here on the program is short of descriptors
};

// Asked each time, as the program may change it.
Limits CurrentLimits() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = 64;
  const uint64_t most = std::min<uint64_t>(limit.rlim_cur, uint64_t{1} << 30);
  return {static_cast<size_t>(std::min(most / 8, kKeptMax)), static_cast<int>(most - most / 4)};
}

}  // namespace

bool LacksResources(const Status& status) {
  const int os_error = status.os_error();
  return os_error == EMFILE || os_error == ENFILE || os_error == ENOMEM;
}

SegmentFiles::~SegmentFiles() { all_kept -= kept_; }

std::string SegmentFiles::PathOf(uint64_t segment) const {
  return SegmentPath(store_path_, segment);
}

Result<std::unique_ptr<io::File>> SegmentFiles::Open(uint64_t segment) {
  return file_system_->Open(PathOf(segment), {.direct = direct_});
}

Result<std::shared_ptr<io::File>> SegmentFiles::Get(uint64_t segment) {
  Files dropped;
  const io::MutexLock lock(&mutex_);
  Entry& entry = files_[segment];
  entry.used = ++clock_;
  if (std::shared_ptr<io::File> file = entry.file.lock()) {
    if (entry.kept == nullptr) Keep(&entry, file, &dropped);
    return file;
  }
  Result<std::unique_ptr<io::File>> opened = Open(segment);
  if (!opened.ok() && LacksResources(opened.status())) {
    ForgetAll(&dropped);
    dropped.clear();
    opened = Open(segment);
  }
  if (!opened.ok()) {
    files_.erase(segment);
    return opened.status();
  }
  const std::shared_ptr<io::File> file = std::move(*opened);
  entry.file = file;
  Keep(&entry, file, &dropped);
  return file;
}

// The kernel gives out the lowest number that is free, so a high one means that most are taken.
void SegmentFiles::Keep(Entry* entry, std::shared_ptr<io::File> file, Files* dropped) {
  if (keep_none_) return;
  const Limits limits = CurrentLimits();
  if (file->descriptor() >= limits.descriptor_max) return ForgetAll(dropped);
  entry->kept = std::move(file);
  ++kept_;
  ++all_kept;
  while (kept_ > kKeptByEach && all_kept > limits.kept_max) {
    Entry* oldest = nullptr;
    for (auto it = files_.begin(); it != files_.end();) {
      if (it->second.file.expired()) {
        it = files_.erase(it);
        continue;
      }
      if (it->second.kept != nullptr && (oldest == nullptr || it->second.used < oldest->used)) {
        oldest = &it->second;
      }
      ++it;
    }
    Forget(oldest, dropped);
  }
}

void SegmentFiles::Forget(Entry* entry, Files* dropped) {
  if (entry->kept == nullptr) return;
  dropped->push_back(std::move(entry->kept));
  entry->kept = nullptr;
  --kept_;
  --all_kept;
}

void SegmentFiles::ForgetAll(Files* dropped) {
  for (auto& [segment, entry] : files_) Forget(&entry, dropped);
}

void SegmentFiles::SetPart(uint32_t part, std::shared_ptr<SegmentFiles> files) {
  const io::MutexLock lock(&mutex_);
  std::swap(parts_[part], files);  // the old ones are let go after the lock is given back
}

std::shared_ptr<SegmentFiles> SegmentFiles::Part(uint32_t part) {
  const io::MutexLock lock(&mutex_);
  const auto found = parts_.find(part);
  return found == parts_.end() ? nullptr : found->second;
}

Result<std::shared_ptr<io::File>> SegmentFiles::Get(uint32_t part, uint64_t segment) {
  if (part == 0) return Get(segment);
  const std::shared_ptr<SegmentFiles> files = Part(part);
  if (files != nullptr) return files->Get(segment);
  return DataLossError(StrCat(store_path_, ": a chunk of part ", part, ", which it does not have"));
}

std::string SegmentFiles::PathOf(uint32_t part, uint64_t segment) {
  const std::shared_ptr<SegmentFiles> files = part == 0 ? nullptr : Part(part);
  return files == nullptr ? PathOf(segment) : files->PathOf(segment);
}

void SegmentFiles::Drop(uint64_t segment) {
  Files dropped;
  const io::MutexLock lock(&mutex_);
  const auto found = files_.find(segment);
  if (found == files_.end()) return;
  Forget(&found->second, &dropped);
  files_.erase(found);
}

void SegmentFiles::KeepNone() {
  Files dropped;
  const io::MutexLock lock(&mutex_);
  keep_none_ = true;
  ForgetAll(&dropped);
}

void SegmentFiles::DropRemoved() {
  Files dropped;
  const io::MutexLock lock(&mutex_);
  for (auto it = files_.begin(); it != files_.end();) {
    Entry& entry = it->second;
    const auto info = entry.kept == nullptr ? io::FileInfo{} : entry.kept->Info();
    const bool removed = entry.file.expired() || (info.ok() && info->link_count == 0);
    if (removed) Forget(&entry, &dropped);
    it = removed ? files_.erase(it) : std::next(it);
  }
}

void SegmentFiles::DropReplaced() {
  Files dropped;
  const io::MutexLock lock(&mutex_);
  for (auto it = files_.begin(); it != files_.end();) {
    std::shared_ptr<io::File> file = it->second.file.lock();
    const auto named =
        file == nullptr ? Result<bool>(false) : io::IsNamed(file_system_, file.get());
    const bool replaced = named.ok() && !*named;
    if (file != nullptr) dropped.push_back(std::move(file));  // it may be the last that holds it
    if (replaced) Forget(&it->second, &dropped);
    it = replaced ? files_.erase(it) : std::next(it);
  }
}

bool SegmentFiles::IsReplaced(uint64_t segment) {
  std::shared_ptr<io::File> file;
  {
    const io::MutexLock lock(&mutex_);
    const auto it = files_.find(segment);
    if (it != files_.end()) file = it->second.file.lock();
  }
  const auto named = file == nullptr ? Result<bool>(true) : io::IsNamed(file_system_, file.get());
  return named.ok() && !*named;
}

Result<size_t> ReadWhole(io::File& file, uint64_t offset_bytes, MutableBytes out) {
  size_t done = 0;
  for (int attempt = 0; attempt < kShortReadsMax; ++attempt) {
    STEPWELL_ASSIGN_OR_RETURN(const size_t count,
                              file.ReadAt(offset_bytes + done, out.subspan(done)));
    done += count;
    if (done == out.size()) return done;
    STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo info, file.Info());
    if (offset_bytes + done >= info.size_bytes) return done;
    done = AlignDown(done, file.alignment().offset_bytes);
  }
  return ErrnoStatus(
      EIO, StrCat("read ", file.path(), ", which reads short at offset ", offset_bytes + done));
}

Result<std::string> ReadRange(io::File& file, uint64_t offset_bytes, uint64_t length_bytes) {
  if (length_bytes == 0) return std::string();
  if (offset_bytes > kOffsetMax || length_bytes > kOffsetMax) {
    return EndsBefore(file, offset_bytes, length_bytes);
  }
  // A length from disk must not make us ask for memory that the file could never fill.
  if (length_bytes > kUncheckedBytesMax) {
    STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo info, file.Info());
    if (offset_bytes + length_bytes > info.size_bytes) {
      return EndsBefore(file, offset_bytes, length_bytes);
    }
  }
  STEPWELL_ASSIGN_OR_RETURN(std::string bytes, ReadUpTo(file, offset_bytes, length_bytes));
  if (bytes.size() != length_bytes) return EndsBefore(file, offset_bytes, length_bytes);
  return bytes;
}

bool IsDamage(const Status& status) {
  switch (status.code()) {
    case StatusCode::kNotFound:
      return true;
    case StatusCode::kDataLoss:
      return status.os_error() == 0;
    default:
      return false;
  }
}

bool IsUnreadable(const Status& status) {
  const int error = status.os_error();
  return error == EIO || error == EUCLEAN || error == EBADMSG;
}

void SegmentFiles::Remember(const format::FramePlace& place, Frame frame) {
  const io::MutexLock lock(&mutex_);
  copies_[{place.segment, place.offset_bytes, place.crc}] = std::move(frame);
}

std::optional<Frame> SegmentFiles::Remembered(const format::FramePlace& place) {
  const io::MutexLock lock(&mutex_);
  const auto it = copies_.find({place.segment, place.offset_bytes, place.crc});
  if (it == copies_.end()) return std::nullopt;
  return it->second;
}

Result<Frame> ReadFrame(SegmentFiles& files, const format::FramePlace& place,
                        format::FrameKind kind) {
  auto frame = ReadOriginalFrame(files, place, kind);
  // A segment that is gone was erased: its frames are dead.
  if (frame.ok() || frame.status().code() == StatusCode::kNotFound) return frame;
  auto copy = files.Remembered(place);
  if (!copy) {
    auto found = FindFrameCopy(files, place);
    if (!found.ok()) return frame;
    files.Remember(place, *found);
    copy = std::move(*found);
  }
  if (kind != format::FrameKind{} && copy->header.kind != kind) return frame;
  return *std::move(copy);
}

Result<Frame> ReadOriginalFrame(SegmentFiles& files, const format::FramePlace& place,
                                format::FrameKind kind) {
  STEPWELL_ASSIGN_OR_RETURN(const std::shared_ptr<io::File> file, files.Get(place.segment));
  const auto bad = [&](const auto&... what) {
    return DataLossError(StrCat(file->path(), ": offset ", place.offset_bytes, ": ", what...));
  };
  if (place.length_bytes < format::kFrameHeaderBytes || place.length_bytes > kFrameBytesMax) {
    return bad("a frame cannot have ", place.length_bytes, " bytes");
  }
  STEPWELL_ASSIGN_OR_RETURN(std::string head,
                            ReadRange(*file, place.offset_bytes, place.length_bytes));
  Result<Frame> frame = FinishFrame(*file, place.offset_bytes, std::move(head));
  // There ought to be one: where it was promised, no frame at all is damage too.
  if (!frame.ok() && frame.status().code() == StatusCode::kNotFound) {
    return DataLossError(frame.status().message());
  }
  if (!frame.ok()) return frame.status();
  const format::FrameHeader& header = frame->header;
  if (header.crc != place.crc ||
      header.payload_bytes + format::kFrameHeaderBytes != place.length_bytes) {
    return bad("another frame than the one recorded (checksum ", header.crc, ", expected ",
               place.crc, ")");
  }
  if (kind != format::FrameKind{} && header.kind != kind) {
    return bad("a frame of kind ", static_cast<int>(header.kind), ", expected ",
               static_cast<int>(kind));
  }
  return frame;
}

Result<Frame> ReadFrameAt(io::File& file, uint64_t segment, uint64_t offset_bytes,
                          format::FramePlace* place) {
  constexpr uint64_t kFirstReadBytes = 4096;  // most frames fit
  STEPWELL_ASSIGN_OR_RETURN(std::string head, ReadUpTo(file, offset_bytes, kFirstReadBytes));
  if (head.size() < format::kFrameHeaderBytes) {
    return NotFoundError(StrCat(file.path(), ": offset ", offset_bytes, ": the file ends here"));
  }
  STEPWELL_ASSIGN_OR_RETURN(Frame frame, FinishFrame(file, offset_bytes, std::move(head)));
  place->segment = segment;
  place->offset_bytes = offset_bytes;
  place->length_bytes =
      static_cast<uint32_t>(format::kFrameHeaderBytes + frame.header.payload_bytes);
  place->crc = frame.header.crc;
  return frame;
}

}  // namespace stepwell::db
