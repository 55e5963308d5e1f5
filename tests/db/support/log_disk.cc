// SPDX-License-Identifier: Apache-2.0
#include "tests/db/support/log_disk.h"

#include <linux/loop.h>
#include <sys/mman.h>

#include <algorithm>
#include <random>
#include <utility>

namespace stepwell::db {
namespace {

constexpr off_t kBlock = 4096;

// Neither writes up to there are torn, nor a superblock is at the disk's begin, which ext4 has to
// find whole.
constexpr uint64_t kTornMin = 4096;

// A device over the file that is free again when it is unmounted; -1: none.
int AttachLoop(const std::string& file, std::string* device) {
  const int target = open(file.c_str(), O_RDWR | O_CLOEXEC);
  const int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
  int loop = -1;
  for (int tries = 0; tries < 100 && target >= 0 && control >= 0; ++tries) {
    const int number = ioctl(control, LOOP_CTL_GET_FREE);
    *device = StrCat("/dev/loop", number);
    loop = open(device->c_str(), O_RDWR | O_CLOEXEC);
    loop_config config = {};
    config.fd = static_cast<uint32_t>(target);
    config.info.lo_flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO;
    if (loop >= 0 && ioctl(loop, LOOP_CONFIGURE, &config) == 0) break;
    if (loop >= 0) close(loop);  // somebody else was quicker
    loop = -1;
    usleep(10000);
  }
  close(control);
  close(target);
  return loop;
}

}  // namespace

MemoryFile::MemoryFile(uint64_t bytes) : bytes_(bytes), file_(memfd_create("disk", MFD_CLOEXEC)) {
  path_ = StrCat("/proc/", getpid(), "/fd/", file_);
  if (ftruncate(file_, static_cast<off_t>(bytes)) != 0) return;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_, 0);
  if (memory != MAP_FAILED) data_ = static_cast<char*>(memory);
}

MemoryFile::~MemoryFile() {
  if (data_ != nullptr) munmap(data_, bytes_);
  close(file_);
}

std::unique_ptr<MemoryFile> MemoryFile::Copy() const {
  auto copy = std::make_unique<MemoryFile>(bytes_);
  off_t begin = 0;
  while ((begin = lseek(file_, begin, SEEK_DATA)) >= 0) {
    const off_t end = lseek(file_, begin, SEEK_HOLE);
    for (; begin < end; begin += kBlock) {
      const char* const block = data_ + begin;
      const bool zero = block[0] == 0 && std::memcmp(block, block + 1, kBlock - 1) == 0;
      if (!zero) std::memcpy(copy->data_ + begin, block, kBlock);
    }
  }
  return copy;
}

std::unique_ptr<MemoryFile> FormattedDisk(FsKind kind, uint64_t bytes, uint64_t block_bytes) {
  auto disk = std::make_unique<MemoryFile>(bytes);
  const std::string block = StrCat(kind == FsKind::kXfs ? "size=" : "", block_bytes);
  const std::string& path = disk->path();
  const std::vector<std::string> make =
      kind == FsKind::kXfs
          ? std::vector<std::string>{"/sbin/mkfs.xfs", "-q", "-f", "-b", block, path}
          : std::vector<std::string>{"/sbin/mkfs.ext4",
                                     "-q",
                                     "-F",
                                     "-m",
                                     "0",
                                     "-b",
                                     block,
                                     "-E",
                                     "lazy_itable_init=0,lazy_journal_init=0",
                                     path};
  return disk->data() != nullptr && ChildProcess(make).Wait() == 0 ? disk->Copy() : nullptr;
}

LoopMount::LoopMount(FsKind kind, const std::string& file, std::string point, bool discard)
    : point_(std::move(point)) {
  std::string device;
  const int loop = AttachLoop(file, &device);
  if (loop < 0) return;
  const bool xfs = kind == FsKind::kXfs;
  // A log disk and its image are mounted at the same time and have one UUID.
  const std::string data = StrCat(xfs ? "nouuid" : "errors=remount-ro", discard ? ",discard" : "");
  mounted_ =
      mount(device.c_str(), point_.c_str(), xfs ? "xfs" : "ext4", MS_NOATIME, data.c_str()) == 0;
  const int error = errno;
  close(loop);
  errno = error;
}

bool LoopMount::Unmount() {
  for (int tries = 0; mounted_ && tries < 500; ++tries) {
    if (umount2(point_.c_str(), 0) == 0) {
      mounted_ = false;
    } else {
      usleep(10000);
    }
  }
  return !mounted_;
}

