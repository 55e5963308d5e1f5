// SPDX-License-Identifier: Apache-2.0
// Small file systems of a test's own. They need root and loop devices.
#pragma once

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/db/support/process_support.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {

namespace fs = std::filesystem;

inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kXfsBytesMin = 300 * kMiB;    // mkfs.xfs makes no smaller one
inline constexpr uint64_t kBtrfsBytesMin = 128 * kMiB;  // nor mkfs.btrfs, about

enum class FsKind { kExt4, kTmpfs, kXfs, kBtrfs };

inline std::string FsName(FsKind kind) {
  switch (kind) {
    case FsKind::kExt4:
      return "Ext4";
    case FsKind::kTmpfs:
      return "Tmpfs";
    case FsKind::kXfs:
      return "Xfs";
    case FsKind::kBtrfs:
      return "Btrfs";
  }
  return "";
}

// `bytes`, or as many as a file system of the kind has at least.
inline uint64_t SmallestBytes(FsKind kind, uint64_t bytes) {
  if (kind == FsKind::kXfs) return std::max(bytes, kXfsBytesMin);
  return kind == FsKind::kBtrfs ? std::max(bytes, kBtrfsBytesMin) : bytes;
}

// A mounted file system; unmounted at the end, whatever happened.
class Mount {
 public:
  Mount(FsKind kind, uint64_t bytes) : kind_(kind), point_(dir_ / "mount") {
    fs::create_directory(point_);
    if (kind == FsKind::kTmpfs) {
      const std::string size = StrCat("size=", bytes);
      mounted_ = mount("tmpfs", point_.c_str(), "tmpfs", 0, size.c_str()) == 0;
      return;
    }
    const std::string image = dir_ / "image";
    const int file = open(image.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    const bool sized = ftruncate(file, static_cast<off_t>(bytes)) == 0;
    close(file);
    const std::vector<std::string> make =
        kind == FsKind::kXfs ? std::vector<std::string>{"/sbin/mkfs.xfs", "-q", image}
        : kind == FsKind::kBtrfs
            ? std::vector<std::string>{"/sbin/mkfs.btrfs", "-q", image}
            : std::vector<std::string>{"/sbin/mkfs.ext4", "-q", "-F", "-m", "0", image};
    mounted_ = sized && Tool(make) && MountImage();
  }
  ~Mount() {
    if (!read_only_point_.empty()) umount2(read_only_point_.c_str(), MNT_DETACH);
    if (mounted_ && umount2(point_.c_str(), 0) != 0) umount2(point_.c_str(), MNT_DETACH);
  }
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;

  bool mounted() const { return mounted_; }
  std::string operator/(const std::string& name) const { return point_ + "/" + name; }
  bool Remount(bool read_only) {
    unsigned long flags = MS_REMOUNT;
    if (read_only) flags |= MS_RDONLY;
    return mount(nullptr, point_.c_str(), nullptr, flags, nullptr) == 0;
  }
  // The same files at a second place, where nothing can be written; "": it cannot be.
  std::string ReadOnlyPoint() {
    const std::string point = dir_ / "read_only";
    fs::create_directory(point);
    if (mount(point_.c_str(), point.c_str(), nullptr, MS_BIND, nullptr) != 0) return "";
    read_only_point_ = point;
    const unsigned long flags = MS_REMOUNT | MS_BIND | MS_RDONLY;
    return mount(nullptr, point.c_str(), nullptr, flags, nullptr) == 0 ? point : "";
  }
  // Turns read-only as the kernel does it when the device fails: also under files that are open for
  // writing.
  bool TurnReadOnly() const {
    struct stat info {};
    if (stat(point_.c_str(), &info) != 0) return false;
    const fs::path device =
        fs::read_symlink(StrCat("/sys/dev/block/", major(info.st_dev), ":", minor(info.st_dev)));
    const std::string trigger =
        StrCat("/sys/fs/ext4/", device.filename().string(), "/trigger_fs_error");
    const int file = open(trigger.c_str(), O_WRONLY | O_CLOEXEC);
    const bool written = write(file, "test", 4) == 4;
    close(file);
    return written;
  }
  // Loses everything that is not on the disk by now. Every later call there fails until Again().
  bool CutPower() const {
    constexpr unsigned long kShutdown = 0x8004587d;  // FS_IOC_SHUTDOWN
    uint32_t without_log_flush = 2;
    const int file = open(point_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool cut = ioctl(file, kShutdown, &without_log_flush) == 0;
    close(file);
    return cut;
  }
  // Unmounts it and mounts it again.
  bool Again() {
    if (umount2(point_.c_str(), 0) != 0) return false;
    mounted_ = MountImage();
    return mounted_;
  }
  // Makes the file system do now what it would do later.
  void Sync() const {
    const int file = open(point_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    syncfs(file);
    close(file);
  }
  uint64_t FreeBytes() const {
    struct statvfs info {};
    return statvfs(point_.c_str(), &info) == 0 ? uint64_t{info.f_bavail} * info.f_frsize : 0;
  }
  // A file of so many bytes.
  bool Fill(const std::string& name, uint64_t bytes) const {
    const int file = open((*this / name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    const bool filled = posix_fallocate(file, 0, static_cast<off_t>(bytes)) == 0;
    close(file);
    return filled;
  }
  // Leaves not one block for anybody else.
  void FillUp(const std::string& name) const {
    const int file = open((*this / name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    for (uint64_t piece = 4 * kMiB; piece >= 512;) {
      const std::string bytes(piece, 'f');
      if (write(file, bytes.data(), bytes.size()) <= 0) piece /= 2;
    }
    fsync(file);
    close(file);
  }

 private:
  static bool Tool(const std::vector<std::string>& arguments) {
    return ChildProcess(arguments).Wait() == 0;
  }

  bool MountImage() const {
    const char* options = kind_ == FsKind::kExt4 ? "loop,errors=remount-ro" : "loop";
    return Tool({"/bin/mount", "-o", options, dir_ / "image", point_});
  }

  const FsKind kind_;
  TempDir dir_;
  const std::string point_;
  std::string read_only_point_;
  bool mounted_ = false;
};

#define ASSERT_MOUNTED(mount)                                                              \
  ASSERT_TRUE((mount).mounted()) << "the test cannot mount a file system of its own here " \
                                    "(it needs root, and loop devices): "                  \
                                 << strerror(errno)

}  // namespace stepwell::db
