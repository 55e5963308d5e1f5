// SPDX-License-Identifier: Apache-2.0
#include "io/beneath.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <string>

namespace stepwell::io {
namespace {

constexpr int kBase = O_PATH | O_DIRECTORY | O_CLOEXEC;

Descriptor Failed(int os_error) {
  errno = os_error;
  return Descriptor(-1);
}

// The first name of `path`, which is taken off it.
std::string_view TakeName(std::string_view* path) {
  const size_t slash = path->find('/');
  const std::string_view name = path->substr(0, slash);
  path->remove_prefix(slash == std::string_view::npos ? path->size() : slash + 1);
  return name;
}

bool HasDots(std::string_view path) {
  while (!path.empty()) {
    const std::string_view name = TakeName(&path);
    if (name == "." || name == "..") return true;
  }
  return false;
}

}  // namespace

Descriptor WalkBeneath(int root, std::string_view relative) {
  Descriptor at(openat(root, ".", kBase));
  while (at.value() >= 0 && !relative.empty()) {
    const std::string name(TakeName(&relative));
    if (name.empty()) continue;
    // Without O_DIRECTORY: a link is opened itself, and so told from what is not a directory.
    Descriptor next(Uninterrupted(
        [&] { return openat(at.value(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC); }));
    struct stat status {};
    if (next.value() < 0 || fstat(next.value(), &status) != 0) return Failed(errno);
    if (S_ISLNK(status.st_mode)) return Failed(ELOOP);
    if (!S_ISDIR(status.st_mode)) return Failed(ENOTDIR);
    at = std::move(next);
  }
  return at;
}

Descriptor OpenDirectoryBeneath(const char* root, std::string_view relative) {
  Descriptor base(Uninterrupted([&] { return open(root, kBase); }));
  if (base.value() < 0 || relative.empty()) return base;
  return OpenDirectoryBeneath(base.value(), relative);
}

Descriptor OpenDirectoryBeneath(int root, std::string_view relative) {
  if (relative.empty()) return WalkBeneath(root, relative);
  if (HasDots(relative)) return Failed(EINVAL);
  const std::string path(relative);
  struct open_how how {};
  how.flags = kBase;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
  const long opened =
      Uninterrupted([&] { return syscall(SYS_openat2, root, path.c_str(), &how, sizeof(how)); });
  // A kernel before 5.6, a sandbox that does not know the call, a rename in between.
  if (opened < 0 && (errno == ENOSYS || errno == EPERM || errno == EAGAIN)) {
    return WalkBeneath(root, relative);
  }
  return Descriptor(static_cast<int>(opened));
}

}  // namespace stepwell::io