LogDisk::LogDisk(FsKind kind, std::shared_ptr<const MemoryFile> base)
    : kind_(kind), base_(std::move(base)) {
  for (const char* name : {"fuse", "disk", "image"}) fs::create_directory(directory_ / name);
  if (base_ == nullptr) return;
  disk_ = base_->Copy();
  log_ = std::make_unique<MemoryFile>(sizeof(SharedLog) + SharedLog::kDataMax);
  if (disk_->data() == nullptr || log_->data() == nullptr) return;
  shared_ = reinterpret_cast<SharedLog*>(log_->data());  // zeroes, of which no page is touched
  shared_->fault = Fault{};
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(&shared_->mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  server_ = std::make_unique<ChildProcess>(std::vector<std::string>{
      STEPWELL_LOG_DISK_SERVER, directory_.path(), disk_->path(), log_->path()});
  if (server_->Line() != "ready") server_ = nullptr;
}

LogDisk::~LogDisk() {
  mount_ = nullptr;
  if (server_ == nullptr) return;
  kill(server_->pid(), SIGTERM);
  server_->Wait();
}

bool LogDisk::Mount(bool discard) {
  if (server_ == nullptr) return false;
  mount_ = nullptr;
  mount_ = std::make_unique<LoopMount>(kind_, file_path(), mount_point(), discard);
  return mount_->mounted();
}

bool LogDisk::Flush() const {
  const int file = open(file_path().c_str(), O_RDWR | O_CLOEXEC);
  const bool flushed = fsync(file) == 0;
  close(file);
  return flushed;
}

void LogDisk::Mark(const std::string& line) {
  const SharedLogLock lock(shared_);
  LogEntry* entry = Begin(shared_, DiskOp::kMark, 0, line.size(), line.data());
  if (entry != nullptr) entry->end = entry->begin;
}

void LogDisk::SetFault(const Fault& fault) {
  const SharedLogLock lock(shared_);
  shared_->fault = fault;
  shared_->failed = 0;
}

uint64_t LogDisk::failed() const {
  const SharedLogLock lock(shared_);
  return shared_->failed;
}

void LogDisk::SetDelay(uint32_t us) { shared_->delay_us = us; }

void LogDisk::LieAboutFlushes() { shared_->flushes_lie = true; }

uint64_t LogDisk::now() const {
  const SharedLogLock lock(shared_);
  return shared_->now;
}

std::vector<LogEntry> LogDisk::Log(uint64_t from) const {
  const SharedLogLock lock(shared_);
  return {shared_->log + from, shared_->log + shared_->entries};
}

std::string_view LogDisk::Data(const LogEntry& entry) const {
  return {reinterpret_cast<const char*>(shared_ + 1) + entry.data, entry.length};
}

std::unique_ptr<MemoryFile> LogDisk::Replay(const Cut& cut) const {
  const std::vector<LogEntry> log = Log();
  uint64_t durable_before = 0;  // began the last flush
  for (const LogEntry& entry : log) {
    if (entry.op == DiskOp::kFlush && entry.end != 0 && entry.end <= cut.instant) {
      durable_before = std::max(durable_before, entry.begin);
    }
  }
  auto image = base_->Copy();
  std::mt19937_64 random(cut.seed);
  std::bernoulli_distribution kept(cut.kept);
  for (const LogEntry& entry : log) {
    const bool changes = entry.op == DiskOp::kWrite || entry.op == DiskOp::kDiscard;
    if (!changes || entry.begin > cut.instant) continue;
    const bool durable = entry.end != 0 && entry.end < durable_before;
    const bool torn = !durable && cut.piece_bytes != 0 && entry.length > kTornMin;
    for (uint64_t at = 0, bytes = 0; at < entry.length; at += bytes) {
      const uint64_t piece = entry.offset + at < kTornMin ? kTornMin : cut.piece_bytes;
      bytes = torn ? std::min(piece, entry.length - at) : entry.length;
      if (!durable && !kept(random)) continue;
      char* const target = image->data() + entry.offset + at;
      if (entry.op == DiskOp::kWrite) {
        std::memcpy(target, Data(entry).data() + at, bytes);
      } else {
        std::memset(target, 0, bytes);
      }
    }
  }
  return image;
}

}  // namespace stepwell::db
