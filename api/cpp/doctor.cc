// SPDX-License-Identifier: Apache-2.0
#include <stepwell/doctor.h>

#include <fcntl.h>
#include <linux/falloc.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <memory>
#include <sstream>

#include "db/save/plan.h"
#include "io/buffer.h"
#include "io/bytes.h"
#include "io/clock.h"
#include "io/open_disk.h"

namespace stepwell {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr size_t kRegisteredBuffers = 8;

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

UringFacts ProbeUring() {
  UringFacts facts;
  io::DiskOptions options;
  options.kind = io::DiskKind::kUring;
  const Result<std::unique_ptr<io::Disk>> disk = io::OpenDisk(options);
  facts.available = disk.ok();
  if (!disk.ok()) {
    facts.reason = disk.status().message();
    const std::string disabled = FirstLine("/proc/sys/kernel/io_uring_disabled");
    if (disabled == "1" || disabled == "2") {
      facts.reason += StrCat("; the sysctl kernel.io_uring_disabled is ", disabled);
    } else if (disk.status().os_error() == EPERM || disk.status().os_error() == EACCES) {
      facts.reason += "; a container's seccomp profile probably forbids it";
    }
    return facts;
  }
  facts.registered_buffers = true;
  std::vector<io::AlignedBuffer> buffers;
  for (size_t i = 0; i < kRegisteredBuffers && facts.registered_buffers; ++i) {
    buffers.emplace_back(db::kBlockBytes);
    facts.registered_buffers =
        buffers.back() && (*disk)->RegisterBuffer(buffers.back().bytes()) >= 0;
  }
  return facts;
}

std::optional<uint64_t> Limit(__rlimit_resource resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

// A line of /proc/meminfo, in bytes.
uint64_t MemoryInfo(const std::string& name) {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string key;
    uint64_t kibibytes = 0;
    if (words >> key >> kibibytes && key == name + ":") return kibibytes * 1024;
  }
  return 0;
}

std::optional<uint64_t> CgroupMemory() {
  // Reads the limit of this process' own group (cgroup version 2), as a container sees it.
  std::istringstream text(FirstLine("/sys/fs/cgroup/memory.max"));
  uint64_t bytes = 0;
  if (text >> bytes) return bytes;
  return std::nullopt;
}

// /proc/self/mountinfo writes blanks and such as \ooo.
std::string Unescaped(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool octal = text[i] == '\\' && i + 3 < text.size() &&
                       std::all_of(text.begin() + static_cast<ptrdiff_t>(i) + 1,
                                   text.begin() + static_cast<ptrdiff_t>(i) + 4,
                                   [](char c) { return c >= '0' && c <= '7'; });
    if (octal) {
      out += static_cast<char>(((text[i + 1] - '0') << 6) | ((text[i + 2] - '0') << 3) |
                               (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

void AddOptions(const std::string& text, std::vector<std::string>* options) {
  std::istringstream list(text);
  std::string option;
  while (std::getline(list, option, ',')) {
    if (std::find(options->begin(), options->end(), option) == options->end()) {
      options->push_back(option);
    }
  }
}

bool Contains(const std::string& mount_point, const std::string& path) {
  if (mount_point == "/") return true;
  return path.starts_with(mount_point) &&
         (path.size() == mount_point.size() || path[mount_point.size()] == '/');
}

// The mount that `directory` is in: the last of the longest mount points above it.
void FindMount(const std::string& directory, FileSystemFacts* facts) {
  char* resolved = realpath(directory.c_str(), nullptr);
  const std::string path = resolved == nullptr ? directory : resolved;
  free(resolved);
  std::ifstream file("/proc/self/mountinfo");
  std::string line;
  while (std::getline(file, line)) {
    // id parent major:minor root mount-point options [optional...] - type source super-options
    std::istringstream words(line);
    std::string id, parent, device, root, point, options, word, type, source, super_options;
    words >> id >> parent >> device >> root >> point >> options;
    while (words >> word && word != "-") {
    }
    words >> type >> source >> super_options;
    point = Unescaped(point);
    if (!Contains(point, path) || point.size() < facts->mount_point.size()) continue;
    facts->mount_point = point;
    facts->type = type;
    facts->source = Unescaped(source);
    facts->options.clear();
    AddOptions(options, &facts->options);
    AddOptions(super_options, &facts->options);
  }
}

bool CanPunch(int descriptor, uint32_t block_bytes) {
  if (fallocate(descriptor, 0, 0, off_t{4} * block_bytes) != 0) return false;
  const bool punched = fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                 block_bytes, block_bytes) == 0;
  return ftruncate(descriptor, 0) == 0 && punched;
}

bool IsOneOf(const std::string& type, std::initializer_list<const char*> types) {
  return std::any_of(types.begin(), types.end(), [&](const char* name) { return type == name; });
}

void WarnAboutFileSystem(const FileSystemFacts& facts, std::vector<DoctorWarning>* warnings) {
  const auto warn = [&](const char* code, std::string message) {
    warnings->push_back({code, std::move(message)});
  };
  const auto has = [&](const char* option) {
    return std::find(facts.options.begin(), facts.options.end(), option) != facts.options.end();
  };
  if (IsOneOf(facts.type, {"tmpfs", "ramfs"})) {
    warn("memory_file_system", StrCat(facts.mount_point, " is ", facts.type,
                                      ": it lives in memory, and a reboot empties it; put the "
                                      "store on a disk"));
  }
  if (IsOneOf(facts.type, {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs",
                           "lustre", "beegfs", "gpfs", "virtiofs"}) ||
      facts.type.starts_with("fuse")) {
    warn("network_file_system",
         StrCat(facts.mount_point, " is ", facts.type,
                ": on network and FUSE file systems locks may not exclude other machines, and what "
                "was flushed may not survive; put the store on a local disk"));
  }
  if (facts.type == "overlay") {
    warn("container_layer",
         StrCat(facts.mount_point,
                " is a container's writable layer: it goes when the container goes; put the store "
                "on a volume"));
  }
  if (!facts.locks) {
    warn("no_locks",
         "files cannot be locked here: stores can be read, but not written; mount it with locks "
         "(lustre: -o flock), or put the store on another file system");
  }
  if (!facts.direct_io) {
    warn("no_direct_io", StrCat("no O_DIRECT on ", facts.type,
                                ": saves go through the page cache, which takes memory and CPU "
                                "time from training"));
  } else if (facts.offset_alignment_bytes > 4096) {
    warn("large_blocks", StrCat("O_DIRECT wants multiples of ", facts.offset_alignment_bytes,
                                " bytes: small leaves take more space"));
  }
  if (!facts.punch_hole) {
    warn("no_punch_hole", StrCat(facts.type,
                                 " cannot give back parts of files: the space of deleted steps "
                                 "comes back later, by moving what still lives"));
  }
  if (has("discard")) {
    warn("discard", StrCat(facts.mount_point,
                           " is mounted with discard: each deletion sends trim commands to the "
                           "disk, which can stall writes; use fstrim.timer and nodiscard"));
  }
  if (has("nobarrier") || has("barrier=0")) {
    warn("no_barriers", StrCat(facts.mount_point,
                               " is mounted without barriers: a power cut can take what was "
                               "flushed"));
  }
}

// A file in `directory` whose name is gone already, so that nothing stays behind, whatever happens.
Result<std::unique_ptr<io::File>> OpenNamelessFile(const std::string& directory) {
  const std::string path =
      StrCat(directory, "/.stepwell-doctor-", getpid(), "-", io::SystemClock()->MonotonicNanos());
  io::FileOpenOptions options;
  options.write = options.create = options.exclusive = options.direct = true;
  STEPWELL_ASSIGN_OR_RETURN(auto file, io::LocalFileSystem()->Open(path, options));
  STEPWELL_RETURN_IF_ERROR(io::LocalFileSystem()->Remove(path));
  return file;
}

MachineFacts ProbeMachine() {
  MachineFacts facts;
  utsname name{};
  if (uname(&name) == 0) facts.kernel = StrCat(name.sysname, " ", name.release, " ", name.machine);
  cpu_set_t cores;
  facts.cores = sched_getaffinity(0, sizeof(cores), &cores) == 0
                    ? static_cast<uint64_t>(CPU_COUNT(&cores))
                    : 0;
  facts.memory_bytes = MemoryInfo("MemTotal");
  facts.memory_available_bytes = MemoryInfo("MemAvailable");
  facts.cgroup_memory_bytes = CgroupMemory();
  facts.uring = ProbeUring();
  facts.limits = {Limit(RLIMIT_MEMLOCK), Limit(RLIMIT_FSIZE), Limit(RLIMIT_AS),
                  Limit(RLIMIT_NOFILE)};
  return facts;
}

Result<FileSystemFacts> ProbeFileSystem(const std::string& directory, io::File* file) {
  FileSystemFacts facts;
  FindMount(directory, &facts);
  STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo info, file->Info());
  facts.block_bytes = info.block_bytes;
  facts.memory_alignment_bytes = file->alignment().memory_bytes;
  facts.offset_alignment_bytes = file->alignment().offset_bytes;
  facts.direct_io = facts.offset_alignment_bytes > 1;
  facts.punch_hole = CanPunch(file->descriptor(), info.block_bytes);
  const Result<bool> locked = file->TryLock(io::LockKind::kExclusive);
  facts.locks = locked.ok() && *locked && file->Unlock().ok();
  struct statvfs space {};
  if (statvfs(directory.c_str(), &space) == 0) {
    facts.total_bytes = uint64_t{space.f_blocks} * space.f_frsize;
    facts.free_bytes = uint64_t{space.f_bavail} * space.f_frsize;
  }
  return facts;
}

std::vector<DoctorWarning> WarningsAbout(const MachineFacts& machine,
                                         const FileSystemFacts& file_system) {
  std::vector<DoctorWarning> warnings;
  WarnAboutFileSystem(file_system, &warnings);
  if (file_system.free_bytes < 4 * kGiB) {
    warnings.push_back({"little_space", StrCat("only ", HumanBytes(file_system.free_bytes),
                                               " free on ", file_system.mount_point,
                                               ": a full disk fails saves; keep fewer steps, or "
                                               "use a larger disk")});
  }
  if (!machine.uring.available) {
    warnings.push_back({"no_io_uring", StrCat("no io_uring (", machine.uring.reason,
                                              "): writes go through threads, with more CPU time")});
  } else if (!machine.uring.registered_buffers) {
    warnings.push_back(
        {"memlock", StrCat("not all buffers can be registered with the kernel: RLIMIT_MEMLOCK is ",
                           machine.limits.memlock_bytes ? HumanBytes(*machine.limits.memlock_bytes)
                                                        : std::string("unlimited"),
                           "; raise it (ulimit -l) to save a little CPU time")});
  }
  if (machine.limits.file_bytes && *machine.limits.file_bytes < kGiB / 4) {
    warnings.push_back({"file_size_limit",
                        StrCat("files may not grow beyond ", HumanBytes(*machine.limits.file_bytes),
                               " (ulimit -f): segments are up to 256 MiB")});
  }
  if (machine.limits.open_files && *machine.limits.open_files < 256) {
    warnings.push_back({"open_files_limit", StrCat("only ", *machine.limits.open_files,
                                                   " files may be open (ulimit -n)")});
  }
  const uint64_t memory =
      std::min(machine.memory_bytes, machine.cgroup_memory_bytes.value_or(machine.memory_bytes));
  if (memory < 2 * kGiB) {
    warnings.push_back({"little_memory", StrCat("only ", HumanBytes(memory),
                                                " of memory: saves are staged in an eighth of it, "
                                                "and larger states wait for the disk")});
  }
  return warnings;
}

}  // namespace

Result<DoctorReport> ExamineMachine(const std::string& directory) {
  STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo info, io::LocalFileSystem()->Stat(directory));
  if (!info.is_directory) return InvalidArgumentError(directory + " is not a directory");
  STEPWELL_ASSIGN_OR_RETURN(const std::unique_ptr<io::File> file, OpenNamelessFile(directory));
  DoctorReport report;
  report.machine = ProbeMachine();
  STEPWELL_ASSIGN_OR_RETURN(report.file_system, ProbeFileSystem(directory, file.get()));
  report.warnings = WarningsAbout(report.machine, report.file_system);
  return report;
}

}  // namespace stepwell
