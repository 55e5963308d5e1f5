// SPDX-License-Identifier: Apache-2.0
// Reports what a directory's machine offers a store, and what will slow a store down there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <stepwell/export.h>
#include <stepwell/result.h>

namespace stepwell {

struct UringFacts {
  bool available = false;
  std::string reason;               // why not
  bool registered_buffers = false;  // within RLIMIT_MEMLOCK
};

struct FileSystemFacts {
  std::string type;  // "ext4"
  std::string mount_point;
  std::string source;
  std::vector<std::string> options;  // of the mount and of the file system, each once
  bool direct_io = false;            // and what it asks of memory and of offsets in files
  uint64_t memory_alignment_bytes = 1;
  uint64_t offset_alignment_bytes = 1;
  uint32_t block_bytes = 0;
  bool punch_hole = false;
  bool locks = false;  // open-file-description locks
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;  // for this user
};

// None: unlimited.
struct LimitFacts {
  std::optional<uint64_t> memlock_bytes;
  std::optional<uint64_t> file_bytes;
  std::optional<uint64_t> address_space_bytes;
  std::optional<uint64_t> open_files;
};

struct MachineFacts {
  std::string kernel;  // "Linux 6.1.0 x86_64"
  uint64_t cores = 0;  // that this process may use
  uint64_t memory_bytes = 0;
  uint64_t memory_available_bytes = 0;
  std::optional<uint64_t> cgroup_memory_bytes;  // none: unlimited
  UringFacts uring;
  LimitFacts limits;
};

struct DoctorWarning {
  std::string code;  // stable, for programs
  std::string message;
};

struct DoctorReport {
  MachineFacts machine;
  FileSystemFacts file_system;
  std::vector<DoctorWarning> warnings;  // the worst first
};

// Looks at the machine and at the file system of `directory`, in which nothing stays. kNotFound,
// kPermissionDenied; kInvalidArgument: no directory.
STEPWELL_API Result<DoctorReport> ExamineMachine(const std::string& directory);

}  // namespace stepwell
