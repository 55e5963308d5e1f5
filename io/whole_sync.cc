// SPDX-License-Identifier: Apache-2.0
#include "io/whole_sync.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <string_view>
#include <utility>

#include "io/beneath.h"

namespace stepwell::io {
namespace {

// Waiting for more than this, of all that is written, may take longer than the syncs that it saves.
constexpr uint64_t kDirtyBytesMax = uint64_t{16} << 20;

// Since Linux 5.8, syncfs tells of writes that failed since its descriptor was opened (man 2
// syncfs).
bool KernelReports() {
  struct utsname name {};
  unsigned major = 0;
  unsigned minor = 0;
  if (uname(&name) != 0 || std::sscanf(name.release, "%u.%u", &major, &minor) != 2) return false;
  return major > 5 || (major == 5 && minor >= 8);
}

// Those of which it is known that they do: an overlay, FUSE and network file systems may not.
bool IsKnown(int descriptor) {
  struct statfs status {};
  if (fstatfs(descriptor, &status) != 0) return false;
  constexpr long kXfs = 0x58465342;  // linux/magic.h has it since 6.3 only
  return status.f_type == EXT4_SUPER_MAGIC || status.f_type == kXfs;
}

// Memory of the machine that waits to be written to any disk. None where the kernel does not say.
std::optional<uint64_t> DirtyBytes() {
  const Descriptor file(open("/proc/meminfo", O_RDONLY | O_CLOEXEC));
  std::array<char, 4096> text;
  const ssize_t length = file.value() < 0 ? -1 : read(file.value(), text.data(), text.size());
  if (length <= 0) return std::nullopt;
  const std::string_view all(text.data(), static_cast<size_t>(length));
  uint64_t bytes = 0;
  for (const std::string_view name : {"\nDirty:", "\nWriteback:"}) {
    const size_t at = all.find(name);
    if (at == std::string_view::npos) return std::nullopt;
    uint64_t kilobytes = 0;
    const std::string rest(all.substr(at + name.size(), 24));
    if (std::sscanf(rest.c_str(), "%lu", &kilobytes) != 1) return std::nullopt;
    bytes += kilobytes << 10;
  }
  return bytes;
}

class LocalWholeSync final : public WholeSync {
 public:
  LocalWholeSync(std::string path, Descriptor descriptor)
      : path_(std::move(path)), descriptor_(std::move(descriptor)) {}

  Status Sync() override {
    const auto dirty = DirtyBytes();
    if (!dirty || *dirty > kDirtyBytesMax) {
      return UnimplementedError(StrCat(path_, ": much else waits to be written"));
    }
    if (syncfs(descriptor_.value()) == 0) return OkStatus();
    const int os_error = errno;
    return ErrnoStatus(os_error, StrCat("sync the file system of ", path_));
  }

 private:
  const std::string path_;
  const Descriptor descriptor_;
};

}  // namespace

std::unique_ptr<WholeSync> TakeLocalWholeSync(const std::string& path) {
  Descriptor descriptor(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor.value() < 0 || !KernelReports() || !IsKnown(descriptor.value())) return nullptr;
  return std::make_unique<LocalWholeSync>(path, std::move(descriptor));
}

}  // namespace stepwell::io
