// SPDX-License-Identifier: Apache-2.0
#include "io/directory_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <iterator>
#include <utility>

namespace stepwell::io {
namespace {

constexpr uint32_t kChanges =
    IN_MODIFY | IN_CREATE | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF;
constexpr size_t kEventBytes = 4096;

// File systems that this kernel alone changes, by statfs(2), so that it knows of every change.
constexpr uint64_t kLocalFileSystems[] = {
    0xEF53,      // ext2, ext3, ext4
    0x58465342,  // XFS
    0x9123683E,  // Btrfs
    0x01021994,  // tmpfs
    0x794C7630,  // overlayfs
    0x2FC12FC1,  // ZFS
    0xF2F52010,  // F2FS
    0xCA451A4E,  // bcachefs
};

Status CheckLocal(const std::string& directory) {
  struct statfs info {};
  if (Uninterrupted([&] { return statfs(directory.c_str(), &info); }) < 0) {
    return ErrnoStatus(errno, "look at the file system of " + directory);
  }
  const auto type = static_cast<uint64_t>(static_cast<uint32_t>(info.f_type));
  if (std::ranges::find(kLocalFileSystems, type) != std::end(kLocalFileSystems)) return OkStatus();
  return UnimplementedError("its file system may be changed by other machines");
}

}  // namespace

Result<std::unique_ptr<DirectoryWatch>> DirectoryWatch::Open(const std::string& directory,
                                                             const std::string& name) {
  Descriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (wake.value() < 0) return ErrnoStatus(errno, "watch " + directory);
  std::unique_ptr<DirectoryWatch> watch(new DirectoryWatch(name, std::move(wake)));
  watch->status_ = watch->Watch(directory);
  const StatusCode code = watch->status_.code();
  if (code == StatusCode::kNotFound) return watch->status_;
  return watch;
}

Status DirectoryWatch::Watch(const std::string& directory) {
  STEPWELL_RETURN_IF_ERROR(CheckLocal(directory));
  Descriptor made(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (made.value() < 0) return ErrnoStatus(errno, "inotify_init1");
  if (inotify_add_watch(made.value(), directory.c_str(), kChanges | IN_ONLYDIR) < 0) {
    return ErrnoStatus(errno, "watch " + directory);
  }
  inotify_ = std::move(made);
  return OkStatus();
}

bool DirectoryWatch::TakeEvents() {
  bool changed = false;
  alignas(inotify_event) std::array<char, kEventBytes> bytes;
  for (;;) {
    const ssize_t size =
        Uninterrupted([&] { return read(inotify_.value(), bytes.data(), bytes.size()); });
    if (size <= 0) return changed;
    const inotify_event* event = nullptr;
    for (ssize_t at = 0; at < size;
         at += static_cast<ssize_t>(sizeof(inotify_event)) + event->len) {
      event = reinterpret_cast<const inotify_event*>(bytes.data() + at);
      if ((event->mask & IN_IGNORED) != 0) {
        inotify_ = Descriptor(-1);
        status_ = NotFoundError("the directory was removed");
        return true;
      }
      // An event without a name is about the directory, or says that others were lost.
      changed |= event->len == 0 || name_.empty() || name_ == event->name;
    }
  }
}

bool DirectoryWatch::Wait(std::chrono::milliseconds timeout) {
  using Steady = std::chrono::steady_clock;
  const Steady::time_point end = Steady::now() + timeout;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Steady::now());
    std::array<pollfd, 2> ends{{{wake_.value(), POLLIN, 0}, {inotify_.value(), POLLIN, 0}}};
    const int ready =
        poll(ends.data(), ends.size(), static_cast<int>(std::max<int64_t>(left.count(), 0)));
    if (ready <= 0) return false;  // the time is over, or a signal came
    bool told = false;
    uint64_t count = 0;
    if (ends[0].revents != 0) told = read(wake_.value(), &count, sizeof(count)) > 0;
    if (ends[1].revents != 0 && TakeEvents()) told = true;
    if (told) return true;
  }
}

void DirectoryWatch::Wake() {
  const uint64_t one = 1;
  // A counter that is full is read as well as one that is not.
  [[maybe_unused]] const ssize_t written = write(wake_.value(), &one, sizeof(one));
}

}  // namespace stepwell::io
