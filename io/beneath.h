// SPDX-License-Identifier: Apache-2.0
// Opening what lies below a directory without following a symbolic link, for directories that
// another user may have filled.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "io/disk.h"

namespace stepwell::io {

// Permissions of what is created: what the umask leaves, or only its owner's (0600, 0700).
enum class FileModes { kUmask, kPrivate };

// LocalFileSystem, for a directory that another user may have filled. Below `root` (paths that
// begin with it) no symbolic link is followed, which is kFailedPrecondition, and only regular files
// are opened (and directories, for reading), never FIFOs or devices; `root` itself may be a link.
// All other paths are those of LocalFileSystem.
std::unique_ptr<FileSystem> FileSystemBeneath(std::string root, FileModes modes);

// Runs `call` again while a signal interrupts it; returns what it returned.
template <typename Call>
auto Uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// A file descriptor that is closed with it; negative values stand for none (or for AT_FDCWD).
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) close(value_);
  }
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  int value() const { return value_; }

 private:
  int value_;
};

// The directory `relative` ("": `root` itself) below the directory `root`, as a base (O_PATH) for
// the *at() calls. No name on the way may be a symbolic link (ELOOP), "." or ".." (EINVAL); `root`
// itself is opened as given. Negative, and errno, where that fails.
Descriptor OpenDirectoryBeneath(const char* root, std::string_view relative);
Descriptor OpenDirectoryBeneath(int root, std::string_view relative);
// The same, one name after another, for kernels and sandboxes without openat2.
Descriptor WalkBeneath(int root, std::string_view relative);

}  // namespace stepwell::io
